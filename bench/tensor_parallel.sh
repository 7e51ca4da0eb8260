#!/usr/bin/env bash
# What a model over N GPUs does beside one, in ten minutes: tests of ranks, their collectives beside NCCL's, loading,
# decode steps, misses and first tokens of the 8B and 70B shapes. usage: bench/tensor_parallel.sh N BIN OUT
#   BIN  folder of the built programs (scripts/bundle.sh); tests and NCCL are left out where there are none
#   OUT  folder for what is measured (JSON) and the tests' output
set -uo pipefail
[ $# -eq 3 ] || { sed -n '2,5s/^# //p' "$0" >&2; exit 2; }
ranks=$1
bin=$(realpath "$2")
mkdir -p "$3"
out=$(realpath "$3")
cd "$(dirname "$0")/.."
failed=0

# Runs a command for at most so many seconds; its output goes to OUT/NAME.
run() {
  local name=$1 seconds=$2 begin=$SECONDS
  shift 2
  timeout "$seconds" "$@" >"$out/$name" 2>&1
  local code=$?
  echo "$name: ended with $code after $((SECONDS - begin)) s"
  [ $code -eq 0 ] || { failed=1; tail -3 "$out/$name"; }
}

nvidia-smi topo -m >"$out/topology.txt" 2>&1
for test in cuda_collective_test segment_heads_test ranks_services_test; do
  [ -x "$bin/$test" ] || continue
  RETROINFER_TEST_BACKEND=Cuda RETROINFER_TEST_DEVICE=cuda RETROINFER_BIN_DIR=$bin run "$test.txt" 60 "$bin/$test"
done
for memory in auto host; do
  run "sums.$memory.json" 30 "$bin/collectives_bench" --device cuda --ranks "$ranks" --memory $memory
done
if python3 -c 'import torch' 2>/dev/null; then run nccl.json 60 python3 bench/peers/nccl_sums.py "$ranks"; fi
for processes in 1 "$ranks"; do
  [ -x "$bin/load_weights_bench" ] || continue
  run "load.$processes.json" 60 "$bin/load_weights_bench" --backend cuda --ranks "$processes" --layers "${LOAD_LAYERS:-12}" \
    --cold-rounds 0 --warm-rounds 3 --folder "${LOAD_FOLDER:-/tmp}"
done
if [ -d models/needle ]; then
  run services.txt 90 tests/gpu/services_test.py --bin-dir "$bin" "--worker-option=--tensor-parallel=$ranks"
fi
run measure.txt "${MEASURE_SECONDS:-420}" python3 bench/ranks/measure.py --bin-dir "$bin" --out "$out/measure.json" \
  --ranks "${RANKS:-1,$ranks}" ${MEASURE_OPTIONS:-}
cat "$out/measure.txt"
exit $failed
