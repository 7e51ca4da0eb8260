#!/usr/bin/env bash
# Runs this project's attention benchmark, and PyTorch's and FlashInfer's attention at the same
# shapes, on the GPU of this machine, and prints one table; then the stages of wave attention, whose
# peer is PyTorch's time for 122,880 tokens. PyTorch must be installed for python3; without
# FlashInfer its rows are left out.
# usage: bench/peers/run.sh [FOLDER-OF-BENCHMARKS] [--quick]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
folder=${1:-$here/../../build/release/bench}
{
  "$folder/decode_attention_cuda_bench" --json
  python3 "$here/attention_peers.py" "${@:2}"
  python3 "$here/flashinfer_peers.py" "${@:2}"
} | tee "${RETROINFER_BENCH_JSON:-/dev/null}" | python3 "$here/table.py"
echo
"$folder/wave_stages_bench"
