#!/usr/bin/env bash
# Runs the whole suite again and again on a machine whose processors are kept busy, and looks for what a run leaves
# behind: files in /dev/shm and the temporary folder, processes. Ends at the first failure.
#
#   scripts/repeat_tests.sh [TIMES [ctest's arguments...]]     ten times, without arguments
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${RETROINFER_PRESET:-release}
for name in $(compgen -e RETROINFER_); do unset "$name"; done
times=${1:-10}
[[ $times =~ ^[1-9][0-9]*$ ]] || { sed -n '2,5s/^# \{0,1\}//p' "$0" >&2; exit 2; }
shift $(($# > 0 ? 1 : 0))

scratch=$(mktemp -d "${TMPDIR:-/tmp}/repeat-XXXXXX")
busy=()
end() {
  [ ${#busy[@]} -eq 0 ] || kill "${busy[@]}" 2>/dev/null || true
  rm -rf "$scratch"
}
trap end EXIT

# What the tests make carries the project's name; others on this machine make files, too.
leftovers() {
  { find /dev/shm "${TMPDIR:-/tmp}" -maxdepth 1 -name '*retroinfer*' 2>/dev/null || true
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
