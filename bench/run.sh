#!/bin/sh
# Every measurement, as tables: ratios against peers in the same run, counts and sizes. Nothing passes or fails.
# usage: bench/run.sh BUILD      NEAP_TORCH_PYTHON: a Python with PyTorch, for the comparison with it
set -eu
build=${1:-build}

section() { printf '\n== %s\n' "$1"; }

section 'beside PyTorch (above 1.00: Neap is faster, or smaller)'
"$build/neap" bench/compare.lua
section 'products beside OpenBLAS (below 1.00: Neap is faster)'
"$build/bench/gemm"
section 'memory-bound ops (1.00: as fast as memcpy)'
"$build/bench/pointwise"
section 'every op on its large sample'
"$build/bench/ops"
section 'a checkpointed block (its backward: 1.00 is plain backward and one more forward)'
"$build/bench/recompute"
section 'size'
stripped=$(mktemp)
trap 'rm -f "$stripped"' EXIT
strip -o "$stripped" "$build/libneap.so"
printf 'libneap.so, stripped           %d kB\n' $(($(stat -c %s "$stripped") / 1024))
