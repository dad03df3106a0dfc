#!/usr/bin/env bash
# gpu_check.sh SOURCE CMAKE: scripts/gpu-check.sh on made-up programs. No GPU, no MPI, nothing of ours is built for it.
source "$(dirname "${BASH_SOURCE[0]}")/../launch/hosts.sh"
source=$1 cmake=$2
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset OUT CUDA_HOME GTEST_FILTER

json() { "$cmake" "-DFILE=$1" "-DEXPECT=$2" -P "$here/expect_json.cmake"; }  # json FILE "a.b=c;..."
program() {  # program NAME: from the standard input
  { echo '#!/bin/bash'; cat; } > "$work/bundle/programs/$1"
  chmod +x "$work/bundle/programs/$1"
}

# ---- what one check becomes: in a shell of its own, as the scripts end when something fails
cat > "$work/checks.sh" << 'END'
parts=$1/scripts/gpu_check
source "$1/scripts/lib.sh"
for file in report checks machine prepare parts; do source "$parts/$file.sh"; done
work=$2 out=$2/out budget=1000 gpus=1 gpu="a \"card\"" host=here commit=c bundle_commit=b no_gpu= grace=1
mkdir -p "$work/log" "$out"
echo "fits: $(allowance 100 20 50) $(allowance 30 20 50) $(allowance 20 20 50) $(allowance 19 20 50 || echo none)"
report=so-far
check "good" 1 10 read_status echo "all well" || echo "not passed"
report=
check "bad | \\ \"quoted\"" 1 10 read_status bash -c 'echo "an error: a\tb \"c\" | d\\"; printf "\001"; exit 3' || true
check "no device" 1 10 read_status bash -c 'echo "there is none"; exit 77' || true
check "hangs" 1 1 read_status sleep 20 || true
check "does not listen" 1 1 read_status bash -c 'trap "" TERM; while :; do sleep 0.1; done' || true
budget=$((SECONDS + reserve + 3))
check "time is over" 1 60 read_status sleep 20 || true
check "does not fit" 50 60 read_status true || true
budget=1000
check "tests" 1 10 read_tests printf '%s\n' '[       OK ] A.B (3 ms)' '[       OK ] A.C (0 ms)' 'x.cpp:3: Skipped' 'no second GPU' \
  '[  SKIPPED ] A.D (0 ms)' '[  PASSED  ] 2 tests.' || true
check "tests that fail" 1 10 read_tests bash -c 'echo "[       OK ] A.B (3 ms)"; echo "[  FAILED  ] A.C (4 ms)"; exit 1' || true
check "tests that crash" 1 10 read_tests bash -c 'echo "[       OK ] A.B (3 ms)"; exit 139' || true
check "no tests" 1 10 read_tests echo "[  PASSED  ] 0 tests." || true
check "sanitized" 1 10 read_sanitizer printf '%s\n' '[       OK ] A.B (3 ms)' '========= ERROR SUMMARY: 0 errors' || true
check "sanitizer's errors" 1 10 read_sanitizer \
  bash -c 'echo "[       OK ] A.B (3 ms)"; echo "========= ERROR SUMMARY: 2 errors"; exit 86' || true
