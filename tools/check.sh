#!/bin/sh
# Everything that `make test` does not do: both compilers, sanitizers, valgrind, fuzzers, gates, style.
#
#   tools/check.sh [part ...]     all parts, or those named; they are listed at the end of this file
#
# Prints one line a part with its figures, and the end of the log of a part that failed. The logs are in
# build/check/. The status is 1 when any part failed. What is shortened is shortened by the variables below, which the
# lines repeat; nothing is left out in silence.
set -u
steps=${NEAP_TEST_STEPS:-}   # rounds of the long loops; by default fewer under the slow tools
fuzz_seconds=${NEAP_FUZZ_SECONDS:-20}
jobs="-j$(nproc)"
logs=build/check
mkdir -p "$logs"
wanted="$*"
failed=""
n_run=0

part() { # name function: the function's last line is what the summary says
    name=$1
    case " $wanted " in "  " | *" $name "*) ;; *) return ;; esac
    n_run=$((n_run + 1))
    begin=$(date +%s)
    if "$2" >"$logs/$name.log" 2>&1 </dev/null; then
        verdict=ok
    else
        verdict=FAILED
        failed="$failed $name"
    fi
    printf '%-10s %-6s %4d s  %s\n' "$name" "$verdict" $(($(date +%s) - begin)) "$(tail -1 "$logs/$name.log")"
    [ $verdict = ok ] || tail -40 "$logs/$name.log" | sed 's/^/    /'
}

failures() { # of the log so far, which they go into
    found=$(grep FAILED "$logs/$name.log")
    echo "$found"
}

compiled() { # build directory
    echo "$(find "$1/obj" -name '*.o' | wc -l) objects, no warning"
}
use_gcc() { make $jobs CC=gcc all-tests && compiled build; }
use_clang() { make $jobs CC=clang BUILD=build-clang all-tests && compiled build-clang; }

header() { # the public headers are C99, C11 and C++17, each alone
    n=0
    for h in neap.h; do # it brings neap_ops.h
        for std in c99 c11; do
            echo "#include \"$h\"" | gcc -std=$std -Wall -Wextra -Wpedantic -Werror -Icore -Ibuild/gen -fsyntax-only -x c - ||
                return 1
        done
        for cxx in g++ clang++; do
            command -v $cxx >/dev/null || continue
            echo "#include \"$h\"" |
                $cxx -std=c++17 -Wall -Wextra -Wpedantic -Werror -Icore -Ibuild/gen -fsyntax-only -x c++ - || return 1
            n=$((n + 1))
        done
    done
    [ $n -gt 0 ] || { echo "no C++ compiler"; return 1; }
    echo "neap.h, with neap_ops.h, as C99, C11 and C++17"
}

op_table() { make $jobs op-table; }
device_table() { make $jobs device-table; }
symbols() { make $jobs CC=gcc build && tools/check_symbols.sh build; }
includes() { lua5.4 tools/check_includes.lua; }
lua_style() { luacheck -q --no-color . && echo "no warning"; }
c_style() {
    list=$(find core bindings tests bench examples -name '*.[ch]' -o -name '*.cpp' -o -name '*.cu' | LC_ALL=C sort)
    off=$(for f in $list; do clang-format "$f" | cmp -s - "$f" || echo "$f"; done)
    [ -z "$off" ] || { echo "$off"; echo "$(echo "$off" | wc -l) files differ from clang-format's"; return 1; }
    echo "$(echo "$list" | wc -l) files as clang-format has them"
}
gates() { make $jobs CC=gcc all-tests && tools/callgrind.sh build && echo "every gate kept"; }

