#!/usr/bin/env bash
# The tests that need Apache Kafka's own tools (marker "kafka"): Java and Maven, and the folder that fetches and runs
# Kafka, named by HEADRACE_PEERS. Whatever is missing is a failure here, never a skip.
set -euo pipefail
cd "$(dirname "$0")/.."
: "${HEADRACE_PEERS:?set HEADRACE_PEERS to the folder that holds kafka/cluster.py}"
for needed in java mvn; do
  command -v "$needed" >/dev/null || { echo "test_kafka: $needed is missing (Debian: apt-get install openjdk-17-jre-headless maven)"; exit 1; }
done
exec .venv/bin/python -m pytest -m kafka tests "$@"
