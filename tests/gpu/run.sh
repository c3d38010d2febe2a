#!/bin/sh
# Everything that only a GPU can show, in four minutes at most: the selftest of what kernels are written in, the Lua
# suite, compute-sanitizer over the tests of kernels, the demo, and a table of rates beside PyTorch's. One report.
#
#   tests/gpu/run.sh [report, default build/gpu-report.txt]
#
# Ends with 0: all passed; 1: something failed; 77: there is no GPU. What did not end in its time is said, and is no
# failure. What tests/gpu/carry.sh has packed in build/carry is used if it is there; otherwise everything is built
# here, for compute capabilities 8.0 and 9.0. NEAP_GPU_CARRIED: another folder, or empty to build. NEAP_TORCH_PYTHON: a
# Python with PyTorch (python3). NEAP_GPU_SECONDS: the limit (240).
#
# NEAP_GPU_DEVICE=cudaemu rehearses all of it on the emulated device, with a few specs (NEAP_TEST_SPECS) and tiny sizes.
# The report says so: it shows that this script works, and nothing about a GPU.
set -u
cd "$(dirname "$0")/../.." || exit 1
started=$(date +%s)
limit=${NEAP_GPU_SECONDS:-240}
device=${NEAP_GPU_DEVICE:-cuda}
report=${1:-build/gpu-report.txt}
failures=""

seconds_left() { echo $((started + limit - $(date +%s))); }
say() { echo "$*" | tee -a "$report"; }
section() { say ""; say "== $*"; }
# The status of a part: 124 is `timeout`'s.
judge() { # part status
    case $2 in
    0) say "-- $1: passed" ;;
    124 | 137) say "-- $1: not ended in its time; what it had said by then is above" ;;
    *) say "-- $1: FAILED (status $2)"; failures="$failures $1" ;;
    esac
}
# Runs a command for so many seconds at most, and never into the last few of the limit.
timed() { # seconds command ...
    most=$1
    shift
    left=$(($(seconds_left) - 5))
    [ "$most" -lt "$left" ] || most=$left
    [ "$most" -gt 0 ] || return 124
    status=0
    { timeout -k 5 "$most" "$@" 2>&1 </dev/null || echo "$?" >"$work/status"; } | tee -a "$report"
    [ -e "$work/status" ] && status=$(cat "$work/status") && rm "$work/status"
    return "$status"
}

if [ "$device" = cuda ] && ! nvidia-smi -L >/dev/null 2>&1 && [ ! -e /dev/nvidiactl ]; then
    echo "tests/gpu/run.sh: there is no GPU here (nvidia-smi lists none): nothing was run"
    exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$(dirname "$report")"
: >"$report"

# ---- what this is

[ "$device" = cuda ] || say "EMULATED: $device stands in for a GPU. This shows that the script works, and nothing else."
section "machine"
say "date: $(date -u '+%Y-%m-%d %H:%M UTC'), commit: $(git rev-parse --short HEAD 2>/dev/null || echo unknown)"
say "$(uname -sr), $(nproc) processors"
[ "$device" != cuda ] || say "$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>&1)"
say "nvcc: $(nvcc --version 2>/dev/null | sed -n 's/.*release //p' || true)"

# ---- what is run

[ "$device" = cuda ] && selftest=cudaemu/nvcc/selftest || selftest=cudaemu/plain/selftest
carried=${NEAP_GPU_CARRIED-build/carry}
if [ -n "$carried" ] && [ -d "$carried" ]; then
    build=$carried
    export PATH="$PWD/$build/bin:$PATH" LD_LIBRARY_PATH="$PWD/$build/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
    export NEAP_TEST_LUA="$PWD/$build/share/?.lua;$PWD/$build/share/?/init.lua" NEAP_TEST_CLUA="$PWD/$build/share/?.so"
    export NEAP_DATA="$PWD/$build/data"
    say "carried: $(cat $build/about)"
else
    build=build
    section "build"
    [ "$device" = cuda ] && goals="" || goals=build/tests/test_device_faults
    if ! command -v lua5.4 >/dev/null || ! command -v busted >/dev/null; then
        say "FAILED: here is neither build/carry, which tests/gpu/carry.sh makes elsewhere, nor lua5.4 with busted"
        exit 1
    fi
    timed "$limit" make "-j$(nproc)" build "build/libneap-$device.so" build/tests/force_gc.so \
        "build/$selftest" $goals
    judge build $?
    [ -z "$failures" ] || exit 1