# Both suites under ASan, UBSan and LeakSanitizer.
sanitizers() {
    make SAN=1 CC=gcc $jobs all-tests || return 1
    NEAP_TEST_STEPS=${steps:-2000} make --no-print-directory SAN=1 run-tests || { failures; return 1; }
    sums=$(grep -E '^[0-9]+ (skipped|passed, )' "$logs/san.log" | tr '\n' ' ')
    echo "no report; ${sums}(leaks included), NEAP_TEST_STEPS=${steps:-2000}"
}
# The specs of checkpoints with Lua's collector run at every op of a recompute, plainly and under ASan.
forced_gc() {
    make $jobs all-tests && make SAN=1 CC=gcc $jobs all-tests || return 1
    export NEAP_FORCE_GC=recompute NEAP_TEST_STEPS=${steps:-5}
    lua5.4 tests/run.lua build && lua5.4 tests/run.lua build-san asan || { failures; return 1; }
    sums=$(grep -E '^[0-9]+ passed, ' "$logs/gc.log" | tr '\n' ' ')
    echo "${sums}(plain, ASan), NEAP_TEST_STEPS=$NEAP_TEST_STEPS"
}
threads() {
    list="test_two_contexts test_base_pool test_products"
    make $jobs CC=gcc TSAN=1 $(printf 'build-tsan/tests/%s ' $list) || return 1
    for t in $list; do
        TSAN_OPTIONS=halt_on_error=1:exitcode=66 NEAP_BLAS=none NEAP_TEST_STEPS=${steps:-200} build-tsan/tests/$t || return 1
    done
    echo "no race in: $list, NEAP_TEST_STEPS=${steps:-200}"
}

# tests/valgrind.supp names what the C library's loader does, and nothing of ours. OpenBLAS is left out: valgrind knows
# neither its threads' stacks nor its newest instructions. With NEAP_TEST_VALGRIND, tests of a large size take a smaller
# one: whoever runs a spec by hand sets it too, or waits (ck-K1's products of 512 x 512: four minutes).
memcheck="env NEAP_BLAS=none NEAP_TEST_VALGRIND=1 valgrind -q --error-exitcode=99 --leak-check=full \
    --errors-for-leak-kinds=definite,indirect --show-leak-kinds=definite,indirect --suppressions=$PWD/tests/valgrind.supp"
valgrind_core() {
    make $jobs CC=gcc all-tests || return 1
    n=0
    for t in build/tests/test_*; do
        case $t in *.d) continue ;; esac
        echo "$t"
        CMOCKA_MESSAGE_OUTPUT=TAP NEAP_TEST_DIR=tests NEAP_TEST_STEPS=${steps:-40} $memcheck "$t" || return 1
        n=$((n + 1))
    done
    ok=$(grep -c '^ok ' "$logs/vg-core.log")
    echo "$ok tests of $n programs, NEAP_TEST_STEPS=${steps:-40}"
}
# spec ...: the last line is their sum. The program that some of them start is under valgrind, too.
specs_under_valgrind() (
    printf '#!/bin/sh\nexec %s %s/build/neap "$@"\n' "$(echo $memcheck)" "$PWD" >build/check/neap
    chmod +x build/check/neap
    NEAP_TEST_STEPS=${steps:-100} NEAP_PROGRAM=build/check/neap
    LUA_PATH='build/lua/?.lua;build/lua/?/init.lua;./?.lua;;' LUA_CPATH='build/lua/?.so;;'
    export NEAP_TEST_STEPS NEAP_PROGRAM LUA_PATH LUA_CPATH
    for s in "$@"; do
        begin_spec=$(date +%s)
        $memcheck lua5.4 -W /usr/bin/busted -o tests/output.lua --no-auto-insulate "$s" || { echo "$s"; return 1; }
        echo "$s: $(($(date +%s) - begin_spec)) s"
    done
    awk '/^totals:/ { n += $2; skipped += $6 } END { printf "%d tests passed, %d skipped", n, skipped }' "$logs/$name.log"
    echo " in $# specs, NEAP_TEST_STEPS=$NEAP_TEST_STEPS"
)
# Golden scripts and all specs but those of checkpoints: a quarter of an hour on a busy machine, a third of it
# program_spec. Not here:
# contributing_spec and golden_spec start compilers and programs, and what those run is in other parts; docs_spec reads
# and writes text in Lua; the emulated device switches stacks by itself, and is checked under ASan (emu-asan).
valgrind_lua() (
    make $jobs CC=gcc build || return 1
    export LUA_PATH='build/lua/?.lua;build/lua/?/init.lua;./?.lua;;' LUA_CPATH='build/lua/?.so;;'
    for s in tests/lua/golden/*.lua; do
        echo "$s"
        $memcheck lua5.4 -W "$s" || return 1
    done
    set --
    for s in tests/lua/*_spec.lua; do
        case ${s##*/} in checkpoint* | contributing_spec.lua | golden_spec.lua | docs_spec.lua | cudaemu*) ;; *) set -- "$@" "$s" ;; esac
    done
    specs_under_valgrind "$@"
)
# The specs of checkpoints: a quarter of an hour on a busy machine.
valgrind_checkpoint() { make $jobs CC=gcc build && specs_under_valgrind tests/lua/checkpoint*_spec.lua; }