check "no summary" 1 10 read_sanitizer echo '[       OK ] A.B (3 ms)' || true
check "slow sanitizer" 1 1 read_sanitizer sleep 20 || true
reason="no card"
check "no reason to try" 1 10 read_status touch "$work/tried" || true
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
report=smoke
write_reports
echo "status $(exit_status)"
LD_LIBRARY_PATH=/before PATH=$work/fake:/usr/bin:/bin CUDA_HOME=$work/toolkit
find_libraries
cat "$work/libraries"
echo "path $LD_LIBRARY_PATH"
programs=$work/fake
programs_start
sed -i 's/^libcudnn.*/libcudnn.so.9 nowhere/' "$work/libraries"
programs_start
gpus=0
programs_start
END
# NVIDIA's libraries in Python's packages and in a toolkit: the former win.
mkdir -p "$work/fake" "$work/toolkit/lib64" "$work/site-packages/nvidia/cudnn/lib" "$work/site-packages/nvidia/cu13/lib"
touch "$work/toolkit/lib64/libcudnn.so.9" "$work/toolkit/lib64/libnccl.so.2" "$work/site-packages/nvidia/cudnn/lib/libcudnn.so.9"
touch "$work/site-packages/nvidia/cu13/lib/libcublasLt.so.13" "$work/site-packages/nvidia/cu13/lib/libnvrtc.so.13"
printf '%s\n' '#!/bin/sh' "echo $work/site-packages" > "$work/fake/python3"
chmod +x "$work/fake/python3"
run 0 "checks of every kind" bash "$work/checks.sh" "$source" "$work"
lines 1 '^fits: 50 30 20 none$'
lines 1 '^passed   good \([0-9] s\)  all well$'
lines 1 '^failed   bad .* exit status 3: an error: a'
lines 1 '^skipped  no device .* there is none$'
lines 1 '^failed   hangs .* stopped at its limit of 1 s'
lines 1 '^failed   does not listen .* stopped at its limit of 1 s'
lines 1 '^skipped  time is over .* stopped after [123] s: the part.s [0-9]+ s were over$'
lines 1 '^skipped  does not fit .* needs 50 s, [0-9-]+ s of the part.s [0-9]+ are left$'
lines 1 '^passed   tests \([0-9] s\)  1 skipped: no second GPU$'
lines 1 '^failed   tests that fail .* exit status 1: \[  FAILED  \] A\.C'
lines 1 '^failed   tests that crash .* exit status 139'
lines 1 '^skipped  no tests .* no test ran$'
lines 1 '^passed   sanitized .* ERROR SUMMARY: 0 errors'
lines 1 "^failed   sanitizer's errors .* exit status 86"
lines 1 '^failed   no summary .* no summary without errors'
lines 1 '^skipped  no reason to try .* no card$'
lines 1 '^skipped  slow sanitizer .* stopped at its limit of 1 s'
lines 0 'it was tried|not passed'
lines 1 '^half is no JSON'
lines 1 '^7 of 16 checks failed, 6 were skipped\.$'
lines 1 '^status 1$'
lines 1 '^libcublasLt\.so\.13 in .*/site-packages/nvidia/cu13/lib$'
lines 1 '^libcudnn\.so\.9 in .*/site-packages/nvidia/cudnn/lib$'
lines 1 '^libnccl\.so\.2 in .*/toolkit/lib64$'
lines 1 '^path /before:.*/nvidia/cu13/lib:.*/nvidia/cudnn/lib:.*/toolkit/lib64$'
lines 2 '^passed   libraries '
lines 1 '^failed   libraries .* not found: libcudnn\.so\.9;'
run 0 "a report before the end" json "$work/out/gpu-check-so-far.json" \
  'complete=OFF;conclusion=Not over: 1 checks passed so far, 0 failed, 0 were skipped.;checks.0.name=good'
lines 1 '^\*\*Not over: 1 checks passed so far' "$work/out/gpu-check-so-far.md"
run 0 "  its JSON" json "$work/out/gpu-check-smoke.json" 'part=smoke;complete=ON;gpu=a "card";checks.0.status=passed;checks.1.status=failed;checks.1.name=bad | \ "quoted";checks.3.detail=stopped at its limit of 1 s, it last said: ;checks.7.passed=2;checks.7.skipped=1;kernels.benchmarks.1.name=conv b/manual_time'
lines 1 '^\| hangs \| failed \| 0 \| 1 \| 0 \|' "$work/out/gpu-check-smoke.md"
lines 1 '^\| matmul a \| bf16 \| 1\.0 \| 10 \| 10\.0 \| 2\.00 \| 100\.0 \|$' "$work/out/gpu-check-smoke.md"
lines 1 '^\| conv b \| bf16 \| 2\.0 \| 5 \| 5\.0 \| 0\.50 \| 25\.0 \|$' "$work/out/gpu-check-smoke.md"
lines 0 'matmul late' "$work/out/gpu-check-smoke.md"
lines 1 '^copy 100 GB/s, fastest product in bf16 2\.0 TFLOP/s$' "$work/out/gpu-check-smoke.md"
lines 1 '^\| relu c \| f32 \| 2\.0 \| 90 \| 90\.0 \| \| \|$' "$work/out/gpu-check-smoke.md"
lines 1 '^==== hangs\.log$' "$work/out/gpu-check-smoke.log"

