#!/usr/bin/env bash
# Assembles the root folder of an image without an engine: the programs of a build, the files of the packages
# that they need, and, for a GPU, the one library of the CUDA toolkit that gpu_worker opens (cuBLASLt; the
# runtime is part of the program, the driver's library comes from the machine). There is no shell and no
# package manager in it.
#
#   deploy/images/make_root.sh --build build/release ROOT
# Options:
#   --target NAME     retroinfer (all programs; the default), gpu-worker, kv-store or http-gateway
#   --cublas FILE     libcublasLt.so.N of the toolkit; default: what the build was made with; none: leave it out
#   --archive FILE    also pack ROOT there (.tar.zst, .tar.xz or .tar)
# Needs mmdebstrap and the archive of this machine's Debian or Ubuntu; RETROINFER_ARCHIVE names another one.
# Try it: unshare -r chroot ROOT /usr/bin/retroinfer --version   (docs/operate/containers.md, "Without an engine")
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; }
fail() { echo "make_root.sh: $*" >&2; exit "${status:-1}"; }

build='' target=retroinfer cublas=auto archive='' root=''
while [ $# -gt 0 ]; do
  case $1 in
    --build | --target | --cublas | --archive)
      [ $# -ge 2 ] || status=2 fail "$1 needs a value"
      declare "${1#--}=$2"
      shift
      ;;
    -h | --help) usage; exit 0 ;;
    -*) status=2 fail "unknown option $1 (see --help)" ;;
    *) [ -z "$root" ] || status=2 fail "two folders are named: $root and $1"; root=$1 ;;
  esac
  shift
done
[ -n "$root" ] && [ -n "$build" ] || status=2 fail "needs --build FOLDER and a folder to make (see --help)"
[ ! -e "$root" ] || status=2 fail "$root is there already"
[ -f "$build/CMakeCache.txt" ] || status=2 fail "$build is no build folder"
case $target in
  retroinfer | gpu-worker | kv-store | http-gateway) ;;
  *) status=2 fail "there is no target '$target'" ;;
esac
case $archive in
  '' | *.tar | *.tar.zst | *.tar.xz) ;;
  *) status=2 fail "$archive must end with .tar.zst, .tar.xz or .tar" ;;
esac
command -v mmdebstrap >/dev/null || fail "install mmdebstrap"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

for component in worker store gateway client license; do
  DESTDIR=$work/tree cmake --install "$build" --prefix /usr --strip --component "$component" >/dev/null
done
"$here/make_programs.sh" "$work/tree" "$work/programs"
programs=$work/programs/$target

# Only the files: nothing of a package runs where it is unpacked.
release=$(. /etc/os-release && echo "$VERSION_CODENAME")
packages=$(paste -sd, "$programs/usr/share/retroinfer/run-time-packages"),libc6,libgcc-s1
mmdebstrap --quiet --variant=extract --mode="$([ "$(id -u)" = 0 ] && echo root || echo unshare)" \
  --include="$packages" --dpkgopt='path-exclude=/usr/share/doc/*' \
  --dpkgopt='path-include=/usr/share/doc/*/copyright' --dpkgopt='path-exclude=/usr/share/man/*' \
  --dpkgopt='path-exclude=/usr/share/locale/*' --dpkgopt='path-exclude=/usr/share/i18n/*' \
  "$release" "$root" ${RETROINFER_ARCHIVE:+"$RETROINFER_ARCHIVE"}
rm -rf "$root"/var/lib/apt "$root"/var/cache/apt "$root"/etc/apt
cp -a "$programs/usr/." "$root/usr/"
rm -f "$root/usr/share/retroinfer/install_runtime.sh"

# The user that the services run as, and what they write to (install_runtime.sh has the same for images).
mkdir -p "$root/etc" "$root/models" "$root/proc" "$root/dev" "$root/tmp"
chmod 1777 "$root/tmp"
echo 'retroinfer:x:10001:10001::/:/usr/sbin/nologin' >>"$root/etc/passwd"
echo 'retroinfer:x:10001:' >>"$root/etc/group"
for folder in run/retroinfer var/cache/retroinfer; do
  mkdir -p "$root/$folder"
  chmod 0700 "$root/$folder"
  [ "$(id -u)" != 0 ] || chown 10001:10001 "$root/$folder"
done

if [ "$cublas" = auto ]; then
  cublas=none
  library=$(sed -n 's/^CUDA_cublasLt_LIBRARY:FILEPATH=//p' "$build/CMakeCache.txt")
  if [ -n "$library" ] && [ -x "$root/usr/bin/gpu_worker" ]; then
    cublas=$(find "$(dirname "$(readlink -f "$library")")" -maxdepth 1 -name 'libcublasLt.so.[0-9]*' | sort | head -n 1)
    [ -n "$cublas" ] || fail "there is no libcublasLt.so.N beside $library: name one with --cublas, or none"
  fi
fi
if [ "$cublas" != none ]; then
  # The loader asks for the name with the major version.
  name=$(basename "$cublas" | grep -oE '^libcublasLt\.so\.[0-9]+') || fail "$cublas is no libcublasLt.so.N"
  cp -L "$cublas" "$root/usr/lib/$(uname -m)-linux-gnu/$name"
fi

# Every program finds its libraries in there.
enter=(chroot "$root")
[ "$(id -u)" = 0 ] || enter=(unshare -r chroot "$root")
for program in "$root"/usr/bin/{retroinfer,gpu_worker,kv_store_service,http_gateway}; do
  [ ! -x "$program" ] || "${enter[@]}" "/usr/bin/$(basename "$program")" --version
done
if [ -n "$archive" ]; then
  case $archive in
    *.tar.zst) pack=(--use-compress-program 'zstd -19 -T0 -q') ;;
    *.tar.xz) pack=(--use-compress-program 'xz -6 -T0') ;;
    *) pack=() ;;
  esac
  tar -C "$root" --numeric-owner "${pack[@]}" -cf "$archive" .
fi
echo "$root: $(du -sh --apparent-size "$root" | cut -f1)${archive:+, packed $(du -h --apparent-size "$archive" | cut -f1)}"
