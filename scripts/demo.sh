#!/usr/bin/env bash
# Builds, starts both services, hides facts in a long document and asks for them, once with full and once
# with wave attention. Ends by itself, and says how to ask in a browser; exit code 0 only if every answer is right. With --model code it
# continues a file of Python source under both instead, and says how often they agree.
set -euo pipefail
cd "$(dirname "$0")/.."

case "${1:-}" in
  -h | --help) exec python3 scripts/demo.py --help ;;
esac
# A wrong argument is told before anything is installed or built.
if command -v python3 >/dev/null; then
  python3 scripts/demo.py --check "$@"
fi
scripts/bootstrap.sh
cmake --preset release >/dev/null
cmake --build --preset release --target retroinfer gpu_worker kv_store_service http_gateway
exec python3 scripts/demo.py --bin-dir build/release/bin "$@"
