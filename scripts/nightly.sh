#!/usr/bin/env bash
# What takes too long for .ci/run, which comes first: the full tests where .ci/run takes a part (clang, sanitizers with
# the outside project, builds without a library), clang-tidy with the static analyzer, and the CUDA code compiled for
# three generations of GPUs.
#   scripts/nightly.sh FOLDER       writes FOLDER/nightly.txt (the summary) and one log per part
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
[ $# = 1 ] || die "nightly.sh: expected the folder for the logs, e.g. docs/results/nightly"
mkdir -p "$1"
folder=$(cd "$1" && pwd)
cd "$repository"
"$repository/scripts/install-deps.sh" ci

summary=$folder/nightly.txt
{
  echo "commit $(git rev-parse HEAD), $(date -u +%Y-%m-%d), $(nproc) cores, $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)"
} > "$summary"
failures=0
part() {  # part NAME COMMAND...
  local name=$1 start=$SECONDS status=0
  shift
  say "nightly: $name"
  "$@" > "$folder/$name.log" 2>&1 || status=$?
  # Logs are kept in the tree: no paths of this machine.
  sed -i "s|$repository|.|g" "$folder/$name.log"
  if [ "$status" != 0 ]; then failures=$((failures + 1)); fi
  printf '%-16s status %d  %6d s  %s\n' "$name" "$status" $((SECONDS - start)) "$(tail -n 1 "$folder/$name.log")" >> "$summary"
}

part asan scripts/test.sh --preset ci-asan
part clang scripts/test.sh --preset ci-clang
for variant in no-cuda no-mpi no-onednn; do
  part "$variant" scripts/test.sh --preset "ci-$variant"
done
part tidy scripts/tidy.sh
if command -v nvcc > /dev/null || [ -n "${CUDACXX:-}" ]; then
  # Machine code for three generations and PTX for what comes after them.
  compile_for_gpus() {
    cmake --preset ci-gcc -B build/nightly-cuda -DLOCKSTEP_CUDA=ON "-DLOCKSTEP_CUDA_ARCHITECTURES=80-real;90-real;100"
    cmake --build build/nightly-cuda --parallel "$(jobs)"
  }
  part sm_80_90_100 compile_for_gpus
  # Every emulated test under schedules that .ci/run does not reach.
  more_schedules() {
    cmake --preset ci-gcc
    cmake --build --preset ci-gcc --target test_kernels_cuda_race test_kernels_cuda_asan
    local program
    for program in race asan; do
      LOCKSTEP_EMULATION_FIRST=4 "build/ci-gcc/tests/kernels/test_kernels_cuda_$program" --gtest_repeat=12 --gtest_brief=1
    done
  }
  part schedules more_schedules
else
  echo "sm_80_90_100     skipped: no nvcc" >> "$summary"
  echo "schedules        skipped: no nvcc" >> "$summary"
fi
cat "$summary"
[ "$failures" = 0 ]
