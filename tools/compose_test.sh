#!/usr/bin/env bash
# Test the cluster in containers: build the images, then run tests/compose in a separate project, which is removed
# afterwards. Needs a Docker engine with Compose v2, Maven for the jars of Kafka Connect, and the ports that
# compose.yaml publishes on 127.0.0.1. Arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."
docker info >/dev/null 2>&1 || { printf 'compose-test: no Docker engine answers (docker info)\n' >&2; exit 2; }
docker compose version >/dev/null 2>&1 || { printf 'compose-test: Compose v2 is missing (docker compose)\n' >&2; exit 2; }
export DOCKER_BUILDKIT=1 COMPOSE_PROGRESS=plain HEADRACE_AUTO_REBALANCE_DELAY_MS=3000
unset HEADRACE_BOOTSTRAP_SERVERS HEADRACE_FULL HEADRACE_VERSION
mkdir -p build/compose
started=$SECONDS
log=build/compose/build.log
deploy/connect/jars.sh
# Build the images one by one: BuildKit of Docker 20.10 sometimes loses a layer's directory, or even the Dockerfile,
# when two builds of one context start together. Its cache keeps the other layers, so a second try succeeds.
files=(-f compose.yaml -f deploy/compose.secure.yaml)
images=$(docker compose "${files[@]}" --profile "*" config --format json |
  .venv/bin/python -c 'import json, sys; print(*(n for n, s in json.load(sys.stdin)["services"].items() if "build" in s))')
[ -n "$images" ] || { printf 'compose-test: compose.yaml builds nothing\n' >&2; exit 1; }
for image in $images; do
  docker compose "${files[@]}" --profile "*" build "$image" >"$log" 2>&1 || {
    printf 'compose-test: %s built once more, for: %s\n' "$image" "$(tail -n 1 "$log")"
    docker builder prune --all --force >/dev/null
    docker compose "${files[@]}" --profile "*" build "$image" >"$log" 2>&1
  } || { tail -n 40 "$log" >&2; exit 1; }
done
printf 'compose-test: images built in %s s\n' $((SECONDS - started))
code=0
.venv/bin/python -m pytest -q -n 0 --durations=10 --durations-min=1 "$@" tests/compose || code=$?
[ ! -f build/compose/figures.json ] || { printf 'compose-test: figures: '; tr -d '\n' <build/compose/figures.json; printf '\n'; }
exit $code
