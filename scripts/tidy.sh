#!/usr/bin/env bash
# Runs clang-tidy (.clang-tidy, every warning is an error) on the library: one process per core, without a build.
# The last line is "N passed, N failed, N skipped", counted in files.
#   scripts/tidy.sh [--no-analyzer] [REGEX of paths, e.g. 'runtime/.*']
# The static analyzer (clang-analyzer-*) takes three quarters of the time; the check for reserved names, which also
# searches every header of the system, takes a sixth of the remaining time. .ci/run leaves both to scripts/nightly.sh.
# --no-analyzer switches both off. Then sixteen files with equal options are checked as one file that includes them,
# since most of the time goes into their common headers. If clang-tidy finds something in the combined file, each file
# is checked alone, and only these results count.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

export TIDY_CHECKS=''
together=1
if [ "${1:-}" = --no-analyzer ]; then
  TIDY_CHECKS='-clang-analyzer-*,-bugprone-reserved-identifier'
  together=16
  shift
fi

tidy=$(command -v clang-tidy-14 || command -v clang-tidy) || die "tidy.sh: no clang-tidy; scripts/install-deps.sh ci"
configure tidy > /dev/null
build=$(build_folder tidy)
results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT

cd "$repository"
check_one() {  # check_one TIDY BUILD RESULTS FILE: checks one file; leaves a log in RESULTS if it fails
  local log=$3/${4//\//_}
  if "$1" --quiet -p "$2" --checks="$TIDY_CHECKS" "$4" > "$log" 2> "$log.stderr"; then
    rm -f "$log"
  else
    grep -vE '^[0-9]+ warnings? (generated|treated)' "$log.stderr" >> "$log" || true
    cat "$log"
  fi
  rm -f "$log.stderr"
}
# check_group TIDY BUILD RESULTS FOLDER FILE...: checks files as one file in FOLDER that includes them. Files that
# define the same names as earlier files become their own group. A group in which clang-tidy finds something is checked
# file by file.
check_group() {
  local tidy=$1 build=$2 results=$3 folder=$4 file clashes together=() apart=()
  shift 4
  if [ $# -gt 1 ]; then
    mkdir -p "$folder"
    printf "#include \"$PWD/%s\"\n" "$@" > "$folder/all.cpp"
    # The new file gets the command of the first file, as all files of a group have the same options. Names of one file may hide
    # names of another file, so -Wno-shadow is added.
    grep -B 2 -F "\"file\": \"$PWD/$1\"" "$build/compile_commands.json" |
      sed -e "s|$PWD/$1|$folder/all.cpp|g" -e 's| -o | -Wno-shadow -o |' -e '1s|^|[{|' -e '$s|$|}]|' > "$folder/compile_commands.json"
    if "$tidy" --quiet -p "$folder" --config-file="$PWD/.clang-tidy" \
      --checks="$TIDY_CHECKS,-bugprone-suspicious-include" --header-filter='/(runtime|kernels|comm|nn|app)/' \
      "$folder/all.cpp" > "$folder/log" 2> /dev/null; then
      return
    fi
    clashes=$(sed -n "s|^$PWD/\([^:]*\.cpp\):[0-9:]* error: .*\[clang-diagnostic-error\]$|\1|p" "$folder/log")
    if [ -n "$clashes" ]; then
      for file in "$@"; do
        if grep -qxF "$file" <<< "$clashes"; then apart+=("$file"); else together+=("$file"); fi
      done
      if [ ${#together[@]} != 0 ]; then
        check_group "$tidy" "$build" "$results" "$folder/1" "${together[@]}"
        check_group "$tidy" "$build" "$results" "$folder/2" "${apart[@]}"
        return
      fi
    fi
  fi
  for file in "$@"; do check_one "$tidy" "$build" "$results" "$file"; done
}
export -f check_one check_group
mapfile -t files < <(sed -n 's|^ *"file": "'"$repository"'/\(.*\.cpp\)",\{0,1\}$|\1|p' "$build/compile_commands.json" |
  sort -u | { grep -E "^(runtime/|kernels/|comm/|nn/|app/[a-z_]*\.cpp|app/(detail|options)/|bindings/)" || true; } | { grep -E "^(${1:-.*})" || true; })
[ ${#files[@]} -gt 0 ] || die "tidy.sh: no file matches"
# options FILE: prints the compile command of FILE without the names of the file and of the object.
options() {
  grep -B 1 -F "\"file\": \"$repository/$1\"" "$build/compile_commands.json" | sed -n 's|^ *"command": ||p' |
    sed -e 's| -o [^ ]*||' -e 's| -Os||' -e "s|$repository/$1||"
}
# Each line of awk's output is a group: its folder and its files.
groups=$(mktemp -d)
trap 'rm -rf "$results" "$groups"' EXIT
for file in "${files[@]}"; do printf '%s %s\n' "$(options "$file" | md5sum | cut -d ' ' -f 1)" "$file"; done |
  sort | awk -v most="$together" -v groups="$groups" '
    $1 != key || count == most { if (line) print line; key = $1; count = 0; line = groups "/" ++number }
    { line = line " " $2; ++count }
    END { if (line) print line }' |
  xargs -P "$(nproc)" -L 1 bash -c 'check_group "$@"' - "$tidy" "$build" "$results"
failed=$(find "$results" -type f | wc -l)
echo "$((${#files[@]} - failed)) passed, $failed failed, 0 skipped"
[ "$failed" = 0 ]
