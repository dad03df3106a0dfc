#!/usr/bin/env bash
# gpu_check.sh SOURCE CMAKE: tests scripts/gpu-check.sh with made-up programs. It needs no GPU, no MPI and no program of
# lockstep.
source "$(dirname "${BASH_SOURCE[0]}")/../launch/hosts.sh"
source=$1 cmake=$2
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset OUT CUDA_HOME GTEST_FILTER CUDA_DEVICE_MAX_CONNECTIONS

json() { "$cmake" "-DFILE=$1" "-DEXPECT=$2" -P "$here/expect_json.cmake"; }  # json FILE "a.b=c;..."
stub() {  # stub FILE: writes a script from the standard input
  { echo '#!/bin/bash'; cat; } > "$1"
  chmod +x "$1"
}
program() { stub "$work/bundle/programs/$1"; }  # program NAME

# ---- The rows that single checks write. The checks run in a separate shell, because gpu_check's scripts end their
# shell when a command fails.
cat > "$work/checks.sh" << 'END'
parts=$1/scripts/gpu_check
source "$1/scripts/lib.sh"
for file in report checks machine prepare build_here calls; do source "$parts/$file.sh"; done
export LC_ALL=C
work=$2/one out=$2/one/out kept=$2/one/kept call=so-far files=$2/one/out/gpu-check-so-far budget=1000 patience=1 grace=1 rooms=4
mkdir -p "$work/log" "$work/data" "$work/tables" "$work/runs/fast" "$work/runs/short" "$out" "$kept"
touch "$work/checks.json" "$work/checks.md"
gpus=1 gpu="a \"card\"" host=here commit=c bundle_commit=b no_gpu=
check "good" 10 read_status echo "all well" || echo "not passed"
cp "$files.json" "$2/early.json"
cp "$files.md" "$2/early.md"
check "bad | \\ \"quoted\"" 10 read_status bash -c 'echo "an error: a\tb \"c\" | d\\"; printf "\001\377"; exit 3' || true
check "no device" 10 read_status bash -c 'echo "there is none"; exit 77' || true
check "tests" 10 read_tests printf '%s\n' '[       OK ] A.B (3 ms)' '[       OK ] A.C (0 ms)' 'x.cpp:3: Skipped' 'no second GPU' \
  '[  SKIPPED ] A.D (0 ms)' '[  PASSED  ] 2 tests.' || true
check "tests that fail" 10 read_tests printf '%s\n' '[       OK ] A.B (3 ms)' || true
check "failing tests" 10 read_tests bash -c 'for t in A.C "B/D.e/1, where GetParam() = 3" A.C A.F; do echo "[  FAILED  ] $t (4 ms)"; done; exit 1' || true
check "tests that crash" 10 read_tests bash -c 'echo "[       OK ] A.B (3 ms)"; echo "[ RUN      ] A.Next"; exit 139' || true
check "no tests" 10 read_tests echo "[  PASSED  ] 0 tests." || true
check "sanitized" 10 read_sanitizer printf '%s\n' '[       OK ] A.B (3 ms)' '========= ERROR SUMMARY: 0 errors' || true
check "sanitizer's errors" 10 read_sanitizer \
  bash -c 'echo "[       OK ] A.B (3 ms)"; echo "========= ERROR SUMMARY: 2 errors"; exit 86' || true
check "no summary" 10 read_sanitizer echo '[       OK ] A.B (3 ms)' || true
check "no sanitizer here" 10 read_sanitizer bash -c 'echo "========= Error: Device not supported"; exit 1' || true
step() { for rate in "$@"; do echo "{\"event\":\"step\",\"images_per_second\":$rate,\"loss\":1}"; done; }
step 1 2 110 130 120 > "$work/runs/fast/metrics.jsonl"
step 1 2 > "$work/runs/short/metrics.jsonl"
printf '%s\n' '0 # gpu pwr sm mclk pclk' '0 # Idx W % MHz MHz' '0 0 600 99 2600 1900' '0 1 90 99 9 9' '0 0 100 3 300 300' '0 0 - - - -' \
  '0 0 700 98 2600 1980' '9999 0 100 99 3 3' > "$work/log/dmon.log"
