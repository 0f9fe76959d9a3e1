# The steps of continuous integration (.ci/run sources this): time limits, output, and a summary.
#
#   step NAME LIMIT_S COMMAND...   run it; its output is printed at once, and kept in build/ci/NAME.log
#   beside NAME LIMIT_S COMMAND... start it in the background; its output is only in build/ci/NAME.log
#   joined NAME                    wait for its end; afterwards it counts as an ordinary step
#   rotating NAME BY_S LIMIT_S COMMAND...
#                                  a step that runs only a part of its tests, by the seed of the day, if CI has already
#                                  run for more than BY_S: a half, and for each further 300 s a smaller part, but at
#                                  least a quarter. HEADRACE_TEST_PART is then 1/2 to 4/4 (tests/conftest.py)
#   so_far                         results of the steps so far, on standard output
#   summary                        the last 30 lines of each failed step, and results of all steps, on standard error
#                                  and in build/ci/timings.txt. 0 when none failed.
#
# A reader of a CI run may see only the end of its output, so failures are repeated there.

mkdir -p build/ci
ci_failed=()
ci_timings=()
declare -A ci_beside=() ci_beside_since=()
trap 'kill "${ci_beside[@]}" 2>/dev/null' EXIT

ended() { # NAME EXIT_CODE SECONDS
  local verdict=ok
  if [ "$2" -eq 124 ] || [ "$2" -eq 137 ]; then verdict="TIMED OUT"; elif [ "$2" -ne 0 ]; then verdict="FAILED ($2)"; fi
  ci_timings+=("$(printf '%-8s %5s s  %s' "$1" "$3" "$verdict")")
  if [ "$2" -ne 0 ]; then ci_failed+=("$1"); fi
}

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
  ended "$name" "$code" $((SECONDS - started))
}

part_of() { # NAME PARTS: the part of today. The seed alone would not do: other steps choose by its remainders, and some
  # tests would then never run on a late day.
  printf '%s' $(($(printf '%s %s' "$HEADRACE_TEST_SEED" "$1" | cksum | cut -d' ' -f1) % $2 + 1))
}

rotating() { # NAME BY_S LIMIT_S COMMAND...
  local name=$1 by=$2 began=$SECONDS part parts
  shift 2
  if [ "$began" -le "$by" ]; then
    step "$name" "$@"
    return
  fi
  parts=$((2 + (began - by) / 300))
  parts=$((parts > 4 ? 4 : parts))
  part="$(part_of "$name" "$parts")/$parts"
  printf '\nci: LATE: %s begins after %s s instead of %s, and runs part %s of its tests\n' \
    "$name" "$began" "$by" "$part"
  HEADRACE_TEST_PART=$part step "$name" "$@"
  ci_timings[-1]+=", part $part of its tests (LATE: began after $began s instead of $by)"
}

beside() { # NAME LIMIT_S COMMAND...
  local name=$1 limit=$2
  shift 2
  printf '\nci: === %s, beside the next steps: %s (at most %s s)\n' "$name" "$*" "$limit"
  timeout --kill-after=20 "$limit" "$@" </dev/null >"build/ci/$name.log" 2>&1 &
  ci_beside[$name]=$!
  ci_beside_since[$name]=$(date +%s)
}

joined() { # NAME
  local name=$1 code
  wait "${ci_beside[$name]}"
  code=$?
  unset "ci_beside[$name]"
  printf '\nci: === %s has ended\n' "$name"
  cat "build/ci/$name.log"
  ended "$name" "$code" $(($(stat -c %Y "build/ci/$name.log") - ci_beside_since[$name]))
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