# ---- whole parts
mkdir -p "$work/bundle/programs" "$work/bundle/deps/bin"
echo 'export PATH='"$work/bundle/deps/bin"':$PATH' > "$work/bundle/deps/environment"
printf '%s\n' '#!/bin/bash' 'ranks=$2; shift 2' 'while :; do case $1 in --oversubscribe) shift ;; --bind-to) shift 2 ;; -x) export "$2"; shift 2 ;; *) break ;; esac; done' \
  'export RANKS=$ranks; exec "$@"' > "$work/bundle/deps/bin/mpirun"
chmod +x "$work/bundle/deps/bin/mpirun"
printf 'test_a \ntest_b ranks\n' > "$work/bundle/tests"
program hello_ranks <<< 'echo "all-reduced sum of the ranks: 1, as expected"'
program test_a <<< 'echo "[       OK ] A.B (3 ms)"'
program test_b <<< 'echo "[       OK ] $RANKS.shared_${LOCKSTEP_ALLOW_SHARED_GPU:-0} (3 ms)"'
program lockstep-devices <<< 'echo "{\"gpus\": []}"'
check=("$source/scripts/gpu-check.sh" --bundle "$work/bundle")
# What is loaded when it is needed is there on a machine with a GPU, whatever this one has.
touch "$work/toolkit/lib64/libcublasLt.so.13"
export OUT=$work/out CUDA_HOME=$work/toolkit

run 77 "smoke without a GPU" "${check[@]}" --no-build
lines 1 '^passed   2 ranks on the host'
lines 1 '^passed   test_a'
lines 1 '^Nothing ran on a GPU'
run 0 "  its JSON" json "$work/out/gpu-check-smoke.json" 'gpus=0;checks.1.name=2 ranks on the host;machine.gpus=[]'
run 77 "check without a GPU" "${check[@]}" --part check
lines 3 '^skipped  test_b, [124] ranks .* no GPU that CUDA can use'
lines 1 '^skipped  ResNet-20 on Fashion-MNIST, bf16 .* no GPU'
lines 0 '^failed'
run 77 "sanitizers without a GPU" "${check[@]}" --part sanitizers
lines 8 '^skipped  memcheck, share [1-8] of 8 .* no GPU'
lines 0 '^failed'
run 77 "perf without a GPU" "${check[@]}" --part perf
lines 1 '^skipped  ResNet-50 224x224 steps, bf16, batch 256 .* no GPU'
lines 0 '^failed'
run 0 "  its JSON" json "$work/out/gpu-check-perf-bf16-256.json" 'part=perf-bf16-256;budget_seconds=560;complete=ON'
run 77 "speed without a GPU" "${check[@]}" --part=speed
lines 1 '^skipped  lockstep-cost, 2 ranks on 1 GPU .* no GPU'
lines 1 '^skipped  copies beside their limits .* no GPU'
lines 0 '^failed'

