# Sourced by gpu-check.sh. Defines its calls a, b, c, d and again. A call is a list of checks; the most important checks
# come first. A check that fails does not end its call: in `call_a || true`, bash ignores `set -e` and continues with
# the next check.

# begin: checks programs, libraries and GPUs, and that Open MPI starts ranks.
begin() {
  local cores memory
  if ! unpack; then
    write_reports
    exit "$(exit_status)"
  fi
  find_libraries
  watch_clocks
  find_gpus
  find_versions
  same_sources
  programs_start
  # `rooms` is the number of checks that run at a time: each sanitizer takes about 3 GB of the host's memory.
  cores=$(nproc) memory=$(awk '/MemAvailable/ {print int($2 / 3000000)}' /proc/meminfo 2> /dev/null || echo 2)
  rooms=$((cores - 2 < memory ? cores - 2 : memory))
  rooms=$((rooms < 2 ? 2 : rooms > 14 ? 14 : rooms)) workers=$rooms
  keep_mpi_sessions
  on_ranks 2 "$programs/hello_ranks" --devices cpu
  check "2 ranks on the host" 60 read_status "${ranks[@]}" || true
  reason=$no_gpu
  if [ -z "$reason" ]; then gpu_state; fi
  sanitizer=$(tool compute-sanitizer) ncu=$(tool ncu)
}

