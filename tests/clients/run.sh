#!/usr/bin/env bash
# Lets real clients speak to the gateway, and puts tables of what worked into docs/use/clients.md: packages that people build
# on (packages.py, requirements/*.txt: an environment for those that agree on their dependencies), over a worker that plays
# what a check wrote and over a model; and `retroinfer serve` with the demo model under load, measured, and over gRPC
# (clients.py). Installs from PyPI into folders of its own (6 GB), so it is for a developer's machine, not for CI. No client
# asks a model hub for anything. Needs Debian's python3-grpcio and protobuf-compiler-grpc.
# usage: tests/clients/run.sh [--bin FOLDER, default build/release/bin] [--venvs FOLDER, default build/clients-venvs]
#   [--only NAMES, such as litellm,openai; demo, lm-eval, aiperf, curl or retroinfer for those of clients.py]
#   [--model FOLDER of the model that writes, default models/needle] [--report FILE, of failures with their requests]
#   [--fixtures FOLDER, for what packages send] [--record FOLDER, for what the clients of clients.py send]
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
here=$root/tests/clients
bin=$root/build/release/bin venvs=$root/build/clients-venvs only='' packages_options=() demo_options=()
while [ $# -gt 0 ]; do
  [ $# -gt 1 ] || { echo "run.sh: $1 needs a value" >&2; exit 2; }
  case $1 in
    --bin) bin=$2 ;;
    --venvs) venvs=$2 ;;
    --only) only=$2 ;;
    --model | --report | --fixtures) packages_options+=("$1" "$(realpath -m "$2")") ;;
    --record) demo_options+=("$1" "$(realpath -m "$2")") ;;
    *) echo "run.sh: there is no option $1" >&2; exit 2 ;;
  esac
  shift 2
done
bin=$(realpath "$bin")
mkdir -p "$venvs"
venvs=$(realpath "$venvs")

# Makes an environment, unless there is one with just these packages.
install() {
  cmp --quiet "$here/requirements/$1.txt" "$venvs/$1/installed.txt" && return
  echo "run.sh: installing $1" >&2
  python3 -m venv "$venvs/$1"
  "$venvs/$1/bin/pip" install --quiet --requirement "$here/requirements/$1.txt"
  cp "$here/requirements/$1.txt" "$venvs/$1/installed.txt"
}

# usage: run_demo [OPTIONS of clients.py]
run_demo() {
  local wheels status=0
  install demo
  wheels=$(mktemp -d)
  "$venvs/demo/bin/pip" install --quiet --no-deps --force-reinstall \
    "$("$root/clients/python/build_wheel.sh" "$wheels")"
  "$venvs/demo/bin/python" "$here/clients.py" "$bin" "${demo_options[@]}" "$@" || status=$?
  rm -rf "$wheels"
  return "$status"
}

# usage: run_packages [--only NAMES]
run_packages() {
  local environment environments
  environments=$(/usr/bin/python3 "$here/packages.py" "$bin" "$venvs" --environments "$@")
  for environment in $environments; do install "$environment"; done
  /usr/bin/python3 "$here/packages.py" "$bin" "$venvs" "${packages_options[@]}" "$@"
}

status=0
if [ -z "$only" ]; then
  run_packages || status=1
  run_demo || status=1
  exit "$status"
fi
packages=''
for name in ${only//,/ }; do
  case $name in
    demo) run_demo || status=1 ;;
    lm-eval | aiperf | curl | retroinfer) run_demo --only "$name" || status=1 ;;
    *) packages=${packages:+$packages,}$name ;;
  esac
done
[ -z "$packages" ] || run_packages --only "$packages" || status=1
exit "$status"
