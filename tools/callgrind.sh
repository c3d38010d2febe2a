#!/bin/sh
# Gates on counted instructions: callgrind counts are the same on every run, times are not.
# usage: tools/callgrind.sh [BUILD]
set -eu
build=${1:-build}
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

count() { # program ... -> instructions of the whole run; a program that fails counts nothing
    NEAP_BLAS=none valgrind --tool=callgrind --callgrind-out-file="$out/cg" "$@" >"$out/log" 2>&1 || {
        echo "$0: failed: $*" >&2
        cat "$out/log" >&2
        return 1
    }
    n=$(sed -n 's/.*Collected : \([0-9]*\).*/\1/p' "$out/log")
    [ -n "$n" ] || {
        echo "$0: no count of: $*" >&2
        return 1
    }
    echo "$n"
}

failed=0
gate() { # mode limit what
    low=$(count "$build/bench/tiny" "$1" 1600)
    high=$(count "$build/bench/tiny" "$1" 17600)
    per=$(((high - low) / 16000))
    verdict=ok
    if [ "$per" -gt "$2" ]; then verdict="TOO MANY" failed=1; fi
    printf '%-34s %5d instructions (at most %d)  %s\n' "$3" "$per" "$2" "$verdict"
}

rounds() { # mode width -> instructions of 8 rounds
    low=$(count "$build/bench/recompute" "$1" "$2" 2)
    high=$(count "$build/bench/recompute" "$1" "$2" 10)
    echo $((high - low))
}

ratio_gate() { # width limit (in thousandths) what: a region's backward against plain backward + one more forward
    plain=$(rounds plain "$1")
    held=$(rounds held "$1")
    region=$(rounds region "$1")
    per=$(((region - held) * 1000 / plain))
    verdict=ok
    if [ "$per" -gt "$2" ]; then verdict="TOO MUCH" failed=1; fi
    printf '%-34s %5d thousandths  (at most %d)  %s\n' "$3" "$per" "$2" "$verdict"
}

calls() { # n -> instructions of n empty checkpoints from Lua
    LUA_PATH="$build/lua/?.lua;$build/lua/?/init.lua;;" LUA_CPATH="$build/lua/?.so;;" \
        count "${LUA:-lua5.4}" bench/empty_checkpoint.lua "$1"
}

call_gate() { # limit what
    low=$(calls 2000)
    high=$(calls 12000)
    per=$(((high - low) / 10000))
    verdict=ok
    if [ "$per" -gt "$1" ]; then verdict="TOO MANY" failed=1; fi
    printf '%-34s %5d instructions (at most %d)  %s\n' "$2" "$per" "$1" "$verdict"
}

gate plain 400 "tiny add"
gate record 600 "tiny add, recorded"
gate region 800 "the same inside a checkpoint"
gate train 2200 "tiny product, forward and backward"
ratio_gate 128 1030 "a region's backward, width 128"
call_gate 12700 "an empty checkpoint, from Lua"
exit $failed