SECONDS=0
check "fast" 10 read_figure true || true
check "short" 10 read_figure true || true
check "fast" 10 read_figure bash -c 'echo "error: no memory"; exit 1' || true
check "peer" 10 read_peer echo '{"images_per_second": 60.0}' || true
check "no peer" 10 read_peer bash -c "echo \"ModuleNotFoundError: No module named 'torch'\"; exit 1" || true
ratio "ours over theirs" 'fast|slow' 'peer'
ratio "ours over nobody" 'fast' 'slow'
# Checks that run at the same time. Some exceed their own time limit. Then there are more checks than `rooms`, and all
# must run. In the end the call's own time is over.
beside "hangs" 1 read_status sleep 20
beside "does not listen" 1 read_status bash -c 'trap "" TERM; while :; do sleep 0.1; done'
beside "slow sanitizer" 1 read_sanitizer sleep 20
slow='echo "[       OK ] A.B (3 ms)"; echo "[  FAILED  ] A.C (4 ms)"; echo "[  FAILED  ] A.D (4 ms)"; echo "[ RUN      ] A.E"; sleep 20'
beside "slow tests that fail" 1 read_tests bash -c "$slow"
beside "slow tests" 1 read_tests bash -c "${slow//FAILED /OK}"
beside "slow sanitizer with errors" 1 read_sanitizer bash -c 'echo "========= Invalid __global__ read of size 4 bytes"; sleep 20'
beside "slow run" 1 read_figure sleep 20
together
for i in $(seq 30); do beside "row $i" 10 read_status bash -c "printf '%3000s\n' $i"; done
all_over
budget=$((SECONDS + reserve + least + 3))
beside "time is over" 60 read_status sleep 20
beside "time is over for tests" 60 read_tests bash -c "${slow//FAILED /OK}"
beside "time is over, and tests failed" 60 read_tests bash -c "$slow"
all_over
check "does not fit" 60 read_status true || true
budget=1000 reason="no card"
check "no reason to try" 10 read_status touch "$work/tried" || true
[ ! -e "$work/tried" ] || echo "it was tried"
cat > "$work/k.json" << 'JSON'
{
  "context": {
    "date": "2026-11-22T20:33:12+00:00",
    "copy_bytes_per_second": "1e+11"
  },
  "benchmarks": [
    {
      "name": "matmul a/manual_time",
      "real_time": 1.0000000000000000e+03,
      "time_unit": "ns",
      "bytes_per_second": 1.0000000000000000e+10,
      "flop_per_second": 2.0000000000000000e+12,
      "percent_of_copy": 1.0000000000000000e+01,
      "label": "bf16"
    },
    {
      "name": "conv b/manual_time",
      "real_time": 2.0000000000000000e+03,
      "bytes_per_second": 5.0000000000000000e+09,
      "flop_per_second": 5.0000000000000000e+11,
      "percent_of_copy": 5.0000000000000000e+00,
      "label": "bf16"
    },
    {
      "name": "matmul late/manual_time",
      "error_occurred": true,
      "error_message": "left out: 75 s were over",
      "real_time": 0.0000000000000000e+00
    },
    {
      "name": "relu c/manual_time",
      "real_time": 2.0000000000000000e+03,
      "bytes_per_second": 9.0000000000000000e+10,
      "percent_of_copy": 9.0000000000000000e+01,
      "label": "f32"
    }
  ]
}
JSON
add_table "Kernels" < <(kernel_table "$work/k.json")
add_data kernels "$work/k.json"
echo '{"half": ' > "$work/half.json"
if command -v python3 > /dev/null; then add_data half "$work/half.json"; else echo "half is no JSON"; fi
write_reports
echo "status $(exit_status)"
LD_LIBRARY_PATH=/before PATH=$2/fake:/usr/bin:/bin CUDA_HOME=$2/toolkit
find_libraries
cat "$work/libraries"
echo "path $LD_LIBRARY_PATH"
programs=$2/fake
programs_start
sed -i 's/^libcudnn.*/libcudnn.so.9 nowhere/' "$work/libraries"
programs_start
gpus=0
programs_start
END
# NVIDIA's libraries are in Python's packages and in a toolkit. The script must take those of Python's packages.
mkdir -p "$work/fake" "$work/toolkit/lib64" "$work/toolkit/bin" "$work/site-packages/nvidia/cudnn/lib" "$work/site-packages/nvidia/cu13/lib"
touch "$work/toolkit/lib64/libcudnn.so.9" "$work/toolkit/lib64/libnccl.so.2" "$work/site-packages/nvidia/cudnn/lib/libcudnn.so.9"
touch "$work/site-packages/nvidia/cu13/lib/libcublasLt.so.13" "$work/site-packages/nvidia/cu13/lib/libnvrtc.so.13"
stub "$work/fake/python3" <<< "echo $work/site-packages"
run 0 "checks of every kind" bash "$work/checks.sh" "$source" "$work"
lines 1 '^passed   good \([0-9]+ s\)  all well$'
lines 1 '^failed   bad .* exit status 3: an error: a'
lines 1 '^skipped  no device .* there is none$'
lines 1 '^failed   hangs .* stopped after 1 s, it last said: $'
lines 1 '^failed   does not listen .* stopped after 1 s'
lines 1 '^passed   tests \([0-9]+ s\)  1 skipped: no second GPU$'
lines 1 '^failed   failing tests .* exit status 1: failed: A\.C B/D\.e/1 A\.F; '
lines 1 '^failed   tests that crash .* exit status 139, in A\.Next: '
lines 1 '^skipped  no tests .* no test ran$'
lines 1 '^passed   sanitized .* ERROR SUMMARY: 0 errors'
lines 1 "^failed   sanitizer's errors .* exit status 86"
lines 1 '^failed   no summary .* no summary without errors'
lines 1 '^skipped  no sanitizer here .* does not work here: .*Device not supported$'
lines 1 '^passed   fast .*  120\.0 images/s, median of 3 reports; 650 W, 1940 MHz, memory 2600 MHz$'
lines 1 '^failed   fast .*  120\.0 images/s, .*; exit status 1: error: no memory$'
lines 1 '^failed   short .* 2 reports, at least 3 expected'
lines 1 '^passed   peer .*  60\.0 images/s'
lines 1 '^skipped  no peer .* no PyTorch'
lines 1 '^passed   ours over theirs .* 2\.000 = fast, 120\.0 images/s, over peer, 60\.0$'
lines 1 '^skipped  ours over nobody '
lines 1 '^skipped  slow sanitizer \([0-9]+ s\)  stopped after 1 s, 0 tests ran$'
lines 1 '^failed   slow tests that fail .* stopped after 1 s, 3 tests ran, in A\.E; failed: A\.C A\.D$'
lines 1 '^failed   slow tests \([0-9]+ s\) .* stopped after 1 s, 3 tests ran, in A\.E$'
lines 1 '^failed   slow sanitizer with errors .* 1 errors printed, the first: ========= Invalid __global__ read of size 4 bytes'
lines 1 '^failed   slow run .* 0 reports, at least 3 expected; stopped after 1 s'
lines 1 '^skipped  time is over \([0-9]+ s\)  no time: stopped after [5-8] s, it last said: $'
lines 1 '^skipped  time is over for tests .* no time: stopped after [5-8] s, 3 tests ran, in A\.E$'
lines 1 '^failed   time is over, and tests failed .* stopped after [5-8] s, 3 tests ran, in A\.E; failed: A\.C A\.D$'
lines 1 '^skipped  does not fit .* no time: -?[0-9]+ of the call.s [0-9]+ s are left$'
lines 1 '^skipped  no reason to try .* no card$'
lines 30 '^passed   row [0-9]+ .* {2990,}[0-9]+$'
lines 0 'it was tried|not passed|cannot stat'
lines 1 '^half is no JSON'
lines 1 '^status 1$'
lines 1 '^libcublasLt\.so\.13 in .*/site-packages/nvidia/cu13/lib$'
lines 1 '^libcudnn\.so\.9 in .*/site-packages/nvidia/cudnn/lib$'
lines 1 '^libnccl\.so\.2 in .*/toolkit/lib64$'
lines 1 '^path /before:.*/nvidia/cu13/lib:.*/nvidia/cudnn/lib:.*/toolkit/lib64$'
lines 2 '^passed   libraries '
lines 1 '^failed   libraries .* not found: libcudnn\.so\.9;'
so_far=$work/one/out/gpu-check-so-far
run 0 "a report before the end" json "$work/early.json" \
  'complete=OFF;conclusion=Not over: 1 checks passed so far, 0 failed, 0 were skipped.;checks.0.name=good'