# tool NAME: prints the path of a tool of the toolkit; prints nothing when there is none.
tool() {
  local found
  found=$(command -v "$1" || true)
  for found in "$found" "${CUDA_HOME:-/usr/local/cuda}/bin/$1" /usr/local/cuda-13*/bin/"$1" \
    /opt/nvidia/nsight-compute/*/"$1"; do
    if [ -n "$found" ] && [ -x "$found" ]; then
      echo "$found"
      return
    fi
  done
}

# ---- the parts of the calls

big='CudaLarge.*:*Beyond2To31*'  # tests of more than 2^31 elements run alone, and not under a sanitizer
on_gpu0=(--devices "0,")
large() { check "tests beyond 2^31" 120 read_tests "$programs/test_kernels_cuda" --gtest_filter="$big" || true; }

# shares NAME COUNT LIMIT READER FILTER [TOOL...]: runs the kernels' tests in COUNT shares at the same time.
shares() {
  local share
  for share in $(seq 0 $(($2 - 1))); do
    beside "$1, share $((share + 1)) of $2" "$3" "$4" env GTEST_TOTAL_SHARDS="$2" GTEST_SHARD_INDEX="$share" "${@:6}" \
      "$programs/test_kernels_cuda" --gtest_filter="$5"
  done
}

# sanitize TOOL LIMIT COUNT WHAT FILTER: runs the kernels' tests in COUNT shares under compute-sanitizer.
# sanitize_steps: runs training steps under memcheck. Some tests make CUDA calls fail on purpose. So errors of API calls
# are not reported, only wrong accesses to device memory.
sanitized=(--error-exitcode 86 --print-limit 5 --report-api-errors no)
no_sanitizer() { echo "${reason:-$([ -n "$sanitizer" ] || echo "no compute-sanitizer on this machine")}"; }
sanitize() {
  local why
  why=$(no_sanitizer)
  local reason=$why
  shares "$1, $4" "$3" "$2" read_sanitizer "$5" "$sanitizer" --tool "$1" "${sanitized[@]}"
}
sanitize_steps() {
  local why
  why=$(no_sanitizer)
  local reason=$why
  beside "memcheck, steps of ResNet-20" 200 read_status "$sanitizer" --tool memcheck "${sanitized[@]}" \
    "$programs/train_resnet" "${on_gpu0[@]}" --model resnet20 --data synthetic --train-images 128 --test-images 16 \
    --batch-size 64 --epochs 1 --dtype bf16 --tune off --workers 1 --cuda-graph off --out "$work/runs/sanitized"
}

# test_programs with_ranks|without_ranks: runs the test programs listed in the bundle's file `tests`, which --prepare
# has written. Leaves out two programs that other functions run.
test_programs() {
  local program ranked count
  while read -r program ranked; do
    case "$program" in test_kernels_cuda | test_nn_norm_trial_cuda) continue ;; esac
    if [ -z "$ranked" ] && [ "$1" = without_ranks ]; then
      # Tests that need no GPU also run on a machine without a GPU; this shows at least that the programs start.
      reason='' beside "$program" 120 read_tests "$programs/$program"
    elif [ -n "$ranked" ] && [ "$1" = with_ranks ]; then
      for count in 1 2 4; do
        on_ranks "$count" "$programs/$program"
        beside "$program, $count ranks" 90 read_tests "${ranks[@]}"
      done
    fi
  done < <(cat "$bundle/tests" 2> /dev/null || true)
}

# resnet50 TYPE STEPS: sets `options` for a run that measures whole steps, with loader, augmentation, copies and updates,
# without evaluation.
resnet50() {
  local batch=256
  if [ "$1" = fp16 ]; then batch=64; fi
  options=("${on_gpu0[@]}" --model resnet50 --dtype "$1" --batch-size $batch --data synthetic --image-size 224
    --classes 1000 --train-images $((batch * $2)) --test-images 16 --flip on --steps "$2" --epochs 1000 --log-every 4
    --workers "$workers")
}
# figure NAME LIMIT OPTION...: runs train_resnet and measures its rate. figure_of PROGRAM NAME LIMIT OPTION...: does the
# same with any program.
figure_of() { check "$2" "$3" read_figure "$programs/$1" "${@:4}" --out "$work/runs/$2" || true; }
figure() { figure_of train_resnet "$@"; }
# The library choices that the tuner finds are kept for later calls. The tree or the bundle may also have choices, which
# were found on other machines.
choices=choices-resnet50-bf16-256.json
tuned() {  # tuned NAME LIMIT OPTION...
  resnet50 bf16 40
  figure "$1" "$2" "${options[@]}" --tune on --choices "$kept/$choices" "${@:3}"
}

# peer NAME LIMIT TYPE OPTION...: measures PyTorch's ResNet-50, with the machine's own libraries and settings.
peer() {
  local reason=$reason batch=256
  if [ -z "$reason" ] && ! command -v python3 > /dev/null; then reason="no python3 on this machine"; fi
  if [ -z "$reason" ] && [ ! -f "$bundle/peer/torch_resnet.py" ]; then reason="no torch_resnet.py in the bundle"; fi
  if [ "$3" = fp16 ]; then batch=64; fi
  check "$1" "$2" read_peer env -u CUDA_DEVICE_MAX_CONNECTIONS LD_LIBRARY_PATH="$own_libraries" python3 \
    "$repository/bench/end_to_end/torch_fused.py" "$bundle/peer/torch_resnet.py" --device cuda --model resnet50 \
    --batch $batch --dtype "$3" --steps 30 --warmup 10 "${@:4}" || true
}

# train NAME LIMIT RANKS OPTION...: runs train_resnet on GPUs, with its results in $work/runs/NAME. Runs in the
# background if `how` is "beside".
how=check reader=read_status
train() {
  if [ "$3" = 1 ]; then
    ranks=("$programs/train_resnet" "${on_gpu0[@]}")
  elif [ "$3" -le "$gpus" ]; then
    # --devices gpu (all GPUs) is an error if there are more GPUs than ranks.
    on_ranks "$3" "$programs/train_resnet" --devices "$3"
  else
    on_ranks "$3" "$programs/train_resnet" --devices gpu
  fi
  "$how" "$1" "$2" "$reader" "${ranks[@]}" --out "$work/runs/$1" "${@:4}" || true
}

# runs_there RUN...: prints why these runs cannot be compared; prints nothing if each run has left a checkpoint.
runs_there() {
  local run
  if [ -n "$no_gpu" ]; then echo "$no_gpu"; fi
  for run in "$@"; do
    [ -n "$no_gpu" ] || [ -f "$work/runs/$run/last/model.safetensors" ] || echo "the run '$run' left no checkpoint"
  done | head -n 1
}
# same RUN OTHER: checks that the checkpoints of two runs are equal, byte for byte. differ RUN OTHER: checks that they
# differ. The row's name contains the names of both runs, so that call_again can repeat the runs, too.
same() {
  local reason
  reason=$(runs_there "$1" "$2")
  check "$1 = $2" 30 read_status bash -ec 'for file in model optimizer; do
      cmp "$1/$file.safetensors" "$2/$file.safetensors"
    done
    echo "the same bits"' same "$work/runs/$1/last" "$work/runs/$2/last" || true
}
differ() {
  local reason
  reason=$(runs_there "$1" "$2")
  check "$1 != $2" 30 read_status bash -c 'if cmp "$1" "$2"; then echo "error: they are the same"; exit 1; fi' differ \
    "$work/runs/$1/last/model.safetensors" "$work/runs/$2/last/model.safetensors" || true
}
# distance SIGN RUN OTHER BOUND...: compares the momenta of two runs; compare_checkpoints.py gets the options BOUND.
# SIGN is only for the row's name. After one step of SGD with momentum and without weight decay, the momenta are the
# gradients.
distance() {
  local reason file=last/optimizer.safetensors
  reason=$(runs_there "$2" "$3")
  if [ -z "$reason" ] && ! command -v python3 > /dev/null; then reason="no python3 on this machine"; fi
  check "$2 $1 $3" 30 read_status python3 "$parts/compare_checkpoints.py" --only .momentum_buffer "${@:4}" \
    "$work/runs/$2/$file" "$work/runs/$3/$file" || true
}

# ---- Call a: does lockstep work? Measures the rate at which lockstep and PyTorch train ResNet-50. Compares the results
# of every op with those of the host. Looks for memory errors.

call_a() {
  if check "the machine" 60 read_status "$programs/lockstep-devices"; then
    add_table "lockstep-devices" < <(quoted "$(log_of "the machine")" .)
  fi
  resnet50 bf16 16
  figure resnet50-calls 100 "${options[@]}" --tune off --cuda-graph off
  peer torch-graph 90 bf16 --graph
  figure resnet50-graph 100 "${options[@]}" --tune off --cuda-graph on
  same resnet50-graph resnet50-calls
  peer torch-eager 60 bf16
  ratio "ResNet-50 bf16 256, untuned, over PyTorch" 'resnet50-(calls|graph)' 'torch-(graph|eager)'
  shares "kernels" 12 150 read_tests "-$big:*OfALibrary*"
  test_programs without_ranks
  all_over
  shares "engines of libraries" 12 150 read_tests "*OfALibrary*-$big"
  all_over
  sanitize memcheck 400 14 kernels "-$big:*OfALibrary*"
  all_over
}

# ---- Call b: are the results right? Tests batch norms inside cuDNN's engines, convergence and tensors of more than
# 2^31 elements. Looks for races and for reads of uninitialised memory. Compares the results of several ways to run a
# step, and of several numbers of ranks. Also measures a training run with tuned library choices.

call_b() {
  local type way
  # The long checks run in the background, on one core each.
  beside "norms served by engines" 300 read_tests "$programs/test_nn_norm_trial_cuda"
  fashion_mnist
  for way in racecheck initcheck; do
    sanitize $way 240 1 reductions '*batch_norm*:*BatchNorm*:*softmax*:*layer_norm*:*reduce*:*max_pool*-'"$big"
  done
  wave=()
  how=beside steps
  how=beside pictures
  together
  # Two runs without a graph are compared first. If these runs differ, the graph is not the reason for a difference.
  for type in fp32 bf16; do
    for way in again graph beside dependent; do same "$way-$type" "calls-$type"; done
    differ "seed-$type" "graph-$type"
  done
  same pictures-device pictures-host
  how=beside several_ranks
  together
  for way in 2 4; do distance "=" gradient-1 "gradient-$way" --at-most 1e-5; done
  distance "!=" gradient-1 gradient-seed --at-least 1e-2
  same ranks-graph ranks-calls
  all_over
  large
  tuned resnet50-tuned 600
}

# steps: trains ResNet-20 in several ways: call by call (twice), as a captured graph, with weight gradients on a second
# stream, and with dependent launches.
steps() {
  local type way options
  for type in fp32 bf16; do
    options=(--model resnet20 --data synthetic --train-images 2048 --test-images 64 --batch-size 128 --epochs 3
      --dtype "$type" --tune off --workers 1)
    for way in "calls --cuda-graph off" "again --cuda-graph off" "graph --cuda-graph on" \
      "beside --cuda-graph on --weights-beside" "dependent --cuda-graph on --weights-beside --dependent-launches" \
      "seed --cuda-graph on --seed 2"; do
      # shellcheck disable=SC2086  # options without spaces
      train "${way%% *}-$type" 90 1 "${options[@]}" ${way#* }
    done
  done
}

# pictures: trains twice, with images that the GPU augments and with images that the loader's threads augment. The
# results must have equal bits.
pictures() {
  local where
  for where in host device; do
    train "pictures-$where" 90 1 --model resnet20 --data synthetic --train-images 2048 --test-images 64 --batch-size 128 \
      --epochs 2 --dtype bf16 --tune off --workers 1 --crop-scale 0.3,1 --color-jitter 0.4,0.4,0.4,0.1 --random-erase 0.5 \
      --mixup 0.2 --cutmix 1 --flip off --pictures "$where"  # mirrored images would be resized by the loader
  done
}

# several_ranks: trains with several ranks over NCCL. With fewer GPUs than ranks, several ranks share a GPU (on_ranks),
# and times mean nothing.
several_ranks() {
  local ranked=$((gpus < 2 ? 2 : gpus)) rooms=$(((rooms + 1) / 2)) way options
  options=(--model mlp --hidden 256,128 --data synthetic --train-images 512 --test-images 64 --batch-size 256 --steps 1
    --momentum 0.9 --weight-decay 0 --lr 0.1 --schedule constant --warmup-steps 0 --dtype fp32 --cuda-graph off --tune off)
  for way in 1 2 4; do train "gradient-$way" 90 "$way" "${options[@]}"; done
  train gradient-seed 60 1 "${options[@]}" --seed 2
  options=(--model resnet20 --data synthetic --train-images 1024 --test-images 64 --batch-size 64 --epochs 1 --dtype bf16
    --tune off --workers 1)
  for way in "calls --cuda-graph off" "graph --cuda-graph on" "zero1 --cuda-graph on --strategy zero1" \
    "sync --cuda-graph on --sync-batch-norm" "bf16 --cuda-graph on --compress bf16" \
    "powersgd --cuda-graph on --compress powersgd:2"; do
    # shellcheck disable=SC2086  # options without spaces
    train "ranks-${way%% *}" 90 "$ranked" "${options[@]}" ${way#* }
  done
  test_programs with_ranks
}

fashion_mnist() {
  local reason=$reason images=$bundle/data/fashion-mnist reader=read_accuracy how=beside epochs=12
  if [ -f "$images/wanted" ]; then epochs=24; fi  # a third of the images (prepare.sh)
  if [ -z "$reason" ] && [ ! -d "$images" ]; then reason="no Fashion-MNIST in the bundle"; fi
  # 2 epochs reach 91.1 % on the host (docs/results/train-host).
  train "ResNet-20 on Fashion-MNIST, bf16" 240 1 --model resnet20 --data "idx:$images" --epochs $epochs --batch-size 128 \
    --dtype bf16 --pad 2 --flip on --tune off --workers 3
}
read_accuracy() {
  local wanted metrics=$work/runs/$name/metrics.jsonl reached
  wanted=$(cat "$bundle/data/fashion-mnist/wanted" 2> /dev/null || echo 0.92)
  read_status
  cp "$metrics" "$work/log/fashion-mnist.jsonl" 2> /dev/null || true
  if [ "$state" != passed ] || [ -n "$stopped" ]; then return; fi
  reached=$(sed -n 's/.*"event":"end".*"test_accuracy":\([0-9.]*\).*/\1/p' "$metrics" | tail -n 1)
  detail="test accuracy ${reached:-not reported}, at least $wanted wanted"
  if ! awk -v reached="$reached" -v wanted="$wanted" 'BEGIN {exit !(reached != "" && reached >= wanted)}'; then
    state=failed fail=1 pass=0
  fi
}

