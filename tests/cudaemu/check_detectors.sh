#!/bin/sh
# Shows that the emulator's detectors see: every planted mistake of selftest.cu is reported by the detector named here,
# and the right kernels are found right by all of them.
#
#   tests/cudaemu/check_detectors.sh BUILD       normally by: make check-cudaemu-detectors
#
# BUILD holds selftest as plain/ asan/ (g++, with UBSan) tsan/ (clang++) ucontext/, and nvcc/ where there is nvcc. The
# last line is "N passed, N failed".
set -u
build=$1
log=$build/check.log
passed=0
failed=0
export UBSAN_OPTIONS=halt_on_error=1 TSAN_OPTIONS=halt_on_error=1:exitcode=66

verdict() { # ok? name
    if [ "$1" = yes ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "not ok $2"
        tail -5 "$log" | sed 's/^/    /'
    fi
}

run() { # variant case setting ...
    program=$build/$1/selftest
    only=$2
    shift 2
    # By a shell of its own, which says into the log that a program was aborted.
    sh -c '"$@"; exit $?' sh timeout 300 env "$@" "$program" $only >"$log" 2>&1
}

# The detectors by name: how they run, and what they say. A random one has three tries, with seeds of its own.
found_by() { # detector case
    detector=$1
    for seed in 1 2 3; do
        case $detector in
        forward | reverse | random) run plain "$2" NEAP_EMU_ORDER=$detector NEAP_EMU_SEED=$seed ;;
        lazy) run plain "$2" NEAP_EMU_ORDER=random NEAP_EMU_LAZY=1 NEAP_EMU_SEED=$seed ;;
        asan) run asan "$2" NEAP_EMU_SEED=$seed ;;
        tsan) run tsan "$2" NEAP_EMU_SEED=$seed ;;
        tsan-random) run tsan "$2" NEAP_EMU_ORDER=random NEAP_EMU_SEED=$seed ;;
        esac
        status=$?
        case $detector in
        tsan*) grep -q 'ThreadSanitizer: data race' "$log" && return 0 ;;
        asan) grep -qE "AddressSanitizer: |runtime error: " "$log" && return 0 ;;
        *) [ $status = 1 ] && grep -q '^wrong result' "$log" && return 0 ;;
        esac
        case $detector in forward | reverse | asan) return 1 ;; esac
    done
    return 1
}

mistake() { # case detector ...: every one of them finds it
    name=$1
    shift
    for detector in "$@"; do
        if found_by "$detector" "$name"; then verdict yes; else verdict no "$name is not found by $detector"; fi
    done
}

misuse() { # case kind words [variant]: the emulator itself reports it, in any order
    for order in forward reverse random; do
        run "${4:-plain}" "$1" NEAP_EMU_ORDER=$order NEAP_EMU_GUARD=1 NEAP_EMU_DEVICES=2
        if grep -F "cudaemu: [$2]" "$log" | grep -qE "$3"; then verdict yes; else verdict no "$1: no [$2] ($order)"; fi
    done
}

overlooked() { # case detector: said here so that the table stays true
    if found_by "$2" "$1"; then verdict no "$1 is found by $2 after all: say so"; else verdict yes; fi
}

right() { # variant setting ...: all right kernels are right, and nobody complains
    variant=$1
    shift
    run "$variant" "" "$@"
    status=$?
    clean "the right kernels, $variant $*"
}
clean() { # what: it said nothing
    if [ $status = 0 ] && ! grep -qE 'cudaemu: |Sanitizer|runtime error' "$log"; then verdict yes
    else verdict no "$1: status $status"; fi
}

line='selftest_kernels\.h:[0-9]+: '

for order in forward reverse random; do
    for variant in plain ucontext asan tsan; do right $variant NEAP_EMU_ORDER=$order; done
    right plain NEAP_EMU_ORDER=$order NEAP_EMU_GUARD=1