lines 1 '^\*\*Not over: 1 checks passed so far' "$work/early.md"
run 0 "  its JSON" json "$so_far.json" 'call=so-far;complete=ON;gpu=a "card";checks.0.status=passed;checks.1.status=failed;checks.1.name=bad | \ "quoted";checks.3.passed=2;checks.3.skipped=1'
if command -v python3 > /dev/null; then run 0 "  its data" json "$so_far.json" 'kernels.benchmarks.1.name=conv b/manual_time'; fi
lines 1 '^\| hangs \| failed \| 0 \| 1 \| 0 \|' "$so_far.md"
lines 1 '^\| matmul a \| bf16 \| 1\.0 \| 10 \| 10\.0 \| 2\.00 \| 100\.0 \|$' "$so_far.md"
lines 1 '^\| conv b \| bf16 \| 2\.0 \| 5 \| 5\.0 \| 0\.50 \| 25\.0 \|$' "$so_far.md"
lines 0 'matmul late' "$so_far.md"
lines 1 '^copy 100 GB/s, fastest product in bf16 2\.0 TFLOP/s$' "$so_far.md"
lines 1 '^\| relu c \| f32 \| 2\.0 \| 90 \| 90\.0 \| \| \|$' "$so_far.md"
run 0 "its rows are whole" awk -F '\t' 'NF != 7 || $2 !~ /^(passed|failed|skipped)$/ {exit 1}' "$so_far.tsv"
run 0 "its logs" tar -tzf "$so_far.tgz"
lines 1 '^hangs\.log$'

# ---- Whole calls: made-up programs on a made-up machine
mkdir -p "$work/bundle/programs" "$work/bundle/deps/bin" "$work/bundle/peer" "$work/bundle/data/fashion-mnist" "$work/bin" "$work/modules"
echo 'export PATH='"$work/bundle/deps/bin"':$PATH' > "$work/bundle/deps/environment"
stub "$work/bundle/deps/bin/mpirun" << 'END'
ranks=$2; shift 2
while :; do case $1 in --oversubscribe) shift ;; --bind-to) shift 2 ;; -x) export "$2"; shift 2 ;; *) break ;; esac; done
export RANKS=$ranks; exec "$@"
END
printf '%s\n' 'test_a ' 'test_b ranks' 'test_kernels_cuda ' 'test_nn_norm_trial_cuda ' > "$work/bundle/tests"
printf '%s\n' 'cuda 13.0' 'cudnn 9.19.0' > "$work/bundle/versions"
program hello_ranks <<< 'echo "all-reduced sum of the ranks: 1, as expected"'
program test_a <<< 'echo "[       OK ] A.B (3 ms)"'
program test_b <<< 'echo "[       OK ] $RANKS.shared_${LOCKSTEP_ALLOW_SHARED_GPU:-0}_${CUDA_DEVICE_MAX_CONNECTIONS:-0} (3 ms)"'
program test_nn_norm_trial_cuda <<< 'echo "[       OK ] Norm.Trial (3 ms)"'
program test_kernels_cuda << 'END'
share=${GTEST_SHARD_INDEX:-alone}
if [ "$share" = "${BROKEN_SHARE:-}" ]; then echo "[  FAILED  ] Kernels.Share$share (3 ms)"; exit 1; fi
echo "[       OK ] Kernels.Share$share (3 ms)"
END
program lockstep-devices <<< 'if [ -n "${NO_DEVICES:-}" ]; then echo "no driver" >&2; exit "$NO_DEVICES"; fi
  if [ "$1" = --json ]; then echo "{\"gpus\": [{\"uuid\": \"GPU-1\"}]}"; else echo "one card"; fi'
