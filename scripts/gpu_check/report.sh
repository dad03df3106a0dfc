# Rows, tables and data of one part, and the two reports that they become. Sourced by gpu-check.sh.

rows=()      # JSON objects, one a check
lines=()     # the same as rows of the Markdown table
tables=()    # Markdown files, under headings of their own
data=()      # "name": JSON, for the JSON report only
passed=0 failed=0 skipped=0  # checks
complete=no                  # whether the part is over
report=                      # the reports' name; without one nothing is written before the end
# Of the report's head; unpack() and find_gpus() find out.
commit=unknown bundle_commit=unknown host=unknown gpus=0 gpu="not looked for"

# json_string TEXT: quoted and escaped. Control characters, which JSON forbids, become spaces.
json_string() {
  local text=${1//[[:cntrl:]]/ }
  text=${text//\\/\\\\}
  printf '"%s"' "${text//\"/\\\"}"
}

# row NAME STATUS PASSED FAILED SKIPPED SECONDS DETAIL: STATUS is passed, failed or skipped; a skipped check says why.
row() {
  local detail=${7//[[:cntrl:]]/ }
  detail=${detail:0:600}
  rows+=("$(printf '{"name": %s, "status": "%s", "passed": %d, "failed": %d, "skipped": %d, "seconds": %d, "detail": %s}' \
    "$(json_string "$1")" "$2" "$3" "$4" "$5" "$6" "$(json_string "$detail")")")
  lines+=("| $1 | $2 | $3 | $4 | $5 | $6 | ${detail//|/ } |")
  case "$2" in
    passed) passed=$((passed + 1)) ;;
    failed) failed=$((failed + 1)) ;;
    skipped) skipped=$((skipped + 1)) ;;
    *) die "row: status '$2' of '$1', expected passed, failed or skipped" ;;
  esac
  printf '%-8s %s (%d s)  %s\n' "$2" "$1" "$6" "$detail"
  if [ -n "$report" ]; then write_files; fi
}

# conclusion: one sentence. Nothing on a GPU is no success, whatever else passed.
conclusion() {
  if [ "$complete" = no ]; then
    echo "Not over: $passed checks passed so far, $failed failed, $skipped were skipped."
  elif [ "$failed" != 0 ]; then
    echo "$failed of $((passed + failed + skipped)) checks failed, $skipped were skipped."
  elif [ "$gpus" = 0 ]; then
    echo "Nothing ran on a GPU: there is none that CUDA can use."
  elif [ "$skipped" != 0 ]; then
    echo "Everything that ran passed; $skipped of $((passed + skipped)) checks were skipped."
  else
    echo "Everything passed."
  fi
}

# exit_status: of the whole part, see usage.
exit_status() {
  if [ "$failed" != 0 ]; then
    echo 1
  elif [ "$gpus" = 0 ]; then
    echo 77
  else
    echo 0
  fi
}

# write_reports: the files, and what they say. The part is over.
write_reports() {
  complete=yes
  write_files
  say "reports: $out/gpu-check-$report.md, .json, .log"
  conclusion
}

# write_files: $out/gpu-check-$report.json, .md and .log (the ends of the logs of what did not pass). Each is there as a
# whole, whenever somebody stops this.
write_files() {
  local said file item separator='' log name files=$out/gpu-check-$report
  said=$(conclusion)
  {
    printf '{\n  "report": "gpu-check", "part": "%s", "complete": %s, "commit": %s, "bundle_commit": %s,\n' "$report" \
      "$([ "$complete" = yes ] && echo true || echo false)" "$(json_string "$commit")" "$(json_string "$bundle_commit")"
    printf '  "date": "%s", "gpus": %d, "gpu": %s, "host": %s, "seconds": %d, "budget_seconds": %d,\n' \
      "$(date -u +%Y-%m-%dT%H:%M:%SZ)" "$gpus" "$(json_string "$gpu")" "$(json_string "$host")" "$SECONDS" "$budget"
    printf '  "conclusion": %s,\n  "checks": [' "$(json_string "$said")"
    for item in "${rows[@]}"; do
      printf '%s\n    %s' "$separator" "$item"
      separator=,
    done
    printf '\n  ]'
    if [ ${#data[@]} -gt 0 ]; then printf ',\n  %s' "${data[@]}"; fi
    printf '\n}\n'
  } > "$files.json.new"
  mv "$files.json.new" "$files.json"
  {
    printf '# GPU check: %s\n\n' "$report"
    printf -- '- commit %s, programs built from %s\n- %s, %d of %d s\n- GPU: %s\n- %s\n\n' "$commit" "$bundle_commit" \
      "$(date -u +%Y-%m-%dT%H:%M:%SZ)" "$SECONDS" "$budget" "$gpu" "$host"
    printf '**%s**\n\n' "$said"
    printf '| check | status | passed | failed | skipped | seconds | detail |\n|---|---|---|---|---|---|---|\n'
    if [ ${#lines[@]} -gt 0 ]; then printf '%s\n' "${lines[@]}"; fi
    for file in "${tables[@]}"; do
      echo
      cat "$file"
    done
  } > "$files.md.new"
  mv "$files.md.new" "$files.md"
  # Not more than 4 MB: the last lines say most.
  for log in "$work"/log/*.log; do
    [ -f "$log" ] || continue
    name=$(basename "$log")
    printf '==== %s\n' "$name"
    tail -c 60000 "$log"
  done | head -c 4000000 > "$files.log.new" || true
  mv "$files.log.new" "$files.log"
}

# add_table TITLE: the rest of a Markdown section, from the standard input.
add_table() {
  local file=$work/table-${#tables[@]}.md
  {
    printf '## %s\n\n' "$1"
    cat
  } > "$file"
  tables+=("$file")
}

# add_json NAME TEXT: into the JSON report. Text that is no JSON, as of a program that was stopped, would spoil all of it:
# it is left out, with a line in the log.
add_json() {
  local error
  if command -v python3 > /dev/null && ! error=$(python3 -m json.tool <<< "$2" 2>&1 > /dev/null); then
    printf '%s is no JSON and was left out: %s\n' "$1" "$(tail -n 1 <<< "$error")" | tee -a "$work/log/data.log" >&2
    return
  fi
  data+=("\"$1\": $2")
}

# add_data NAME FILE: a file of JSON as it is.
add_data() {
  [ -s "$2" ] || return 0
  add_json "$1" "$(cat "$2")"
}
