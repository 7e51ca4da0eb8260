#!/usr/bin/env bash
# Trains a larger sister of models/code on the same text with the same tokenizer, and measures both models side
# by side. Its weights are not kept in the tree: what it told is in docs/evaluation.md ("Larger models").
# usage: tools/code/larger.sh FOLDER [TRAINING-MINUTES] [MEASURING-SECONDS]
#   FOLDER receives corpus/, code-large/ (the model), checkpoint.pt and results: perplexity.jsonl, small.jsonl
#   and large.jsonl for tools.lab.report. What is there is not made again; training goes on where it was cut.
# Needs one GPU of 80 GB, PyTorch, safetensors, tokenizers, and what tools/code/corpus.py reads: installed packages.
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=${1:?usage: larger.sh FOLDER [TRAINING-MINUTES] [MEASURING-SECONDS]}
minutes=${2:-15} seconds=${3:-380}
model=$folder/code-large
mkdir -p "$model"

measure() { # MODEL RESULTS: the study of sizes, three processes on one GPU
  local turn processes=()
  for turn in 0 1 2; do
    python3 -m tools.lab.evaluate --part size --model "$1" --documents 6 --seconds "$seconds" --turn "$turn/3" \
      --out "$2.$turn" &
    processes+=($!)
  done
  for turn in "${processes[@]}"; do wait "$turn"; done
  cat "$2".? >"$2"
}

# The GPU has nothing to do while the text is gathered.
measure models/code "$folder/small.jsonl" >"$folder/small.log" 2>&1 &
small=$!
[ -s "$folder/corpus/corpus.json" ] || python3 -m tools.code.corpus "$folder/corpus"
[ -s "$folder/corpus/eval.bin" ] ||
  python3 -m tools.code.encode "$folder/corpus" "$model" --tokenizer-of models/code
wait "$small" || echo "larger: measuring models/code failed: $folder/small.log" >&2
resume=()
if [ -s "$folder/checkpoint.pt" ]; then resume=(--resume "$folder/checkpoint.pt"); fi
python3 -m tools.code.train --corpus "$folder/corpus" --model "$model" --checkpoint "$folder/checkpoint.pt" \
  --hidden 768 --layers 10 --feed-forward 2048 --heads 8 --kv-heads 2 --rate 1.5e-3 --minutes "$minutes" \
  --report 50 ${resume[@]+"${resume[@]}"}
python3 -m tools.code.evaluate "$folder/corpus" "$model" --windows 6 --results "$folder/perplexity.jsonl"
measure "$model" "$folder/large.jsonl"
