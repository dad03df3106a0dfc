#!/usr/bin/env bash
# Runs checks that take too long for .ci/run. Run .ci/run first.
#   scripts/nightly.sh FOLDER             all parts
#   scripts/nightly.sh FOLDER PART...     some parts
# The parts:
#   asan clang no-cuda no-mpi no-onednn   all tests in builds for which .ci/run runs only some tests
#   tidy                                  clang-tidy with the static analyzer
#   embedding                             limits on the cost of the C interface's calls; needs a quiet machine
#   libraries                             .ci/run for builds with other libraries (mpich, no-onednn, onednn3)
#   tsan sm_80_90_100 schedules faults apps mpich variants fuzz sweep world torchrun debian
#                                         see the function that run_part calls for the part
# Writes one log per part, FOLDER/PART.log, and adds a line for each part to FOLDER/nightly.txt.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
all=(asan clang no-cuda no-mpi no-onednn tidy tsan sm_80_90_100 schedules faults embedding apps libraries mpich variants fuzz sweep world torchrun debian)
[ $# -ge 1 ] || die "nightly.sh: expected the folder for the logs, e.g. docs/results/nightly"
for name in "${all[@]}"; do
  [ "$1" != "$name" ] || die "nightly.sh: '$1' is a part, expected the folder for the logs first"
done
mkdir -p "$1"
folder=$(cd "$1" && pwd)
shift
parts=("$@")
if [ ${#parts[@]} = 0 ]; then parts=("${all[@]}"); fi
for part in "${parts[@]}"; do
  known=0
  for name in "${all[@]}"; do
    if [ "$part" = "$name" ]; then known=1; fi
  done
  [ "$known" = 1 ] || die "nightly.sh: unknown part '$part', expected one of ${all[*]}"
done
cd "$repository"
"$repository/scripts/install-deps.sh" ci
nvjpeg_header

# The functions below chain their commands by && and ||: run_part is called on the left of ||, where bash does not stop
# at a failing command.
#
# Compiles the kernels to machine code for three generations of GPUs, and to PTX for later ones.
compile_for_gpus() {
  cmake --preset ci-gcc -B build/nightly-cuda -DLOCKSTEP_CUDA=ON "-DLOCKSTEP_CUDA_ARCHITECTURES=80-real;90-real;100" &&
    cmake --build build/nightly-cuda --parallel "$(build_jobs)" --target lockstep_kernels
}
# Runs the tests of the race checker (with races that were added on purpose). Runs every test of emulated CUDA kernels
# under the race checker and under AddressSanitizer, with thread schedules that .ci/run does not reach. Also tests
# cuDNN's planning, which takes two minutes, and all tests of training and programs on the virtual GPU.
more_schedules() {
  local program tests='^(cuda_emulation\.emulator\.race|kernels\.cudnn_(norm|graph)|nn\.(cudnn_planning|cuda_training)|examples\.virtual_gpus)$'
  cmake --preset ci-gcc -DLOCKSTEP_RACE_CHECKS=ON && cmake --build --preset ci-gcc --target test_kernels_cuda_race \
    test_kernels_cuda_asan test_cuda_emulation_emulator_race test_kernels_cudnn_norm test_kernels_cudnn_graph \
    test_nn_cudnn_planning test_nn_cuda_training test_examples_virtual_gpus || return
  ctest --test-dir build/ci-gcc -R "$tests" --output-on-failure --no-tests=error || return
  for program in race asan; do
    cmake --build --preset ci-gcc --target test_kernels_cuda_${program}_faults &&
      CUDA_VISIBLE_DEVICES='' "build/ci-gcc/tests/kernels/test_kernels_cuda_${program}_faults" || return
    LSAN_OPTIONS=suppressions=tests/support/lsan.supp:print_suppressions=0 LOCKSTEP_EMULATION_FIRST=1 \
      "build/ci-gcc/tests/kernels/test_kernels_cuda_$program" --gtest_repeat=12 --gtest_brief=1 || return
  done
}
# Trains under kills, signals, full disks, damage and other faults (docs/reliability.md).
many_faults() {
  cmake --preset ci-gcc && cmake --build --preset ci-gcc --target train_resnet || return
  mpi_environment
  local ranks
  for ranks in 2 3; do
    python3 tests/faults/faults.py build/ci-gcc/bin/train_resnet --kills 150 --stops 50 --freezes 40 --pauses 10 \
      --limits 30 --moves 30 --deletes 30 --damages 50 --unread 5 --restarts 30 --copies 20 --worlds 6 --ranks "$ranks" || return
  done
}
# Tests the C interface's threads under ThreadSanitizer, without oneDNN and OpenMP, because ThreadSanitizer does not see
# OpenMP's barriers. -Wno-maybe-uninitialized disables a wrong warning of g++ 12 about the members of a variant.
c_threads() {
  local name
  local names=(concurrency inference training dlpack)
  cmake --preset ci-asan -B build/nightly-tsan -DLOCKSTEP_SANITIZE=thread -DLOCKSTEP_ONEDNN=OFF -DLOCKSTEP_OPENMP=OFF \
    -DLOCKSTEP_MPI=OFF -DCMAKE_CXX_FLAGS=-Wno-maybe-uninitialized &&
    cmake --build build/nightly-tsan --parallel "$(build_jobs)" --target "${names[@]/#/test_bindings_c_}" || return
  for name in "${names[@]}"; do
    "build/nightly-tsan/tests/bindings/c/test_bindings_c_$name" --gtest_brief=1 || return
  done
}
embedding_gates() {
  cmake --preset release -B build/nightly-embedding -DLOCKSTEP_CUDA=OFF -DLOCKSTEP_MPI=OFF -DLOCKSTEP_BENCH=ON &&
    cmake --build build/nightly-embedding --parallel "$(build_jobs)" --target bench_embedding &&
    OMP_WAIT_POLICY=passive build/nightly-embedding/bin/bench_embedding --gates .
}
# Builds the programs of examples/embedding with an installed lockstep and runs them with 1 to 4 ranks, under each MPI.
embedding_apps() {
  local preset libraries=(lockstep_c lockstep_c_static lockstep_c_mpi lockstep_c_mpi_static)
  for preset in ci-no-cuda ci-mpich; do
    cmake --preset "$preset" "-DLOCKSTEP_APPS_RANKS=1|2|3|4" &&
      cmake --build --preset "$preset" --parallel "$(build_jobs)" --target "${libraries[@]}" &&
      ctest --test-dir "build/$preset" -R '^downstream\.apps$' --output-on-failure --no-tests=error || return
    cmake --preset "$preset" -ULOCKSTEP_APPS_RANKS > /dev/null || return
  done
}
# Runs under MPICH the tests that call MPI. They take too long for .ci/run, because a waiting rank of MPICH spins.
# Leaves out programs that start their ranks themselves, because they would use mpirun, which is Open MPI's.
under_mpich() {
  scripts/test.sh --preset ci-mpich \
    -R '^(comm\.(session|hello_ranks|mpi_)|bindings\.(c\.mpi|fortran\.mpi|heat2d)|examples\.(heat2d|column_physics|lorenz96))' \
    -E 'hello_ranks\.(devices|alone)'
}
# Checks a build that has the host kernels in two variants, x86-64-v3 and x86-64-v4. Runs the tests of runtime, kernels,
# nn, bindings and packaging with each variant. Then runs a C program with the installed library: on this processor, under valgrind (which
# has no AVX-512), and on processors that QEMU emulates. Checks the size of the library.
host_variants() {
  local name variant prefix=$PWD/build/nightly-variants/prefix host=build/nightly-variants/host
  cmake --preset ci-no-cuda -B build/nightly-variants "-DLOCKSTEP_CPU_ARCH=x86-64-v3;x86-64-v4" -DLOCKSTEP_MPI=OFF -DLOCKSTEP_FORTRAN=OFF &&
    cmake --build build/nightly-variants --parallel "$(build_jobs)" || return
  for variant in x86-64-v3 x86-64-v4; do
    if [ "$variant" = x86-64-v4 ] && ! grep -q avx512vl /proc/cpuinfo; then continue; fi
    LOCKSTEP_CPU_VARIANT=$variant ctest --test-dir build/nightly-variants -L 'runtime|kernels|nn|bindings|packaging' --output-on-failure --no-tests=error || return
  done
  for name in inference training dlpack; do
    OMP_NUM_THREADS=1 valgrind --quiet --error-exitcode=9 --leak-check=full --errors-for-leak-kinds=definite \
      "build/nightly-variants/tests/bindings/c/test_bindings_c_$name" --gtest_brief=1 || return
  done
  cmake --install build/nightly-variants --prefix "$prefix" || return
  # shellcheck disable=SC2046  # pkg-config prints several words
  PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name lockstep.pc)") cc tests/downstream/c/host.c -o "$host" \
    $(PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name lockstep.pc)") pkg-config --cflags --libs lockstep) || return
  name=$(find "$prefix" -name 'liblockstep.so.*.*')
  local -x LD_LIBRARY_PATH  # later parts use their own libraries
  LD_LIBRARY_PATH=$(dirname "$name")
  "$host" && LOCKSTEP_CPU_VARIANT=x86-64-v3 "$host" && valgrind --quiet --error-exitcode=9 "$host" || return
  qemu-x86_64 -cpu Haswell "$host" || return
  if qemu-x86_64 -cpu Nehalem "$host" > "$host.txt" 2>&1 || ! grep -q 'this processor lacks' "$host.txt"; then
    echo "a processor without AVX2 was not refused by name"
    return 1
  fi
  strip -o "$host.so" "$name"
  echo "liblockstep.so with two variants, stripped: $(stat -c %s "$host.so") bytes, at most 4194304"
  [ "$(stat -c %s "$host.so")" -le 4194304 ]
}
# Runs each reader of tests/fuzz with new inputs for FUZZ_SECONDS (60), then measures which lines of code all inputs
# reach. Inputs that fail are in build/fuzz/new/READER. When the error is fixed, they become files of
# tests/fuzz/found/READER.
fuzz_readers() {
  local reader readers sets=() found=0 new=build/fuzz/new
  cmake --preset fuzz && cmake --build --preset fuzz --parallel "$(build_jobs)" --target fuzzers || return
  readers=$(sed -n 's/^\([a-z][a-z0-9_]*\) .*/\1/p' tests/fuzz/coverage.txt | sort -u)
  for reader in $readers; do
    mkdir -p "$new/$reader/corpus" "tests/fuzz/found/$reader"
    local options=(-max_total_time="${FUZZ_SECONDS:-60}" -rss_limit_mb=2048 -timeout=20 -max_len=16384 -print_final_stats=1)
    if [ -f "tests/fuzz/dictionaries/$reader.dict" ]; then options+=(-dict="tests/fuzz/dictionaries/$reader.dict"); fi
    echo "==== $reader"
    # The reader first replays the seeds and the inputs found before.
    LLVM_PROFILE_FILE=/dev/null "build/fuzz/tests/fuzz/fuzz_$reader" "${options[@]}" -artifact_prefix="$new/$reader/" \
      "$new/$reader/corpus" "tests/fuzz/seeds/$reader" "tests/fuzz/found/$reader" > "$new/$reader/log" 2>&1 || found=1
    grep -E '^(finding|stat::(number_of_executed_units|peak_rss_mb)|SUMMARY|artifact_prefix)' "$new/$reader/log"
    sets+=("$reader=tests/fuzz/seeds/$reader,tests/fuzz/found/$reader,$new/$reader/corpus")
  done
  if [ "$found" = 1 ]; then
    echo "findings: $new"
    return 1
  fi
  python3 tests/fuzz/coverage.py build/fuzz/tests/fuzz/fuzz_replay build/fuzz/coverage "${sets[@]}"
}
# Compares results of the host libraries' convolutions and matrix products, on random shapes, with sums in f64. Runs for
# SWEEP_SECONDS (3600): half of the time with all instruction sets of this processor, half with AVX2 only.
sweep_libraries() {
  local found=0 seconds=${SWEEP_SECONDS:-3600} isa
  cmake --preset ci-no-cuda && cmake --build --preset ci-no-cuda --parallel "$(build_jobs)" --target library_sweep || return
  for isa in ALL AVX2; do
    echo "ONEDNN_MAX_CPU_ISA=$isa"
    ONEDNN_MAX_CPU_ISA=$isa build/ci-no-cuda/tests/kernels/library_sweep --seconds $((seconds / 2)) \
      --seed "$(date +%Y%m%d)0000000" || found=1
  done
  return $found
}
# Trains models for 50 steps on 1, 2, 4 and 8 ranks.
world_numbers() {
  cmake --preset ci-gcc && cmake --build --preset ci-gcc --target train_resnet train_text &&
    scripts/world-numbers.sh build/ci-gcc
}
# Runs programs as ranks that torchrun starts, over gloo.
under_torchrun() {
  local bin=build/ci-no-cuda
  cmake --preset ci-no-cuda -DLOCKSTEP_GLOO=ON &&
    cmake --build --preset ci-no-cuda --parallel "$(build_jobs)" --target hello_ranks train_resnet session_program start_ranks &&
    tests/launch/torchrun.sh "$bin/tests/comm/gloo/start_ranks" "$bin/bin" "$bin/tests/comm/session_program"
}
# Runs the last commit in fresh systems: Debian 12 and 13, as root and as a user.
fresh_debian() {
  local suite found=0
  for suite in bookworm trixie; do
    scripts/check-fresh-debian.sh --suite "$suite" "$folder/debian-$suite.log" || found=1
  done
  return $found
}
run_part() {
  case $1 in
    asan) scripts/test.sh --preset ci-asan -DLOCKSTEP_LEAKS_IN_RANKS=ON ;;
    clang | no-*) scripts/test.sh --preset "ci-$1" ;;
    tidy) scripts/tidy.sh ;;
    sm_80_90_100) compile_for_gpus ;;
    schedules) more_schedules ;;
    faults) many_faults ;;
    tsan) c_threads ;;
    embedding) embedding_gates ;;
    apps) embedding_apps ;;
    libraries) .ci/run mpich no-onednn onednn3 ;;
    mpich) under_mpich ;;
    variants) host_variants ;;
    fuzz) fuzz_readers ;;
    sweep) sweep_libraries ;;
    world) world_numbers ;;
    torchrun) under_torchrun ;;
    debian) fresh_debian ;;
    *) die "nightly.sh: part '$1' is not written" ;;
  esac
}

