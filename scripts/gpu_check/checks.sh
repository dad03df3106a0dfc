# Runs the checks of one call of gpu-check.sh (`first CALL`), one after the other or several at a time, within the
# call's time limit. Sourced by gpu-check.sh.

reserve=6  # seconds that the reports may take
grace=3    # seconds between TERM and KILL for a check whose time is over
least=5    # seconds: a check with less time is not begun
seconds_left() { echo $((budget - reserve - SECONDS)); }

# check NAME LIMIT READER COMMAND...: runs the command for at most LIMIT seconds, with its output in `log`, and adds a
# row with the result to the report. READER is a function that reads `status`, `stopped` and `log` and sets `state`,
# `detail` and the counts. If `reason` is set, the check is skipped for that reason. Returns 0 if the check passed.
check() {
  due "$1" || return 1
  conduct "$@"
}

# beside NAME LIMIT READER COMMAND...: waits until fewer than `rooms` checks run in the background, then runs this check
# in the background. together: waits for the background checks that were begun since the last `together`. all_over:
# waits for all background checks.
rooms=2 wave=()
beside() {
  due "$1" || return 0
  local pids
  while true; do
    read -r -d '' -a pids < <(jobs -rp) || true
    [ ${#pids[@]} -ge "$rooms" ] || break
    wait -n || true
  done
  {
    trap 'kill "$running" 2> /dev/null; exit 143' TERM
    conduct "$@" || true
  } &
  wave+=($!)
}
together() {
  if [ ${#wave[@]} != 0 ]; then wait "${wave[@]}" 2> /dev/null || true; fi
  wave=()
}
all_over() {
  while [ -n "$(jobs -rp)" ]; do wait -n || true; done
  wave=()
}

# due NAME: succeeds if the call includes this check. The call `first again` includes only the checks in `only`, each
# once.
declare -A only=()
due() {
  if [ "$call" != again ]; then return 0; fi
  [ -n "${only[$1]:-}" ] || return 1
  only[$1]=''
}

reason='' running=''
conduct() {
  local name=$1 limit=$(($2 * patience)) reader=$3 left allowed start=$SECONDS
  local status=0 stopped='' state=passed detail='' pass=0 fail=0 skip=0
  local log=$work/log/${name//[^A-Za-z0-9_.-]/_}.log
  shift 3
  if [ -n "$reason" ]; then
    row "$name" skipped 0 0 1 0 "$reason"
    return 1
  fi
  left=$(seconds_left)
  if [ "$left" -lt "$least" ]; then
    row "$name" skipped 0 0 1 0 "no time: $left of the call's $budget s are left"
    return 1
  fi
  allowed=$((left < limit ? left : limit))
  # First writes a row "failed". The check's own row later replaces it, because the last row of a name counts. If the
  # call is killed before that, `first again` repeats the check.
  printf '%s\tfailed\t0\t1\t0\t0\tbegun, and cut with its call\n' "${name//[^ -~]/ }" >> "$kept/rows.tsv"
  # mpirun passes a TERM on to its ranks and waits for them; a program that ignores TERM gets a KILL. The command runs in the
  # background, so that this script handles signals at once.
  timeout --kill-after="$grace" "$allowed" "$@" > "$log" 2>&1 < /dev/null &
  running=$!
  wait "$running" 2> /dev/null || status=$?
  running=
  if { [ "$status" = 124 ] || [ "$status" = 137 ]; } && [ $((SECONDS - start)) -ge "$allowed" ]; then
    stopped="stopped after $allowed s"
  fi
  "$reader"
  # The reader also reads the output of a stopped program. If this output shows no error, there are three cases. The
  # check was stopped because the call had no time left: skipped. A sanitizer reached its limit: skipped, because it is
  # only slow. Another check reached its limit: failed, because it hangs.
  if [ -n "$stopped" ] && [ "$state" != failed ]; then
    if [ "$allowed" -lt "$limit" ]; then
      state=skipped skip=$((skip + 1)) detail="no time: $detail"
    elif [ "$reader" = read_sanitizer ]; then
      state=skipped skip=$((skip + 1))
    else
      state=failed fail=1
    fi
  fi
  row "$name" "$state" "$pass" "$fail" "$skip" $((SECONDS - start)) "$detail"
  [ "$state" = passed ]
}

log_of() { printf '%s/log/%s.log' "$work" "${1//[^A-Za-z0-9_.-]/_}"; }  # log_of NAME
last_line() { grep -avE '^[[:space:]]*$' "$log" | tail -n 1 || true; }

# read_status: a READER (see check) for programs whose exit status is the result.
read_status() {
  if [ -n "$stopped" ]; then
    detail="$stopped, it last said: $(last_line)"
    return
  fi
  case "$status" in
    0) pass=1 detail=$(last_line) ;;
    77) state=skipped skip=1 detail=$(last_line) ;;
    *) state=failed fail=1 detail="exit status $status: $(grep -am 1 -iE 'error' "$log" || last_line)" ;;
  esac
}

# read_tests: a READER (see check) for GoogleTest programs. Each test has a line "[       OK ] Suite.Name (3 ms)"; lines
# of the summary have no times. Under mpirun the lines of all ranks count.
read_tests() {
  local names said last=''
  read -r pass fail skip names < <(awk '
    !/\([0-9]+ ms\)$/ { next }
    /\[ +OK \] / { ++pass }
    /\[ +SKIPPED +\] / { ++skip }
    /\[ +FAILED +\] / { ++fail; sub(/.*\[ +FAILED +\] /, ""); sub(/[ ,].*/, ""); if (!seen[$0]++) names = names " " $0 }
    END { print pass + 0, fail + 0, skip + 0 names }' "$log")
  if [ "$skip" != 0 ]; then
    detail=$(grep -aA 1 -hE ': Skipped$' "$log" | grep -avE ': Skipped$|^--$' | sort | uniq -c | sort -rn |
      awk 'NR <= 3 {n = $1; $1 = ""; printf "%s%d skipped:%s", sep, n, $0; sep = "; "}' || true)
  fi
  if [ "$status" != 0 ]; then
    # Finds the last test that began, if no line gives its result.
    last=$({ grep -aE "\[ +(RUN|OK|FAILED|SKIPPED) +\] " "$log" || true; } | tail -n 1 |
      sed -nE 's/.*\[ +RUN +\] ([^ ]+).*/, in \1/p')
  fi
  if [ -n "$stopped" ]; then
    detail="$stopped, $((pass + fail + skip)) tests ran$last${names:+; failed: $names}${detail:+; $detail}"
    if [ "$fail" != 0 ]; then state=failed; fi
  elif [ "$status" != 0 ]; then
    state=failed
    if [ "$fail" = 0 ]; then fail=1 names=; fi
    said="exit status $status$last: ${names:+failed: $names; }$(grep -am 1 -E 'rror' "$log" || last_line)"
    detail="$said${detail:+; $detail}"
  elif [ "$pass" = 0 ]; then
    state=skipped
    if [ "$skip" = 0 ]; then skip=1 detail="no test ran"; fi
  fi
}

# read_sanitizer: a READER (see check) for GoogleTest programs under compute-sanitizer. An error that compute-sanitizer
# finds gives exit status 86 (--error-exitcode).
read_sanitizer() {
  local errors summary printed='^=+ +(Invalid|Uninitialized|Misaligned|Race|Error|Warning: Race|Barrier|Out-of-range|Stack)'
  local refused='not supported|unable to (find|create)|unsupported'
  read_tests
  errors=$(grep -acE "$printed" "$log" || true)
  if [ "$errors" != 0 ]; then detail="$errors errors printed, the first: $(grep -am 1 -E "$printed" "$log"); $detail"; fi
  summary=$(grep -am 1 -oE '(ERROR|RACECHECK) SUMMARY: .*' "$log" || true)
  detail="$summary${summary:+${detail:+; }}$detail"
  if [ -n "$stopped" ]; then
    if [ "$errors" != 0 ]; then state=failed fail=$((fail + errors)); fi
  elif [ "$status" = 0 ] && ! grep -aqE '(ERROR|RACECHECK) SUMMARY: 0 ' "$log"; then
    state=failed fail=1 detail="no summary without errors: $(last_line)"
  elif [ "$status" != 0 ] && [ "$pass" = 0 ] && grep -aqiE "$refused" "$log"; then
    state=skipped skip=1 fail=0 detail="compute-sanitizer does not work here: $(grep -am 1 -iE "$refused" "$log")"
  fi
}

# note_figure RATE: records the rate of this check for ratio().
note_figure() { printf '%s\t%s\n' "$name" "$1" >> "$work/figures"; }

# read_figure: a READER (see check) for lockstep's runs. The figure is the median of the reported rates, without the
# first two reports. The row also has the clocks and watts of nvidia-smi's log. A run that was stopped gets a figure,
# too.
read_figure() {
  local reports=${log%.log}.rates metrics=$work/runs/$name/metrics.jsonl number rate said
  read_status
  { grep '"event":"step"' "$metrics" 2> /dev/null || true; } |
    sed -nE 's/.*"([a-z]+)_per_second":([0-9.eE+-]+).*/\2 \1/p' > "$reports"
  cp "$metrics" "${log%.log}.jsonl" 2> /dev/null || true
  number=$(wc -l < "$reports")
  if [ "$number" -lt 3 ]; then
    if [ "$state" = passed ] && [ -z "$stopped" ]; then state=failed fail=1 pass=0; fi
    detail="$number reports, at least 3 expected; $detail"
    return
  fi
  rate=$(tail -n +3 "$reports" | sort -g |
    awk '{v[NR] = $1; unit = $2} END {printf "%.1f %s/s", (v[int((NR + 1) / 2)] + v[int(NR / 2) + 1]) / 2, unit}')
  note_figure "${rate%% *}"
  said=$detail
  detail="$rate, median of $((number - 2)) reports$(clocks "$start" "$SECONDS")"
  if [ "$status" != 0 ]; then detail+="; $said"; fi
}

# read_peer: a READER (see check) for the PyTorch program, whose last line is JSON.
read_peer() {
  local rate
  read_status
  if grep -aqE 'No module named .(torch|torchvision)' "$log"; then
    state=skipped skip=1 fail=0 detail="no PyTorch with torchvision here: $(last_line)"
    return
  fi
  rate=$(sed -nE 's/.*"images_per_second": *([0-9.]+).*/\1/p' "$log" | tail -n 1)
  if [ -n "$rate" ]; then
    note_figure "$rate"
    detail="$rate images/s$(clocks "$start" "$SECONDS")${stopped:+; $detail}"
  elif [ "$state" = passed ] && [ -z "$stopped" ]; then
    state=failed fail=1 pass=0 detail="no images_per_second: $(last_line)"
  fi
}

# clocks FROM TO: prints the means of the power (watts) and clocks that nvidia-smi logged between the seconds FROM and
# TO of this script while the GPU worked; prints nothing without nvidia-smi.
clocks() {
  awk -v from="$1" -v to="$2" '
    $2 == "#" && /pclk/ { for (i = 3; i <= NF; ++i) at[$i] = i - 1 }
    $2 == "#" || $1 < from || $1 > to || !("sm" in at) || $(at["sm"]) < 50 { next }
    $2 == 0 { ++n; watts += $(at["pwr"]); clock += $(at["pclk"]); memory += $(at["mclk"]) }
    END { if (n) printf "; %.0f W, %.0f MHz, memory %.0f MHz", watts / n, clock / n, memory / n }' "$work/log/dmon.log" \
    2> /dev/null || true
}

# ratio NAME OURS THEIRS: adds a row with lockstep's best rate divided by PyTorch's best rate in this call. OURS and
# THEIRS are patterns of the names of runs.
ratio() {
  local said
  said=$(awk -F '\t' -v ours="^($2)\$" -v theirs="^($3)\$" '
    $1 ~ ours && $2 > a { a = $2; x = $1 }
    $1 ~ theirs && $2 > b { b = $2; y = $1 }
    END { if (a > 0 && b > 0) printf "%.3f = %s, %.1f images/s, over %s, %.1f", a / b, x, a, y, b }' "$work/figures" \
    2> /dev/null || true)
  if [ -n "$said" ]; then
    row "$1" passed 1 0 0 0 "$said"
  elif [ "$call" != again ]; then
    row "$1" skipped 0 0 1 0 "${reason:-no figure of ours, or none of the peer}"
  fi
}