# A made-up training program that writes the files of a run. Its weights depend on its seed only.
program train_resnet << 'END'
arguments=$*
while [ $# -gt 0 ]; do
  case $1 in
    --out) out=$2 ;;
    --seed) seed=$2 ;;
    --choices) echo '{"tuned": 1}' > "$2" ;;
    --trace) echo '[]' > "$2" ;;
    --weights-beside) beside=1 ;;
  esac
  shift
done
mkdir -p "$out/last"
if [ -n "${BROKEN_RUN:-}" ] && [[ $arguments == *"$BROKEN_RUN"* ]]; then echo "error: broken"; exit 1; fi
header='{"w.momentum_buffer":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
for name in model optimizer; do
  printf "\\x$(printf %x ${#header})\0\0\0\0\0\0\0%s\0\0\x80\x3f\0\0\x$(printf %02x $((16 * ${seed:-1})))\x40" "$header" > "$out/last/$name.safetensors"
done
for rate in 1 1 $((100 + 10 * ${beside:-0})) $((120 + 12 * ${beside:-0})) $((110 + 11 * ${beside:-0})); do echo "{\"event\":\"step\",\"images_per_second\":$rate}"; done > "$out/metrics.jsonl"
echo '{"best_accuracy":0.93,"event":"end","exit_code":0,"step":9,"test_accuracy":'"${ACCURACY:-0.925}}" >> "$out/metrics.jsonl"
END
program train_text << 'END'
while [ $# -gt 0 ]; do
  if [ "$1" = --out ]; then out=$2; fi
  if [ "$1" = --data ]; then data=${2#tokens:}; fi
  shift
done
[ "$(stat -c %s "$data/train.bin" "$data/val.bin" | paste -sd ' ')" = "12000000 140000" ] || exit 1
mkdir -p "$out"
for rate in 1 1 30 40 50; do echo "{\"event\":\"step\",\"windows_per_second\":$rate}"; done > "$out/metrics.jsonl"
END
# Made-up times of copies of 64 MiB into the GPU, out of it and inside it. The link to the host has 63 GB/s. The copy
# bandwidth inside the GPU is 3000 GB/s (bytes read and written).
program lockstep-cost << 'END'
arguments="$*"
while [ $# -gt 0 ]; do if [ "$1" = --out ]; then out=$2; fi; shift; done
mkdir -p "$out"
path() {  # path NAME LIMIT GB/S
  awk -v name="$1" -v limit="$2" -v rate="$3" 'BEGIN {
    printf "{\"name\": \"%s\", \"limit_text\": \"PCIe 5.0 x16\", \"limit_bytes_per_s\": %s, \"bus_factor\": 1.0, \"points\": [", name, limit
    printf "{\"bytes\": 8, \"median_s\": 2.5e-6}, {\"bytes\": 67108864, \"median_s\": %.9g}]}", 67108864 / (rate * 1e9) }'
}
if [ "$RANKS" = 1 ]; then
  paths="$(path copy/pinned_to_device "${LINK:-63e9}" "${RATE:-57}"), $(path copy/device_to_pinned "${LINK:-63e9}" 58),
    $(path copy/device_to_device 0 1200)"
  [ -z "${PEER:-}" ] || paths+=", $(path copy/peer 450e9 360)"
  left='"Copies between GPUs: there is one."'
elif [ -n "${NCCL:-}" ]; then
  paths='' left='"All-reduces between GPUs: rank 1: no way out"'
else
  paths=$(path all_reduce/nccl 0 1) left=''
fi
echo "{\"ranks\": $RANKS, \"about\": {\"gpu\": \"card, shared ${LOCKSTEP_ALLOW_SHARED_GPU:-0}\"}, \"paths\": [$paths], \"left_out\": [$left]}" > "$out/cost.json"
printf '%s\n' '# What moving data costs on this' '' "- asked for $arguments" '' '## To remember' '![copies](copies.svg)' > "$out/cost.md"
echo "  $out/cost.md and so on"
END
program bench_copy << 'END'
while [ $# -gt 0 ]; do if [ "$1" = --benchmark_out ]; then out=$2; fi; shift; done
echo "copy/device_to_device/0/device/one_way/copy_engine/268435456 1 us"
if [ -n "${out:-}" ]; then
  for name in one_way/copy_engine/268435456 both_ways/copy_engine/268435456 one_way/copy_engine/268435456/pieces:4; do
    case $name in *:4 | both*) rate=9e12 ;; *) rate=${INSIDE:-1.4e12} ;; esac
    echo "{\"name\": \"copy/device_to_device/0/device/$name/manual_time\", \"bytes_per_second\": $rate}"
  done | paste -sd , | sed 's/.*/{"benchmarks": [&]}/' > "$out"
fi
END
program bench_kernels << 'END'
while [ $# -gt 0 ]; do if [ "$1" = --benchmark_out ]; then out=$2; fi; shift; done
echo '{"context": {"copy_bytes_per_second": "3e+12"}, "benchmarks": [{"name": "relu", "real_time": 1e3}]}' > "$out"
END
program bench_allreduce <<< 'echo "all_reduce/nccl/f32/in_place/stream/8 of $RANKS ranks: $*"'
stub "$work/bin/nvidia-smi" << 'END'
case "$*" in
  -L) [ -n "${NO_CARD:-}" ] || echo "GPU 0: a card (UUID: GPU-1)" ;;
  dmon*) for i in $(seq 900); do printf '# gpu pwr sm mclk pclk\n# Idx W %% MHz MHz\n 0 650 99 2600 1900\n'; sleep 0.1; done ;;
  *mig.mode*) [ -n "${NO_CARD:-}" ] || echo "0, 80000, ${USED:-4}, ${MODE:-Default}, ${MIG:-Disabled}" ;;
  *compute-apps*) echo -n "${APPS:-}" ;;
  *name,*) [ -n "${NO_CARD:-}" ] || echo "a card, 580.1, 80000 MiB" ;;
  '') echo "| NVIDIA-SMI 580.1  Driver Version: 580.1  CUDA Version: ${DRIVER:-13.0}  |" ;;
