#!/bin/sh
# What constraints cost a decode step of eight sequences: the same steps without and with a schema, in turns.
#
# usage: bench/constraints/step_cost.sh DECODE_THROUGHPUT_BENCH TOKENIZER_FOLDER [ROUNDS]
# TOKENIZER_FOLDER: of Qwen2.5. The schema is bench/constraints/orders.json, whose short fields make a new mask of most
# tokens; random weights at temperature 1 draw its values, so that hardly any mask comes twice. BACKEND, MODEL and CONTEXT as bench/eight_bit_kv.sh has them.
set -eu
program=$1
tokenizer=$2
rounds=${3:-3}
schema=$(dirname "$0")/orders.json
measure() {
  "$program" --backend "${BACKEND:-cuda}" --model "${MODEL:-qwen2.5-7b}" --context "${CONTEXT:-8192}" --batch 8 \
    --cache-share 0.2 --temperature 1 --warm-up "${WARM_UP:-100}" --steps "${STEPS:-300}" "$@" |
    sed -n 's/^ *"\(step_ms_median\|step_ms_mean\|step_ms_p99\|host_us_per_step\|mask_us_per_step\|schema_compile_ms\|answers\)": \([^,]*\),*$/ \1 \2/p' |
    awk '!seen[$1]++' | tr -d '\n'
  echo
}
for round in $(seq "$rounds"); do
  printf 'without, round %s:' "$round"; measure
  printf 'with,    round %s:' "$round"; measure --schema "$schema" --tokenizer "$tokenizer"
done
