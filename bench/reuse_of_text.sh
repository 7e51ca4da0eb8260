#!/bin/sh
# Decode steps with the reuse of recorded text on a GPU: the table of docs/benchmarks.md in short, one
# line a run. About 55 s on an H100 for each run at batch 6 (120K tokens, an 8B shape with random
# weights).
#
# usage: bench/reuse_of_text.sh PROGRAM [OUT]
# PROGRAM: decode_throughput_bench. OUT: a file for the whole reports, one JSON object each.
set -eu
program=$1
out=${2:-/dev/null}
for run in "6 0.05" "6 0.10" "6 0.20" "6 0.40" "1 0.05" "1 0.20"; do
  batch=${run% *}
  share=${run#* }
  report=$("$program" --backend "${BACKEND:-cuda}" --model "${MODEL:-llama-3.1-8b}" \
    --context "${CONTEXT:-122880}" --batch "$batch" --cache-share "$share" \
    --warm-up "${WARM_UP:-400}" --steps "${STEPS:-128}")
  printf '%s\n' "$report" >> "$out"
  printf 'batch %s, slots for %s:' "$batch" "$share"
  for name in output_throughput step_ms_median step_ms_p99 hit_ratio pages_missed_per_step \
      pages_evicted_per_step pages_kept_per_step host_us_per_step; do
    printf '%s\n' "$report" | sed -n "s/^  \"$name\": \([^,]*\),*$/ $name \1/p" | tr -d '\n'
  done
  echo
done
