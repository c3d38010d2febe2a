#!/bin/sh
# The plug-in for GPUs as nvcc builds it, without a GPU: every kernel compiles for compute capability 8.0 and 9.0 and
# spills no register (build/cuda/*.ptxas is what the assembler said); the library needs no CUDA library to be opened,
# exports one symbol, and says what is missing; cuBLASLt, where it is installed, has the functions that are called.
#
#   tools/check_nvcc.sh [build]     skipped, with a message, where there is no nvcc
set -eu
build=${1:-build}
if ! command -v nvcc >/dev/null; then
    echo "skipped: there is no nvcc"
    exit 0
fi
make "-j$(nproc)" BUILD="$build" build "$build/libneap-cuda.so"

for target in sm_80 sm_90; do
    for src in core/cuda/*.cu; do
        log=$build/cuda/$(basename "$src" .cu).ptxas
        grep -q __global__ "$src" || continue
        grep -q "entry function .* for '$target'" "$log" || { echo "$src: nothing for $target in $log"; exit 1; }
    done
done
spills=$(awk '/Function properties for|entry function/ { name = $0 }
    / bytes spill stores/ && !/ 0 bytes spill stores, 0 bytes spill loads/ { print FILENAME ": " name ":" $0 }' \
    "$build"/cuda/*.ptxas)
[ -z "$spills" ] || { echo "$spills"; echo "$(echo "$spills" | wc -l) functions spill registers"; exit 1; }
kernels=$(cat "$build"/cuda/*.ptxas | grep -c "entry function .* for 'sm_90'")

lib=$build/libneap-cuda.so
needed=$(readelf -d "$lib" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
[ -n "$needed" ] || { echo "$lib: readelf names no library at all"; exit 1; }
for n in $needed; do
    case $n in libc.so.* | libstdc++.so.* | libgcc_s.so.* | ld-linux*) ;; *) echo "$lib needs $n"; exit 1 ;; esac
done
exported=$(nm -D --defined-only "$lib" | awk '{ print $3 }')
[ "$exported" = neap_plugin ] || { echo "$lib exports:" $exported; exit 1; }

said=$(NEAP_CUDA_PLUGIN=$lib "$build/neap" -e 'print(require("neap.cuda").status())')
case $said in
"no driver is installed") ;;
*) [ -e /dev/nvidiactl ] || { echo "without a driver, status is: $said"; exit 1; } ;;
esac

blaslt=$(dirname "$(dirname "$(readlink -f "$(command -v nvcc)")")")/lib64/libcublasLt.so.13
called="and libcublasLt is not installed"
if [ -e "$blaslt" ]; then
    has=$(nm -D --defined-only "$blaslt" | awk '{ sub(/@.*/, "", $3); print $3 }')
    names=$(sed -n 's/^ *F(\(cublasLt[A-Za-z]*\)).*/\1/p' core/cuda/blaslt.cu)
    for f in $names; do
        echo "$has" | grep -qx "$f" || { echo "$blaslt has no $f"; exit 1; }
    done
    called="cuBLASLt has all $(echo "$names" | wc -l) functions"
fi
echo "$kernels kernels for sm_80 and sm_90, no spill; needs" $needed"; \"$said\"; $called"