esac
END
stub "$work/toolkit/bin/compute-sanitizer" <<< 'while [[ $1 != */programs/* ]]; do shift; done; "$@" && echo "========= ERROR SUMMARY: 0 errors"'
stub "$work/toolkit/bin/ncu" <<< 'while [[ $1 != */train_* ]]; do if [ "$1" = --log-file ]; then echo "kernel,us" > "$2"; fi; shift; done; exec "$@"'
for name in ninja c++ ar; do stub "$work/bin/$name" <<< true; done
stub "$work/bin/nvcc" <<< 'echo "Cuda compilation tools, release 13.0, V13.0.88"'
stub "$work/bin/cmake" <<< 'if [ "$1" = --build ]; then mkdir -p "$2"; printf "#!/bin/sh\necho filled\n" > "$2/fill_once"; chmod +x "$2/fill_once"; fi'
python=no
if command -v python3 > /dev/null; then
  python=yes
  cat > "$work/modules/torch.py" << 'END'
class optim:
    class SGD:
        def __init__(self, parameters, rate, **options):
            self.options = options
END
fi
# A made-up torch_resnet.py whose compiled mode fails and whose graph mode is fastest.
cat > "$work/bundle/peer/torch_resnet.py" << 'END'
import os, sys
import torch
if "--compile" in sys.argv:
    sys.exit("error: no compiler")
if "CUDA_DEVICE_MAX_CONNECTIONS" in os.environ:
    sys.exit("error: not as PyTorch is used")
if torch.optim.SGD([], 0.1, momentum=0.9, foreach=True).options != {"momentum": 0.9, "fused": True}:
    sys.exit("SGD is not fused")
print('{"images_per_second": %d}' % (88 if "--graph" in sys.argv else 55))
END
touch "$work/toolkit/lib64/libcublasLt.so.13"
export PATH=$work/bin:$PATH CUDA_HOME=$work/toolkit PYTHONPATH=$work/modules OUT=$work/out

# first CODE NAME CALL [ARGUMENT...]: runs a call with new output folders, and sets `report` to the path of its files
# without their suffix.
first() {
  rm -rf "$work/out"
  run "$1" "$2" "$source/scripts/gpu-check.sh" first "${@:3}" --bundle "$work/bundle" --kept "$work/kept"
  report=$work/out/gpu-check-$3
  if [ "$(find "$work/out" -type f 2> /dev/null | wc -l)" -gt 8 ]; then failed "  more than 8 files: $(ls "$work/out")"; fi
}

