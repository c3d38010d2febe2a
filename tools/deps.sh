#!/bin/sh
# Installs the Debian packages that are missing for the purposes named: build, test, demo, emulator, check.
# Where nothing is missing it does nothing and needs no rights. Elsewhere than on Debian it names what to install.
set -eu

packages=""
for purpose in "$@"; do
    case $purpose in
    build) packages="$packages gcc libc6-dev lua5.4 liblua5.4-dev libedit-dev libjansson-dev zlib1g-dev libminizip-dev" ;;
    test) packages="$packages g++ libcmocka-dev lua-busted libopenblas0-pthread dataset-fashion-mnist" ;;
    demo) packages="$packages libopenblas0-pthread dataset-fashion-mnist" ;;
    emulator) packages="$packages g++" ;;
    check) packages="$packages clang clang-format valgrind lua-check binutils libclang-rt-14-dev" ;;
    *) echo "deps.sh: unknown purpose '$purpose'" >&2; exit 2 ;;
    esac
done

if ! command -v dpkg-query >/dev/null 2>&1; then
    echo "deps.sh: not a Debian system; needed (Debian names):$packages" >&2
    exit 0
fi

missing=""
for p in $packages; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null || true)" = installed ] && continue
    case " $missing " in *" $p "*) ;; *) missing="$missing $p" ;; esac
done
[ -z "$missing" ] && exit 0

as_root=""
if [ "$(id -u)" -ne 0 ]; then
    if command -v sudo >/dev/null 2>&1; then
        as_root="sudo"
    else
        echo "deps.sh: packages are missing, and there is neither root nor sudo. As root: apt-get install$missing" >&2
        exit 1
    fi
fi
echo "installing:$missing"
install() { $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing; }
install >/dev/null 2>&1 || { $as_root apt-get update -qq && install >/dev/null; }
