#!/usr/bin/env bash
# Checks rules that no compiler checks: formatting, the layers of the top-level folders, the folders in which a library's
# headers may be included, comments, and paths of this machine in files. Reports long headers without failing. The last
# line is "N passed, N failed, N skipped", counted in checks.
#   scripts/check-style.sh [--fix]     --fix: format the files instead of reporting them
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "$repository"
shopt -s lastpipe  # check, the last command of a pipe, counts in this shell

fix=${1:-}
passed=0 failed=0 skipped=0
check() {  # check TITLE: reads offending lines and passes if there are none
  local lines
  lines=$(cat)
  if [ -z "$lines" ]; then
    passed=$((passed + 1))
    echo "ok      $1"
  else
    failed=$((failed + 1))
    echo "FAILED  $1"
    printf '%s\n' "$lines" | head -n 40 | sed 's/^/          /'
  fi
}
tracked() { git ls-files --cached --others --exclude-standard -- "$@" | while read -r file; do if [ -f "$file" ]; then printf '%s\n' "$file"; fi; done; }
lines_with() { tracked "${@:2}" | xargs -r -d '\n' grep -nHE -- "$1" || true; }

mapfile -t sources < <(tracked '*.cpp' '*.hpp' '*.cu' '*.cuh' '*.c' '*.h')

formatter=$(command -v clang-format-14 || command -v clang-format || true)
if [ -z "$formatter" ]; then
  skipped=$((skipped + 1))
  echo "skipped formatting: no clang-format"
elif [ "$fix" = --fix ]; then
  "$formatter" -i "${sources[@]}"
else
  # clang-format does not change tables after `// clang-format off`.
  { "$formatter" --dry-run "${sources[@]}" 2>&1 | grep -E 'warning:' | cut -d: -f1 | sort | uniq -c || true; } |
    check "formatted as .clang-format says (scripts/check-style.sh --fix)"
fi

{ scripts/check_includes.py || true; } | check "includes go down only, without circles; rooms of at most 24 files"

{ { scripts/count_lines.py 2>&1 >&3 || true; } | check "lines of code of each floor within scripts/budget"; } 3>&1
{ { scripts/check_sizes.py 2>&1 >&3 || true; } | check "functions of at most 80 lines, classes of at most 400"; } 3>&1
{ { scripts/check_comments.py 2>&1 >&3 || true; } | check "at most 2 % of trailing comments begin without a subject"; } 3>&1

{ tracked ':!tests' ':!bench' ':!examples' ':!docs' ':!*.md' | xargs -d '\n' grep -liE 'power_?[s]gd' | tail -n +6 || true; } |
  check "a way to sum gradients is known to at most 5 files (the low-rank one, in comm/gradients/sums)"

lines_with '#include "' 'runtime/*.hpp' 'kernels/*.hpp' 'comm/*.hpp' 'nn/*.hpp' ':(glob)app/*.hpp' |
  check "headers include <lockstep/FLOOR/name.hpp>"

lines_with '#include [<"](cuda|cudnn|nccl|cublas|curand|nvjpeg|nvtx|nvToolsExt)' runtime kernels comm nn app bindings examples |
  { grep -vE '^[^:]*/(cuda|cudnn|nccl|cublaslt|nvjpeg)/' || true; } |
  check "CUDA's headers only in folders named cuda, cudnn, nccl, cublaslt, nvjpeg"
lines_with '#include [<"](oneapi/)?(dnnl|dnnl/.*)\.hpp' runtime kernels comm nn app bindings examples |
  { grep -vE '^[^:]*/onednn/' || true; } | check "oneDNN's headers only in folders named onednn"
lines_with '#include [<"](jpeglib|jerror|turbojpeg|png)\.h' runtime kernels comm nn app bindings examples |
  { grep -vE '^nn/data/images/' || true; } | check "libjpeg's and libpng's headers only in nn/data/images"
lines_with '#include [<"]libdeflate\.h' runtime kernels comm nn app bindings examples |
  { grep -vE '^runtime/files/crc32[.]cpp:' || true; } | check "libdeflate's header only in runtime/files/crc32.cpp"
lines_with '#include [<"]mpi\.h' runtime kernels comm nn app bindings examples |
  { grep -vE '^[^:]*/mpi/|/lockstep_mpi[.]h:' || true; } | check "mpi.h only in folders named mpi"

lines_with '#include [<"]gloo/' runtime kernels comm nn app bindings examples |
  { grep -vE '^[^:]*/gloo/' || true; } | check "gloo's headers only in folders named gloo"

sed -n 's/^[a-z][a-z0-9_]* \([^ ]*\).*/\1/p' tests/fuzz/coverage.txt | sort -u |
  while read -r file; do [ -e "$file" ] || echo "$file"; done | check "the files of tests/fuzz/coverage.txt exist"

lines_with '(^|[^A-Za-z0-9_.$}])/(work|root|home)/' '*' | check "no path of somebody's machine"
lines_with '\b(TODO|FIXME|XXX)\b' '*.cpp' '*.hpp' '*.cu' '*.cuh' '*.cmake' '*.sh' '*CMakeLists.txt' |
  { grep -v '^scripts/check-style.sh:' || true; } | check "nothing left to do in comments"
tracked '*.hpp' | xargs -r -d '\n' grep -L '^#pragma once' | check "every header has #pragma once"
{ tracked '*.hpp' '*.cpp' '*.cu' '*.cuh' '*.sh' '*.md' '*.cmake' '*.txt' | xargs -r -d '\n' grep -nHP '[^\x00-\x7F]' || true; } |
  { grep -vE '^(docs/results|tests)/' || true; } | check "plain ASCII (outside of tests)"

echo "headers of more than 150 lines (for information):"
tracked '*.hpp' | xargs -r -d '\n' wc -l | awk '$2 != "total" && $1 > 150 {printf "          %5d %s\n", $1, $2}'

echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
