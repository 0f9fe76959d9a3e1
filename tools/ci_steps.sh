# The steps of continuous integration (.ci/run sources this): time limits, output, and a summary.
#
#   step NAME LIMIT_S COMMAND...   run it; its output is printed at once, and kept in build/ci/NAME.log
#   so_far                         results of the steps so far, on standard output
#   summary                        the last 30 lines of each failed step, and results of all steps, on standard error
#                                  and in build/ci/timings.txt. 0 when none failed.
#
# A reader of a CI run may see only the end of its output, so failures are repeated there.

mkdir -p build/ci
ci_failed=()
ci_timings=()

step() { # NAME LIMIT_S COMMAND...
  local name=$1 limit=$2 started=$SECONDS code out tee
  shift 2
  printf '\nci: === %s: %s (at most %s s)\n' "$name" "$*" "$limit"
  # Do not use a pipe: a process that a step leaves behind would keep the pipe open, and the shell would wait beyond the
  # limit.
  exec {out}> >(exec tee "build/ci/$name.log")
  tee=$!
  timeout --kill-after=20 "$limit" "$@" </dev/null >&"$out" 2>&1 {out}>&-
  code=$?
  exec {out}>&-
  for _ in {1..100}; do # until all output is printed
    kill -0 "$tee" 2>/dev/null || break
    sleep 0.1
  done
  if kill "$tee" 2>/dev/null; then printf 'ci: %s left something running that holds its output\n' "$name"; fi
  local verdict=ok
  if [ "$code" -eq 124 ] || [ "$code" -eq 137 ]; then verdict="TIMED OUT"; elif [ "$code" -ne 0 ]; then verdict="FAILED ($code)"; fi
  ci_timings+=("$(printf '%-8s %5s s  %s' "$name" $((SECONDS - started)) "$verdict")")
  if [ "$code" -ne 0 ]; then ci_failed+=("$name"); fi
}

so_far() {
  printf '\nci: steps so far:\n'
  printf 'ci:   %s\n' "${ci_timings[@]}"
  [ ${#ci_failed[@]} -eq 0 ] || printf 'ci: failed so far: %s\n' "${ci_failed[*]}"
}

summary() {
  local name
  {
    for name in ${ci_failed[@]+"${ci_failed[@]}"}; do
      printf '\nci: --- the end of build/ci/%s.log:\n' "$name"
      tail -n 30 "build/ci/$name.log"
    done
    printf 'ci: %s s in all\n' "$SECONDS"
    printf 'ci:   %s\n' "${ci_timings[@]}"
    if [ ${#ci_failed[@]} -eq 0 ]; then printf 'ci: ok\n'; else printf 'ci: FAILED: %s\n' "${ci_failed[*]}"; fi
  } 2>&1 | tee build/ci/timings.txt >&2
  [ ${#ci_failed[@]} -eq 0 ]
}