# ---- Call c: is lockstep fast? Measures whole training steps, in lockstep and in PyTorch, one run at a time, so that
# nothing else uses the GPU. The steps are those of ResNet-50, ResNet-20 (launch-bound) and GPT-2. Then measures copies
# and kernels, and records hardware counters of a step.

call_c() {
  local batch known=no
  resnet50 bf16 40
  figure quiet-graph 90 "${options[@]}" --tune off
  peer quiet-torch-graph 90 bf16 --graph
  ratio "ResNet-50 bf16 256, untuned and quiet, over PyTorch" quiet-graph quiet-torch-graph
  # With library choices from an earlier call, the tuned run takes seconds. Without them, the tuned run takes minutes
  # and therefore comes last.
  if [ -s "$kept/$choices" ]; then known=yes; fi
  if [ "$known" = yes ]; then tuned quiet-tuned 150; fi
  resnet50 bf16 40
  figure quiet-beside 60 "${options[@]}" --tune off --weights-beside
  figure quiet-dependent 60 "${options[@]}" --tune off --dependent-launches
  for batch in 128 512; do
    figure "resnet20-$batch" 40 "${on_gpu0[@]}" --model resnet20 --dtype bf16 --batch-size $batch --data synthetic \
      --train-images $((batch * 64)) --test-images 64 --flip on --steps 2048 --epochs 1000 --log-every 64 \
      --workers "$workers" --tune off
  done
  gpt2
  bench_copies_and_kernels
  resnet50 bf16 8
  counters "counters of ResNet-50's steps" train_resnet "${options[@]}" --tune off --cuda-graph off
  check "trace of ResNet-50's steps" 60 read_status "$programs/train_resnet" "${options[@]}" --tune off --cuda-graph off \
    --trace "$work/log/trace.json" --trace-steps 4:6 --out "$work/runs/trace" || true
  peer quiet-torch-compile 120 bf16 --compile
  if [ "$known" = no ]; then tuned quiet-tuned 600; fi
  resnet50 bf16 40
  figure quiet-fast 90 "${options[@]}" --tune fast
  ratio "ResNet-50 bf16 256 over PyTorch" 'quiet-(graph|tuned|beside|dependent|fast)' 'quiet-torch-.*'
}

