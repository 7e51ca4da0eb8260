#!/usr/bin/env bash
# Runs the contract suites of all operations on the GPU under compute-sanitizer.
#
# usage: tests/gpu/sanitize.sh OPS_SUITES [TOOL...]
#   OPS_SUITES  the program of the target ops_suites
#   TOOL        memcheck, racecheck, initcheck or synccheck (default: memcheck racecheck)
#
# SANITIZE_JOBS     processes at a time (default: as many as processors, at most 16)
# SANITIZE_SECONDS  time for one process, of which there are 64 (default: 500)
# SANITIZE_FILTER   tests as --gtest_filter takes them (default: all)
# SANITIZE_LOGS     folder for the logs (default: a temporary one, removed when all is well)
#
# Ends with 0 only if every test ran to its end, passed, and the tool found nothing.
set -uo pipefail
[ $# -ge 1 ] || { sed -n '2,13s/^# \{0,1\}//p' "$0" >&2; exit 2; }
suites=$(realpath "$1")
shift
tools=("$@")
[ ${#tools[@]} -gt 0 ] || tools=(memcheck racecheck)
jobs=${SANITIZE_JOBS:-$(nproc)}
[ "$jobs" -le 16 ] || jobs=16
sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
[ -x "$sanitizer" ] || { echo "sanitize: compute-sanitizer is not installed" >&2; exit 2; }
logs=${SANITIZE_LOGS:-$(mktemp -d)}
mkdir -p "$logs"

# Left out of one tool, with the reason: "tool test: reason". They pass without it.
long="does not end in minutes under this tool;"
left_out=(
  "racecheck Backends/ClusterSelectTest.ThousandsOfTies/Cuda: $long other tests of selection run"
  "racecheck Backends/SamplingTest.BannedTokensAreNeverDrawn/Cuda: $long other sampling tests run"
  "racecheck Backends/SamplingTest.DrawsFollowTheDistribution/Cuda: $long other sampling tests run"
  "racecheck Backends/SamplingTest.CutsKeepExactlyTheRightTokens/Cuda: $long other sampling tests run"
  "racecheck Backends/SamplingTest.TopPOverALargeVocabularyMatchesASort/Cuda: $long other sampling tests run"
  "racecheck Kernels/CudaPrefillKernelTest.AgreesWithThePlainKernel/*: $long AResultDoesNotDependOnTheChunk has all kernels"
)

shards=64
filter=${SANITIZE_FILTER:-*/Cuda*:Cuda*}
count_tests() { "$suites" --gtest_list_tests --gtest_filter="$1" | grep -c '^ '; }
[ "$(count_tests "$filter")" -gt 0 ] ||
  { echo "sanitize: no test for a GPU; is there one?" >&2; exit 2; }

# Runs every 64th test under the tool. Starting a process under a tool takes seconds, so that one a
# test would take longer.
shard() {
  tool=$1
  # Tests read whole buffers back, with what operations must leave as it is: copies are not checked.
  options=()
  [ "$tool" != initcheck ] || options=(--check-api-memory-access no)
  log=$logs/$tool-$2.log
  GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$2 timeout "${SANITIZE_SECONDS:-500}" \
    "$sanitizer" --tool "$tool" "${options[@]}" --error-exitcode 86 \
    "$suites" --gtest_filter="$filter$3" >"$log" 2>&1
  code=$?
  # A tool that could not watch the program says nothing; that is no success either.
  if [ $code -eq 0 ] && grep -qE 'ERROR SUMMARY: 0 errors|RACECHECK SUMMARY: 0 hazards' "$log"; then
    return
  fi
  echo "FAILED: $tool, exit code $code, $log: $(grep '^\[ RUN' "$log" | tail -1)"
  grep -E '^\[  FAILED|^=+ +(Error|Warning|Invalid|Race|Program)' "$log" | sort | uniq -c | head -5
}
export -f shard
export suites sanitizer logs shards filter

failed=0
for tool in "${tools[@]}"; do
  without=
  for entry in "${left_out[@]}"; do
    [ "${entry%% *}" = "$tool" ] || continue
    echo "left out of $entry"
    entry=${entry#* }
    without="${without:--}:${entry%%: *}"
  done
  without=${without/-:/-}
  count=$(count_tests "$filter$without")
  begun=$SECONDS
  seq 0 $((shards - 1)) | xargs -P "$jobs" -I{} bash -c 'shard "$@"' _ "$tool" {} "$without" \
    >"$logs/$tool.txt"
  clean=$(cat "$logs/$tool"-*.log | grep -c '^\[       OK')
  echo "$tool: $clean of $count tests ran to their end, $((SECONDS - begun)) s; longest:"
  cat "$logs/$tool"-*.log | sed -n 's/^\[       OK \] \(.*\) (\([0-9]*\) ms)/\2 ms \1/p' |
    sort -rn | head -4
  if [ -s "$logs/$tool.txt" ]; then
    head -60 "$logs/$tool.txt"
    failed=1
  fi
done
if [ $failed -eq 0 ] && [ -z "${SANITIZE_LOGS:-}" ]; then rm -rf "$logs"; fi
exit $failed