summary=$folder/nightly.txt
{
  echo "commit $(git rev-parse HEAD), $(date -u +%Y-%m-%d), $(nproc) cores, $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)"
} >> "$summary"
failures=0
for part in "${parts[@]}"; do
  start=$SECONDS status=0 log=$folder/$part.log
  say "nightly: $part"
  case $part in
    sm_* | schedules)
      if ! command -v nvcc > /dev/null && [ -z "${CUDACXX:-}" ]; then
        echo "$part skipped: no nvcc" >> "$summary"
        continue
      fi
      ;;
    fuzz)
      if ! command -v clang++-14 > /dev/null || ! command -v llvm-cov-14 > /dev/null; then
        echo "$part skipped: no clang 14 with llvm-cov" >> "$summary"
        continue
      fi
      ;;
    torchrun)
      if ! command -v torchrun > /dev/null && ! python3 -c 'import torch.distributed.run' 2> /dev/null; then
        echo "$part skipped: no torchrun (pip install torch)" >> "$summary"
        continue
      fi
      ;;
    debian)
      if [ "$(id -u)" != 0 ] || ! command -v debootstrap > /dev/null; then
        echo "$part skipped: needs root and debootstrap" >> "$summary"
        continue
      fi
      ;;
    variants)
      if ! command -v valgrind > /dev/null || ! command -v qemu-x86_64 > /dev/null; then
        echo "$part skipped: no valgrind or no qemu-x86_64" >> "$summary"
        continue
      fi
      ;;
  esac
  run_part "$part" > "$log" 2>&1 || status=$?
  # Logs are kept in the tree, so paths of this machine are removed.
  sed -i "s|$repository|.|g" "$log"
  if [ "$status" != 0 ]; then failures=$((failures + 1)); fi
  printf '%-16s status %d  %6d s  %s\n' "$part" "$status" $((SECONDS - start)) "$(tail -n 1 "$log")" >> "$summary"
done
cat "$summary"
[ "$failures" = 0 ]