# gpt2_options VOCABULARY STEPS: sets `options` for GPT-2 with 124 million parameters on random tokens. A token has two
# bytes. No byte is above 195, so no token is above 195 * 256 + 195 = 50115, which is below each VOCABULARY used here.
# gpt2: measures the model with its own vocabulary size, 50257, and with the next multiple of 64.
gpt2_options() {
  local data=$work/tokens
  if [ ! -d "$data" ]; then
    mkdir -p "$data"
    head -c 17000000 /dev/urandom | tr -d '\304-\377' > "$work/bytes"
    head -c 12000000 "$work/bytes" > "$data/train.bin"
    tail -c 140000 "$work/bytes" > "$data/val.bin"
  fi
  options=("${on_gpu0[@]}" --data "tokens:$data" --vocabulary "$1" --length 1024 --layers 12 --heads 12 --width 768
    --batch-size 16 --dtype bf16 --steps "$2" --log-every 4 --sample 0)
}
gpt2() {
  local vocabulary
  for vocabulary in 50304 50257; do
    gpt2_options $vocabulary 40
    figure_of train_text "gpt2-$vocabulary" 60 "${options[@]}"
  done
}

bench_copies_and_kernels() {
  local file
  file=$kept/copies.json
  if check "bench_copy" 45 read_status "$programs/bench_copy" "${on_gpu0[@]}" --benchmark_filter 'cuda|gpu|device' \
    --benchmark_min_time 0.05 --min-bytes 4 --max-bytes 268435456 --factor 64 --benchmark_out "$file"; then
    add_table "Copies" < <(quoted "$(log_of bench_copy)" '^(copy/|Benchmark)')
    add_data copies "$file"
  fi
  file=$kept/kernels.json
  if check "bench_kernels" 100 read_status "$programs/bench_kernels" "${on_gpu0[@]}" --benchmark_min_time 0.03 \
    --max-seconds 60 --benchmark_out "$file"; then
    add_table "Kernels" < <(kernel_table "$file")
    add_data kernels "$file"
  fi
}

