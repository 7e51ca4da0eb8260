#!/bin/sh
# Lays out, for each image, what is copied into it: programs, licence, and the list of packages that the
# programs need at run time.
# usage: make_programs.sh TREE OUT
# TREE: an installed tree (TREE/usr/bin/...). Runs where the programs were built, since it asks the
# package database whose the libraries are.
set -eu
tree=$1 out=$2
here=$(dirname "$0")

# The packages that own the libraries of the given programs. CUDA's come with the GPU's base.
packages_of() {
  libraries=$(ldd "$@")
  if missing=$(echo "$libraries" | grep 'not found'); then
    echo "make_programs.sh: libraries are missing here: $missing" >&2
    exit 1
  fi
  echo "$libraries" | awk '$3 ~ /^\// { print $3 }' | sort -u | while read -r library; do
    path=$(readlink -f "$library")
    # Older packages still name the path without /usr.
    dpkg-query -S "$path" 2>/dev/null || dpkg-query -S "${path#/usr}"
  done | cut -d: -f1 | sort -u | grep -vE '^(cuda-|libcu|libnv|libc6$|libgcc-s1$)'
}

# image IMAGE PROGRAM...
image() {
  root=$out/$1
  shift
  mkdir -p "$root/usr/bin" "$root/usr/share/retroinfer"
  for program; do
    [ -x "$tree/usr/bin/$program" ] || { echo "there is no $tree/usr/bin/$program" >&2; exit 1; }
    cp -a "$tree/usr/bin/$program" "$root/usr/bin/"
  done
  # shellcheck disable=SC2046
  packages_of $(for program; do echo "$tree/usr/bin/$program"; done) \
    >"$root/usr/share/retroinfer/run-time-packages"
  cp "$here/install_runtime.sh" "$tree/usr/share/doc/retroinfer-server/LICENSE" \
    "$root/usr/share/retroinfer/"
}
image kv-store kv_store_service retroinfer
image gpu-worker gpu_worker retroinfer
image http-gateway http_gateway retroinfer
image retroinfer gpu_worker kv_store_service http_gateway retroinfer
