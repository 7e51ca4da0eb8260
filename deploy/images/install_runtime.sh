#!/bin/sh
# Runs in the last step of each image: installs the libraries of its programs, makes the user and the
# folders, and writes down what is in the image.
set -eu
share=/usr/share/retroinfer

# Only what the base lacks: a base may hold packages at versions that the archive no longer has.
missing=$(while read -r package; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || echo "$package"
done <"$share/run-time-packages")
apt-get update -qq
# shellcheck disable=SC2086
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
apt-get clean
rm -rf /var/lib/apt/lists/* /var/cache/debconf/*-old /var/log/apt /var/log/dpkg.log
find /usr/share/doc -type f -name 'changelog*' -delete  # the licences stay

# The user that the services run as, wherever the image runs.
echo 'retroinfer:x:10001:10001::/:/usr/sbin/nologin' >>/etc/passwd
echo 'retroinfer:x:10001:' >>/etc/group
# Volumes that an engine makes for these take over owner and mode.
for folder in /run/retroinfer /var/cache/retroinfer; do
  mkdir -p "$folder"
  chown 10001:10001 "$folder"
  chmod 0700 "$folder"
done
mkdir -p /models
# Nothing here needs another user's rights.
find / -xdev -type f -perm /6000 -exec chmod a-s {} +

revision=$(/usr/bin/retroinfer --version)  # also proves that no library is missing
{
  printf 'package\tversion\tarchitecture\tsource\n'
  printf 'retroinfer\t%s\t%s\tretroinfer\n' "${revision#retroinfer }" "$(dpkg --print-architecture)"
  # shellcheck disable=SC2016
  dpkg-query -W -f='${Package}\t${Version}\t${Architecture}\t${source:Package} ${source:Version}\n'
} >"$share/packages.tsv"
for program in /usr/bin/gpu_worker /usr/bin/kv_store_service; do
  [ ! -x "$program" ] || "$program" --version >/dev/null
done
