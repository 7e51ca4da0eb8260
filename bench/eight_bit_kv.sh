#!/bin/sh
# Decode steps with keys and values in eight bits beside bf16 on a GPU with 80 GB and 128 GiB of host
# memory: the tables of docs/benchmarks.md, one line a run. An 8B shape with random weights, reuse of
# recorded text; slots for a fifth of the pages where nothing else is said. About eleven minutes on an H100.
#
# usage: bench/eight_bit_kv.sh PROGRAM [OUT]
# PROGRAM: decode_throughput_bench. OUT: a file for the whole reports, one JSON object each.
set -eu
program=$1
out=${2:-/dev/null}
while read -r name batch context share options; do
  # shellcheck disable=SC2086
  if ! report=$("$program" --backend "${BACKEND:-cuda}" --model "${MODEL:-llama-3.1-8b}" \
    --context "${CONTEXT:-$context}" --batch "$batch" --cache-share "$share" \
    --warm-up "${WARM_UP:-300}" --steps "${STEPS:-128}" $options); then
    echo "$name, batch $batch, $context tokens, slots for $share, $options: failed"
    continue
  fi
  printf '%s\n' "$report" >> "$out"
  printf '%s, batch %s, %s tokens, slots for %s, %s:' "$name" "$batch" "$context" "$share" "$options"
  for figure in output_throughput step_ms_median hit_ratio pages_missed_per_step arena_gib arena_used_gib; do
    printf '%s\n' "$report" | sed -n "s/^ *\"$figure\": \([^,]*\),*$/ $figure \1/p" | head -n 1 | tr -d '\n'
  done
  echo
done <<RUNS
bf16 1 122880 0.2
bf16 1 122880 0.2 --weights-dtype fp8
int8 1 122880 0.2 --kv-dtype int8
int8 1 122880 0.2 --kv-dtype int8 --weights-dtype fp8
int8 1 122880 0.2 --kv-dtype int8 --weights-dtype fp8 --retrieval 0.035
bf16 6 122880 0.2 --weights-dtype fp8
int8 10 122880 0.2 --kv-dtype int8 --weights-dtype fp8
int8 10 122880 0.2 --kv-dtype int8
int8 10 122880 0.2 --kv-dtype int8 --weights-dtype fp8 --retrieval 0.035
packed 12 122880 0.5 --kv-dtype int8 --weights-dtype fp8 --index-dtype packed
packed 14 122880 0.42 --kv-dtype int8 --weights-dtype fp8 --index-dtype packed
full 3 122880 0.2 --policy full
full 7 122880 0.2 --policy full --kv-dtype int8
int8 1 524288 0.2 --kv-dtype int8 --weights-dtype fp8
int8 1 524288 0.5 --kv-dtype int8 --weights-dtype fp8
int8 1 1048576 0.2 --kv-dtype int8 --weights-dtype fp8
int8 1 1048576 0.4 --kv-dtype int8 --weights-dtype fp8
int8 1 1048576 0.5 --kv-dtype int8 --weights-dtype fp8
full 1 8192 0.2 --policy full --kv-dtype int8 --weights-dtype fp8
RUNS
