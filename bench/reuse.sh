#!/usr/bin/env bash
# What reuse costs and gives, of the 8B shape on a GPU: the first token of a long prompt that is read
# as one and in stretches, in turns, and what each turn of six kinds of conversations computes again,
# with the time to its first token. Ends within ten minutes. usage: bench/reuse.sh BIN OUT
#   BIN  folder of the built programs; OUT  folder for their JSON
set -euo pipefail
[ $# -eq 2 ] || { sed -n '2,5s/^# //p' "$0" >&2; exit 2; }
bin=$1
out=$2
mkdir -p "$out"

for round in 1 2; do
  for stretch in 0 32768; do
    "$bin/first_token_bench" --backend cuda --rounds 1 --decode-steps 4 --stretch-tokens "$stretch" \
      >"$out/first_token.$stretch.$round.json"
  done
done
"$bin/conversations_bench" --device cuda --model llama-3.1-8b --reuse generated,exact --turns 6 \
  >"$out/conversations.json"

python3 - "$out" <<'PYTHON'
import json, pathlib, sys
out = pathlib.Path(sys.argv[1])
for stretch in (0, 32768):
    rounds = [json.loads((out / f"first_token.{stretch}.{n}.json").read_text()) for n in (1, 2)]
    for policy in ("full", "wave"):
        print(stretch, policy, [round(one[policy]["first_token_s"], 3) for one in rounds])
print(json.dumps(json.loads((out / "conversations.json").read_text()))[:6000])
PYTHON
