#!/bin/sh
# Decode steps with each form of the index on a GPU with 80 GB and 128 GiB of host memory, one line a
# run: an 8B shape with random weights, contexts of 120K tokens, reuse of recorded text, slots for a
# fifth of the pages, and of each form what a server retrieves with it. About seven minutes on an H100.
#
# usage: bench/index_formats.sh PROGRAM [OUT]
# PROGRAM: decode_throughput_bench. OUT: a file for the whole reports, one JSON object each.
set -eu
program=$1
out=${2:-/dev/null}
while read -r batch kv index retrieval; do
  if ! report=$("$program" --backend "${BACKEND:-cuda}" --model "${MODEL:-llama-3.1-8b}" \
    --context "${CONTEXT:-122880}" --batch "$batch" --cache-share "${SHARE:-0.2}" \
    --warm-up "${WARM_UP:-300}" --steps "${STEPS:-128}" --weights-dtype fp8 \
    --kv-dtype "$kv" --index-dtype "$index" --retrieval "$retrieval"); then
    echo "batch $batch, keys and values in $kv, index $index: failed"
    continue
  fi
  printf '%s\n' "$report" >> "$out"
  printf 'batch %s, keys and values in %s, index %s, %s:' "$batch" "$kv" "$index" "$retrieval"
  for figure in output_throughput step_ms_median hit_ratio pages_missed_per_step arena_gib; do
    printf '%s\n' "$report" | sed -n "s/^ *\"$figure\": \([^,]*\),*$/ $figure \1/p" | head -n 1 | tr -d '\n'
  done
  echo
done <<RUNS
1 bf16 bf16 0.018
1 bf16 int8 0.035
1 bf16 packed 0.035
1 bf16 coded 0.024
6 bf16 bf16 0.018
6 bf16 int8 0.035
6 bf16 packed 0.035
6 bf16 coded 0.024
1 int8 int8 0.035
1 int8 packed 0.035
1 int8 coded 0.024
10 int8 int8 0.035
10 int8 packed 0.035
10 int8 coded 0.024
RUNS
