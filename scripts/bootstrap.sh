#!/usr/bin/env bash
# Installs what the build, the tests and the demo need, on Debian 12 or 13 or Ubuntu 24.04. Packages that are
# there already are left alone; without missing packages nothing is asked of the network or of sudo.
# usage: scripts/bootstrap.sh [--without-tests]
set -euo pipefail

packages=(
  build-essential cmake ninja-build ccache pkg-config git python3
  libgrpc++-dev protobuf-compiler-grpc protobuf-compiler libprotobuf-dev libabsl-dev
  prometheus-cpp-dev libspdlog-dev libcli11-dev libedit-dev nlohmann-json3-dev libtomlplusplus-dev
  libsimdjson-dev libpcre2-dev libutf8proc-dev libssl-dev libnghttp2-dev libboost-dev librocksdb-dev libdnnl-dev
  ocl-icd-opencl-dev libhwy-dev libisal-dev
)
test_packages=(
  libgtest-dev libgmock-dev libbenchmark-dev clang-format
  prometheus prometheus-alertmanager haproxy file
  python3-yaml python3-grpcio python3-protobuf python3-setuptools python3-wheel systemd
)
[ "${1:-}" = --without-tests ] || packages+=("${test_packages[@]}")
# Packages of these names start services of these names; the tests want their programs alone.
services=(prometheus prometheus-alertmanager haproxy)

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query -W -f='${Status}' "$package" 2>/dev/null || true)
  [ "$status" = "install ok installed" ] || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
  echo "bootstrap: all packages are installed"
  exit 0
fi

if ! command -v apt-get >/dev/null; then
  echo "bootstrap: this needs apt-get (Debian 12 or 13, Ubuntu 24.04). Install by other means: ${missing[*]}" >&2
  exit 1
fi
as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || { echo "bootstrap: run as root, or install sudo" >&2; exit 1; }
  as_root=(sudo)
fi
echo "bootstrap: installing ${missing[*]}"
new_services=()
for service in "${services[@]}"; do
  case " ${missing[*]} " in *" $service "*) new_services+=("$service") ;; esac
done
policy=/usr/sbin/policy-rc.d # asked by packages before they start a service
if [ ${#new_services[@]} -gt 0 ] && [ ! -e "$policy" ]; then
  trap '"${as_root[@]}" rm -f "$policy"' EXIT
  printf '#!/bin/sh\ncase "$1" in prometheus*|haproxy) exit 101 ;; esac\n' | "${as_root[@]}" tee "$policy" >/dev/null
  "${as_root[@]}" chmod 755 "$policy"
fi
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
  "${missing[@]}"
for service in "${new_services[@]}"; do # nor at the next boot
  "${as_root[@]}" update-rc.d "$service" disable
  if command -v systemctl >/dev/null; then "${as_root[@]}" systemctl --quiet disable "$service.service"; fi
done
