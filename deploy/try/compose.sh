# deploy/compose with docker-compose, which speaks to podman as if it were docker. Sourced by try.sh.
compose() { (cd deploy/compose && docker-compose "$@"); }

stop_trial() {
  compose down -v --remove-orphans >/dev/null 2>&1 || true
  [ -z "${service:-}" ] || { kill "$service" 2>/dev/null && wait "$service" 2>/dev/null || true; }
}

container_of() { podman ps -q --filter "label=com.docker.compose.service=$1"; }

try_compose() {
  podman system service --time 0 "unix://$engine/podman.sock" >"$engine/service.log" 2>&1 &
  service=$!
  export DOCKER_HOST=unix://$engine/podman.sock
  eventually 30 "podman serves docker's API" test -S "$engine/podman.sock"
  # The settings of .env, but for the names of images and a port that is free. Monitoring needs images that this
  # engine does not have.
  export IMAGES=localhost/retroinfer TAG=$tag API_ADDRESS=127.0.0.1: COMPOSE_PROFILES=cpu
  export COMPOSE_PROJECT_NAME=retroinfer-try
  say "docker-compose run --rm ask"
  compose run --rm ask >"$engine/answer" 2>"$engine/ask.log" || { cat "$engine/ask.log"; fail "no answer"; }
  grep -q 1756423 "$engine/answer" || { cat "$engine/answer" "$engine/ask.log"; fail "the answer is wrong"; }
  say "the answer is right: $(grep -m1 . "$engine/answer")"
  compose up -d >"$engine/up.log" 2>&1 || { cat "$engine/up.log"; fail "docker-compose up"; }
  local worker store
  worker=$(container_of cpu-worker) store=$(container_of kv-store)
  [ -n "$worker" ] && [ -n "$store" ] || fail "not both services run: $(podman ps)"
  [ "$(podman exec "$worker" id -u)" = 10001 ] || fail "the worker does not run as 10001"
  ! podman exec "$worker" touch /probe 2>/dev/null || fail "the worker's root can be written"
  local limit
  limit=$(podman inspect --format '{{.HostConfig.Memory}}' "$store")
  [ "$limit" = $((1552 << 20)) ] || fail "the store's limit is $limit"
  say "up: $(podman ps --format '{{.Names}}' | sort | xargs); user 10001, root read-only, limits as in .env"
  compose down -v >"$engine/down.log" 2>&1 || { cat "$engine/down.log"; fail "docker-compose down"; }
  [ -z "$(podman ps -aq)" ] || fail "containers are left: $(podman ps -a)"
  [ -z "$(podman volume ls -q)" ] || fail "volumes are left: $(podman volume ls)"
  say "down -v: no container and no volume is left"

  say "settings that are wrong:"
  expect_refusal "a limit below the arena" kv-store --arena-bytes STORE_LIMIT=512m
  expect_refusal "a folder without a model" cpu-worker /models/model MODEL_DIR="$engine"
  export COMPOSE_FILE=compose.yaml:compose.secure.yaml
  expect_refusal "no file with a key" cpu-worker --api-key-file "IMAGES=$IMAGES"
  unset COMPOSE_FILE
  # The engine has made folders where it looked for the files.
  rmdir deploy/compose/secrets/* deploy/compose/secrets 2>/dev/null || true
}

# expect_refusal WHAT SERVICE TEXT SETTING=VALUE
expect_refusal() {
  (export "${4?}"; compose up -d >"$engine/up.log" 2>&1) || true
  local deadline=$((SECONDS + 90)) line=''
  until line=$(grep -m1 -e "$3" <<<"$(compose logs --no-color "$2" 2>/dev/null)"); do
    [ $SECONDS -lt $deadline ] || { cat "$engine/up.log"; fail "$1: nothing says $3"; }
    sleep 0.5
  done
  say "$1: $(echo "$line" | sed 's/^[^|]*| //' | cut -c1-170)"
  # A container that is just being started again cannot be removed.
  eventually 60 "docker-compose down" compose down -v
}
