#!/usr/bin/env bash
# Lets real clients of OpenAI's API speak to `retroinfer serve --http` with the demo model, and prints a table of
# what worked. Installs the clients from PyPI into a folder of its own, so it is for a developer's machine, not
# for CI.
# usage: tests/clients/run.sh [BIN_DIR, default build/release/bin] [VENV, default build/clients-venv]
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
bin=$(realpath "${1:-$root/build/release/bin}")
venv=${2:-$root/build/clients-venv}
if [ ! -x "$venv/bin/python" ]; then
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet openai langchain-openai
fi
exec "$venv/bin/python" "$root/tests/clients/clients.py" "$bin"
