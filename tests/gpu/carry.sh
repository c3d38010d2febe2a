#!/bin/sh
# Packs what tests/gpu/run.sh needs into build/carry, for a machine with a GPU that has neither Lua nor our libraries:
# the program, the plug-in, lua5.4 with busted, the shared libraries of them, and a few images.
#
#   tests/gpu/carry.sh [capabilities: 80-90, the default, or 90]
#
# C's own libraries are not packed: that machine's must not be older than these. The Lua files are those of the tree, to
# which build/carry/lua/neap is a link.
set -eu
cd "$(dirname "$0")/../.."
capabilities=${1:-80-90}
to=build/carry
images=2000
plugin=build/cuda/$capabilities/libneap-cuda.so
selftests=build/cudaemu/plain/selftest
of_nvcc="$plugin build/cudaemu/nvcc/selftest"
make "-j$(nproc)" all-tests $selftests $(command -v nvcc >/dev/null && echo "$of_nvcc")
rm -rf $to
mkdir -p $to/bin $to/lib $to/share $to/lua $to/tests $to/data

cp build/neap build/libneap.so build/libneap-lua.so build/libneap-cudaemu.so $to/
[ ! -e "$plugin" ] || cp "$plugin" $to/libneap-cuda.so
cp build/lua/neapcore.so $to/lua/
for f in $selftests build/cudaemu/nvcc/selftest; do
    [ ! -e $f ] || install -D $f $to/${f#build/}
done
cp build/tests/force_gc.so build/tests/test_device_faults $to/tests/
ln -s ../../../lua $to/lua/neap
cp "$(command -v lua5.4)" "$(command -v busted)" $to/bin/

# Where this Lua finds busted is where all that it needs lies.
found=$(lua5.4 -e 'print(package.searchpath("busted", package.path))')
cp -rL "$(dirname "${found%/init.lua}")"/. $to/share/
found=$(lua5.4 -e 'print(package.searchpath("system.core", package.cpath))')
cp -rL "$(dirname "$(dirname "$found")")"/. $to/share/

for f in $to/neap $to/libneap*.so $to/bin/lua5.4 $(find $to/share -name '*.so'); do
    ldd "$f" | awk '$3 ~ "^/" { print $3 }'
done | sort -u | while read -r lib; do
    case ${lib##*/} in
    libneap* | libc.so.* | libm.so.* | libdl.so.* | libpthread.so.* | librt.so.* | libstdc++.so.* | libgcc_s.so.*) ;;
    *) cp -L "$lib" $to/lib/ ;;
    esac
done
strip -g $to/libneap*.so $to/neap $to/tests/* 2>/dev/null || true

# The images to test with, and the first of those to train on, as an IDX file: a magic number, how many, 28 rows of 28.
from=${NEAP_DATA:-/usr/share/datasets/fashion-mnist}
cp "$from"/t10k-*.gz $to/data/
hex() { printf "\\$(printf '%03o' $(($1 / 256)))\\$(printf '%03o' $(($1 % 256)))"; }
{ printf '\0\0\010\003\0\0'; hex $images; printf '\0\0\0\034\0\0\0\034'
    gzip -dc "$from/train-images-idx3-ubyte.gz" | tail -c +17 | head -c $((images * 784)); } >$to/data/train-images-idx3-ubyte
{ printf '\0\0\010\001\0\0'; hex $images
    gzip -dc "$from/train-labels-idx1-ubyte.gz" | tail -c +9 | head -c $images; } >$to/data/train-labels-idx1-ubyte

echo "made on $(date -u '+%Y-%m-%d'), commit $(git rev-parse --short HEAD), for $capabilities" >$to/about
du -sh $to
