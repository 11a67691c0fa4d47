#!/usr/bin/env bash
# install.sh [--prefix DIR] [--profile debug|release]: copies what cargo has built, with headers, pkg-config file
# and CMake package, to DIR (/usr/local); $DESTDIR, if set, goes in front. All of it can be moved afterwards.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
prefix=/usr/local
profile=release
while [ $# -gt 1 ]; do
    case $1 in
        --prefix) prefix=$2 ;;
        --profile) profile=$2 ;;
        *) break ;;
    esac
    shift 2
done
if [ $# != 0 ]; then
    echo "install.sh: $1 is not understood; see the first lines of this script" >&2
    exit 2
fi

built=${CARGO_TARGET_DIR:-$here/../target}/$profile
if [ ! -f "$built/libredlatch.so" ] || [ ! -f "$built/libredlatch.a" ]; then
    echo "install.sh: there is no library in $built; run make -C c-api build PROFILE=$profile first" >&2
    exit 1
fi
version=$(sed -n 's/^#define REDLATCH_VERSION "\(.*\)"/\1/p' "$here/include/redlatch.h")
soname=$(sed -n 's/.*-soname,\(libredlatch[^"]*\)".*/\1/p' "$here/build.rs")
# The libraries that a program needs besides the archive; tests/run compares it to what rustc says.
static_libs="-lgcc_s -lutil -lrt -lpthread -lm -ldl -lc"

to=${DESTDIR:-}$prefix
fill() { # fill TEMPLATE FILE STATIC_LIBS
    local libs=$3 major minor
    IFS=. read -r major minor _ <<<"$version"
    sed -e "s/@VERSION@/$version/g" -e "s/@MAJOR@/$major/g" -e "s/@MINOR@/$minor/g" \
        -e "s/@SONAME@/$soname/g" -e "s/@STATIC_LIBS@/$libs/g" "$1" >"$2"
    chmod 644 "$2"
}
install -d "$to/include" "$to/lib/pkgconfig" "$to/lib/cmake/redlatch"
install -m 644 "$here"/include/redlatch.h "$here"/include/redlatch.hpp "$to/include"
install -m 644 "$built/libredlatch.a" "$to/lib"
install -m 755 "$built/libredlatch.so" "$to/lib/libredlatch.so.$version"
ln -sf "libredlatch.so.$version" "$to/lib/$soname"
ln -sf "$soname" "$to/lib/libredlatch.so"
fill "$here/redlatch.pc.in" "$to/lib/pkgconfig/redlatch.pc" "$static_libs"
for file in redlatchConfig redlatchConfigVersion; do
    fill "$here/cmake/$file.cmake.in" "$to/lib/cmake/redlatch/$file.cmake" "${static_libs// /;}"
done
