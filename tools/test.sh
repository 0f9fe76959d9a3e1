#!/usr/bin/env bash
# The test suite. Arguments go to pytest: tools/test.sh tests/unit -k codec
# TEST_WORKERS=1 runs in one process; HEADRACE_TEST_SEED=N repeats a run's random choices. Tests that wait for clusters
# leave a third of the processor time unused, so there is one worker more than processors. All tests of a file run in
# one worker, so that a file's cluster is started once. tests/conftest.py orders the files: files that wait run beside
# files that compute, long files run early, and small unit tests run last, so that all workers end together. (Not by
# xdist_group: xdist 3.8 keeps the group in an attribute that pytest 9.2 no longer reads, and every worker started every
# cluster.) `-m long` runs the tests that are normally left out because they take long; CI runs them. Tests use small
# counts; `make verify` runs them with the counts of the requirements. The tests' modules are compiled once, even if
# PYTHONDONTWRITEBYTECODE is set: compiling 500 modules takes each worker 20 s of processor time.
set -euo pipefail
cd "$(dirname "$0")/.."
unset PYTHONDONTWRITEBYTECODE
workers=${TEST_WORKERS:-$(($(nproc) + 1))}
arguments=(-m "not kafka and not docker and not browser and not kerberos and not long" --durations=15 --durations-min=1)
if [ "$workers" -gt 1 ]; then arguments+=(-n "$workers" --dist loadfile --no-loadscope-reorder); fi
exec .venv/bin/python -m pytest "${arguments[@]}" "$@"