program lockstep-devices <<< 'if [ "$1" = --json ]; then echo "{\"gpus\": [{\"uuid\": \"GPU-1\"}]}"; else echo "one card"; fi'
run 0 "smoke with a GPU" "${check[@]}" --part smoke --no-build
lines 1 '^Everything passed\.$'
lines 1 '^one card$' "$work/out/gpu-check-smoke.md"
run 0 "  its JSON" json "$work/out/gpu-check-smoke.json" 'budget_seconds=480'
(cd "$source" && sha256sum CMakeLists.txt runtime/base/error.hpp) > "$work/bundle/sources"
run 0 "a bundle of this tree" "${check[@]}" --no-build
lines 1 '^passed   sources'
sed -i '2s/^................/0000000000000000/' "$work/bundle/sources"
echo "$(printf '%064d' 0)  no/such/file.cpp" >> "$work/bundle/sources"
run 0 "a bundle of another tree" "${check[@]}" --no-build
lines 1 '^skipped  sources .* NOT built from this tree: 2 files differ, runtime/base/error\.hpp no/such/file\.cpp$'
rm "$work/bundle/sources"
program test_a <<< 'echo "[  FAILED  ] A.B (3 ms)"; exit 1'
run 1 "smoke with a test that fails" "${check[@]}" --no-build
lines 1 '^1 of 3 checks failed, 0 were skipped\.$'
rm "$work/bundle/programs/test_a"
run 1 "smoke with a program missing" "${check[@]}" --no-build

# Training that leaves what a run leaves: its seed and the number of ranks decide nothing but what they should.
program train_resnet << 'END'
while [ $# -gt 0 ]; do
  case $1 in
    --out) out=$2 ;;
    --seed) seed=$2 ;;
    --batch-size) batch=$2 ;;
    --dtype) dtype=$2 ;;
    --weights-beside) beside=1 ;;
  esac
  shift
done
mkdir -p "$out/last"
header='{"w.momentum_buffer":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
for name in model optimizer; do
  printf "\\x$(printf %x ${#header})\0\0\0\0\0\0\0%s\0\0\x80\x3f\0\0\x$(printf %02x $((16 * ${seed:-1})))\x40" "$header" > "$out/last/$name.safetensors"
done
for rate in 1 1 $((100 + 10 * ${beside:-0})) $((120 + 12 * ${beside:-0})) $((110 + 11 * ${beside:-0})); do echo "{\"event\":\"step\",\"images_per_second\":$rate}"; done > "$out/metrics.jsonl"
echo '{"best_accuracy":0.93,"event":"end","exit_code":0,"step":9,"test_accuracy":'"${ACCURACY:-0.925}}" >> "$out/metrics.jsonl"
END
mkdir -p "$work/bundle/data/fashion-mnist"
printf 'test_b ranks\ntest_kernels_cuda \n' > "$work/bundle/tests"
if command -v python3 > /dev/null; then
  run 0 "check with a GPU" "${check[@]}" --part check
  lines 1 '^passed   test_b, 4 ranks'
  lines 1 '^\[       OK \] 4\.shared_1' "$work/out/gpu-check-check.log"
  lines 1 '^\[       OK \] 1\.shared_0' "$work/out/gpu-check-check.log"
  lines 2 '^passed   gradient of [24] ranks = of 1 .* largest relative distance of 1 tensors: 0, of w\.momentum_buffer'
  lines 1 '^passed   control: another seed, another gradient'
  lines 6 '^passed   captured = uncaptured'
  lines 4 '^passed   weights beside = captured'
  lines 4 '^passed   dependent launches = captured'
  lines 2 '^passed   pictures of the GPU = of the host'
  lines 4 '^passed   uncaptured run twice = the same bits'
  lines 0 'test_kernels_cuda'  # in the part smoke only
  lines 1 '^passed   control: another seed, other weights'
  lines 1 '^passed   ResNet-20 on Fashion-MNIST, bf16 .* 0\.925, at least 0\.92 wanted'
  lines 0 'memcheck'  # a part of its own
  ACCURACY=0.5 run 1 "check with a low accuracy" "${check[@]}" --part check
  lines 1 '^failed   ResNet-20 on Fashion-MNIST, bf16 .* 0\.5, at least 0\.92 wanted'

  # The runner of whole steps: a peer whose compiled mode fails and whose graph is fastest.
  cat > "$work/torch_resnet.py" << 'END'
import sys
import torch
if "--compile" in sys.argv:
    sys.exit("no compiler")
if torch.optim.SGD([], 0.1, momentum=0.9, foreach=True).options != {"momentum": 0.9, "fused": True}:
    sys.exit("SGD is not fused")
