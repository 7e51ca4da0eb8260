# A container engine in a temporary folder, and what the trials share. Sourced by try.sh.
tag=try
began=$SECONDS

say() { printf '%4d s  %s\n' $((SECONDS - began)) "$*"; }
fail() {
  say "FAILED: $*"
  show_logs >&2 || true
  exit 1
}
show_logs() {
  local container
  for container in $(podman ps -a --format '{{.Names}}'); do
    echo "--- $container"
    podman logs --tail 20 "$container"
  done
}
# eventually SECONDS WHAT COMMAND...: runs the command until it succeeds.
eventually() {
  local deadline=$((SECONDS + $1)) what=$2
  shift 2
  until "$@" >/dev/null 2>&1; do
    [ $SECONDS -lt $deadline ] || fail "$what: not within the time"
    sleep 0.3
  done
}

# The bridges of container networks; podman leaves them behind when it removes the network.
bridges() { (cd /sys/class/net && ls -d cni-podman* 2>/dev/null) || true; }

begin_engine() {  # folder whose images are kept, or ""
  engine=$(mktemp -d /tmp/retroinfer-try.XXXXXX)
  graph=${1:-$engine/graph}
  bridges_before=" $(bridges | xargs) "
  trap end_engine EXIT
  trap 'exit 130' INT TERM
  mkdir -p "$graph"
  cat >"$engine/storage.conf" <<CONF
[storage]
driver = "overlay"
graphroot = "$graph"
runroot = "$engine/run"
CONF
  # cgroupfs and files: also where systemd does not run. Equal soft and hard limits need no right to raise them.
  cat >"$engine/containers.conf" <<CONF
[containers]
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
log_driver = "k8s-file"
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
lock_type = "file"
tmp_dir = "$engine/tmp"
volume_path = "$engine/volumes"
infra_image = "localhost/retroinfer-pause:$tag"
[network]
network_config_dir = "$engine/net"
CONF
  export CONTAINERS_STORAGE_CONF=$engine/storage.conf CONTAINERS_CONF=$engine/containers.conf
}

# Stops and removes everything of this engine, and checks that nothing is left.
end_engine() {
  [ -d "$engine" ] || return 0
  trap - EXIT
  stop_trial || true
  podman pod rm -af -t 0 >/dev/null 2>&1 || true
  podman rm -af -t 0 >/dev/null 2>&1 || true
  podman volume rm -af >/dev/null 2>&1 || true
  podman secret rm -a >/dev/null 2>&1 || true
  buildah rm -a >/dev/null 2>&1 || true
  local bridge
  for bridge in $(bridges); do
    [[ $bridges_before == *" $bridge "* ]] || ip link delete "$bridge" || true
  done
  local mount
  for mount in $(awk -v at="$engine" -v graph="$graph" 'index($2, at) == 1 || index($2, graph) == 1 { print $2 }' \
    /proc/mounts | sort -r); do
    umount -l "$mount" || true
  done
  rm -rf "$engine" "$graph/libpod"
  local line left=''
  for line in /proc/[0-9]*/cmdline; do
    case $(tr '\0' ' ' 2>/dev/null <"$line") in *"$engine"*) left+=" $line" ;; esac
  done
  [ -z "$left" ] || { echo "try.sh: processes are left:$left" >&2; exit 1; }
}
stop_trial() { :; }

build_images() {  # yes: compile in the build stage
  local arguments=(--debian-base --engine buildah --tag "$tag" --sbom "$engine/sbom")
  # Without systemd podman cannot run health commands, and waits for it at every container that has one.
  [ -d /run/systemd/system ] || arguments+=(--format oci)
  [ "$1" = yes ] || arguments+=(--build build/release)
  say "building the images"
  deploy/images/build.sh "${arguments[@]}" 2>"$engine/build.log" || {
    tail -30 "$engine/build.log" >&2
    fail "the images were not built"
  }
  # What holds a pod's namespaces.
  local pause
  pause=$(buildah from --pull-never "localhost/retroinfer/demo-model:$tag")
  buildah config --entrypoint '["/usr/bin/sleep", "infinity"]' "$pause"
  buildah commit -q --rm "$pause" "localhost/retroinfer-pause:$tag" >/dev/null
  local base size name
  base=$(image_bytes "$(buildah images --format '{{.Name}}:{{.Tag}}' | grep retroinfer-base)")
  for name in kv-store gpu-worker http-gateway retroinfer; do
    size=$(($(image_bytes "localhost/retroinfer/$name:$tag") - base))
    say "image $name: $((size / 1000000)) MB beyond its base of $((base / 1000000)) MB"
    [ $size -le 150000000 ] || fail "image $name has more than 150 MB beyond its base"
  done
}
image_bytes() { podman image inspect --format '{{.Size}}' "$1"; }

# The demo model's question about a document, and its answer.
make_question() {  # tokens
  python3 -m tools.needle.generate --task multi_key --length "$1" --questions 2 --seed 11 >"$engine/questions"
  python3 - "$engine" <<'PY'
import json, pathlib, sys
folder = pathlib.Path(sys.argv[1])
for i, line in enumerate((folder / "questions").read_text().splitlines()):
    question = json.loads(line)
    (folder / f"prompt-{i}").write_text(question["prompt"])
    (folder / f"answer-{i}").write_text(question["answer"])
PY
}
# field FILE NAME: a number or text of generate's JSON.
field() { python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))[sys.argv[2]])' "$1" "$2"; }