NO_DEVICES=1 NO_CARD=1 first 77 "all without a GPU" all
lines 1 '^passed   2 ranks on the host'
lines 1 '^passed   test_a '
lines 12 '^skipped  kernels, share [0-9]+ of 12 .* no GPU that CUDA can use \(no driver\)'
lines 3 '^skipped  (ranks-zero1|quiet-tuned|lockstep-cost, 2 ranks on 1 GPU) .* no GPU'
lines 1 '^Nothing ran on a GPU'
lines 0 '^failed'
run 0 "  its JSON" json "$report.json" 'call=all;gpus=0;complete=ON;budget_seconds=99999'
if [ $python = yes ]; then
  first 0 "a" a
  lines 0 '^failed'
  lines 1 '^passed   resnet50-graph .* 110\.0 images/s, median of 3 reports'
  if grep -q '^passed .* 650 W, 1900 MHz, memory 2600 MHz$' "$work/output"; then passed "  clocks beside figures"; else failed "  no clocks"; fi
  lines 1 '^passed   resnet50-graph = resnet50-calls .* the same bits'
  lines 1 '^passed   torch-eager .*  55 images/s; 650 W'
  lines 1 '^passed   ResNet-50 bf16 256, untuned, over PyTorch .* 1\.250 = resnet50-(calls|graph), 110\.0 images/s, over torch-graph, 88\.0$'
  lines 24 '^passed   (kernels|engines of libraries), share [0-9]+ of 12 '
  lines 14 '^passed   memcheck, kernels, share [0-9]+ of 14 .* ERROR SUMMARY: 0 errors'
  lines 1 '^one card$' "$report.md"
  run 0 "  its JSON" json "$report.json" 'gpus=1;budget_seconds=430;machine.gpus.0.uuid=GPU-1'

  ACCURACY=0.5 BROKEN_RUN="--seed 2" first 1 "b with a low accuracy and runs that break" b
  lines 1 '^failed   ResNet-20 on Fashion-MNIST, bf16 .* 0\.5, at least 0\.92 wanted'
  lines 3 '^failed   (seed-fp32|seed-bf16|gradient-seed) .* exit status 1: error: broken'
  lines 3 '^skipped  (graph|seed|gradient)-?.* != .* left no checkpoint'
  lines 8 '^passed   (again|graph|beside|dependent)-(fp32|bf16) = calls-(fp32|bf16) .* the same bits'
  lines 1 '^passed   pictures-device = pictures-host '
  lines 2 '^passed   gradient-1 = gradient-[24] .* largest relative distance of 1 tensors: 0, of w\.momentum_buffer'
  lines 7 '^passed   ranks-(calls|graph|zero1|sync|bf16|powersgd) '
  lines 1 '^passed   ranks-graph = ranks-calls '
  lines 3 '^passed   test_b, [124] ranks '
  lines 1 '^passed   racecheck, reductions, share 1 of 1 '
  lines 1 '^passed   tests beyond 2.31 '
  lines 1 '^passed   resnet50-tuned '
  lines 1 '"tuned"' "$work/out/choices-resnet50-bf16-256.json"
  run 0 "  its logs" tar -xzOf "$report.tgz" test_b__4_ranks.log test_b__1_ranks.log
  lines 1 '^\[       OK \] 4\.shared_1_32 '
  lines 1 '^\[       OK \] 1\.shared_0_32 '

  LINK=0 first 1 "c with a mode of the peer's that fails" c
  lines 1 '^failed   quiet-torch-compile .* error: no compiler'
  lines 1 '^failed'
  lines 1 '^passed   ResNet-50 bf16 256 over PyTorch .* 1\.375 = quiet-beside, 121\.0 images/s, over quiet-torch-graph, 88\.0$'
  lines 2 '^passed   gpt2-50(304|257) .* 40\.0 windows/s'
  lines 1 "^passed   counters of ResNet-50's steps "
  lines 1 "^passed   trace of ResNet-50's steps "
  # Call b has stored its choices of libraries, so the tuned run must come early.
  run 0 "  its order" awk -F '\t' '{at[$1] = NR} END {exit !(at["quiet-tuned"] < at["quiet-beside"])}' "$report.tsv"
  run 0 "  its JSON" json "$report.json" 'kernels.benchmarks.0.name=relu'

  BROKEN_RUN=fp16 BROKEN_SHARE=2 RATE=50 first 1 "d" d
  lines 1 '^passed   moving data: GPU to host, pinned, of the link .* 58\.0 GB/s'
  lines 1 '^failed   moving data: host to GPU, pinned, of the link .* 50\.0 GB/s, 79\.4 % of PCIe 5\.0 x16, 63\.0 GB/s; at least 90 % wanted$'
  lines 1 '^passed   moving data: inside the GPU, of the copy bandwidth .* 2800\.0 GB/s, 93\.3 % of the copy bandwidth of bench_kernels'
  lines 1 '^skipped  moving data: GPU to GPU .* Copies between GPUs: there is one\.$'
  lines 1 '^passed   moving data: all-reduce over NCCL .* 2 ranks: 8 B in 2\.5 us, busbw at most 1\.00 GB/s \(67108864 B\); card, shared 1$'
  lines 1 '^passed   bench_allreduce, 2 ranks on 1 GPU'
  lines 1 '^skipped  bench_copy, every two GPUs .* one GPU: it has no peer$'
  lines 1 '^passed   ResNet-50 bf16 256, two rounds, over PyTorch .* 1\.250 = '
  lines 1 '^passed   build here .* filled$'
  lines 2 '^failed   fp16-(graph|fast) '
  lines 2 '^failed   (racecheck, products, share 3 of 4|memcheck, engines of libraries, share 3 of 8) .* failed: Kernels\.Share2'
  lines 1 '^passed   memcheck, steps of ResNet-20 .* ERROR SUMMARY: 0 errors$'
  lines 1 '^## lockstep-cost, 2 ranks on 1 GPU: times between ranks mean nothing$' "$report.md"
  lines 0 'copies\.svg' "$report.md"
  run 0 "  its JSON" json "$report.json" 'cost_alone.ranks=1;cost_ranks.ranks=2;cost_alone.paths.0.name=copy/pinned_to_device'

  # The next call must repeat the checks that have failed so far, and the runs with which they are compared.
  printf '%s\t%s\t0\t0\t1\t0\t%s\n' "copies of old" failed gone bench_copy skipped "no time: 2 of the call's 9 s are left" \
    "dependent-bf16 = calls-bf16" failed "they differ" >> "$work/kept/rows.tsv"
  printf 'cut in the mid' >> "$work/kept/rows.tsv"
  BROKEN_RUN=fp16 first 1 "again" again
  lines 1 '^failed   fp16-graph '
  lines 1 '^passed   ResNet-20 on Fashion-MNIST, bf16 '
  lines 2 '^passed   (racecheck, products, share 3 of 4|memcheck, engines of libraries, share 3 of 8) '
  lines 4 '^passed   (dependent-bf16|calls-bf16|dependent-bf16 = calls-bf16|gradient-seed) '
  lines 1 '^passed   moving data: host to GPU'
  lines 1 '^passed   bench_copy '
  lines 0 '^[a-z]+ +(test_a|kernels, share|resnet50-|large|quiet-graph|build here)'
  BROKEN_RUN=fp16 first 1 "again, after what was mended" again
  lines 3 '^failed   (fp16-graph|fp16-fast|quiet-torch-compile) '
  lines 0 '^[a-z]+ +(racecheck|ResNet-20|bench_copy|dependent)'
  rm -r "$work/kept"
  first 0 "again without rows" again
  lines 1 '^skipped  rows of earlier calls .* nothing to repeat$'

  cat > "$work/moving.sh" << 'END'
