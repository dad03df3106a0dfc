#!/usr/bin/env bash
# Runs the CUDA code on a real GPU: the tests of runtime/cuda and of the CUDA kernels. Needs an NVIDIA GPU with its
# driver; no network, MPI, oneDNN or GoogleTest on that machine. Run `scripts/gpu-check.sh --help`.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

usage() {
  cat << 'END'
usage: scripts/gpu-check.sh --prepare            on a machine with the CUDA toolkit and GoogleTest, no GPU needed
       scripts/gpu-check.sh [--part smoke] [--no-build]      on a machine with a GPU

--prepare    builds the test programs for sm_90, with GoogleTest, the C++ library and the CUDA runtime linked in, into
             .bundle/ (ignored by git; at most 60 MiB). Copy the tree with .bundle/ to the machine with the GPU.
--part smoke (the only part, and the default)
             1. runs the programs of .bundle/: test_runtime_cuda_device, test_kernels_cuda
             2. builds the library and one program there with cmake, ninja and nvcc, without the tests, and runs the
                program; skipped, with the reason, where a tool is missing
--no-build   leaves out 2.

Writes gpu-check.json, gpu-check.md and the programs' own reports into $OUT, or out/ when OUT is not set.
Exit status: 0 when everything that ran passed, 1 when something failed, 2 for wrong usage, 77 when there is no GPU
(the reports say so: nothing was checked).
END
}

bundle=$repository/.bundle
programs=(test_runtime_cuda_device test_kernels_cuda)
limit=$((60 * 1024 * 1024))

prepare() {
  local build=$repository/build/gpu-check description bytes
  # sm_90 machine code and PTX for what is newer. The host part is for any x86-64 of the last ten years.
  cmake -S "$repository" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DLOCKSTEP_CUDA=ON -DLOCKSTEP_NCCL=OFF \
    -DLOCKSTEP_CUDNN=OFF -DLOCKSTEP_MPI=OFF -DLOCKSTEP_ONEDNN=OFF -DLOCKSTEP_BENCH=OFF -DLOCKSTEP_EXAMPLES=OFF \
    -DLOCKSTEP_TESTS=ON -DLOCKSTEP_CPU_ARCH=x86-64-v3 -DLOCKSTEP_CUDA_ARCHITECTURES=90 \
    -DCMAKE_EXE_LINKER_FLAGS="-static-libstdc++ -static-libgcc" "$@"
  cmake --build "$build" --parallel "$(jobs)" --target "${programs[@]}"
  rm -rf "$bundle"
  mkdir -p "$bundle"
  local program found openmp
  for program in "${programs[@]}"; do
    found=$(find "$build" -type f -name "$program" -perm -u+x | head -n 1)
    [ -n "$found" ] || die "--prepare: $program was not built"
    cp "$found" "$bundle/"
    strip --strip-debug "$bundle/$program"
  done
  # GoogleTest's and our own code are inside; of what is left only the OpenMP runtime may be missing there.
  openmp=$(ldd "$bundle/${programs[0]}" | awk '/libgomp/ {print $3}')
  if [ -n "$openmp" ]; then cp -L "$openmp" "$bundle/"; fi
  description=$(git -C "$repository" describe --always --dirty 2> /dev/null || echo unknown)
  printf '%s\n' "$description" > "$bundle/commit"
  bytes=$(du -sb "$bundle" | cut -f 1)
  [ "$bytes" -le "$limit" ] || die "--prepare: .bundle has $bytes bytes, at most $limit are allowed"
  say "prepared .bundle: $bytes bytes, commit $description"
}

# json_string TEXT: quoted and escaped.
json_string() {
  printf '"%s"' "$(printf '%s' "$1" | tr -d '\r' | tr '\n\t' '  ' | sed 's/\\/\\\\/g; s/"/\\"/g' | tr -d '\000-\037')"
}

rows=()    # JSON objects
lines=()   # rows of the Markdown table
failed=0
row() {  # row NAME STATUS PASSED FAILED SKIPPED SECONDS DETAIL
  rows+=("$(printf '{"name": %s, "status": %s, "passed": %d, "failed": %d, "skipped": %d, "seconds": %d, "detail": %s}' \
    "$(json_string "$1")" "$(json_string "$2")" "$3" "$4" "$5" "$6" "$(json_string "$7")")")
  lines+=("| $1 | $2 | $3 | $4 | $5 | $6 | $(printf '%s' "$7" | tr '\n|' '  ') |")
  if [ "$2" = failed ]; then failed=1; fi
  say "$1: $2, $3 passed, $4 failed, $5 skipped. $7"
}