fuzzers() {
    corpus=build/check/corpus
    rm -rf "$corpus"
    lua5.4 tests/fuzz/make_corpus.lua "$corpus" || return 1
    make SAN=1 CC=gcc $jobs fuzzers || return 1
    n=0
    for d in "$corpus"/*; do
        build-san/fuzz/fuzz_"${d##*/}" "$d"/* || return 1
        n=$((n + $(ls "$d" | wc -l)))
    done
    if ! echo 'int LLVMFuzzerTestOneInput(const char *d, long n) { (void)d; return n < 0; }' |
        clang -fsanitize=fuzzer -x c - -o build/check/probe; then
        echo "$n seeds replayed under ASan; this clang has no libFuzzer (libclang-rt-*-dev): nothing fuzzed"
        return
    fi
    make FUZZ=1 CC=clang $jobs fuzzers || return 1
    runs=""
    for d in "$corpus"/*; do
        kind=${d##*/}
        mkdir -p build/check/found
        build-fuzz/fuzz/fuzz_$kind -max_total_time="$fuzz_seconds" -timeout=10 -rss_limit_mb=2048 -max_len=4096 \
            -artifact_prefix=build/check/found/ -print_final_stats=1 "$d" >"$logs/fuzz-$kind.log" 2>&1 ||
            { tail -40 "$logs/fuzz-$kind.log"; return 1; }
        runs="$runs, $kind $(sed -n 's/.*number_of_executed_units: *//p' "$logs/fuzz-$kind.log")"
    done
    echo "$n seeds replayed under ASan; inputs in $fuzz_seconds s each:${runs#,}"
}

# The loader of a plain lua5.4 would miss the sanitizer's start: the program is linked with it.
fuzz_calls() {
    make SAN=1 CC=gcc $jobs build || return 1
    build-san/neap tests/fuzz/fuzz_ops.lua "${NEAP_FUZZ_CALLS:-20000}" "${NEAP_FUZZ_SEED:-1}"
}

# The emulator that CUDA sources are tested in, by mistakes planted for it.
detectors() { make $jobs check-cudaemu-detectors; }
# The Lua specs on the emulated device, whose threads and blocks take turns in other orders, streams as late as they may.
emulated_orders() {
    make $jobs CC=gcc all-tests || return 1
    export NEAP_TEST_DEVICE=cudaemu NEAP_TEST_STEPS=${steps:-20}
    NEAP_EMU_ORDER=reverse lua5.4 tests/run.lua build || { failures; return 1; }
    for seed in 1 2; do
        NEAP_EMU_ORDER=random NEAP_EMU_LAZY=1 NEAP_EMU_SEED=$seed lua5.4 tests/run.lua build ||
            { failures; return 1; }
    done
    sums=$(grep -E '^[0-9]+ passed, ' "$logs/emu-order.log" | tr '\n' ' ')
    echo "${sums}(reverse; random and lazy, seeds 1 and 2), NEAP_TEST_STEPS=$NEAP_TEST_STEPS"
}
# Its kernels under ASan and UBSan. The core is the plain one: part san has it.
emulated_asan() {
    make $jobs CC=gcc all-tests build/cudaemu/asan/libneap-cudaemu.so || return 1
    NEAP_CUDA_PLUGIN=$PWD/build/cudaemu/asan/libneap-cudaemu.so NEAP_TEST_DEVICE=cudaemu NEAP_TEST_STEPS=${steps:-20} \
        lua5.4 tests/run.lua build asan || { failures; return 1; }
    echo "no report; $(grep -E '^[0-9]+ passed, ' "$logs/emu-asan.log") (leaks included), NEAP_TEST_STEPS=${steps:-20}"
}
# Its kernels under clang's thread sanitizer, for which each of their threads is one: what two touch without a barrier, or
# an atomic operation, between. #program marks tests of programs, which have no sanitizer.
emulated_tsan() (
    tsan=build/cudaemu/tsan
    make $jobs CC=gcc build $tsan/libneap-cudaemu.so $tsan/lua || return 1
    export NEAP_CUDA_PLUGIN=$PWD/$tsan/libneap-cudaemu.so TSAN_OPTIONS=halt_on_error=1:exitcode=66 NEAP_BLAS=none
    export LUA_PATH='build/lua/?.lua;build/lua/?/init.lua;./?.lua;;' LUA_CPATH='build/lua/?.so;;'
    export NEAP_TEST_STEPS=${steps:-5}
    for s in tests/lua/cudaemu_*_spec.lua; do
        for order in forward random; do
            echo "$s, $order"
            NEAP_EMU_ORDER=$order $tsan/lua /usr/bin/busted -o tests/output.lua --no-auto-insulate \
                --exclude-tags=program "$s" || return 1
        done
    done
    awk '/^totals:/ { n += $2 } END { printf "no race; %d passed", n }' "$logs/emu-tsan.log"
    echo " (forward and random), NEAP_TEST_STEPS=$NEAP_TEST_STEPS"
)
# The plug-in for GPUs, for both compute capabilities: no kernel spills a register, and so on.
use_nvcc() {
    if command -v nvcc >/dev/null; then make $jobs build build/libneap-cuda.so || return 1; fi
    tools/check_nvcc.sh build || return 1
    sed -n 's/^ok [0-9]* - //p' "$logs/nvcc.log" | paste -sd ';' | sed 's/;/; /g'
}

