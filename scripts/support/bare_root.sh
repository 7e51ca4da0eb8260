# To be sourced: a bare Debian or Ubuntu in a folder, and commands in it. Needs root and mmdebstrap.
# Nothing outlives the script: what is mounted and started in the root is so in namespaces of its own.

# require_root_and_mmdebstrap
require_root_and_mmdebstrap() {
  [ "$(id -u)" -eq 0 ] || { echo "$0: run this as root: it makes and enters a root folder" >&2; exit 2; }
  command -v mmdebstrap >/dev/null || { echo "$0: install mmdebstrap" >&2; exit 2; }
}

# require_known_suite SUITE
require_known_suite() {
  case "$1" in
    bookworm | trixie | sid | jammy | noble) ;;
    *) echo "$0: unknown suite $1: use bookworm, trixie or noble" >&2; exit 2 ;;
  esac
}

# make_bare_root SUITE FOLDER: from the archive that mmdebstrap knows for the suite, or RETROINFER_ARCHIVE.
make_bare_root() {
  require_known_suite "$1"
  local options=(--variant=minbase --include=apt --quiet)  # in Ubuntu apt is not part of that
  case "$1" in
    jammy | noble)
      options+=(--components=main,universe)
      [ ! -e /usr/share/keyrings/ubuntu-archive-keyring.gpg ] ||
        options+=(--keyring=/usr/share/keyrings/ubuntu-archive-keyring.gpg)
      ;;
  esac
  mmdebstrap "${options[@]}" "$1" "$2" ${RETROINFER_ARCHIVE:+"$RETROINFER_ARCHIVE"}
  cp /etc/resolv.conf "$2/etc/resolv.conf"
  # Packages start no services in a root that is not booted.
  printf '#!/bin/sh\nexit 101\n' >"$2/usr/sbin/policy-rc.d"
  chmod 755 "$2/usr/sbin/policy-rc.d"
}

# in_root FOLDER COMMAND...: runs it there, at the lowest priority; whatever it starts ends with it.
in_root() {
  local root=$1 cache=
  shift
  if [ -n "${CCACHE_DIR:-}" ]; then
    cache="CCACHE_DIR=/ccache CCACHE_COMPILERCHECK=content"
    mkdir -p "$root/ccache"
  fi
  # shellcheck disable=SC2086,SC2016
  nice -n "${RETROINFER_NICE:-19}" unshare --mount --pid --fork --kill-child --mount-proc="$root/proc" \
    bash -c '[ -z "$1" ] || mount --bind "$1" "$2/ccache"; mkdir -p "$2/dev/pts"
      mount -t devpts -o newinstance,ptmxmode=666 devpts "$2/dev/pts"
      root=$2; shift 2; exec chroot "$root" "$@"' - \
    "${CCACHE_DIR:-}" "$root" \
    env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 \
    DEBIAN_FRONTEND=noninteractive $cache "$@"
}
