# Collects rows, tables and data of one call and makes the two reports. Several processes add rows at the same time. So
# all results are in files, and a lock lets one process write at a time. Sourced by gpu-check.sh.

complete=no  # yes: the call is over
helpers=()   # processes that run until the call ends; the first one packs
# Facts in the head of the report; unpack(), find_gpus() and find_versions() set them.
commit=unknown bundle_commit=unknown host=unknown gpus=0 gpu="not looked for" versions="not looked for"

# json_string TEXT: sets `json` to the text, quoted and escaped. Characters other than printable ASCII become spaces.
json_string() {
  local text=${1//[^ -~]/ }
  text=${text//\\/\\\\}
  json=\"${text//\"/\\\"}\"
}

# row NAME STATUS PASSED FAILED SKIPPED SECONDS DETAIL: adds a row. STATUS is passed, failed or skipped; the detail of a skipped
# check is the reason. The row is written to files before it is printed.
row() {
  local name=${1//[^ -~]/ } detail=${7//[^ -~]/ } counts json quoted_name
  case "$2" in
    passed | failed | skipped) ;;
    *) die "row: status '$2' of '$1', expected passed, failed or skipped" ;;
  esac
  printf -v counts '%d\t%d\t%d\t%d' "$3" "$4" "$5" "$6"
  detail=${detail:0:20000}
  {
    # Waits at most 5 s for the lock. A process that receives a signal while it holds the lock writes its last row in
    # the signal handler. Without the limit, this process would wait for its own lock forever.
    flock -w 5 9 || true
    printf '%s\t%s\t%s\t%s\n' "$name" "$2" "$counts" "$detail" >> "$files.tsv"
    printf '%s\t%s\t%s\t%s\n' "$name" "$2" "$counts" "$detail" >> "$kept/rows.tsv"
    json_string "$name"
    quoted_name=$json
    json_string "$detail"
    printf '{"name": %s, "status": "%s", "passed": %d, "failed": %d, "skipped": %d, "seconds": %d, "detail": %s}\n' \
      "$quoted_name" "${@:2:5}" "$json" >> "$work/checks.json"
    printf '| %s |\n' "${name//|/ } | $2 | ${counts//$'\t'/ | } | ${detail//|/ }" >> "$work/checks.md"
    write_files
    printf '%-8s %s (%d s)  %s\n' "$2" "$name" "$6" "$detail"
  } 9>> "$work/lock"
}

# count: sets `passed`, `failed` and `skipped` to the numbers of rows of this call. Starts no process, as it runs for every row.
count() {
  local rows row
  passed=0 failed=0 skipped=0
  mapfile -t rows < "$files.tsv"
  for row in "${rows[@]}"; do
    case "$row" in
      *$'\tpassed\t'*) passed=$((passed + 1)) ;;
      *$'\tfailed\t'*) failed=$((failed + 1)) ;;
      *) skipped=$((skipped + 1)) ;;
    esac
  done
}

# conclude: sets `conclusion` to one sentence. A call in which nothing ran on a GPU is no success.
conclude() {
  local passed failed skipped
  count
  if [ "$complete" = no ]; then
    conclusion="Not over: $passed checks passed so far, $failed failed, $skipped were skipped."
  elif [ "$failed" != 0 ]; then
    conclusion="$failed of $((passed + failed + skipped)) checks failed, $skipped were skipped."
  elif [ "$gpus" = 0 ]; then
    conclusion="Nothing ran on a GPU: there is none that CUDA can use."
  elif [ "$skipped" != 0 ]; then
    conclusion="Everything that ran passed; $skipped of $((passed + skipped)) checks were skipped."
  else
    conclusion="Everything passed."
  fi
}

# exit_status: prints the exit status of the whole call, see usage.
exit_status() {
  local passed failed skipped
  count
  if [ "$failed" != 0 ]; then
    echo 1
  elif [ "$gpus" = 0 ]; then
    echo 77
  else
    echo 0
  fi
}

