# The parts. Each starts from the bundle alone and leaves reports. Sourced by gpu-check.sh.

# begin: programs, libraries, GPUs, and that Open MPI starts ranks at all.
begin() {
  if ! unpack; then
    write_reports
    exit "$(exit_status)"
  fi
  same_sources
  find_libraries
  find_gpus
  programs_start
  on_ranks 2 "$programs/hello_ranks" --devices cpu
  check "2 ranks on the host" 5 60 read_status "${ranks[@]}" || true
  reason=$no_gpu
}

# device_tests_once with_ranks|without_ranks [PROGRAM...]: what --prepare wrote down in the bundle's file `tests`, without
# the programs named.
device_tests_once() {
  local program ranked count
  while read -r program ranked; do
    if [[ " ${*:2} " == *" $program "* ]]; then continue; fi
    if [ -z "$ranked" ]; then
      # Tests that need no GPU run also where there is none: then the programs start, at least.
      # No program is longer than its part: what has no time left is skipped, not failed.
      reason='' check "$program" 10 600 read_tests "$programs/$program" || true
    elif [ "$1" = with_ranks ]; then
      for count in 1 2 4; do
        on_ranks "$count" "$programs/$program"
        check "$program, $count ranks" 20 90 read_tests "${ranks[@]}" || true
      done
    fi
  done < <(cat "$bundle/tests" 2> /dev/null || true)
}

# quoted COMMAND...: what it prints, as Markdown takes it unchanged.
quoted() {
  echo '```'
  "$@" 2>&1 < /dev/null | cut -c 1-160 || true
  echo '```'
}

# ---- smoke

