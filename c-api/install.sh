#!/usr/bin/env bash
# install.sh [--prefix DIR] [--libdir DIR] [--profile debug|release] [--uninstall]: copies what cargo has built, with headers,
# pkg-config file, CMake package, docs and examples, to the prefix (/usr/local); $DESTDIR, if set, goes in front. The libraries
# go to --libdir: lib, lib64, lib/x86_64-linux-gnu, or an absolute folder. All of it together can be moved afterwards.
# With --uninstall all of that is removed, whatever its version.
# Of a build for Windows the DLL goes to bin, and the import library that programs are linked with to --libdir.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
prefix=/usr/local
libdir=lib
profile=release
uninstall=
while [ $# -gt 0 ]; do
    if [ "$1" = --uninstall ]; then
        uninstall=yes
        shift
        continue
    fi
    [ $# -gt 1 ] || break
    case $1 in
        --prefix) prefix=$2 ;;
        --libdir) libdir=$2 ;;
        --profile) profile=$2 ;;
        *) break ;;
    esac
    shift 2
done
if [ $# != 0 ]; then
    echo "install.sh: $1 is not understood; see the first lines of this script" >&2
    exit 2
fi
case $libdir in /*) ;; *) libdir=$prefix/$libdir ;; esac
to=${DESTDIR:-}$prefix
libs=${DESTDIR:-}$libdir
if [ -n "$uninstall" ]; then
    rm -f "$to"/include/redlatch.{h,hpp} "$to/bin/redlatch.dll" "$libs/pkgconfig/redlatch.pc" \
        "$libs"/libredlatch.{a,so,so.*,dylib,*.dylib,dll.a}
    rm -rf "$libs/cmake/redlatch" "$to/share/doc/redlatch" "$to/include/redlatch"
    exit
fi

built=${CARGO_TARGET_DIR:-$here/../target}/$profile
# What was built says for which system: the names of a shared library there, and the libraries that a program needs besides
# the archive; tests/run compares those to what rustc says.
version=$(sed -n 's/^#define REDLATCH_VERSION "\(.*\)"/\1/p' "$here/include/redlatch.h")
if [ -f "$built/libredlatch.dylib" ]; then
    library=libredlatch.dylib
    file=libredlatch.$version.dylib
    soname=$(sed -n 's/.*-install_name,\(@rpath[^"]*\)".*/\1/p' "$here/build.rs")
    static_libs=('-framework Security' '-framework CoreFoundation' -liconv -lSystem -lc -lm)
elif [ -f "$built/redlatch.dll" ]; then
    library=redlatch.dll
    static_libs=(-lgcc_eh -lbcrypt -ladvapi32 -lcrypt32 -lkernel32 -lntdll -luserenv -lws2_32 -ldbghelp)
else
    library=libredlatch.so
    file=libredlatch.so.$version
    soname=$(sed -n 's/.*-soname,\(libredlatch[^"]*\)".*/\1/p' "$here/build.rs")
    static_libs=(-lgcc_s -lutil -lrt -lpthread -lm -ldl -lc)
fi
if [ ! -f "$built/$library" ] || [ ! -f "$built/libredlatch.a" ]; then
    echo "install.sh: there is no library in $built; run make -C c-api build PROFILE=$profile first" >&2
    exit 1
fi
# An old library would not have what the headers say. Cargo lists the sources of the core beside it.
while IFS= read -r source; do
    if [ "$source" -nt "$built/$library" ]; then
        echo "install.sh: $source is newer than $built/$library; run make -C c-api build PROFILE=$profile first" >&2
        exit 1
    fi
done < <(printf '%s\n' "$here"/src/*.rs && sed -e 's/^[^:]*: //' -e 's/\([^\\]\) /\1\n/g' -e 's/\\ / /g' "$built/${library%.*}.d" 2>/dev/null)
# The pkg-config file and the CMake package find the prefix from where they are themselves.
relative() { # relative FROM TO; macOS has no such realpath
    realpath -m --relative-to="$1" "$2" 2>/dev/null || python3 -c 'import os, sys; print(os.path.relpath(*sys.argv[1:]))' "$2" "$1"
}
from_pkgconfig=$(relative "$libdir/pkgconfig" "$prefix")
from_cmake=$(relative "$libdir/cmake/redlatch" "$prefix")
from_prefix=$(relative "$prefix" "$libdir")
if [ $library = redlatch.dll ]; then
    location=bin/redlatch.dll
    linking="IMPORTED_IMPLIB \"\${_redlatch_prefix}/$from_prefix/libredlatch.dll.a\""
else
    location=$from_prefix/$file
    linking="IMPORTED_SONAME \"$soname\""
fi
homepage=$(sed -n 's/^repository = "\(.*\)"/\1/p' "$here/../Cargo.toml")
fill() { # fill TEMPLATE FILE STATIC_LIBS
    local static=$3 major minor
    IFS=. read -r major minor _ <<<"$version"
    sed -e "s/@VERSION@/$version/g" -e "s/@MAJOR@/$major/g" -e "s/@MINOR@/$minor/g" \
        -e "s|@LOCATION@|$location|g" -e "s|@LINKING@|$linking|g" -e "s/@STATIC_LIBS@/$static/g" -e "s|@LIBDIR@|$from_prefix|g" \
        -e "s|@FROM_PKGCONFIG@|$from_pkgconfig|g" -e "s|@FROM_CMAKE@|$from_cmake|g" -e "s|@HOMEPAGE@|$homepage|g" \
        -e '/^URL: $/d' "$1" >"$2"
    chmod 644 "$2"
}
# The archive as one object whose global names are ours alone. Otherwise its copy of Rust's library has names that the archive
# of another Rust project defines too.
archive() { # archive FROM TO
    local work shorter=()
    work=$(mktemp -d)
    # Rust's library comes with what a debugger wants, which makes up half of the archive.
    if [ "$profile" = release ]; then shorter=(--strip-debug); fi
    # Bitcode for the optimizer at link time would bring the names back. DW.ref.* are the same in every object that unwinds.
    if objcopy "${shorter[@]}" -R .llvmbc -R .llvmcmd "$1" "$work/all.a" && ld -r --whole-archive "$work/all.a" -o "$work/redlatch.o" &&
        objcopy --wildcard -G 'redlatch_*' -G 'DW.ref.*' "$work/redlatch.o" && ar rcsD "$work/libredlatch.a" "$work/redlatch.o"; then
        install -m 644 "$work/libredlatch.a" "$2"
    else
        echo "install.sh: without binutils for this system: libredlatch.a cannot be linked beside other Rust archives" >&2
        install -m 644 "$1" "$2"
    fi
    rm -rf "$work"
}
install -d "$to/include" "$libs/pkgconfig" "$libs/cmake/redlatch"
install -m 644 "$here"/include/redlatch.h "$here"/include/redlatch.hpp "$to/include"
install -d "$to/include/redlatch"
install -m 644 "$here"/include/redlatch/*.h "$to/include/redlatch"
if [ $library = libredlatch.so ]; then
    archive "$built/libredlatch.a" "$libs/libredlatch.a"
else
    install -m 644 "$built/libredlatch.a" "$libs"
fi
if [ $library = redlatch.dll ]; then
    install -d "$to/bin"
    install -m 644 "$built/redlatch.dll" "$to/bin"
    install -m 644 "$built/libredlatch.dll.a" "$libs"
else
    install -m 644 "$built/$library" "$libs/$file"
    ln -sf "$file" "$libs/${soname#@rpath/}"
    ln -sf "${soname#@rpath/}" "$libs/$library"
fi
fill "$here/redlatch.pc.in" "$libs/pkgconfig/redlatch.pc" "${static_libs[*]}"
for name in redlatchConfig redlatchConfigVersion; do
    fill "$here/cmake/$name.cmake.in" "$libs/cmake/redlatch/$name.cmake" "$(IFS=';' && echo "${static_libs[*]}")"
done
install -d "$to/share/doc/redlatch/examples"
install -m 644 "$here"/../docs/*.{md,svg} "$to/share/doc/redlatch"
install -m 644 "$here"/../examples/c/* "$to/share/doc/redlatch/examples"
# Valgrind is for Linux, among the systems that there are packages for.
if [ $library = libredlatch.so ]; then install -m 644 "$here"/{helgrind,memcheck,tsan}.supp "$to/share/doc/redlatch"; fi
