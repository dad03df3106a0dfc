#!/usr/bin/env bash
# clang-tidy (.clang-tidy, every warning is an error) on the library: one process per core, nothing is built.
# The last line is "N passed, N failed, N skipped", counted in files.
#   scripts/tidy.sh [--no-analyzer] [REGEX of paths, e.g. 'runtime/.*']
# The static analyzer (clang-analyzer-*) takes three quarters of the time: .ci/run leaves it to scripts/nightly.sh.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

export TIDY_CHECKS=''
if [ "${1:-}" = --no-analyzer ]; then
  TIDY_CHECKS='-clang-analyzer-*'
  shift
fi

tidy=$(command -v clang-tidy-14 || command -v clang-tidy) || die "tidy.sh: no clang-tidy; scripts/install-deps.sh ci"
configure tidy > /dev/null
build=$(build_folder tidy)
results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT

cd "$repository"
check_one() {
  local log=$3/${4//\//_}
  if "$1" --quiet -p "$2" --checks="$TIDY_CHECKS" "$4" > "$log" 2> "$log.stderr"; then
    rm -f "$log"
  else
    grep -vE '^[0-9]+ warnings? (generated|treated)' "$log.stderr" >> "$log" || true
    cat "$log"
  fi
  rm -f "$log.stderr"
}
export -f check_one
mapfile -t files < <(sed -n 's|^ *"file": "'"$repository"'/\(.*\.cpp\)",\{0,1\}$|\1|p' "$build/compile_commands.json" |
  sort -u | { grep -E "^(runtime|kernels|comm|nn)/" || true; } | { grep -E "^(${1:-.*})" || true; })
[ ${#files[@]} -gt 0 ] || die "tidy.sh: no file matches"
printf '%s\0' "${files[@]}" | xargs -0 -P "$(nproc)" -I {} bash -c 'check_one "$@"' - "$tidy" "$build" "$results" {}
failed=$(find "$results" -type f | wc -l)
echo "$((${#files[@]} - failed)) passed, $failed failed, 0 skipped"
[ "$failed" = 0 ]