done
for seed in 1 2 3 4 5 6; do right plain NEAP_EMU_ORDER=random NEAP_EMU_LAZY=1 NEAP_EMU_SEED=$seed; done
right asan NEAP_EMU_LAZY=1
right tsan NEAP_EMU_LAZY=1 NEAP_EMU_ORDER=random
right plain NEAP_EMU_DEVICES=2 NEAP_EMU_GUARD=1
right asan NEAP_EMU_DEVICES=2 NEAP_EMU_LAZY=1
for variant in plain asan; do
    NEAP_EMU_GUARD=1 NEAP_EMU_LAZY=1 "$build/$variant/selftest_blas" >"$log" 2>&1
    status=$?
    clean "products, $variant"
done

# A barrier that is missing after a write, or before the next one.
mistake bug_sum_no_barrier forward random tsan tsan-random
overlooked bug_sum_no_barrier reverse
mistake bug_transpose_no_barrier forward reverse random tsan tsan-random
mistake bug_softmax_no_barrier forward reverse random tsan tsan-random
mistake bug_matmul_no_barrier forward reverse random tsan tsan-random
mistake bug_warp_no_barrier forward reverse random tsan tsan-random
mistake bug_softmax_no_trailing_barrier forward reverse tsan tsan-random
mistake bug_matmul_no_trailing_barrier forward reverse tsan tsan-random
# What only the thread sanitizer sees: lanes do not preempt each other.
mistake bug_scatter_not_atomic tsan tsan-random
overlooked bug_scatter_not_atomic random
mistake bug_total_not_atomic tsan tsan-random
mistake bug_sum_uninitialised forward reverse random
# Beyond the end. Without a sanitizer writes are seen behind allocations, reads where the pages end.
mistake bug_sum_overrun asan
mistake bug_matmul_overrun asan
mistake bug_twice_write_past asan
mistake bug_twice_read_past asan
misuse bug_sum_overrun overrun "$line"
misuse bug_matmul_overrun overrun "$line"
misuse bug_twice_write_past fault 'a kernel touches .* outside the 4096 bytes'
misuse bug_twice_read_past fault 'a kernel touches .* outside the 4096 bytes'
misuse bug_twice_misaligned misaligned "$line"
# Only code of a compiler that makes one 16-byte access of it: plain ones are compiled with less.
misuse bug_twice_raw_misaligned misaligned 'a kernel accesses a misaligned' ucontext
mistake bug_twice_raw_misaligned asan
# Barriers and masks.
misuse bug_sum_divergent 'divergent barrier' "$line"
misuse bug_sum_early_exit 'exit before barrier' "$line"
misuse bug_warp_own_mask 'wrong mask' "$line"
misuse bug_warp_wrong_mask 'wrong mask' "$line"
misuse bug_warp_ended_lane 'wrong mask' "$line"
misuse bug_warp_bad_source 'bad source lane' "$line"
# More than a block may have. (More than 1024 lanes, or 227 KiB asked for: errors of the launch, in "errors".)
misuse bug_static_limit 'shared limit' "$line"
# Streams and the host.
mistake bug_no_event lazy
overlooked bug_no_event forward
mistake bug_pinned_source lazy
misuse bug_other_device fault 'a kernel touches .* which it may not.* of device 1'
misuse bug_host_reads fault 'the host touches .* which it may not'

# The same sources for GPUs. Where there is one, they run there.
for program in selftest selftest_blas; do
    [ -x "$build/nvcc/$program" ] || { echo "nvcc: none, so $program is not compiled for GPUs"; continue; }
    "$build/nvcc/$program" >"$log" 2>&1
    status=$?
    if [ $status = 0 ] || { [ $status = 77 ] && grep -q '^no device: ' "$log"; }; then verdict yes
    else verdict no "nvcc's $program: status $status"; fi
    [ $status = 77 ] && echo "nvcc's $program: $(tail -1 "$log")"
done

echo "$passed passed, $failed failed"
[ $failed = 0 ] && [ $passed -gt 0 ]