# Runtime and kernels build here, and a program that links them fills a tensor on the GPU: whether this machine's compiler
# and toolkit can do it. The floor nn is configured and never built, so that what it needs may be missing: zlib and
# nlohmann-json are empty here.
build_here() {
  local tool build=$work/build
  for tool in cmake ninja nvcc c++; do
    if ! command -v "$tool" > /dev/null; then
      row "build here" skipped 0 0 1 0 "no $tool on this machine"
      return
    fi
  done
  mkdir -p "$build/program" "$build/none"
  cat > "$build/program/CMakeLists.txt" << END
cmake_minimum_required(VERSION 3.25)
project(gpu_check LANGUAGES CXX)
set(LOCKSTEP_CUDA ON CACHE STRING "")
foreach(name NCCL CUDNN CUBLASLT NVJPEG MPI ONEDNN LIBDEFLATE)
  set(LOCKSTEP_\${name} OFF CACHE STRING "")
endforeach()
foreach(name TESTS BENCH EXAMPLES)
  set(LOCKSTEP_\${name} OFF CACHE BOOL "")
endforeach()
set(ZLIB_LIBRARY "$build/none/libz.a" CACHE STRING "")
set(ZLIB_INCLUDE_DIR "$build/none" CACHE STRING "")
file(WRITE "\${CMAKE_BINARY_DIR}/none/nlohmann_jsonConfig.cmake" "
if(NOT TARGET nlohmann_json::nlohmann_json)
  add_library(nlohmann_json::nlohmann_json INTERFACE IMPORTED GLOBAL)
endif()
")
set(nlohmann_json_DIR "\${CMAKE_BINARY_DIR}/none" CACHE STRING "")
add_subdirectory($repository lockstep EXCLUDE_FROM_ALL)
add_executable(fill_once main.cpp)
target_link_libraries(fill_once PRIVATE lockstep::kernels)
END
  cat > "$build/program/main.cpp" << 'END'
#include <cstdio>
#include <vector>

#include <lockstep/kernels/fill.hpp>
#include <lockstep/runtime/tensor/copy.hpp>
#include <lockstep/runtime/tensor/tensor.hpp>
#include <lockstep/runtime/base/version.hpp>

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
  export build
  if PATH=$own_path LD_LIBRARY_PATH=$own_libraries check "build here" 60 180 read_status bash -c \
    'cmake -S "$build/program" -B "$build/tree" -G Ninja -DCMAKE_BUILD_TYPE=Release && cmake --build "$build/tree"'; then
    check "program built here" 5 60 read_status "$build/tree/fill_once" || true
  fi
}

smoke() {
  begin
  device_tests_once without_ranks
  if [ "$build_too" = yes ]; then reason='' build_here; fi
  add_table "lockstep-devices" < <(quoted "$programs/lockstep-devices")
}

# ---- check

# Device memory errors in every kernel test, races and reads of unwritten memory in some. Tests of more than 2^31 elements
# take too long under the sanitizer. In shares, so that what does not fit is named.
sanitizers() {
  begin
  local sanitizer folder share tool filter what shares=8 program=$programs/test_kernels_cuda common
  sanitizer=$(command -v compute-sanitizer || true)
  for folder in "${CUDA_HOME:-/usr/local/cuda}" /usr/local/cuda-13*; do
    if [ -z "$sanitizer" ] && [ -x "$folder/bin/compute-sanitizer" ]; then sanitizer=$folder/bin/compute-sanitizer; fi
  done
  if [ -z "$sanitizer" ] && [ -z "$reason" ]; then
    local reason="no compute-sanitizer on this machine"
  fi
  # Tests of errors make calls of CUDA fail on purpose: only the device's accesses count.
  common=(--error-exitcode 86 --print-limit 5 --report-api-errors no)
  export GTEST_TOTAL_SHARDS=$shares GTEST_SHARD_INDEX
  for share in $(seq 0 $((shares - 1))); do
    GTEST_SHARD_INDEX=$share
    check "memcheck, share $((share + 1)) of $shares" 15 60 read_sanitizer "$sanitizer" --tool memcheck "${common[@]}" \
      "$program" --gtest_filter='-CudaLarge.*:*Beyond2To31*:*OfALibrary*' || true
  done
  unset GTEST_TOTAL_SHARDS GTEST_SHARD_INDEX
  for tool in racecheck initcheck; do
    filter='*batch_norm*:*softmax*:*layer_norm*:*reduce*:*max_pool*' what=reductions
    if [ "$tool" = racecheck ]; then filter+=':*/conv2d:*/matmul' what="reductions and products"; fi
    check "$tool, $what" 15 45 read_sanitizer "$sanitizer" --tool "$tool" "${common[@]}" "$program" \
      --gtest_filter="$filter-CudaLarge.*:*Beyond2To31*" || true
  done
}

# train NAME NEEDS LIMIT RANKS OPTION...: a run of train_resnet on GPUs, into $work/runs/NAME.
train() {
  local name=$1 needs=$2 limit=$3 count=$4
  shift 4
  if [ "$count" = 1 ]; then
    ranks=("$programs/train_resnet" --devices 0,)
  elif [ "$count" -le "$gpus" ]; then
    # All GPUs ("gpu") would be refused where there are more than ranks.
    on_ranks "$count" "$programs/train_resnet" --devices "$count"
  else
    on_ranks "$count" "$programs/train_resnet" --devices gpu
  fi
  mkdir -p "$work/runs"
  check "$name" "$needs" "$limit" read_status "${ranks[@]}" --out "$work/runs/$name" "$@"
}

# needs_runs RUN...: `reason` for a comparison of runs that are not there.
needs_runs() {
  local run
  if [ -n "$no_gpu" ]; then
    reason=$no_gpu
    return
  fi
  reason=
  for run in "$@"; do
    if [ ! -f "$work/runs/$run/last/model.safetensors" ]; then reason="the run '$run' left no checkpoint"; fi
  done
}
run_file() { printf '%s/runs/%s/last/%s' "$work" "$1" "$2"; }

# After one step of SGD with momentum and without weight decay the momentum is the gradient.
gradients() {
  local count compare=(python3 "$parts/compare_checkpoints.py" --only .momentum_buffer) options
  options=(--model mlp --hidden 256,128 --data synthetic --train-images 512 --test-images 64 --batch-size 256
    --steps 1 --momentum 0.9 --weight-decay 0 --lr 0.1 --schedule constant --warmup-steps 0 --dtype fp32 --cuda-graph off
    --tune off)
  for count in 1 2 4; do
    train "gradient-$count" 20 90 "$count" "${options[@]}" || true
  done
  train "gradient-other-seed" 20 60 1 "${options[@]}" --seed 2 || true
  for count in 2 4; do
    needs_runs gradient-1 "gradient-$count"
    check "gradient of $count ranks = of 1" 2 30 read_status "${compare[@]}" --at-most 1e-5 \
      "$(run_file gradient-1 optimizer.safetensors)" "$(run_file "gradient-$count" optimizer.safetensors)" || true
  done
  needs_runs gradient-1 gradient-other-seed
  check "control: another seed, another gradient" 2 30 read_status "${compare[@]}" --at-least 1e-2 \
    "$(run_file gradient-1 optimizer.safetensors)" "$(run_file gradient-other-seed optimizer.safetensors)" || true
  reason=$no_gpu
}

# same_bits WHAT RUN OTHER: the checkpoints of two runs are equal, byte for byte.
same_bits() {
  local file
  needs_runs "$2" "$3"
  for file in model.safetensors optimizer.safetensors; do
    check "$1, $file" 2 30 read_status cmp "$(run_file "$2" $file)" "$(run_file "$3" $file)" || true
  done
  reason=$no_gpu
}

# The same bits with and without the graph of a step, with weight gradients on a second stream, and with dependent
# launches, in f32 and in bf16; with two ranks, which exchange gradients in the graph, in bf16. Equal choices of the libraries are what equal bits need:
# all runs of a type share a file of them. That two runs call by call are equal comes first: where they are not, the graph
# is not the reason.
captured() {
  local dtype options
  for dtype in fp32 bf16; do
    options=(--model resnet20 --data synthetic --train-images 2048 --test-images 64 --batch-size 128 --epochs 3 --dtype
      "$dtype" --tune on --choices "$work/choices-$dtype.json")
    train "uncaptured-$dtype" 20 60 1 "${options[@]}" --cuda-graph off || true
    train "uncaptured-again-$dtype" 20 60 1 "${options[@]}" --cuda-graph off || true
    train "captured-$dtype" 20 60 1 "${options[@]}" --cuda-graph on || true
    same_bits "uncaptured run twice = the same bits, $dtype" "uncaptured-$dtype" "uncaptured-again-$dtype"
    same_bits "captured = uncaptured, $dtype" "captured-$dtype" "uncaptured-$dtype"
    train "beside-$dtype" 20 60 1 "${options[@]}" --cuda-graph on --weights-beside || true
    same_bits "weights beside = captured, $dtype" "beside-$dtype" "captured-$dtype"
    train "dependent-$dtype" 20 60 1 "${options[@]}" --cuda-graph on --weights-beside --dependent-launches || true
    same_bits "dependent launches = captured, $dtype" "dependent-$dtype" "captured-$dtype"
  done
  train "uncaptured-2-ranks" 20 90 2 "${options[@]}" --cuda-graph off || true
  train "captured-2-ranks" 20 90 2 "${options[@]}" --cuda-graph on || true
  same_bits "captured = uncaptured, $dtype, 2 ranks" captured-2-ranks uncaptured-2-ranks
  train "captured-other-seed" 20 60 1 "${options[@]}" --cuda-graph on --seed 2 || true
  needs_runs captured-bf16 captured-other-seed
  check "control: another seed, other weights" 2 30 read_status bash -c '! cmp -s "$1" "$2"' differ \
    "$(run_file captured-bf16 model.safetensors)" "$(run_file captured-other-seed model.safetensors)" || true
  reason=$no_gpu
}

# Pictures that the GPU finishes have the bits of those that the loader's threads make.
pictures() {
  local where options
  options=(--model resnet20 --data synthetic --train-images 2048 --test-images 64 --batch-size 128 --epochs 2 --dtype bf16
    --tune on --choices "$work/choices-pictures.json" --crop-scale 0.3,1 --color-jitter 0.4,0.4,0.4,0.1 --random-erase 0.5
    --mixup 0.2 --cutmix 1 --flip off --cuda-graph on)  # of mirrored images the loader resizes
  for where in host device; do
    train "pictures-$where" 20 60 1 "${options[@]}" --pictures "$where" || true
  done
  same_bits "pictures of the GPU = of the host" pictures-host pictures-device
}

fashion_mnist() {
  local images=$bundle/data/fashion-mnist wanted=0.92 start=$SECONDS log reached run=$work/runs/fashion-mnist
  if [ -z "$reason" ] && [ ! -d "$images" ]; then local reason="no Fashion-MNIST in the bundle"; fi
  # 2 epochs reach 91.1 % on the host (docs/results/train-host).
  if train fashion-mnist 30 150 1 --model resnet20 --data "idx:$images" --epochs 12 --batch-size 128 --dtype bf16 --pad 2 \
    --flip on; then
    log=$run/metrics.jsonl
    reached=$(sed -n 's/.*"event":"end".*"test_accuracy":\([0-9.]*\).*/\1/p' "$log" | tail -n 1)
    if awk -v reached="$reached" -v wanted="$wanted" 'BEGIN {exit !(reached != "" && reached >= wanted)}'; then
      row "ResNet-20 on Fashion-MNIST, bf16" passed 1 0 0 0 "test accuracy $reached, at least $wanted wanted"
    else
      row "ResNet-20 on Fashion-MNIST, bf16" failed 0 1 0 0 "test accuracy ${reached:-not reported}, at least $wanted wanted"
    fi
    add_data fashion_mnist "$log"
  else
    row "ResNet-20 on Fashion-MNIST, bf16" skipped 0 0 1 $((SECONDS - start)) "${reason:-the run did not end well}"
  fi
}

check_all() {
  begin
  # The two longest ran in the part smoke.
  device_tests_once with_ranks test_kernels_cuda test_runtime_cuda_device
  gradients
  captured
  pictures
  fashion_mnist
}

# ---- perf

# perf TYPE BATCH
perf() {
  local python limit
  begin
  python=$(command -v python3 || true)
  if [ -z "$reason" ] && [ -z "$python" ]; then reason="no python3 on this machine"; fi
  # PyTorch brings its own libraries: the runner gives it the environment of before.
  export LOCKSTEP_PEER_LIBRARY_PATH=$own_libraries
  mkdir -p "$work/steps"
  limit=$(seconds_left)
  if [ "$limit" -lt 60 ]; then limit=60; fi
  check "ResNet-50 224x224 steps, $1, batch $2" 60 "$limit" read_status "$python" \
    "$repository/bench/end_to_end/gpu_against_torch.py" --program "$programs/train_resnet" \
    --peer "$bundle/peer/torch_resnet.py" --dtypes "$1" --batches "$2" --seconds $((limit - 15)) \
    --json "$work/steps/steps.json" --markdown "$work/steps/steps.md" --work "$work/steps" || true
  if [ -s "$work/steps/steps.md" ]; then add_table "ResNet-50, 224 x 224, whole steps" < "$work/steps/steps.md"; fi
  add_data steps "$work/steps/steps.json"
}

# ---- speed

speed() {
  local file
  begin
  file=$work/kernels.json
  check "bench_kernels" 30 120 read_status "$programs/bench_kernels" --devices 0, --benchmark_min_time 0.03 --max-seconds 75 \
    --benchmark_out "$file" || true
  if [ -s "$file" ]; then add_table "Kernels" < <(kernel_table "$file"); fi
  add_data kernels "$file"

  moving_data
}

# What moving data costs: each path alone (lockstep-cost with one rank, bench_copy), then ranks on all GPUs over NCCL; two
# on one GPU where there is one, which the report says. Rows of their own hold the figures against what they should be.
moving_data() {
  local count=$gpus what="$gpus ranks" mind='' most=() alone=$work/cost-alone several=$work/cost-ranks copies=$work/copies.json
  if [ "$count" -lt 2 ]; then
    count=2 what="2 ranks on 1 GPU" mind=": times between ranks mean nothing" most=(--max-bytes 1048576)
  fi
  # One rank with all GPUs in sight: auto lets some without a rank, so that it copies to the next one, too.
  on_ranks 1 "$programs/lockstep-cost" --devices auto --seconds 20 --out "$alone"
  check "lockstep-cost, 1 rank" 35 75 read_status "${ranks[@]}" || true
  check "bench_copy" 15 45 read_status "$programs/bench_copy" --devices 0, --benchmark_filter 'cuda|gpu|device' \
    --benchmark_min_time 0.05 --min-bytes 4 --max-bytes 268435456 --factor 64 --benchmark_out "$copies" || true
  if [ -s "$copies" ]; then add_table "Copies" < <(quoted grep -E '^(copy/|Benchmark)' "$log"); fi
  add_data copies "$copies"

  on_ranks "$count" "$programs/lockstep-cost" --devices gpu --seconds 20 --out "$several"
  check "lockstep-cost, $what" 35 75 read_status "${ranks[@]}" || true
  cost_report cost_alone "lockstep-cost, 1 rank" "$alone"
  cost_report cost_ranks "lockstep-cost, $what$mind" "$several"
  limits_of_copies "$alone" "$several" "$copies"

  on_ranks "$count" "$programs/bench_allreduce" --devices gpu --benchmark_filter '^all_reduce/nccl/f32/in_place' \
    --benchmark_min_time 0.05 "${most[@]}"
  if check "bench_allreduce, $what" 15 40 read_status "${ranks[@]}"; then
    add_table "All-reduce, $what$mind" < <(quoted grep -E '^(all_reduce/|Benchmark)' "$log")
  fi
  on_ranks 1 "$programs/bench_allreduce" --devices 0, --benchmark_filter '^all_reduce/nccl' --benchmark_min_time 0.05
  check "bench_allreduce, 1 rank" 15 30 read_status "${ranks[@]}" || true
  if [ -z "$reason" ] && [ "$gpus" -lt 2 ]; then local reason="one GPU: it has no peer"; fi
  if check "bench_copy, every two GPUs" 15 40 read_status "$programs/bench_copy" --devices gpu --benchmark_filter \
    '^copy/peer/.*/copy_engine/67108864/manual_time$' --benchmark_min_time 0.05 --min-bytes 67108864 --max-bytes 67108864; then
    add_table "Copies between GPUs" < <(quoted grep -E '^(copy/|Benchmark)' "$log")
  fi
}

# cost_report NAME TITLE FOLDER: what lockstep-cost wrote there, into both reports. Its plots are files of their own.
cost_report() {
  if [ -s "$3/cost.md" ]; then add_table "$2" < <(sed -e '/^!\[/d' -e 's/^#/###/' "$3/cost.md"); fi
  add_data "$1" "$3/cost.json"
}

# limits_of_copies ALONE RANKS COPIES: the rows of cost_rows.py.
limits_of_copies() {
  local said name state detail left=$reason
  if [ -z "$left" ] && ! command -v python3 > /dev/null; then left="no python3 on this machine"; fi
  if [ -n "$left" ]; then
    row "copies beside their limits" skipped 0 0 1 0 "$left"
    return
  fi
  if ! said=$(python3 "$parts/cost_rows.py" --alone "$1/cost.json" --ranks "$2/cost.json" --copies "$3" \
    --kernels "$work/kernels.json" 2> "$work/log/cost_rows.log"); then
    row "copies beside their limits" failed 0 1 0 0 "cost_rows.py: $(tail -n 1 "$work/log/cost_rows.log")"
    return
  fi
  while IFS=$'\t' read -r name state detail; do
    case "$state" in
      passed) row "$name" passed 1 0 0 0 "$detail" ;;
      failed) row "$name" failed 0 1 0 0 "$detail" ;;
      *) row "$name" skipped 0 0 1 0 "$detail" ;;
    esac
  done <<< "$said"
}