# counters NAME PROGRAM OPTION...: records name, time and bytes of the kernel launches 1101 to 1600 of a run. The first
# launches are left out, because they prepare the run. No launch is repeated.
counters() {
  local reason=${reason:-$([ -n "$ncu" ] || echo "no ncu on this machine")}
  check "$1" 90 read_status "$ncu" --metrics gpu__time_duration.sum,dram__bytes_read.sum,dram__bytes_write.sum \
    --clock-control none --csv --launch-skip 1100 --launch-count 500 --log-file "$(log_of "$1").csv" \
    "$programs/$2" "${@:3}" --out "$work/runs/$1" || true
}

# ---- Call d: measures the cost of copies and all-reduces. Repeats the comparison of ResNet-50's rate with PyTorch's in
# two rounds, then in fp16. Builds lockstep on this machine. Under compute-sanitizer, runs training steps, and kernels
# that calls a and b do not run under it.

call_d() {
  local round
  moving_data
  for round in 1 2; do
    tuned "round-$round-tuned" 90
    peer "round-$round-torch" 60 bf16 --graph
  done
  ratio "ResNet-50 bf16 256, two rounds, over PyTorch" 'round-.-tuned' 'round-.-torch'
  resnet50 fp16 128
  figure fp16-graph 60 "${options[@]}" --tune off
  peer torch-fp16 60 fp16 --graph
  figure fp16-fast 60 "${options[@]}" --tune fast
  ratio "ResNet-50 fp16 64 over PyTorch" 'fp16-.*' torch-fp16
  gpt2_options 50304 12
  counters "counters of GPT-2's steps" train_text "${options[@]}" --tune off --cuda-graph off
  build_here
  sanitize_steps
  sanitize racecheck 200 4 products '*/conv2d:*/matmul'
  sanitize initcheck 200 2 "pictures and copies" '*Augment*:*augment*:*CudaStridedCopy*-'"$big"
  sanitize memcheck 200 8 "engines of libraries" "*OfALibrary*-$big"
  all_over
}