fi
# cuBLASLt may lie where only PyTorch finds it.
if [ "$device" = cuda ] && [ -z "${NEAP_CUBLAS:-}" ] && ! ldconfig -p | grep -q libcublasLt.so.13; then
    for f in "$(dirname "$(readlink -f "$(command -v nvcc || echo /)")")"/../lib64/libcublasLt.so.13 \
        $("${NEAP_TORCH_PYTHON:-python3}" -c 'import glob, site
for d in site.getsitepackages(): print(*glob.glob(d + "/nvidia/*/lib/libcublasLt.so.13"))' 2>/dev/null); do
        [ ! -e "$f" ] || { NEAP_CUBLAS=$f; export NEAP_CUBLAS; break; }
    done
fi
status=$("$build/neap" -e "local neap = require 'neap'; local n, why = neap.plugin_devices '$device'
    print(n > 0 and 'ok' or why)" 2>&1)
say "device $device: $status${NEAP_CUBLAS:+, cuBLASLt in $NEAP_CUBLAS}"
if [ "$status" != ok ]; then
    say "FAILED: there is a GPU, and it cannot be used"
    exit 1
fi

# ---- the suite

section "selftest on $device: launches, shuffles, atomics, streams, events, memory"
timed $((limit / 12)) "$build/$selftest"
judge selftest $?

section "the Lua suite on $device"
[ "$device" = cuda ] || : "${NEAP_TEST_SPECS=pick cudaemu_rows cudaemu_masks}"
export NEAP_TEST_SPECS="${NEAP_TEST_SPECS:-}"
# More than 2^31 elements, which the emulated device is too slow for.
[ "$device" != cuda ] || [ "$(awk '/^MemAvailable/ { print int($2 / 1048576) }' /proc/meminfo)" -lt 16 ] ||
    export NEAP_TEST_LARGE="${NEAP_TEST_LARGE-1}"
NEAP_TEST_DEVICE=$device NEAP_TEST_STEPS=${NEAP_TEST_STEPS:-20} \
    timed $((limit * 11 / 24)) lua5.4 tests/run.lua $build
judge suite $?

# ---- compute-sanitizer: accesses outside, races in shared memory, barriers not all threads reach

section "compute-sanitizer over the tests of kernels"
if command -v compute-sanitizer >/dev/null; then
    export NEAP_TEST_DEVICE=$device
    [ "$device" = cuda ] && specs="selftest rows order places masks" || specs="selftest masks"
    for tool in memcheck racecheck synccheck; do
        for spec in $specs; do echo "$tool $spec"; done
    done >"$work/list"
    # Side by side, each for itself: a line with its status, then what it said.
    cat >"$work/one" <<'EOF'
lua="${NEAP_TEST_LUA:+$NEAP_TEST_LUA;}$BUILD/lua/?.lua;$BUILD/lua/?/init.lua;./?.lua;;"
export LUA_PATH="$lua" LUA_CPATH="${NEAP_TEST_CLUA:+$NEAP_TEST_CLUA;}$BUILD/lua/?.so;;"
tool=$1 what=$2
case $what in
selftest) set -- "$BUILD/$SELFTEST" ;;
*) set -- lua5.4 "$(command -v busted)" -o tests/output.lua --no-auto-insulate "tests/lua/cudaemu_${what}_spec.lua" ;;
esac
# The tests make calls that are refused, to see that they are.
[ "$tool" != memcheck ] || set -- --report-api-errors no "$@"
timeout -k 5 "$SECONDS_EACH" compute-sanitizer --tool "$tool" --error-exitcode 99 "$@" \
    >"$WORK/$tool-$what" 2>&1 </dev/null
echo "$? $tool $what" >>"$WORK/results"
EOF
    each=$(($(seconds_left) - limit / 4)) # which the demo and the table need
    [ $each -lt $((limit / 4)) ] || each=$((limit / 4))
    [ $each -gt 0 ] || each=1
    BUILD=$build SELFTEST=$selftest WORK=$work SECONDS_EACH=$each timed $((each + 10)) xargs -a "$work/list" -P "$(nproc)" -L 1 sh "$work/one" \
        >/dev/null
    touch "$work/results"
    while read -r tool spec; do
        code=$(sed -n "s/ $tool $spec\$//p" "$work/results")
        case $code in
        0) say "$tool of $spec: $(grep -h 'ERROR SUMMARY' "$work/$tool-$spec" | tail -1)" ;;
        '' | 124 | 137) say "$tool of $spec: not ended in its time" ;;
        *) say "$tool of $spec: status $code"; tail -30 "$work/$tool-$spec" | tee -a "$report" ;;
        esac
    done <"$work/list"
    status=0
    [ "$(grep -c '^0 ' "$work/results")" -eq "$(grep -c . "$work/list")" ] || status=124
    ! grep -qvE '^(0|124|137) ' "$work/results" || status=1
    judge sanitizer $status
    unset NEAP_TEST_DEVICE
else
    say "-- sanitizer: skipped, there is no compute-sanitizer"
fi

# ---- the demo, and the table

section "beside the CPU, and ways of checkpointing"
timed $((limit / 8)) "$build/neap" examples/on_device.lua "$device"
judge demo $?

section "rates"
NEAP_DEVICE=$device timed $((limit / 4)) "$build/neap" bench/gpu.lua
judge rates $?

say ""
if [ -n "$failures" ]; then
    say "FAILED:$failures, in $(($(date +%s) - started)) s"
    exit 1
fi
say "passed, in $(($(date +%s) - started)) s"
