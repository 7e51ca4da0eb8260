#!/usr/bin/env bash
# Builds this commit in a bare root of another Debian or Ubuntu, warnings as errors, and runs the tests there.
# usage: scripts/try_distribution.sh [--keep FOLDER] [--programs] SUITE [CTEST-ARGUMENT...]
#   SUITE            bookworm, trixie or noble
#   --keep FOLDER    uses this folder for the root and leaves it there: a second run is incremental
#   --programs       builds the programs only; of the tests, those that need nothing else run
# Needs root, mmdebstrap and the archive; Ubuntu also ubuntu-archive-keyring. Everything runs at the lowest
# priority. CCACHE_DIR, if it is set, is shared with the root, with compilers told apart by their content.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/support/bare_root.sh
require_root_and_mmdebstrap

keep=
programs=
while true; do
  case "${1:-}" in
    --keep) keep=${2:?--keep needs a folder}; shift 2 ;;
    --programs) programs=1; shift ;;
    -h | --help | "") sed -n '2,9s/^# //p' "$0"; exit 2 ;;
    *) break ;;
  esac
done
suite=$1
shift
root=$keep
if [ -z "$keep" ]; then
  root=$(mktemp -d /var/tmp/retroinfer-try-distribution-XXXXXX)
  trap 'rm -rf --one-file-system "$root"' EXIT
fi

[ -x "$root/usr/bin/apt-get" ] || make_bare_root "$suite" "$root"
# Through a bundle: the root sees nothing of this checkout but its commit.
git bundle create -q "$root/root/commit.bundle" HEAD
in_root "$root" apt-get update -qq
in_root "$root" apt-get install -y -qq --no-install-recommends git ca-certificates >/dev/null
in_root "$root" bash -euo pipefail -c '
  if [ ! -d /src/.git ]; then git clone -q /root/commit.bundle /src; fi
  cd /src && git fetch -q /root/commit.bundle HEAD && git checkout -q --detach FETCH_HEAD
  scripts/bootstrap.sh'
if [ -n "$programs" ]; then
  in_root "$root" bash -euo pipefail -c '
    cd /src && cmake --preset developer
    cmake --build --preset developer --target retroinfer gpu_worker kv_store_service manuals
    ctest --preset developer -L "packaging|tidy|tools" "$@"' - "$@"
else
  in_root "$root" env RETROINFER_PRESET=developer /src/scripts/test.sh "$@"
fi
in_root "$root" bash -c '. /etc/os-release && echo "$PRETTY_NAME: built from a bare root, tests passed"'
