#!/usr/bin/env bash
# Copies built programs and the shared libraries that a machine with CUDA lacks into a folder that
# can be carried there. usage: scripts/bundle.sh FOLDER PROGRAM...
# Start them with LD_LIBRARY_PATH=FOLDER/lib.
set -euo pipefail
[ $# -ge 2 ] || { sed -n '2,4s/^# //p' "$0" >&2; exit 2; }
folder=$1
shift
mkdir -p "$folder/lib"
for program in "$@"; do
  strip -o "$folder/$(basename "$program")" "$program"
  # Not the C and C++ run-time, nor CUDA's libraries: those are the machine's own.
  ldd "$program" | awk '$3 ~ /^\// { print $3 }' |
    grep -vE '/(libc|libm|libdl|libpthread|librt|libresolv|libstdc\+\+|libgcc_s|ld-linux[^/]*)\.so|/libcu|/libnv' |
    while read -r library; do
      cp -nL "$library" "$folder/lib/"
    done
done
strip --strip-unneeded "$folder"/lib/*.so* 2>/dev/null || true
du -sh "$folder"