# kernel_table FILE: the table of bench_kernels' file, in which Google Benchmark has a member a line. A product is held against
# the fastest one of its type in the same run, everything else against the copy bandwidth measured there.
kernel_table() {
  awk '
    function value() { sub(/^[^:]*: */, ""); sub(/,$/, ""); gsub(/^"|"$/, ""); return $0 }
    /^ *"copy_bytes_per_second":/ { copy = value() / 1e9 }
    /^ *"name":/ { name[++n] = value(); sub("/manual_time$", "", name[n]) }
    /^ *"error_occurred": true/ { left_out[n] = 1 }
    /^ *"real_time":/ { us[n] = value() / 1e3 }
    /^ *"bytes_per_second":/ { gb[n] = value() / 1e9 }
    /^ *"flop_per_second":/ { flops[n] = value() / 1e12 }
    /^ *"percent_of_copy":/ { share[n] = value() + 0 }
    /^ *"label":/ { type[n] = value() }
    END {
      for (i = 1; i <= n; ++i) if (!left_out[i] && name[i] ~ /matmul/ && flops[i] > best[type[i]]) best[type[i]] = flops[i]
      printf "copy %.0f GB/s", copy
      for (t in best) printf ", fastest product in %s %.1f TFLOP/s", t, best[t]
      print "\n\n| case | type | us | GB/s | % of copy | TFLOP/s | % of matmul |\n|---|---|---|---|---|---|---|"
      for (i = 1; i <= n; ++i) {
        if (left_out[i]) continue
        printf "| %s | %s | %.1f | %.0f | %.1f |", name[i], type[i], us[i], gb[i], share[i]
        if (flops[i] > 0 && best[type[i]] > 0) printf " %.2f | %.1f |\n", flops[i], 100 * flops[i] / best[type[i]]
        else if (flops[i] > 0) printf " %.2f | |\n", flops[i]
        else print " | |"
      }
    }' "$1"
}
