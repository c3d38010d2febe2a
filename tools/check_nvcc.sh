#!/bin/sh
# The plug-in for GPUs as nvcc built it, without a GPU. Prints TAP; tests/run.lua counts it, tools/check.sh builds first.
#
#   tools/check_nvcc.sh [build [capabilities]]    those of build/cuda/CAPABILITIES/: 80-90, or 90 for what `make test` has
#
# Every kernel is there for each compute capability and spills no register (*.ptxas is what the assembler said); the
# library needs no CUDA library to be opened, exports one symbol, and says what is missing; cuBLASLt, where it is
# installed, has the functions that are called; without the CUDA folder everything else still works.
set -eu
build=${1:-build}
capabilities=${2:-80-90}
dir=$build/cuda/$capabilities
lib=$dir/libneap-cuda.so
n=0
ok() { n=$((n + 1)); echo "ok $n - $*"; }
failed() { n=$((n + 1)); echo "not ok $n - $*"; exit 1; }

if ! command -v nvcc >/dev/null; then
    echo "1..1"
    ok "the plug-in for GPUs # SKIP there is no nvcc here: nothing of CUDA was compiled"
    exit 0
fi
if [ ! -e "$lib" ]; then
    echo "1..1"
    ok "the plug-in for GPUs # SKIP it is not built: make $lib"
    exit 0
fi
echo "1..6"

targets=$(echo "$capabilities" | sed 's/-/ /g; s/[0-9][0-9]*/sm_&/g')
for target in $targets; do
    for src in core/cuda/*.cu; do
        log=$dir/$(basename "$src" .cu).ptxas
        grep -q __global__ "$src" || continue
        grep -q "entry function .* for '$target'" "$log" || failed "$src: nothing for $target in $log"
    done
done
kernels=$(cat "$dir"/*.ptxas | grep -c "entry function .* for '${targets##* }'")
ok "$kernels kernels for" $targets

spills=$(awk '/Function properties for|entry function/ { name = $0 }
    / bytes spill stores/ && !/ 0 bytes spill stores, 0 bytes spill loads/ { print FILENAME ": " name ":" $0 }' "$dir"/*.ptxas)
[ -z "$spills" ] || { echo "$spills"; failed "$(echo "$spills" | wc -l) functions spill registers"; }
ok "none spills a register"

needed=$(readelf -d "$lib" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
[ -n "$needed" ] || failed "$lib: readelf names no library at all"
for lib_needed in $needed; do
    case $lib_needed in libc.so.* | libstdc++.so.* | libgcc_s.so.* | ld-linux*) ;; *) failed "$lib needs $lib_needed" ;; esac
done
exported=$(nm -D --defined-only "$lib" | awk '{ print $3 }')
[ "$exported" = neap_plugin ] || failed "$lib exports:" $exported
ok "exports neap_plugin alone; needs" $needed

# What the library says of this machine; the CPU works all the same, and a device that is not there is refused.
says='local neap, cuda = require "neap", require "neap.cuda"
assert(neap.ones(2, 3):sum():item() == 6)
local status = cuda.status()
local made, why = pcall(neap.zeros, 1, { device = "cuda" })
assert(made == (status == "ok"), why)
assert(made or neap.error_code(why) == "E-DEVICE" and why:find(status, 1, true), why)
print(status)'
right() { [ "$1" = "no driver is installed" ] || [ -e /dev/nvidiactl ]; }
said=$(NEAP_CUDA_PLUGIN=$lib "$build/neap" -e "$says") || failed "without a driver it fails"
right "$said" || failed "without a driver, status is: $said"
ok "it is opened and says: $said"

cuda=$(dirname "$(dirname "$(readlink -f "$(command -v nvcc)")")")
if [ -e "$cuda/lib64/libcublasLt.so.13" ]; then
    has=$(nm -D --defined-only "$cuda/lib64/libcublasLt.so.13" | awk '{ sub(/@.*/, "", $3); print $3 }')
    names=$(sed -n 's/^ *F(\(cublasLt[A-Za-z]*\)).*/\1/p' core/cuda/blaslt.cu)
    for f in $names; do
        echo "$has" | grep -qx "$f" || failed "libcublasLt has no $f"
    done
    ok "cuBLASLt has all $(echo "$names" | wc -l) functions that are called"
else
    ok "cuBLASLt # SKIP it is not beside nvcc"
fi

# An empty folder over CUDA's, in a mount namespace of its own: for this needs root, or a kernel that lets others do it.
hide='mount -t tmpfs tmpfs "$1" && [ -z "$(ls "$1")" ] || exit 9; shift; exec "$@"'
if unshare -m sh -c "$hide" sh "$cuda" true 2>/dev/null; then
    said=$(NEAP_CUDA_PLUGIN=$lib unshare -m sh -c "$hide" sh "$cuda" "$build/neap" -e "$says") ||
        failed "without the CUDA folder it fails"
    right "$said" || failed "without the CUDA folder, status is: $said"
    ok "without the CUDA folder the rest works, and it says: $said"
else
    ok "without the CUDA folder # SKIP mount namespaces are not permitted here"
fi
