# The pod of deploy/kubernetes/overlays/cpu. Sourced by try.sh.
manifest=$engine/pod.yaml
worker=retroinfer-pod-0-gpu-worker
store=retroinfer-pod-0-kv-store

stop_trial() { podman kube down "$manifest" >/dev/null 2>&1; }
in_worker() { podman exec "$worker" "$@"; }
in_store() { podman exec "$store" "$@"; }
healthy() { in_worker retroinfer health --address 127.0.0.1:50051; }

# What kubectl would send, with the images of this run, and without what only a cluster has.
# usage: render [KIND]: without that kind, too
render() {
  kubectl kustomize deploy/kubernetes/overlays/cpu | python3 -c '
import sys, yaml
kinds = {"ConfigMap", "PersistentVolumeClaim", "Deployment"} - set(sys.argv[2:])
documents = [d for d in yaml.safe_load_all(sys.stdin) if d["kind"] in kinds]
for document in documents:
    if document["kind"] == "Deployment":  # the pod has a loopback of its own, and no port of this machine
        template = document["spec"]["template"]
        for container in template["spec"]["containers"]:
            del container["ports"]
        # podman 4.3 may try to remove an init container that is about to end, and then gives up.
        for metadata in document["metadata"], template["metadata"]:
            metadata.setdefault("annotations", {})["io.podman.annotations.init.container.type"] = "always"
text = yaml.safe_dump_all(documents)
print(text.replace("retroinfer/gpu-worker:0.1.0", "localhost/retroinfer/gpu-worker:" + sys.argv[1])
          .replace("retroinfer/kv-store:0.1.0", "localhost/retroinfer/kv-store:" + sys.argv[1])
          .replace("retroinfer/demo-model:0.1.0", "localhost/retroinfer/demo-model:" + sys.argv[1]))
' "$tag" "$@" >"$manifest"
}
make_secret() {
  podman secret create retroinfer-api-key - >/dev/null <<'SECRET'
apiVersion: v1
kind: Secret
metadata: {name: retroinfer-api-key}
data: {key: dHJ5LXRoaXMta2V5}
SECRET
}
play() { podman kube play --network none "$manifest" >"$engine/play.log" 2>&1; }

ask() {  # number of the question: writes $engine/answer.json
  podman exec -i "$worker" retroinfer generate --raw --address 127.0.0.1:50051 \
    --api-key-file /etc/retroinfer-api-key/key --temperature 0 --max-tokens 32 --quiet --json - \
    <"$engine/prompt-$1" >"$engine/answer.json" || fail "question $1 got no answer"
  local text
  text=$(field "$engine/answer.json" text)
  [ "${text# }" = "$(cat "$engine/answer-$1")" ] || fail "question $1: '$text' is wrong"
  say "question $1: right; $(field "$engine/answer.json" cached_tokens) of" \
    "$(field "$engine/answer.json" prompt_tokens) tokens from the cache," \
    "first token after $(printf '%.2f' "$(field "$engine/answer.json" ttft_s)") s"
}

status_of() { in_"$1" grep -E "^$2:" /proc/1/status | awk '{ print $2 }'; }
limit_of() {  # memory limit of a container's control group, in bytes
  in_"$1" cat /sys/fs/cgroup/memory.max 2>/dev/null || in_"$1" cat /sys/fs/cgroup/memory/memory.limit_in_bytes
}
used_by() {
  in_"$1" cat /sys/fs/cgroup/memory.current 2>/dev/null || in_"$1" cat /sys/fs/cgroup/memory/memory.usage_in_bytes
}
check_confined() {  # worker or store, memory limit in MiB
  local bytes=$(($2 << 20))
  [ "$(in_"$1" id -u):$(in_"$1" id -g)" = 10001:10001 ] || fail "$1 does not run as 10001"
  ! in_"$1" touch /probe 2>"$engine/probe" && grep -q 'Read-only file system' "$engine/probe" ||
    fail "$1: the root file system can be written"
  [ "$(status_of "$1" CapBnd)" = 0000000000000000 ] || fail "$1 can get capabilities"
  [ "$(status_of "$1" NoNewPrivs)" = 1 ] || fail "$1 can get new rights"
  [ "$(status_of "$1" Seccomp)" = 2 ] || fail "$1 is not under seccomp"
  [ "$(limit_of "$1")" = $bytes ] || fail "$1: the memory limit is $(limit_of "$1"), not $bytes"
  local used
  used=$(used_by "$1")
  [ "$used" -lt $bytes ] || fail "$1 is over its limit"
  say "$1: user 10001, root read-only, no capabilities, seccomp; $((used >> 20)) of $2 MiB in use"
}