# moving_data: measures the cost of moving data: each path alone (lockstep-cost with one rank), then ranks on all GPUs over NCCL.
# With one GPU two ranks share it, and the report says so. The rows "moving data" compare the figures with limits; the figures
# of bench_copy and bench_kernels come from call c, if it ran on this machine.
moving_data() {
  local count=$gpus what="$gpus ranks" mind='' most=() alone=$work/cost-alone several=$work/cost-ranks
  if [ "$count" -lt 2 ]; then
    count=2 what="2 ranks on 1 GPU" mind=": times between ranks mean nothing" most=(--max-bytes 1048576)
  fi
  # Runs one rank that sees all GPUs. With --devices auto, all GPUs but one have no rank, so the rank also measures
  # copies to the next GPU.
  on_ranks 1 "$programs/lockstep-cost" --devices auto --seconds 20 --out "$alone"
  check "lockstep-cost, 1 rank" 75 read_status "${ranks[@]}" || true
  on_ranks "$count" "$programs/lockstep-cost" --devices gpu --seconds 20 --out "$several"
  check "lockstep-cost, $what" 75 read_status "${ranks[@]}" || true
  cost_report cost_alone "lockstep-cost, 1 rank" "$alone"
  cost_report cost_ranks "lockstep-cost, $what$mind" "$several"
  limits_of_copies "$alone" "$several"

  on_ranks "$count" "$programs/bench_allreduce" --devices gpu --benchmark_filter '^all_reduce/nccl/f32/in_place' \
    --benchmark_min_time 0.05 "${most[@]}"
  if check "bench_allreduce, $what" 40 read_status "${ranks[@]}"; then
    add_table "All-reduce, $what$mind" < <(quoted "$(log_of "bench_allreduce, $what")" '^(all_reduce/|Benchmark)')
  fi
  on_ranks 1 "$programs/bench_allreduce" "${on_gpu0[@]}" --benchmark_filter '^all_reduce/nccl' --benchmark_min_time 0.05
  check "bench_allreduce, 1 rank" 30 read_status "${ranks[@]}" || true
  local reason=$reason
  if [ -z "$reason" ] && [ "$gpus" -lt 2 ]; then reason="one GPU: it has no peer"; fi
  if check "bench_copy, every two GPUs" 40 read_status "$programs/bench_copy" --devices gpu --benchmark_filter \
    '^copy/peer/.*/copy_engine/67108864/manual_time$' --benchmark_min_time 0.05 --min-bytes 67108864 --max-bytes 67108864; then
    add_table "Copies between GPUs" < <(quoted "$(log_of "bench_copy, every two GPUs")" '^(copy/|Benchmark)')
  fi
}

