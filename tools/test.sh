#!/usr/bin/env bash
# Tests by tier, each a list of folders; other arguments go to pytest: tools/test.sh tests/unit -k codec
#   tools/test.sh test ...   pure tests, and one journey on real processes for each area
#   tools/test.sh deep ...   the rest that needs only Python and Java; Hypothesis with all its examples
# What needs more (folders kafka, kerberos, browser, long; tests/system, tests/compose) runs in `make verify`.
#
# TEST_WORKERS=1 runs in one process; HEADRACE_TEST_SEED=N makes other random choices. There is one worker more than
# processors, since tests of clusters wait; all tests of a file run in one worker, so that its cluster starts once (not
# by xdist_group: xdist 3.8 keeps the group in an attribute that pytest 9.2 no longer reads). The modules are compiled
# once, even if PYTHONDONTWRITEBYTECODE is set: compiling them costs each worker 20 s of processor time.
set -euo pipefail
cd "$(dirname "$0")/.."
unset PYTHONDONTWRITEBYTECODE

folders=()
case "${1:-}" in
  test) shift; folders=(tests/architecture tests/unit tests/scenarios tests/property tests/journeys) ;;
  deep) shift; folders=(tests/exhaustive tests/integration tests/docs tests/property tests/simulation tests/fuzz)
        export HEADRACE_EXAMPLES=all ;;
esac
workers=${TEST_WORKERS:-$(($(nproc) + 1))}
arguments=(-m "not long" --durations=15 --durations-min=1)
if [ "$workers" -gt 1 ]; then arguments+=(-n "$workers" --dist loadfile --no-loadscope-reorder); fi
exec .venv/bin/python -m pytest "${arguments[@]}" "${folders[@]}" "$@"