# run_program NAME: one test program of the bundle.
run_program() {
  local name=$1 log=$out/$1.log start=$SECONDS status=0 pass fail skip detail state
  if [ ! -x "$bundle/$name" ]; then
    row "$name" failed 0 1 0 0 "not in .bundle: run scripts/gpu-check.sh --prepare where GoogleTest is"
    return
  fi
  LD_LIBRARY_PATH="$bundle${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" timeout 300 "$bundle/$name" \
    --gtest_output="json:$out/$name.json" > "$log" 2>&1 < /dev/null || status=$?
  # One line a test: "[       OK ] Suite.Name (3 ms)". The summary has lines without times: not counted.
  pass=$(grep -cE '^\[ +OK \] .*\([0-9]+ ms\)$' "$log" || true)
  fail=$(grep -cE '^\[ +FAILED +\] .*\([0-9]+ ms\)$' "$log" || true)
  skip=$(grep -cE '^\[ +SKIPPED +\] .*\([0-9]+ ms\)$' "$log" || true)
  detail=$(grep -A 1 -hE ': Skipped$' "$log" | grep -vE ': Skipped$|^--$' | sort | uniq -c | sort -rn | head -n 3 |
    awk '{n = $1; $1 = ""; printf "%s%d skipped:%s", sep, n, $0; sep = "; "}' || true)
  state=passed
  if [ "$status" != 0 ]; then
    state=failed
    detail="exit status $status, see $name.log; $detail"
    if [ "$fail" = 0 ]; then fail=1; fi
  elif [ "$pass" = 0 ]; then
    state=skipped
  fi
  row "$name" "$state" "$pass" "$fail" "$skip" $((SECONDS - start)) "$detail"
}

# The library builds here, without the tests, and a program that links it runs.
build_here() {
  local start=$SECONDS build=$out/build log=$out/build.log tool
  for tool in cmake ninja nvcc c++; do
    if ! command -v "$tool" > /dev/null; then
      row "build" skipped 0 0 1 0 "no $tool on this machine"
      return
    fi
  done
  mkdir -p "$build/program"
  cat > "$build/program/CMakeLists.txt" << END
cmake_minimum_required(VERSION 3.25)
project(gpu_check LANGUAGES CXX)
set(LOCKSTEP_CUDA ON CACHE STRING "")
foreach(name NCCL CUDNN MPI ONEDNN)
  set(LOCKSTEP_\${name} OFF CACHE STRING "")
endforeach()
set(LOCKSTEP_TESTS OFF CACHE BOOL "")
add_subdirectory($repository lockstep EXCLUDE_FROM_ALL)
add_executable(fill_once main.cpp)
target_link_libraries(fill_once PRIVATE lockstep::kernels)
END
  cat > "$build/program/main.cpp" << 'END'
#include <cstdio>
#include <vector>

#include <lockstep/kernels/fill.hpp>
#include <lockstep/runtime/copy.hpp>
#include <lockstep/runtime/tensor.hpp>
#include <lockstep/runtime/version.hpp>

int main() {
  using namespace lockstep;
  std::puts(build_description().c_str());
  if (num_gpus() == 0) {
    std::puts("no CUDA device");
    return 77;
  }
  CudaContext context(Device::cuda(0));
  const Tensor device = Tensor::zeros(context, Shape{1001}, DType::f32);
  ops::fill(context, 2.5, device);
  std::vector<float> host(1001);
  copy(context, device, TensorView(std::span(host), Shape{1001}));
  context.synchronize();
  for (const float value : host) {
    if (!(value == 2.5F)) {
      std::puts("wrong value");
      return 1;
    }
  }
  std::puts("filled 1001 elements on the device");
}
END
  if ! { cmake -S "$build/program" -B "$build/tree" -G Ninja -DCMAKE_BUILD_TYPE=Release &&
    cmake --build "$build/tree" --parallel "$(jobs)"; } > "$log" 2>&1 < /dev/null; then
    row "build" failed 0 1 0 $((SECONDS - start)) "see build.log: $(grep -m 1 -E 'error|Error' "$log" || true)"
    return
  fi
  row "build" passed 1 0 0 $((SECONDS - start)) "cmake $(cmake --version | awk 'NR == 1 {print $3}'), $(nvcc --version |
    grep -o 'release [0-9.]*' | head -n 1), $(c++ --version | head -n 1)"
  local status=0 said
  said=$("$build/tree/fill_once" 2>&1 < /dev/null) || status=$?
  case "$status" in
    0) row "built program" passed 1 0 0 0 "$said" ;;
    77) row "built program" skipped 0 0 1 0 "$said" ;;
    *) row "built program" failed 0 1 0 0 "exit status $status: $said" ;;
  esac
  rm -rf "$build"
}