# cost_report NAME TITLE FOLDER: adds lockstep-cost's results in FOLDER to the Markdown and JSON reports. Leaves out the
# plots, because they are separate files.
cost_report() {
  if [ -s "$3/cost.md" ]; then add_table "$2" < <(sed -e '/^!\[/d' -e 's/^#/###/' "$3/cost.md"); fi
  add_data "$1" "$3/cost.json"
}

# limits_of_copies ALONE RANKS: adds the rows that cost_rows.py prints.
limits_of_copies() {
  local said state detail left=$reason name="moving data"
  due "$name" || return 0
  if [ -z "$left" ] && ! command -v python3 > /dev/null; then left="no python3 on this machine"; fi
  if [ -n "$left" ]; then
    row "$name" skipped 0 0 1 0 "$left"
    return
  fi
  if ! said=$(python3 "$parts/cost_rows.py" --alone "$1/cost.json" --ranks "$2/cost.json" --copies "$kept/copies.json" \
    --kernels "$kept/kernels.json" 2> "$work/log/cost_rows.log"); then
    row "$name" failed 0 1 0 0 "cost_rows.py: $(tail -n 1 "$work/log/cost_rows.log")"
    return
  fi
  while IFS=$'\t' read -r name state detail; do
    case "$state" in
      passed) row "moving data: $name" passed 1 0 0 0 "$detail" ;;
      failed) row "moving data: $name" failed 0 1 0 0 "$detail" ;;
      *) row "moving data: $name" skipped 0 0 1 0 "$detail" ;;
    esac
  done <<< "$said"
}

# kernel_table FILE: prints a table of bench_kernels' file, in which Google Benchmark writes one member per line. A product is
# compared with the fastest product of its type in the run, other cases with the copy bandwidth of the run.
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

# ---- again: repeats checks that failed in earlier calls, then checks that had no time, in the order of the calls

# call_again: reads the rows of earlier calls from --kept, the tree and the bundle. If a name has several rows, the last
# row counts. Repeats a comparison together with the runs that it compares.
call_again() {
  local wanted name other several="lockstep-cost, $gpus ranks"
  if [ "$gpus" -lt 2 ]; then several="lockstep-cost, 2 ranks on 1 GPU"; fi
  if [ ! -s "$work/earlier.tsv" ]; then
    row "rows of earlier calls" skipped 0 0 1 0 "none in $kept, $bundle and docs/results/gpu: nothing to repeat"
  fi
  awk -F '\t' '
    NF != 7 || $1 == "stopped" { next }
    { last[$1] = $2 == "failed" ? "failed" : $7 ~ /^no time: / ? "no time" : "" }
    END { for (name in last) if (last[name] != "") print last[name] "\t" name }' "$work/earlier.tsv" > "$work/again.tsv"
  for wanted in failed "no time"; do
    only=()
    while IFS= read -r name; do
      only[$name]=yes
      # Leaves out runs that the first wave (failed checks) has already repeated.
      for other in "${name%% = *}" "${name##* = }" "${name%% != *}" "${name##* != }"; do
        cut -f 1 "$files.tsv" | grep -qxF -- "$other" || only[$other]=yes
      done
      [[ $name == "moving data: "* ]] || continue
      only["moving data"]=yes only["lockstep-cost, 1 rank"]=yes only["$several"]=yes
    done < <(sed -n "s/^$wanted\t//p" "$work/again.tsv")
    say "again: $(grep -c "^$wanted" "$work/again.tsv") rows that ${wanted/#no/had no}"
    for name in a b c d; do "call_$name"; done
  done
}