# What runs on a GPU, on the emulated device, with a compute-sanitizer that only runs the program, and one that reports.
gpu_script() {
    make $jobs all-tests || return 1
    stub=$PWD/build/check/stub
    mkdir -p "$stub"
    export NEAP_GPU_DEVICE=cudaemu NEAP_GPU_CARRIED= NEAP_GPU_SECONDS=7200 PATH="$stub:$PATH"
    printf '#!/bin/sh\nwhile [ "${1#--}" != "$1" ]; do shift 2; done\n"$@" && echo "ERROR SUMMARY: 0 errors"\n' >"$stub/compute-sanitizer"
    chmod +x "$stub/compute-sanitizer"
    tests/gpu/run.sh build/check/gpu-report.txt || return 1
    for said in '^EMULATED' '^-- suite: passed' '^-- sanitizer: passed' '^-- demo: passed' '^-- rates: passed'; do
        grep -q "$said" build/check/gpu-report.txt || { echo "the report lacks $said"; return 1; }
    done
    printf '#!/bin/sh\nexit 99\n' >"$stub/compute-sanitizer"
    NEAP_TEST_SPECS=pick tests/gpu/run.sh build/check/gpu-failed.txt && return 1
    grep -q '^FAILED: sanitizer' build/check/gpu-failed.txt || { echo "the sanitizer's report was not seen"; return 1; }
    if ! [ -e /dev/nvidiactl ]; then
        NEAP_GPU_DEVICE=cuda tests/gpu/run.sh
        [ $? -eq 77 ] || { echo "without a GPU the status is not 77"; return 1; }
    fi
    echo "rehearsed on the emulated device: $(tail -1 build/check/gpu-report.txt)"
}

part gcc use_gcc
part clang use_clang
part header header
part includes includes
part symbols symbols
part luacheck lua_style
part format c_style
part gates gates
part op-table op_table
part device-table device_table
part san sanitizers
part gc forced_gc
part tsan threads
part cudaemu detectors
part emu-order emulated_orders
part emu-asan emulated_asan
part emu-tsan emulated_tsan
part nvcc use_nvcc
part gpu-run gpu_script
part vg-core valgrind_core
part vg-lua valgrind_lua
part vg-ckpt valgrind_checkpoint
part fuzz fuzzers
part fuzz-ops fuzz_calls

if [ -n "$failed" ]; then
    printf '\ncheck failed:%s\n' "$failed"
    exit 1
fi
[ $n_run -gt 0 ] || { echo "no such part: $wanted"; exit 2; }
printf '\ncheck passed: %d parts\n' $n_run
