# One check after the other within the part's time. Sourced by gpu-check.sh.

reserve=10  # seconds that the reports may take
grace=5     # between TERM and KILL for a check whose time is over

# allowance LEFT NEEDS LIMIT: how many seconds a check may take, when LEFT remain, less than NEEDS make no sense and LIMIT
# is what it takes at most. Nothing and status 1: it does not fit.
allowance() {
  if [ "$1" -lt "$2" ]; then return 1; fi
  if [ "$1" -lt "$3" ]; then echo "$1"; else echo "$3"; fi
}
seconds_left() { echo $((budget - reserve - SECONDS)); }

# check NAME NEEDS LIMIT READER COMMAND...: runs the command, its output in $work/log, and makes a row of it. READER looks at
# `status` and `log` and sets `state`, `detail` and the counts. `reason`, when set, is why the check is skipped.
# Returns 0 when it passed.
reason='' running=''
check() {
  local name=$1 needs=$2 limit=$3 reader=$4 left allowed start=$SECONDS
  local status=0 state=passed detail='' pass=0 fail=0 skip=0
  shift 4
  log=$work/log/${name//[^A-Za-z0-9_.-]/_}.log
  if [ -n "$reason" ]; then
    row "$name" skipped 0 0 1 0 "$reason"
    return 1
  fi
  left=$(seconds_left)
  if ! allowed=$(allowance "$left" "$needs" "$limit"); then
    row "$name" skipped 0 0 1 0 "needs $needs s, $left s of the part's $budget are left"
    return 1
  fi
  # mpirun passes a TERM on to its ranks and waits for them; KILL for what does not listen.
  # In the background, so that a signal to this script is heard at once.
  timeout --kill-after="$grace" "$allowed" "$@" > "$log" 2>&1 < /dev/null &
  running=$!
  wait "$running" 2> /dev/null || status=$?
  running=
  if { [ "$status" = 124 ] || [ "$status" = 137 ]; } && [ $((SECONDS - start)) -ge "$allowed" ]; then
    if [ "$allowed" -lt "$limit" ]; then
      state=skipped skip=1 detail="stopped after $allowed s: the part's $budget s were over"
    elif [ "$reader" = read_sanitizer ]; then
      # How slow a sanitizer is says nothing about the program.
      state=skipped skip=1 detail="stopped at its limit of $limit s, it last said: $(last_line)"
    else
      state=failed fail=1 detail="stopped at its limit of $limit s, it last said: $(last_line)"
    fi
  else
    "$reader"
  fi
  row "$name" "$state" "$pass" "$fail" "$skip" $((SECONDS - start)) "$detail"
  [ "$state" = passed ]
}

last_line() { grep -vE '^[[:space:]]*$' "$log" | tail -n 1 || true; }

# A program whose exit status says it all.
read_status() {
  case "$status" in
    0) pass=1 detail=$(last_line) ;;
    77) state=skipped skip=1 detail=$(last_line) ;;
    *) state=failed fail=1 detail="exit status $status: $(grep -m 1 -iE 'error' "$log" || last_line)" ;;
  esac
}

# A GoogleTest program. One line a test: "[       OK ] Suite.Name (3 ms)"; the summary's lines have no times. Under mpirun
# the lines are those of all ranks.
read_tests() {
  pass=$(grep -cE '\[ +OK \] .*\([0-9]+ ms\)$' "$log" || true)
  fail=$(grep -cE '\[ +FAILED +\] .*\([0-9]+ ms\)$' "$log" || true)
  skip=$(grep -cE '\[ +SKIPPED +\] .*\([0-9]+ ms\)$' "$log" || true)
  detail=$(grep -A 1 -hE ': Skipped$' "$log" | grep -vE ': Skipped$|^--$' | sort | uniq -c | sort -rn |
    awk 'NR <= 3 {n = $1; $1 = ""; printf "%s%d skipped:%s", sep, n, $0; sep = "; "}' || true)
  if [ "$status" != 0 ]; then
    state=failed
    if [ "$fail" = 0 ]; then fail=1; fi
    detail="exit status $status: $(grep -m 1 -E '\[ +FAILED +\] .*\([0-9]+ ms\)$|rror' "$log" || last_line)${detail:+; $detail}"
  elif [ "$pass" = 0 ]; then
    state=skipped
    if [ "$skip" = 0 ]; then skip=1 detail="no test ran"; fi
  fi
}

# The same under compute-sanitizer, whose own errors make its exit status 86 (--error-exitcode).
read_sanitizer() {
  read_tests
  detail="$(grep -m 1 -oE 'ERROR SUMMARY: .*|RACECHECK SUMMARY: .*' "$log" || true)${detail:+; $detail}"
  if [ "$status" = 0 ] && ! grep -qE '(ERROR|RACECHECK) SUMMARY: 0 ' "$log"; then
    state=failed fail=1 detail="no summary without errors: $(last_line)"
  fi
  if grep -qiE 'device not supported|unable to (find|create)|unsupported' "$log" && [ "$status" != 0 ] && [ "$pass" = 0 ]; then
    state=skipped skip=1 fail=0 detail="compute-sanitizer does not work here: $(grep -m 1 -iE 'not supported|unable|unsupported' "$log")"
  fi
}
