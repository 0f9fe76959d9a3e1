#!/usr/bin/env bash
# The test suite. Arguments go to pytest: tools/test.sh tests/unit -k codec
# TEST_WORKERS=1 runs in one process; HEADRACE_TEST_SEED=N repeats a run's random choices. Clusters that start, fail and
# are waited for leave a third of the processors idle, so there is one worker more than there are of them. A file's tests
# are one worker's: what a file starts for all of them is started once. tests/conftest.py says in which order files go:
# some that wait beside some that compute, long ones early; the unit tests' small ones come last, and the workers end
# together. (Not by xdist_group: xdist 3.8 keeps the group in an attribute that pytest 9.2 no longer reads, and every
# worker started every cluster.)
# `-m long` runs what is left out for its length; CI does.
# The counts that the requirements name, where a test has smaller ones for every day, are those of `make verify`.
set -euo pipefail
cd "$(dirname "$0")/.."
workers=${TEST_WORKERS:-$(($(nproc) + 1))}
arguments=(-m "not kafka and not docker and not long" --durations=15 --durations-min=1)
if [ "$workers" -gt 1 ]; then arguments+=(-n "$workers" --dist loadfile --no-loadscope-reorder); fi
exec .venv/bin/python -m pytest "${arguments[@]}" "$@"