print('{"images_per_second": %d}' % (88 if "--graph" in sys.argv else 55))
END
  printf '%s\n' '#!/bin/bash' 'if [ "$1" = -c ]; then exit "${NO_TORCH:-0}"; fi' 'exec python3 "$@"' > "$work/python"
  chmod +x "$work/python"
  mkdir -p "$work/modules"
  cat > "$work/modules/torch.py" << 'END'
class optim:
    class SGD:
        def __init__(self, parameters, rate, **options):
            self.options = options
END
  export PYTHONPATH=$work/modules
  steps=(python3 "$source/bench/end_to_end/gpu_against_torch.py" --program "$work/bundle/programs/train_resnet" --peer "$work/torch_resnet.py"
    --python "$work/python" --json "$work/steps.json" --markdown "$work/steps.md" --batches 64 --work "$work")
  run 0 "whole steps" "${steps[@]}"
  lines 6 '^round [123], (bf16|fp16), batch 64: ours 110\.0 images/s'
  lines 6 ': ours, weights beside 121\.0 images/s'
  lines 6 ': ours, dependent launches 110\.0 images/s'
  lines 2 ': eager 55\.0 images/s'
  lines 6 ': graph 88\.0 images/s'
  lines 2 ': compile: exit status 1: no compiler'
  lines 1 '^bf16 64: 110 images/s, 1\.250 x graph; weights beside 1\.100 x; dependent launches 1\.000 x; fp16 64: 110 images/s, 1\.250 x graph; weights beside 1\.100 x; dependent launches 1\.000 x; 2 runs left out$'
  run 0 "  its JSON" json "$work/steps.json" 'results.0.dtype=bf16;results.0.best_of_peer=graph;results.0.ratio=1.25;left_out.0.kind=failed'
  lines 1 '^\| bf16 \| 64 \| 110\.0 \| 121\.0 \| 110\.0 \| 55\.0 \| 88\.0 \|  \| 1\.250 \(graph\) \| 3 \|$' "$work/steps.md"
  NO_TORCH=1 run 0 "whole steps without PyTorch" "${steps[@]}" --rounds 1
  lines 1 '^no PyTorch with torchvision here'
  lines 1 '^bf16 64: 110 images/s; weights beside 1\.100 x; dependent launches 1\.000 x; fp16 64: 110 images/s; weights beside 1\.100 x; dependent launches 1\.000 x$'
  run 1 "whole steps without the time for one" "${steps[@]}" --seconds 5
  lines 1 '^24 runs left out$'
  lines 12 '^- left out: round 1, .* needs about 20 s, [45] s are left' "$work/steps.md"
  run 1 "whole steps with ours failing" "${steps[@]}" --program false --rounds 1
  lines 1 '^error: bf16 64: exit status 1: nothing said'

  run 0 "perf with a GPU" "${check[@]}" --part perf --setting fp16:64
  lines 1 '^passed   ResNet-50 224x224 steps, fp16, batch 64 .* fp16 64: 110 images/s'
  run 0 "  its JSON" json "$work/out/gpu-check-perf-fp16-64.json" 'steps.results.0.dtype=fp16;steps.results.0.batch=64'
  lines 1 '^\| fp16 \| 64 \| 110\.0 ' "$work/out/gpu-check-perf-fp16-64.md"
  unset PYTHONPATH

  # What moving data costs. Copies of 64 MiB: into the GPU, out of it and inside it; the link carries 63 GB/s, and the copy
  # bandwidth is 3000 GB/s, bytes read and written.
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
  run 0 "speed with a GPU" "${check[@]}" --part speed
  lines 1 '^passed   host to GPU, pinned, of the link .* 57\.0 GB/s, 90\.5 % of PCIe 5\.0 x16, 63\.0 GB/s; at least 90 % wanted$'
  lines 1 '^passed   GPU to host, pinned, of the link .* 58\.0 GB/s'
  lines 1 '^passed   inside the GPU, of the copy bandwidth .* 2800\.0 GB/s, 93\.3 % of the copy bandwidth of bench_kernels'
  lines 1 '^passed   smallest copies .* host to GPU, pinned 2\.50 us \(8 B\), GPU to host, pinned 2\.50 us \(8 B\), inside the GPU'
  lines 1 '^skipped  GPU to GPU .* Copies between GPUs: there is one\.$'
  lines 1 '^passed   all-reduce over NCCL .* 2 ranks: 8 B in 2\.5 us, busbw at most 1\.00 GB/s \(67108864 B\); card, shared 1$'
  lines 1 '^passed   bench_allreduce, 2 ranks on 1 GPU'
  lines 1 '^skipped  bench_copy, every two GPUs .* one GPU: it has no peer$'
  lines 0 '^failed'
  lines 1 '^## lockstep-cost, 2 ranks on 1 GPU: times between ranks mean nothing$' "$work/out/gpu-check-speed.md"
  lines 2 '^### What moving data costs on this$' "$work/out/gpu-check-speed.md"
  lines 1 '^- asked for --devices auto ' "$work/out/gpu-check-speed.md"
  lines 0 'copies\.svg' "$work/out/gpu-check-speed.md"
  run 0 "  its JSON" json "$work/out/gpu-check-speed.json" 'cost_alone.ranks=1;cost_ranks.ranks=2;cost_alone.paths.0.name=copy/pinned_to_device;kernels.benchmarks.0.name=relu'
  cat > "$work/moving.sh" << 'END'
