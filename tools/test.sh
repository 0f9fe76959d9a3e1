#!/usr/bin/env bash
# Tests by tier, each a list of folders; other arguments go to pytest: tools/test.sh tests/unit -k codec
#   tools/test.sh test ...   pure tests, and one journey on real processes for each area
#   tools/test.sh deep ...   the rest that needs only Python and Java; all examples, and all steps of scenarios
#   tools/test.sh slice ...  a fixed part of deep for CI, some files of each area
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
  deep) shift; folders=(tests/exhaustive tests/integration tests/docs tests/property tests/scenarios tests/simulation tests/fuzz)
        export HEADRACE_EXAMPLES=all ;;
  slice) shift
    folders=(tests/exhaustive/{log/test_log_crashes,controller/test_storage_crashes,coordinator/test_groups_mutants}.py
      tests/integration/broker/test_{replication,produce_stream,broker_upkeep,log_dirs,metadata_over_failovers}.py
      tests/integration/cli/test_cli_{local,topics,groups,transactions,replicated}.py
      tests/integration/client/test_{group_consumers,transactions,read_committed_logs,producer_over_failovers}.py
      tests/integration/console/test_console_pages.py tests/integration/contract
      tests/integration/coordinator/test_{coordinator_process,transactions_process}.py
      tests/integration/kafka_protocol/test_{clients,fetch_answers,refused_requests}.py
      tests/integration/interop/test_bare_grpc_client.py tests/integration/pipelines/test_orders.py
      tests/integration/registry/test_registry_nodes.py tests/integration/schemas/test_clients_and_a_registry.py
      tests/integration/security/test_{access_matrix,attacks,secure_cluster}.py
      tests/integration/spark/test_spark_{source,sink,exactly_once}.py
      tests/integration/upgrade/test_old_clusters.py
      tests/docs/test_{readme_runs,documented_invariants,documented_commands}.py tests/fuzz
      tests/simulation/test_{directed_mutants,simulated_{brokers,groups,transactions,upkeep}}.py) ;;
esac
workers=${TEST_WORKERS:-$(($(nproc) + 1))}
arguments=(-m "not long" --durations=15 --durations-min=1)
if [ "$workers" -gt 1 ]; then arguments+=(-n "$workers" --dist loadfile --no-loadscope-reorder); fi
exec .venv/bin/python -m pytest "${arguments[@]}" "${folders[@]}" "$@"
