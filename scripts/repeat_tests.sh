#!/usr/bin/env bash
# Runs the whole suite again and again on a machine whose processors are kept busy, and looks for what a run leaves
# behind: files in /dev/shm and the temporary folder, processes. Ends at the first failure.
#
#   scripts/repeat_tests.sh [TIMES [ctest's arguments...]]     ten times, without arguments
#
# As root it runs in namespaces of its own, with an empty /tmp and /dev/shm, where whatever is left is the tests'.
# Otherwise only names of the project count, since others on the machine make files, too.
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${RETROINFER_PRESET:-release}
for name in $(compgen -e RETROINFER_); do unset "$name"; done
if [ "$(id -u)" -eq 0 ] && [ -z "${REPEAT_TESTS_ALONE:-}" ] && unshare --mount --pid --fork true 2>/dev/null; then
  REPEAT_TESTS_ALONE=1 exec unshare --mount --pid --fork --kill-child --mount-proc bash "$0" "$@"
fi
own='*'
if [ -n "${REPEAT_TESTS_ALONE:-}" ] && [ $$ -eq 1 ]; then
  unset TMPDIR
  mount -t tmpfs tmpfs /tmp
  mount -t tmpfs tmpfs /dev/shm
else
  own='*retroinfer*'
fi
times=${1:-10}
[[ $times =~ ^[1-9][0-9]*$ ]] || { sed -n '2,8s/^# \{0,1\}//p' "$0" >&2; exit 2; }
shift $(($# > 0 ? 1 : 0))

scratch=$(mktemp -d "${TMPDIR:-/tmp}/repeat-XXXXXX")
busy=()
end() {
  [ ${#busy[@]} -eq 0 ] || kill "${busy[@]}" 2>/dev/null || true
  rm -rf "$scratch"
}
trap end EXIT
trap 'exit 130' INT  # the first process of a namespace is not ended by signals that it does not ask for
trap 'exit 143' TERM

leftovers() {
  { find /dev/shm "${TMPDIR:-/tmp}" -mindepth 1 -maxdepth 1 -name "$own" 2>/dev/null || true
    for program in gpu_worker kv_store_servic http_gateway retroinfer; do
      pgrep -u "$(id -u)" -x "$program" || true
    done; } | sort
}

for _ in $(seq "$(nproc)"); do
  (while :; do :; done) &
  busy+=($!)
done
leftovers >"$scratch/before"
for run in $(seq "$times"); do
  begun=$SECONDS
  if ! ctest --preset "$preset" "$@" --output-on-failure >"$scratch/log" 2>&1; then
    tail -n 200 "$scratch/log"
    echo "repeat_tests: run $run of $times failed" >&2
    exit 1
  fi
  leftovers >"$scratch/after"
  if ! left=$(diff "$scratch/before" "$scratch/after"); then
    echo "repeat_tests: run $run of $times left behind:" >&2
    echo "$left" >&2
    exit 1
  fi
  echo "run $run of $times: passed in $((SECONDS - begun)) s, nothing left behind"
done
