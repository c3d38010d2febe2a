#!/bin/sh
# Every measurement, as one table: ratios against peers in the same run, counts and sizes. Nothing passes or fails.
# usage: bench/run.sh BUILD      NEAP_TORCH_PYTHON: a Python with PyTorch, for the comparison of whole epochs
set -eu
build=${1:-build}
export LUA_PATH="$build/lua/?.lua;$build/lua/?/init.lua;;" LUA_CPATH="$build/lua/?.so;;"

section() { printf '\n== %s\n' "$1"; }

section 'products (below 1.00: Neap is faster)'
"$build/bench/gemm"
section 'memory-bound ops (1.00: as fast as memcpy)'
"$build/bench/pointwise"
section 'every op on its large sample'
"$build/bench/ops"
section 'tiny ops from Lua'
lua5.4 bench/overhead.lua
section 'a checkpointed block (its backward: 1.00 is plain backward and one more forward)'
"$build/bench/recompute"
section 'one epoch of a 784-256-256-10 network'
ours=$(lua5.4 bench/mlp.lua | tail -n 1)
python=${NEAP_TORCH_PYTHON:-python3}
if theirs=$("$python" bench/mlp_torch.py 2>/dev/null | tail -n 1) && [ -n "$theirs" ]; then
    lua5.4 -e "print(('Neap / PyTorch time %.2f'):format($ours / $theirs))"
else
    echo 'PyTorch is not here (NEAP_TORCH_PYTHON names a Python that has it): no ratio'
fi
section 'start and size'
sh bench/startup.sh "$build"
