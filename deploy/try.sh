#!/usr/bin/env bash
# Builds the images and plays the pod of deploy/kubernetes/overlays/cpu on this machine, as root, with podman:
# asks a question, kills the store under it and asks again, looks at limits and rights, tries settings that are
# wrong, and takes everything down. Ends with 0 if all of it is right.
#
#   deploy/try.sh                  with the programs of build/release
#   deploy/try.sh --from-source    compiles inside the build image, as a builder elsewhere does
#   deploy/try.sh --compose        tries deploy/compose with docker-compose instead of the pod
#   deploy/try.sh --images FOLDER  keeps the images in FOLDER; with --reuse takes those that are there
#
# Needs Debian's buildah podman runc mmdebstrap python3-yaml (docker-compose), a kubectl of 1.27 or later, and the
# demo model. Everything of the engine is in a temporary folder: images, containers and volumes of this machine are
# neither seen nor touched, and no port of it is taken.
# --compose uses a bridged network: CNI's chains of iptables, without container rules, stay behind.
set -euo pipefail
cd "$(dirname "$0")/.."

mode=pod from_source=no kept='' reuse=no
while [ $# -gt 0 ]; do
  case $1 in
    --from-source) from_source=yes ;;
    --compose) mode=compose ;;
    --images) kept=$(realpath -m "$2"); shift ;;
    --reuse) reuse=yes ;;
    -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;;
    *) echo "try.sh: unknown option $1 (see --help)" >&2; exit 2 ;;
  esac
  shift
done
[ "$(id -u)" -eq 0 ] || { echo "try.sh: needs root, for chroot and control groups" >&2; exit 1; }
needed=(buildah podman runc mmdebstrap python3)
[ "$mode" = pod ] && needed+=(kubectl) || needed+=(docker-compose)
for program in "${needed[@]}"; do
  command -v "$program" >/dev/null || { echo "try.sh: $program is missing" >&2; exit 1; }
done

. deploy/try/engine.sh
begin_engine "$kept"
[ "$reuse" = yes ] || build_images "$from_source"
. "deploy/try/$mode.sh"
try_"$mode"
end_engine
say "all of it is right"
