#!/usr/bin/env bash
# The test suite. Arguments go to pytest: tools/test.sh tests/unit -k codec
# TEST_WORKERS=1 runs in one process; HEADRACE_TEST_SEED=N repeats a run's random choices.
set -euo pipefail
cd "$(dirname "$0")/.."
workers=${TEST_WORKERS:-$(nproc)}
arguments=(-m "not kafka and not docker" --durations=15 --durations-min=1)
if [ "$workers" -gt 1 ]; then arguments+=(-n "$workers" --dist loadgroup); fi
exec .venv/bin/python -m pytest "${arguments[@]}" "$@"
