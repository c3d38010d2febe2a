#!/bin/sh
# Everything that `make test` does not do: both compilers, sanitizers, valgrind, gates, style. Ends with what failed.
set -u
jobs="-j$(nproc)"
failed=""
step() { # name command...
    name=$1
    shift
    printf '\n== %s\n' "$name"
    if ! "$@"; then
        failed="$failed $name;"
        printf '== %s FAILED\n' "$name"
    fi
}
valgrind_suite() {
    rc=0
    for t in build/tests/test_*; do
        case $t in *.d | *test_ops | *test_ops_grad) continue ;; esac # the op walks run under ASan instead
        NEAP_BLAS=none valgrind -q --error-exitcode=99 --leak-check=full --errors-for-leak-kinds=definite,indirect \
            "$t" >/dev/null 2>build/valgrind.txt || { tail -40 build/valgrind.txt; echo "$t"; rc=1; }
    done
    for op in softplus sum matmul softmax gather cat dropout; do
        NEAP_TEST_OP=$op NEAP_BLAS=none valgrind -q --error-exitcode=99 --leak-check=full build/tests/test_ops_grad \
            >/dev/null 2>build/valgrind.txt || { tail -40 build/valgrind.txt; echo "$op"; rc=1; }
    done
    return $rc
}
two_contexts() { make $jobs TSAN=1 build-tsan/tests/test_two_contexts && build-tsan/tests/test_two_contexts; }
style() { clang-format --dry-run -Werror $(git ls-files 'core/*.[ch]' 'bindings/*.[ch]' 'tests/*.[ch]' 'bench/*.[ch]' 'examples/*.[ch]'); }
headers() { # the public header is C99, C11 and C++17
    for std in c99 c11; do
        echo '#include "neap.h"' | gcc -std=$std -Wall -Wextra -Wpedantic -Werror -Icore -Ibuild/gen -fsyntax-only -x c - || return 1
    done
    if command -v g++ >/dev/null; then
        echo '#include "neap.h"' | g++ -std=c++17 -Wall -Wextra -Wpedantic -Werror -Icore -Ibuild/gen -fsyntax-only -x c++ -
    fi
}

step "gcc" make $jobs all-tests
step "clang" make $jobs CC=clang BUILD=build-clang objects
step "public header" headers
step "includes" lua5.4 tools/check_includes.lua
step "symbols" tools/check_symbols.sh build
step "luacheck" luacheck -q .
step "format" style
step "instruction gates" tools/callgrind.sh build
step "sanitizers" make SAN=1 $jobs all-tests
step "sanitized tests" make SAN=1 run-tests
step "two contexts under TSan" two_contexts
step "valgrind" valgrind_suite

if [ -n "$failed" ]; then
    printf '\ncheck failed:%s\n' "$failed"
    exit 1
fi
printf '\ncheck passed\n'
