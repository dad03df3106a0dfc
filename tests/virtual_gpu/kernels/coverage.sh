#!/usr/bin/env bash
# coverage.sh FOLDER OBJECTS: prints the line coverage of the kernels after their emulated tests. FOLDER: the counted
# sources (kernels/cuda, of which sm90/ is not counted). OBJECTS: the folder with gcov's .gcda files. Prints the lines
# that no test has run. The exit status is 1 if there are such lines.
set -euo pipefail
sources=$1
objects=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
find "$objects" -name '*.gcda' > "$work/files"
[ -s "$work/files" ] || { echo "coverage.sh: no .gcda files in $objects: the tests come first" >&2; exit 1; }
# gcov -t prints annotated sources. It prints a template's line once for each instance, and once for all instances
# together. A line counts as run if any instance ran it.
(cd "$work" && xargs -n 1 gcov -t < files > report 2> /dev/null)
awk -F: -v sources="$sources/" '
  $3 == "Source" { source = $4; wanted = index(source, sources) == 1 && index(source, sources "sm90/") != 1; next }
  wanted && NF >= 3 && $2 ~ /^ *[0-9]+$/ {
    count = $1; gsub(/[ *]/, "", count)
    if (count == "-" || count ~ /^=/) next  # the line has no code, or only an exception reaches it
    key = source ":" $2 + 0
    if (!(key in seen)) { seen[key] = 1; lines++; text[key] = substr($0, length($1) + length($2) + 3) }
    if (count !~ /^#/) run[key] = 1
  }
  END {
    for (key in seen) if (!(key in run)) { printf "not run: %s:%s\n", key, text[key]; missing++ }
    printf "%d of %d lines of the kernels were run\n", lines - missing, lines
    exit lines == 0 || missing > 0
  }' "$work/report" | sort > "$work/result" || status=1
cat "$work/result"
exit "${status:-0}"
