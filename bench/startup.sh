#!/bin/sh
# Start of the program (best of 20), its resident memory, and the size of the library without symbols.
# usage: bench/startup.sh BUILD
set -eu
build=${1:-build}

best=
for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
    start=$(date +%s%N)
    "$build/neap" -e 'print(1)' >/dev/null
    took=$(($(date +%s%N) - start))
    if [ -z "$best" ] || [ "$took" -lt "$best" ]; then best=$took; fi
done
resident=$("$build/neap" -e 'for l in io.lines("/proc/self/status") do local k = l:match("VmHWM:%s*(%d+)") if k then print(k) end end')
stripped=$(mktemp)
trap 'rm -f "$stripped"' EXIT
strip -o "$stripped" "$build/libneap.so"
printf "start of neap -e 'print(1)'   %d.%d ms, %s kB resident\n" $((best / 1000000)) $((best / 100000 % 10)) "$resident"
printf 'libneap.so, stripped           %d kB\n' $(($(stat -c %s "$stripped") / 1024))