# expect_failure SETTING PROGRAM CONTAINER TEXT WHAT: the pod is played; PROGRAM edits it before.
expect_failure() {
  local what=$1 container=$2 text=$3
  shift 3
  render PersistentVolumeClaim
  "$@"
  play || true
  local deadline=$((SECONDS + 60)) log=$engine/failure.log
  while :; do
    { cat "$engine/play.log"; [ -z "$container" ] || podman logs "$container" 2>&1; } >"$log" || true
    if grep -qe "$text" "$log"; then break; fi
    [ $SECONDS -lt $deadline ] || { cat "$log"; fail "$what: nothing says $text"; }
    sleep 0.3
  done
  say "$what: $(grep -e "$text" "$log" | head -1 | sed 's/^.*\] //' | cut -c1-200)"
  podman kube down "$manifest" >/dev/null 2>&1 || podman pod rm -af -t 0 >/dev/null 2>&1 || true
}
in_manifest() { sed -i "$1" "$manifest"; }

try_pod() {
  make_question 9000
  render
  make_secret
  say "playing the pod of deploy/kubernetes/overlays/cpu"
  play || { cat "$engine/play.log"; fail "podman kube play"; }
  eventually 120 "the pod is ready" healthy
  say "ready"
  ask 0
  ask 1
  [ "$(field "$engine/answer.json" cached_tokens)" -gt 0 ] || fail "nothing was found in the cache"
  ! in_worker retroinfer generate --address 127.0.0.1:50051 hello 2>"$engine/refused" ||
    fail "a call without the key was answered"
  say "without the key: $(cut -c1-100 "$engine/refused")"
  check_confined worker 2304
  check_confined store 1552
  [ "$(used_by store)" -gt $((1 << 30)) ] || fail "the arena is not charged to the store"

  local before after
  before=$(podman inspect --format '{{.State.Pid}}' "$store")
  kill -KILL "$before"
  say "killed the store"
  in_worker retroinfer health --live --address 127.0.0.1:50051 >/dev/null ||
    fail "the worker is not alive"
  restarted() {
    after=$(podman inspect --format '{{.State.Pid}}' "$store") && [ "$after" != 0 ] && [ "$after" != "$before" ]
  }
  eventually 60 "the store is started again" restarted
  eventually 60 "the worker finds the new store" healthy
  ask 0
  [ "$(field "$engine/answer.json" cached_tokens)" -gt 0 ] || fail "the new store has lost the contexts"
  [ "$(podman inspect --format '{{.RestartCount}}' "$worker")" = 0 ] || fail "the worker was restarted, too"

  podman kube down "$manifest" >"$engine/down.log" 2>&1 || fail "podman kube down"
  [ -z "$(podman ps -aq)" ] || fail "containers are left"
  say "taken down; played again with the same volume"
  render PersistentVolumeClaim  # podman makes a claim's volume, and does not take one that is there
  play || { cat "$engine/play.log"; fail "podman kube play, a second time"; }
  eventually 120 "the pod is ready again" healthy
  ask 1
  [ "$(field "$engine/answer.json" cached_tokens)" -gt 0 ] || fail "contexts did not outlive the pod"
  podman kube down "$manifest" >"$engine/down.log" 2>&1 || fail "podman kube down"

  say "settings that are wrong:"
  expect_failure "a limit below the arena" "$store" --arena-bytes in_manifest 's/memory: 1552Mi/memory: 512Mi/'
  expect_failure "a wrong model path" "$worker" '/models/modle' in_manifest 's|model = "/models/model"|model = "/models/modle"|'
  expect_failure "a key file that is not there" "$worker" --api-key-file in_manifest 's|retroinfer-api-key/key|retroinfer-api-key/kye|'
  podman secret rm retroinfer-api-key >/dev/null
  expect_failure "no secret" "" retroinfer-api-key true
  [ -z "$(podman ps -aq)" ] || fail "containers are left"
}