parts=$1/scripts/gpu_check
source "$1/scripts/lib.sh"
for file in report checks machine prepare parts; do source "$parts/$file.sh"; done
work=$2/moving programs=$2/bundle/programs budget=1000 gpus=3
PATH=$2/bundle/deps/bin:$PATH
mkdir -p "$work/log"
moving_data
grep -h '^## ' "${tables[@]}"
END
  run 0 "moving data with three GPUs" env PEER=1 bash "$work/moving.sh" "$source" "$work"
  lines 1 '^passed   lockstep-cost, 3 ranks \('
  lines 1 '^passed   GPU to GPU .* 360\.0 GB/s'
  lines 1 '^passed   all-reduce over NCCL .* 3 ranks: .*; card, shared 0$'
  lines 1 '^passed   bench_allreduce, 3 ranks \('
  lines 1 '^passed   bench_copy, every two GPUs'
  lines 1 '^skipped  inside the GPU, of the copy bandwidth .* bench_kernels measured no copy bandwidth$'
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

# A signal from outside: the report says what is missing.
program hello_ranks <<< 'touch '"$work"'/started; exec sleep 20'
"${check[@]}" --no-build > "$work/output" 2>&1 &
pid=$!
wait_until 10 test -e "$work/started" || failed "the part did not start"
kill "$pid"
status=0
wait "$pid" || status=$?
if [ "$status" = 1 ]; then passed "stopped by a signal: exit code 1"; else failed "stopped by a signal: exit code $status"; fi
lines 1 '^failed   stopped .* by a signal'
run 0 "  its JSON" json "$work/out/gpu-check-smoke.json" 'checks.1.name=stopped'

run 2 "unknown part" "${check[@]}" --part all
run 2 "no setting" "${check[@]}" --part perf --setting bf16
lines 1 "expected fp32, bf16 or fp16, a colon and a batch size"
mkdir "$work/empty" "$work/damaged"
echo "not packed" > "$work/damaged/programs.tar.xz"
for name in empty damaged; do
  run 1 "$name bundle" "$source/scripts/gpu-check.sh" --bundle "$work/$name"
  lines 1 '^failed   unpack .*program'
  run 0 "  its JSON" json "$work/out/gpu-check-smoke.json" 'checks.0.name=unpack'
done
run 2 "no bundle" "$source/scripts/gpu-check.sh" --bundle "$work/nowhere"
lines 1 'scripts/gpu-check\.sh --prepare'
run 2 "option of --prepare" "${check[@]}" -DX=1
run 2 "no number" "${check[@]}" --seconds 0
finish
