#!/bin/sh
# Real tasks on a real checkpoint: what docs/evaluation/real-checkpoints.md has of them. One part a call;
# a call begins nothing new after SECONDS_MOST (360 s), and started again goes on with what is missing.
#
# usage: bench/real_tasks.sh PART FOLDER OUT
# PART:   ruler, ruler-30k, ruler-64k (YaRN), manuals, long-2k, long-8k, agreement (needs PyTorch,
#         tokenizers and safetensors), or report (writes OUT's tables into PAGE, or prints them)
# FOLDER: bin (the programs retroinfer, kv_store_service, gpu_worker and http_gateway, as
#         scripts/bundle.sh copies them), hf (the checkpoint), texts (tools/lab/corpora.py), manuals
#         (tools/tasks/manuals.py)
# OUT:    JSON lines; parts may share it
# SERVERS, where set, are the labels of servers to ask: default, coded, bf16, high. NAME is the model's.
set -eu
[ $# -eq 3 ] || { sed -n '2,13s/^# \{0,1\}//p' "$0" >&2; exit 2; }
part=$1
folder=$(cd "$2" && pwd)
touch "$3"
out=$(cd "$(dirname "$3")" && pwd)/$(basename "$3")
cd "$(dirname "$0")/.."
export LD_LIBRARY_PATH="$folder/bin/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
name=${NAME:-qwen2.5-coder-0.5b}
more=${SERVE:---arena-bytes 8GiB}

tasks() {
  scaling=$1
  shift
  set -- "$@" --setting full --setting wave --concurrency "${CONCURRENCY:-4}"
  for server in ${SERVERS:-default coded bf16 high}; do
    case $server in
      default) options= ;;
      high) options="--quality high" ;;
      coded | bf16) options="--index-dtype $server" ;;
      *) echo "SERVERS: $server is not known" >&2; exit 2 ;;
    esac
    set -- "$@" --serve "$server${scaling:+-yarn}=$options $more $scaling"
  done
  exec python3 -m tools.tasks.evaluate --bin-dir "$folder/bin" --model "$folder/hf" --name "$name" --out "$out" \
    --seconds "${SECONDS_MOST:-360}" "$@"
}

case $part in
  ruler) tasks "" --part ruler --length "${LENGTH:-16384}" --questions "${QUESTIONS:-10}" ;;
  ruler-30k) tasks "" --part ruler --length "${LENGTH:-30720}" --questions "${QUESTIONS:-10}" ;;
  ruler-64k)
    tasks "--rope-scaling yarn:4" --part ruler --length "${LENGTH:-65536}" \
      --questions "${QUESTIONS:-5}" ;;
  manuals)
    tasks "" --part manuals --manuals "$folder/manuals" --length "${LENGTH:-30720}" \
      --manual-questions "${QUESTIONS:-100}" ;;
  long-2k)
    tasks "" --part long --texts "$folder/texts" --length "${LENGTH:-32768}" --answer-tokens 2048 \
      --documents "${QUESTIONS:-4}" ;;
  long-8k)
    tasks "" --part long --texts "$folder/texts" --length "${LENGTH:-32768}" --answer-tokens 8192 \
      --documents "${QUESTIONS:-4}" ;;
  agreement)
    exec python3 -m tools.lab.product_agreement --bin-dir "$folder/bin" --model "$folder/hf" --name "$name" \
      --texts "$folder/texts" --length "${LENGTH:-32400}" --documents "${QUESTIONS:-7}" \
      --serve="$more" --out "$out" --seconds "${SECONDS_MOST:-360}" ;;
  report)
    # shellcheck disable=SC2086
    python3 -m tools.tasks.report "$out" ${PAGE:-}
    # shellcheck disable=SC2086
    python3 -m tools.lab.product_agreement --report "$out" ${PAGE:-} ;;
  *) echo "no part $part" >&2; exit 2 ;;
esac
