#!/bin/sh
# What the libraries export and need. usage: tools/check_symbols.sh [BUILD]
set -eu
build=${1:-build}
failed=0
no() { # what, lines that should not be there
    [ -z "$2" ] && return
    printf '%s:\n%s\n' "$1" "$2" >&2
    failed=1
}

exported=$(nm -D --defined-only "$build/libneap.so" | awk '{ print $3 }')
[ -n "$exported" ] || { echo "libneap.so exports nothing" >&2; exit 1; }
no "libneap.so exports more than neap_*" "$(echo "$exported" | grep -v '^neap_' || true)"
no "libneap.so knows Lua" "$(nm -D "$build/libneap.so" | grep -E ' (lua|luaL)_' || true)"
no "libneap.a has global names besides neap_*" \
    "$(nm -g --defined-only "$build/libneap.a" | awk 'NF == 3 { print $3 }' | grep -v '^neap_' || true)"
for lib in libneap.so libneap-lua.so lua/neapcore.so; do
    needed=$(readelf -d "$build/$lib" | grep NEEDED || true)
    no "$lib needs liblua" "$(echo "$needed" | grep -E 'liblua' || true)"
    no "$lib needs a BLAS" "$(echo "$needed" | grep -iE 'blas' || true)"
done
no "libneap-lua.so exports more than luaopen_* and neap_*" \
    "$(nm -D --defined-only "$build/libneap-lua.so" | awk '{ print $3 }' | grep -vE '^(luaopen_|neap_)' || true)"
[ $failed = 0 ] && echo "symbols as they should be"
exit $failed