report() {
  local gpu=$1 commit=$2 conclusion=$3 i
  {
    printf '{\n  "report": "gpu-check", "part": "smoke",\n  "commit": %s,\n  "bundle_commit": %s,\n' \
      "$(json_string "$commit")" "$(json_string "$(cat "$bundle/commit" 2> /dev/null || echo none)")"
    printf '  "date": %s,\n  "gpu": %s,\n  "host": %s,\n  "conclusion": %s,\n  "checks": [' \
      "$(json_string "$(date -u +%Y-%m-%dT%H:%M:%SZ)")" "$(json_string "$gpu")" "$(json_string "$(uname -srm)")" \
      "$(json_string "$conclusion")"
    for i in "${!rows[@]}"; do
      if [ "$i" != 0 ]; then printf ','; fi
      printf '\n    %s' "${rows[$i]}"
    done
    printf '\n  ]\n}\n'
  } > "$out/gpu-check.json"
  {
    printf '# GPU check (smoke)\n\n'
    printf -- '- commit %s, programs of .bundle from %s\n' "$commit" "$(cat "$bundle/commit" 2> /dev/null || echo none)"
    printf -- '- %s, GPU: %s\n- %s\n\n' "$(date -u +%Y-%m-%dT%H:%M:%SZ)" "$gpu" "$(uname -srm)"
    printf '**%s**\n\n' "$conclusion"
    printf '| check | status | passed | failed | skipped | seconds | detail |\n|---|---|---|---|---|---|---|\n'
    if [ ${#lines[@]} -gt 0 ]; then printf '%s\n' "${lines[@]}"; fi
  } > "$out/gpu-check.md"
  say "reports: $out/gpu-check.md, $out/gpu-check.json"
}

smoke() {
  local gpu="" commit conclusion
  out=${OUT:-$repository/out}
  mkdir -p "$out"
  commit=$(git -C "$repository" describe --always --dirty 2> /dev/null || echo unknown)
  if command -v nvidia-smi > /dev/null; then
    gpu=$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2> /dev/null | paste -sd ';' ||
      true)
  fi
  local program
  for program in "${programs[@]}"; do
    run_program "$program"
  done
  if [ "$build_too" = yes ]; then build_here; fi
  if [ "$failed" != 0 ]; then
    conclusion="Something failed."
  elif [[ " ${lines[*]} " != *"cuda_device | passed |"* ]]; then
    conclusion="Nothing ran on a GPU: there is none that CUDA can use."
  else
    conclusion="Everything that ran passed."
  fi
  report "${gpu:-none found by nvidia-smi}" "$commit" "$conclusion"
  printf '%s\n' "$conclusion"
  if [ "$failed" != 0 ]; then exit 1; fi
  case "$conclusion" in Nothing*) exit 77 ;; esac
}

action=smoke
build_too=yes
while [ $# -gt 0 ]; do
  case "$1" in
    --help | -h)
      usage
      exit 0
      ;;
    --prepare) action=prepare ;;
    --no-build) build_too=no ;;
    --part)
      [ "${2:-}" = smoke ] || die "gpu-check.sh: --part is '${2:-}', expected smoke"
      shift
      ;;
    --part=smoke) ;;
    *) die "gpu-check.sh: unknown option '$1'; scripts/gpu-check.sh --help lists them" ;;
  esac
  shift
done
"$action"
