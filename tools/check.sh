#!/usr/bin/env bash
# Run every static check, even after one has failed, and print how long each check took.
#   tools/check.sh mypy ruff     only these
set -uo pipefail
cd "$(dirname "$0")/.."
bin=.venv/bin
failed=()

check() {
  local name=$1 started=$SECONDS
  shift
  if [ ${#only[@]} -gt 0 ] && [[ " ${only[*]} " != *" $name "* ]]; then return; fi
  local output
  if output=$("$@" 2>&1); then
    printf 'check: %s ok (%s s)\n' "$name" $((SECONDS - started))
  else
    printf '%s\n' "$output"
    printf 'check: %s FAILED: %s\n' "$name" "$*"
    failed+=("$name")
  fi
}

only=("$@")
check ruff $bin/ruff check --quiet .
check format $bin/ruff format --check --quiet .
check mypy $bin/mypy
check imports $bin/lint-imports --no-logo
check protos $bin/python tools/proto_tool.py check
check blocking $bin/python tools/blocking_admin.py check
check limits $bin/python tools/limits_docs.py check
check access $bin/python tools/access_docs.py check
check kafka $bin/python tools/kafka_docs.py check
check configuration $bin/python tools/config_docs.py check
check metrics $bin/python tools/metrics_docs.py check
check budget $bin/python tools/budget_docs.py check
check version $bin/python tools/version.py check

if [ ${#failed[@]} -gt 0 ]; then
  printf 'check: failed: %s; to repeat: tools/check.sh %s\n' "${failed[*]}" "${failed[*]}"
  exit 1
fi
printf 'check: ok\n'