# write_reports: marks the call as over, writes all files and prints the conclusion.
write_reports() {
  local conclusion
  complete=yes
  # The background process that calls pack every 10 s is no longer needed.
  if [ ${#helpers[@]} != 0 ]; then kill "${helpers[0]}" 2> /dev/null || true; fi
  { flock -w 5 9 || true; write_files; } 9>> "$work/lock"
  pack
  say "reports: $files.md, .json, .tsv, .tgz"
  conclude
  echo "$conclusion"
}

# write_files: writes $files.json and .md. Each file is replaced as a whole, so it is complete even if this script is stopped.
write_files() {
  local file date over=false head=() rows separator='' json text conclusion
  conclude
  printf -v date '%(%Y-%m-%d %H:%M:%S %z)T' -1
  if [ "$complete" = yes ]; then over=true; fi
  for text in "$call" "$commit" "$bundle_commit" "$gpu" "$versions" "$host" "$conclusion"; do
    json_string "$text"
    head+=("$json")
  done
  {
    printf '{\n  "report": "gpu-check", "complete": %s, "date": "%s", "gpus": %d, "seconds": %d, "budget_seconds": %d,\n' \
      $over "$date" "$gpus" "$SECONDS" "$budget"
    printf '  "call": %s, "commit": %s, "bundle_commit": %s,\n  "gpu": %s, "versions": %s, "host": %s,\n' "${head[@]:0:6}"
    printf '  "conclusion": %s,\n' "${head[6]}"
    printf '  "checks": [\n'
    mapfile -t rows < "$work/checks.json"
    for text in "${rows[@]}"; do
      printf '%s    %s' "$separator" "$text"
      separator=$',\n'
    done
    printf '\n  ]'
    for file in "$work"/data/*.json; do
      [ -f "$file" ] || continue
      text=${file##*/}
      printf ',\n  "%s": ' "${text%.json}"
      cat "$file"
    done
    printf '\n}\n'
  } > "$files.json.new"
  mv "$files.json.new" "$files.json"
  {
    printf '# GPU check: %s\n\n' "$call"
    printf -- '- commit %s, programs built from %s\n- %s, %d of %d s\n- GPU: %s\n- libraries: %s\n- %s\n\n' "$commit" \
      "$bundle_commit" "$date" "$SECONDS" "$budget" "$gpu" "$versions" "$host"
    printf '**%s**\n\n' "$conclusion"
    printf '| check | status | passed | failed | skipped | seconds | detail |\n|---|---|---|---|---|---|---|\n'
    mapfile -t rows < "$work/checks.md"
    printf '%s\n' "${rows[@]}"
    for file in "$work"/tables/*.md; do
      [ -f "$file" ] || continue
      echo
      cat "$file"
    done
  } > "$files.md.new"
  mv "$files.md.new" "$files.md"
}

# pack: writes all logs into one archive, small enough to be fetched (16 MiB). Copies the files of library choices to
# the archive's folder.
pack() {
  local file most
  {
    # Only one process packs at a time. A child of a killed process may hold the lock for a while, so the wait is
    # limited.
    flock -w 30 8 || true
    for file in "$kept"/choices-*.json; do
      [ -f "$file" ] || continue
      cp "$file" "$work/log/"
      cp "$file" "$out/choices.new"
      mv "$out/choices.new" "$out/$(basename "$file")"
    done
    for most in 8192k 256k; do
      find "$work/log" -type f -size "-$most" -printf '%P\n' | tar -C "$work/log" -czf "$files.tgz.new" -T - 2> /dev/null || true
      [ "$(stat -c %s "$files.tgz.new")" -gt 15000000 ] || break
    done
    mv "$files.tgz.new" "$files.tgz"
  } 8>> "$work/pack.lock"
}

# add_table TITLE: adds a section to the Markdown report, from the standard input.
add_table() {
  {
    printf '## %s\n\n' "$1"
    cat
  } > "$work/table.new"
  mv "$work/table.new" "$work/tables/$(printf '%03d' "$(find "$work/tables" -type f | wc -l)").md"
}

# quoted FILE PATTERN: prints the lines that match as a code block of Markdown.
quoted() {
  echo '```'
  grep -E "$2" "$1" | cut -c 1-160 || true
  echo '```'
}

# add_data NAME FILE: adds a JSON file to the JSON report. A file that is not valid JSON would make the whole report
# invalid. Such a file, for example of a stopped program, is only in the archive, and a line in the log names it.
add_data() {
  [ -s "$2" ] || return 0
  cp "$2" "$work/log/$1.json"
  if ! command -v python3 > /dev/null; then
    echo "$1 is left out of the report: there is no python3 that could tell whether it is JSON" >> "$work/log/data.log"
  elif ! python3 -m json.tool "$2" > /dev/null 2>> "$work/log/data.log"; then
    echo "$1 is no JSON and was left out" | tee -a "$work/log/data.log" >&2
  else
    cp "$2" "$work/data/new"
    mv "$work/data/new" "$work/data/$1.json"
  fi
}