parts=$1/scripts/gpu_check
source "$1/scripts/lib.sh"
for file in report checks machine prepare build_here calls; do source "$parts/$file.sh"; done
work=$2/moving kept=$2/moving files=$2/moving/report call=d programs=$2/bundle/programs budget=1000 patience=1 gpus=3
PATH=$2/bundle/deps/bin:$PATH
mkdir -p "$work/log" "$work/data" "$work/tables"
touch "$work/checks.json" "$work/checks.md"
moving_data || true
grep -h '^## ' "$work"/tables/*
END
  run 0 "moving data with three GPUs" env PEER=1 bash "$work/moving.sh" "$source" "$work"
  lines 1 '^passed   lockstep-cost, 3 ranks \('
  lines 1 '^passed   moving data: GPU to GPU .* 360\.0 GB/s'
  lines 1 '^passed   moving data: all-reduce over NCCL .* 3 ranks: .*; card, shared 0$'
  lines 1 '^passed   bench_allreduce, 3 ranks \('
  lines 1 '^passed   bench_copy, every two GPUs'
  lines 1 '^skipped  moving data: inside the GPU, of the copy bandwidth .* bench_kernels measured no copy bandwidth$'
  lines 1 '^## lockstep-cost, 3 ranks$'
  lines 0 '^failed|mean nothing'
  rows=(python3 "$source/scripts/gpu_check/cost_rows.py" --copies "$work/copies.json" --kernels "$work/kernels.json")
  cost() { RANKS=$1 "$work/bundle/programs/lockstep-cost" --out "$work/cost-$1" > /dev/null; }  # cost RANKS
  "$work/bundle/programs/bench_kernels" --benchmark_out "$work/kernels.json"
  RATE=56 PEER=1 cost 1
  NCCL=off cost 2
  INSIDE=1.3e12 "$work/bundle/programs/bench_copy" --benchmark_out "$work/copies.json" > /dev/null
  run 0 "figures below what is wanted" "${rows[@]}" --alone "$work/cost-1/cost.json" --ranks "$work/cost-2/cost.json"
  lines 1 $'^host to GPU, pinned, of the link\tfailed\t56\\.0 GB/s, 88\\.9 %'
  lines 1 $'^inside the GPU, of the copy bandwidth\tfailed\t2600\\.0 GB/s, 86\\.7 %'
  lines 1 $'^GPU to GPU\tpassed\t360\\.0 GB/s, 80\\.0 %'
  lines 1 $'^all-reduce over NCCL\tfailed\tAll-reduces between GPUs: rank 1: no way out$'
  LINK=0 cost 1
  run 0 "a link that nobody knows, and files that are not there" "${rows[@]}" --kernels "$work/none.json" \
    --alone "$work/cost-1/cost.json" --ranks "$work/none.json"
  lines 1 $'^host to GPU, pinned, of the link\tskipped\t57\\.0 GB/s; no generation and width'
  lines 1 $'^inside the GPU, of the copy bandwidth\tskipped\t2600\\.0 GB/s read and written; bench_kernels measured no'
  lines 1 $'^all-reduce over NCCL\tskipped'
  lines 0 $'\tfailed\t'
else
  echo "skipped: no python3, the comparisons"
fi


# ---- Machines with problems: rows report the problems, and the other checks go on
# few CODE NAME: runs a call that repeats only three checks.
few() {
  rm -rf "$work/kept"
  mkdir "$work/kept"
  for row in resnet50-calls torch-graph "memcheck, kernels, share 1 of 14"; do
    printf '%s\tfailed\t0\t1\t0\t0\told\n' "$row"
  done > "$work/kept/rows.tsv"
  first "$1" "$2" again
}
(cd "$source" && sha256sum CMakeLists.txt runtime/base/error.hpp) > "$work/bundle/sources"
NO_DEVICES=0 few 1 "our own count of GPUs is none; programs of this tree"
lines 1 '^passed   sources'
lines 1 '^failed   lockstep-devices .* counts no GPU \(no driver\), nvidia-smi counts 1$'
lines 1 '^passed   resnet50-calls '
sed -i '2s/^................/0000000000000000/' "$work/bundle/sources"
echo "$(printf '%064d' 0)  no/such/file.cpp" >> "$work/bundle/sources"
DRIVER=12.4 MODE=Exclusive_Process MIG=Enabled USED=9000 APPS="77, python3, 9000 MiB" few 1 \
  "a GPU that others use, with a driver older than the toolkit; programs of another tree"
lines 1 '^failed   GPU is free .* compute mode Exclusive_Process, .* under MIG; GPU 0 has 9000 of 80000 MiB in use; other processes: 77, python3, 9000 MiB; '
lines 1 '^failed   driver .* the driver is for CUDA 12\.4, the programs are built with 13\.0$'
lines 1 '^passed   resnet50-calls '
lines 1 '^skipped  sources .* NOT built from this tree: 2 files differ, runtime/base/error\.hpp no/such/file\.cpp$'
rm "$work/bundle/sources"
rm -r "$work/bin" "$work/toolkit/bin"
# A made-up python3 that has NVIDIA's libraries but no PyTorch.
mkdir "$work/bin"
stub "$work/bin/python3" << 'END'
case "$*" in
  -) echo "cudnn 9.30.1" ;;
  -c*) exit 0 ;;
  -m*) exit 0 ;;
  *) echo "ModuleNotFoundError: No module named 'torch'"; exit 1 ;;
esac
END
few 0 "no nvidia-smi, no compute-sanitizer, other libraries, no PyTorch"
lines 1 '^skipped  GPU is free .* no nvidia-smi on this machine'
lines 1 '^skipped  memcheck, .* no compute-sanitizer on this machine$'
lines 1 '^skipped  library versions .* cudnn 9\.30\.1, built with 9\.19\.0; cudnn 9\.30\.1'
lines 1 '^skipped  torch-graph .* no PyTorch'
rm -r "$work/bin"
mkdir "$work/bin"
ln -sf /bin/* /usr/bin/* "$work/bin/"
rm -f "$work/bin/"{python3,cmake,ninja,nvcc,ncu,nvidia-smi}
PATH=$work/bin first 0 "no ncu, no nvcc, no python3" d 60
lines 1 '^skipped  build here .* no (cmake|ninja|nvcc) on this machine$'
lines 1 "^skipped  counters of GPT-2's steps .* no ncu on this machine\$"
lines 3 '^skipped  (round-[12]-torch|moving data) .* no python3 on this machine$'
lines 1 '^skipped  library versions .* not known: no python3'

# ---- Calls that are stopped at any moment: every row that was printed must be in the files
# After a signal from outside, the report must have a row "stopped".
program hello_ranks <<< 'touch '"$work"'/started; exec sleep 20'
rm -rf "$work/out" "$work/kept"
call=("$source/scripts/gpu-check.sh" first a --bundle "$work/bundle" --kept "$work/kept")
"${call[@]}" > "$work/output" 2>&1 &
pid=$!
wait_until 10 test -e "$work/started" || failed "the call did not start"
kill "$pid"
status=0
wait "$pid" || status=$?
if [ "$status" = 1 ]; then passed "stopped by a signal: exit code 1"; else failed "stopped by a signal: exit code $status"; fi
lines 1 '^failed   stopped .* by a signal'
run 0 "  its report" grep -c '"name": "stopped"' "$work/out/gpu-check-a.json"
run 0 "  its logs" tar -tzf "$work/out/gpu-check-a.tgz"

# After SIGKILL of the whole process group, all rows that were printed must be in the files, and the files must be
# complete.
program hello_ranks <<< 'echo "all-reduced sum of the ranks: 1, as expected"'
program train_resnet <<< 'sleep 0.2; echo "error: nothing trained"; exit 1'
mv "$work/kernels" "$work/bundle/programs/test_kernels_cuda"
printed() { [ "$(wc -l < "$work/output")" -ge "$1" ]; }
for rows in 1 $((2 + RANDOM % 8)) $((10 + RANDOM % 30)) $((10 + RANDOM % 30)) $((10 + RANDOM % 30)) $((10 + RANDOM % 30)); do
  rm -rf "$work/out" "$work/kept"
  : > "$work/output"
  setsid "${call[@]}" > "$work/output" 2>&1 &
  pid=$!
  wait_until 60 printed "$rows" || failed "no $rows rows"
  sleep "0.0$((RANDOM % 100))"
  kill -KILL -- -"$pid"
  wait "$pid" 2> /dev/null
  # Removes a last line that is incomplete.
  if [ -n "$(tail -c 1 "$work/output")" ]; then sed -i '$d' "$work/output"; fi
  sed -nE 's/^(passed  |failed  |skipped ) (.*) \([0-9]+ s\)  .*/\2/p' "$work/output" > "$work/in-turn"
  sort "$work/in-turn" > "$work/printed"
  number=$(wc -l < "$work/printed")
  cut -f 1 "$work/out/gpu-check-a.tsv" 2> /dev/null | sort > "$work/rows"
  cut -f 1 "$work/kept/rows.tsv" 2> /dev/null | sort > "$work/kept-rows"
  if [ -n "$(comm -23 "$work/printed" "$work/rows")$(comm -23 "$work/printed" "$work/kept-rows")" ]; then
    failed "killed after $rows lines: lost $(comm -23 "$work/printed" "$work/rows" | paste -sd ';')"
  elif [ "$number" != 0 ] && ! json "$work/out/gpu-check-a.json" "call=a;checks.$((number - 1)).name=$(tail -n 1 "$work/in-turn")" \
    > "$work/output" 2>&1; then
    failed "killed after $rows lines: $number rows, not in the report"
    show "$work/output"
  elif [ "$(find "$work/out" -type f 2> /dev/null | wc -l)" -gt 8 ]; then
    failed "killed after $rows lines: more than 8 files"
  else
    passed "killed after $rows lines: $number rows, none is lost"
  fi
