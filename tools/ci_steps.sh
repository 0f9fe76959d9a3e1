# The steps of continuous integration (.ci/run sources this): their time limits, what they print, and what the end says.
#
#   step NAME LIMIT_S COMMAND...   runs it; its output is passed on as it comes, and kept in build/ci/NAME.log
#   so_far                         how the steps went until now, on standard output
#   summary                        how they all went, and the telling lines of those that failed, on standard error and
#                                  in build/ci/timings.txt. 0 when none failed.
#
# Who looks at a run afterwards may have the end of its output only, so what failed is told there once more.

mkdir -p build/ci
ci_failed=()
ci_timings=()

step() { # NAME LIMIT_S COMMAND...
  local name=$1 limit=$2 started=$SECONDS code out tee verdict=ok
  shift 2
  printf '\nci: === %s: %s (at most %s s)\n' "$name" "$*" "$limit"
  # Not a pipe: the shell would wait for its end, which whatever a step leaves running holds open, beyond any limit.
  exec {out}> >(exec tee "build/ci/$name.log")
  tee=$!
  timeout --kill-after=20 "$limit" "$@" </dev/null >&"$out" 2>&1 {out}>&-
  code=$?
  exec {out}>&-
  for _ in {1..100}; do # until the last of the output is out
    kill -0 "$tee" 2>/dev/null || break
    sleep 0.1
  done
  if kill "$tee" 2>/dev/null; then printf 'ci: %s left something running that holds its output\n' "$name"; fi
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
  {
    if [ ${#ci_failed[@]} -gt 0 ]; then python3 tools/telling_lines.py "${ci_failed[@]/#/build/ci/}"; fi
    printf 'ci: %s s in all\n' "$SECONDS"
    printf 'ci:   %s\n' "${ci_timings[@]}"
    if [ ${#ci_failed[@]} -eq 0 ]; then printf 'ci: ok\n'; else printf 'ci: FAILED: %s\n' "${ci_failed[*]}"; fi
  } 2>&1 | tee build/ci/timings.txt >&2
  [ ${#ci_failed[@]} -eq 0 ]
}
