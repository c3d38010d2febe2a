#!/bin/sh
# Gates on the instructions that a tiny op costs: callgrind counts are the same on every run, times are not.
# usage: tools/callgrind.sh [BUILD]
set -eu
build=${1:-build}
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

count() { # mode n -> instructions of the whole run
    NEAP_BLAS=none valgrind --tool=callgrind --callgrind-out-file="$out/cg" "$build/bench/tiny" "$1" "$2" 2>&1 |
        sed -n 's/.*Collected : \([0-9]*\).*/\1/p'
}

failed=0
gate() { # mode limit what
    low=$(count "$1" 1600)
    high=$(count "$1" 17600)
    per=$(((high - low) / 16000))
    verdict=ok
    if [ "$per" -gt "$2" ]; then verdict="TOO MANY" failed=1; fi
    printf '%-34s %5d instructions (at most %d)  %s\n' "$3" "$per" "$2" "$verdict"
}

gate plain 400 "tiny add"
gate record 600 "tiny add, recorded"
gate train 2200 "tiny product, forward and backward"
exit $failed
