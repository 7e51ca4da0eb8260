#!/usr/bin/env bash
# Builds the Debian package, installs it into a bare root of this distribution, lets the demo model answer
# there as the services' user, upgrades, purges, and looks for what is left. Needs root and mmdebstrap.
# usage: scripts/try_package.sh [PACKAGE.deb]
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/support/bare_root.sh
require_root_and_mmdebstrap
suite=$(. /etc/os-release && echo "$VERSION_CODENAME")

work=$(mktemp -d /var/tmp/retroinfer-try-package-XXXXXX)
trap 'rm -rf --one-file-system "$work"' EXIT
root=$work/root
step() { echo "--- $*"; }

package=${1:-}
if [ -z "$package" ]; then
  step "building the package"
  cmake --preset release >/dev/null
  cmake --build --preset release --target retroinfer gpu_worker kv_store_service manuals
  cpack -G DEB --config build/release/CPackConfig.cmake -B "$work/package" >/dev/null
  package=$(echo "$work"/package/*.deb)
fi
dpkg-deb --field "$package" Package Version Depends Installed-Size
if command -v lintian >/dev/null; then
  step "lintian"
  lintian --allow-root --fail-on error,warning "$package"
else
  echo "lintian is not installed: not run"
fi

step "a bare $suite"
make_bare_root "$suite" "$root"
cp "$package" "$root/root/first.deb"
# The same as a later version.
dpkg-deb --raw-extract "$package" "$work/raw"
sed -i 's/^Version: .*/&+later/' "$work/raw/DEBIAN/control"
dpkg-deb --root-owner-group --build "$work/raw" "$root/root/later.deb" >/dev/null
rm -rf "$work/raw"
in_root "$root" apt-get update -qq
files_in_root() { (cd "$root" && find . -xdev \( -path ./proc -o -path ./root \) -prune -o -print) | sort; }
install_in_root() { in_root "$root" apt-get install -y -qq --no-install-recommends "$1" >"$work/apt.log" 2>&1 ||
  { cat "$work/apt.log"; exit 1; }; }

step "installed, dependencies and all; then purged, for a list of what dependencies leave"
install_in_root /root/first.deb
in_root "$root" dpkg --purge retroinfer-server >/dev/null
files_in_root >"$work/before"
if grep -i retroinfer "$work/before" | grep -v '^./var/lib/dpkg/\|^./var/log/\|^./var/cache/apt'; then
  echo "left behind by a package that never ran (above)"
  exit 1
fi

step "installed again: a question to the demo model, as the services' user"
install_in_root /root/first.deb
in_root "$root" bash -euo pipefail -c '
  [ "$(stat -c %U:%a /etc/retroinfer/credentials)" = root:700 ]
  for program in retroinfer gpu_worker kv_store_service; do
    "$program" --version >/dev/null
    [ -s "/usr/share/man/man1/$program.1.gz" ] || [ -e /etc/dpkg/dpkg.cfg.d/excludes ]
  done
  mkdir -p /run/retroinfer /var/cache/retroinfer
  chown retroinfer: /run/retroinfer /var/cache/retroinfer
  chmod 700 /run/retroinfer /var/cache/retroinfer
  as_service=(setpriv --reuid=retroinfer --regid=retroinfer --init-groups --no-new-privs)
  export RETROINFER_LISTEN=unix:/run/retroinfer/api.sock RETROINFER_SOCKET_DIR=/run/retroinfer
  export RETROINFER_METRICS_ADDRESS=127.0.0.1:0 RETROINFER_STORE_METRICS_ADDRESS=127.0.0.1:0
  export RETROINFER_ARENA_BYTES=128MiB RETROINFER_CACHE_DIR=/var/cache/retroinfer
  "${as_service[@]}" retroinfer serve --config /etc/retroinfer/serve.conf >/tmp/serve.log 2>&1 &
  serve=$!
  until grep -q "is ready at" /tmp/serve.log; do
    kill -0 $serve || { cat /tmp/serve.log; exit 1; }
    sleep 0.2
  done
  answer=$("${as_service[@]}" retroinfer generate --address "$RETROINFER_LISTEN" --max-tokens 20 \
    --file /usr/share/doc/retroinfer-server/examples/document.txt \
    "What is the secret number of the mellow lock?")
  kill $serve
  wait $serve
  echo "answer:$answer"
  [ "$answer" = " 1756423" ] || { cat /tmp/serve.log; exit 1; }
  [ -n "$(ls /var/cache/retroinfer)" ]
  rm /tmp/serve.log
'

step "upgraded: settings that were changed stay, and so does what is on disk"
echo '# changed here' >>"$root/etc/retroinfer/serve.conf"
install_in_root /root/later.deb
[ "$(in_root "$root" dpkg-query -W -f='${Version}' retroinfer-server | grep -c later)" = 1 ]
grep -q 'changed here' "$root/etc/retroinfer/serve.conf"
[ -n "$(ls "$root/var/cache/retroinfer")" ]

step "removed: settings and contexts stay"
in_root "$root" dpkg --remove retroinfer-server >/dev/null
[ ! -e "$root/usr/bin/gpu_worker" ] && [ -e "$root/etc/retroinfer/serve.conf" ]
[ -n "$(ls "$root/var/cache/retroinfer")" ]

step "purged: nothing stays"
in_root "$root" dpkg --purge retroinfer-server >/dev/null
files_in_root >"$work/after"
diff "$work/before" "$work/after"
if grep retroinfer "$root/etc/passwd" "$root/etc/group" "$root/etc/shadow"; then
  echo "the user is still there (above)"
  exit 1
fi
echo "the package installs, answers, upgrades and leaves nothing behind"
