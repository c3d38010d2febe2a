#!/bin/sh
# Runs the C tests of the kernels at the AVX-512 level on a machine without AVX-512: in Bochs, which emulates a whole
# Skylake-X PC; on it a Debian kernel and, as its only files, the test programs. Slow: half an hour and more, so not
# a part of `make test`. Usage, after `make all-tests`: [NEAP_TEST_OP=name] tools/emulate_avx512.sh [build]
# Skips, with exit status 0, where the packages or a kernel are missing. KERNEL=file names a kernel (bzImage).
set -eu

build=${1:-build}
kernel=${KERNEL:-$(ls /boot/vmlinuz-* 2>/dev/null | sort -V | tail -n 1)}
isolinux=/usr/lib/ISOLINUX/isolinux.bin
loader=/usr/lib/syslinux/modules/bios/ldlinux.c32

for need in "$(command -v bochs)" "$(command -v xorriso)" "$(command -v cpio)" "$kernel" "$isolinux" "$loader" \
    /usr/share/bochs/BIOS-bochs-latest /usr/share/vgabios/vgabios.bin; do
    [ -e "$need" ] && continue
    echo "skipped: needs bochs bochsbios vgabios busybox-static cpio isolinux syslinux-common xorriso" \
        "linux-image-cloud-amd64 (Debian's names)"
    exit 0
done
busybox=$(command -v busybox)

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkdir -p "$dir/initrd/bin" "$dir/initrd/proc" "$dir/initrd/dev" "$dir/initrd/tmp" "$dir/iso"
cp "$busybox" "$dir/initrd/bin/busybox"
for name in sh mount grep tail poweroff; do ln -s busybox "$dir/initrd/bin/$name"; done
for name in test_base_status test_ops test_ops_grad test_products; do
    strip -o "$dir/initrd/$name" "$build/tests/$name"
    ldd "$build/tests/$name" | grep -o '/[^ ]*' | while read -r lib; do
        mkdir -p "$dir/initrd${lib%/*}"
        cp -Lu "$lib" "$dir/initrd$lib"
    done
done

# No OpenBLAS is there, so products use our own kernel. NEAP_TEST_STEPS leaves out what is long but nothing new.
{
    echo '#!/bin/sh'
    echo "${NEAP_TEST_OP:+export NEAP_TEST_OP=$NEAP_TEST_OP}"
    cat <<'END'
export PATH=/bin NEAP_ISA=avx512
mount -t proc proc /proc
mount -t devtmpfs dev /dev
mount -t tmpfs tmp /tmp
exec >/dev/ttyS0 2>&1
grep -q avx512vl /proc/cpuinfo || echo "FAILED: this kernel does not offer AVX-512"
run() { echo "== $*"; NEAP_TEST_STEPS=$1 "/$2" 2>&1 | grep -v -e ' RUN ' -e '  OK '; }
run 1 test_base_status
run 1 test_ops
run 1 test_ops_grad
[ -n "${NEAP_TEST_OP:-}" ] || run 40 test_products
echo "== done"
poweroff -f
END
} >"$dir/initrd/init"
chmod +x "$dir/initrd/init"
(cd "$dir/initrd" && find . | cpio -o -H newc --quiet) >"$dir/iso/initrd"
cp "$kernel" "$dir/iso/vmlinuz"
cp "$isolinux" "$loader" "$dir/iso/"
# clearcpuid: Bochs reports another size of the compacted state than the kernel computes, which would then switch
# AVX off. tsc_early_khz: the emulated clock (ips below), not the 3.5 GHz that the CPU model claims.
cat >"$dir/iso/isolinux.cfg" <<'END'
DEFAULT linux
PROMPT 0
LABEL linux
  KERNEL vmlinuz
  INITRD initrd
  APPEND console=ttyS0,115200 rdinit=/init quiet mitigations=off clearcpuid=xsavec,xsaves tsc_early_khz=50000
END
xorriso -as mkisofs -quiet -o "$dir/boot.iso" -b isolinux.bin -c boot.cat -no-emul-boot -boot-load-size 4 \
    -boot-info-table "$dir/iso" 2>"$dir/xorriso.log" || { cat "$dir/xorriso.log" >&2; exit 1; }
cat >"$dir/bochsrc" <<END
display_library: rfb, options="timeout=0"
cpu: model=corei7_skylake_x, ips=50000000
clock: sync=none
megs: 1024
romimage: file=/usr/share/bochs/BIOS-bochs-latest
vgaromimage: file=/usr/share/vgabios/vgabios.bin
ata0-master: type=cdrom, path=$dir/boot.iso, status=inserted
boot: cdrom
com1: enabled=1, mode=file, dev=$dir/serial
log: $dir/log
panic: action=fatal
sound: driver=dummy
END
echo continue >"$dir/commands" # for Bochs's debugger, which Debian's build starts in
nice -n 15 bochs -q -f "$dir/bochsrc" -rc "$dir/commands" </dev/null >"$dir/out" 2>&1 || true
tr -d '\r' <"$dir/serial" | sed -n '/^== [0-9]/,/^== done/p' | tee "$dir/result"
# A program that died has no line that tells what passed.
grep -q '^== done' "$dir/result" && ! grep -q FAILED "$dir/serial" &&
    [ "$(grep -c '^== [0-9]' "$dir/result")" -eq "$(grep -c PASSED "$dir/result")" ]