done

# ---- wrong usage
run 2 "unknown call" "$source/scripts/gpu-check.sh" first e
lines 1 "first is 'e', expected a, b, c, d, again or all"
run 2 "no call" "$source/scripts/gpu-check.sh" first
lines 1 "first is '', expected a"
run 2 "nothing" "$source/scripts/gpu-check.sh"
run 2 "no first" "$source/scripts/gpu-check.sh" smoke
lines 1 "'smoke' was given, expected first or --prepare"
for seconds in 0 -5 ten 100000; do
  run 2 "seconds '$seconds'" "${call[@]}" "$seconds"
  lines 1 "'$seconds'"
done
run 2 "too many words" "${call[@]}" 5 6
lines 1 "'6' was given"
mkdir "$work/empty" "$work/damaged"
echo "not packed" > "$work/damaged/programs.tar.xz"
for name in empty damaged; do
  run 1 "$name bundle" "$source/scripts/gpu-check.sh" first a --bundle "$work/$name" --kept "$work/kept"
  lines 1 '^failed   unpack .*program'
  run 0 "  its JSON" json "$work/out/gpu-check-a.json" 'checks.0.name=unpack'
done
run 2 "no bundle" "$source/scripts/gpu-check.sh" first a --bundle "$work/nowhere"
lines 1 'scripts/gpu-check\.sh --prepare'
run 2 "option of --prepare" "${call[@]}" -DX=1
finish
