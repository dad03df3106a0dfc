#!/usr/bin/env bash
# Tests ranks that the real torchrun starts and that communicate without MPI (docs/launch.md).
#   torchrun.sh START_RANKS BIN FAILING     tests/comm/gloo's start_ranks, the folder of the programs, session_program
# Exit status 77, with the reason, if there is no torchrun: neither the command nor python3's torch.distributed.run.
set -uo pipefail
start_ranks=$1 bin=$2 failing=$3
if command -v torchrun > /dev/null; then
  torchrun=(torchrun)
elif python3 -c 'import torch.distributed.run' 2> /dev/null; then
  torchrun=(python3 -m torch.distributed.run)
else
  echo "needs torchrun: pip install torch, or Debian's python3-torch"
  exit 77
fi
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
export OMP_NUM_THREADS=1 CUDA_VISIBLE_DEVICES=
failures=0
check() {  # check NAME CONDITION...
  local name=$1
  shift
  if "$@"; then
    echo "ok      $name"
  else
    echo "FAILED  $name"
    sed 's/^/        | /' "$work/output"
    failures=$((failures + 1))
  fi
}
# torchrun uses any free port, and the ranks use the port with the next number. Versions of torchrun before 2.0 need
# options with underscores instead of hyphens. With Python 3.11, they also need --redirects and --tee with a rank that
# does not exist.
ranks() {
  timeout 120 "${torchrun[@]}" --standalone --redirects=9:1 --tee=9:1 --no_python --nproc_per_node="$1" "${@:2}" \
    > "$work/output" 2>&1
}
alone() { timeout 120 "$start_ranks" "$@" > "$work/output" 2>&1; }
has() { grep -qE -- "$1" "$work/output"; }

check "hello_ranks ends with 0" ranks 3 "$bin/hello_ranks" --devices cpu
check "  the ranks are there" has '^3 ranks on 1 node, gloo '
check "  started by torchrun" has '^started by torchrun'
check "  their sum" has '^all-reduced sum of the ranks: 3, as expected$'
train=("$bin/train_resnet" --devices cpu --train-images 64 --test-images 30 --image-size 12 --batch-size 16 --epochs 1
  --workers 0 --threads 1)
check "train_resnet ends with 0" ranks 2 "${train[@]}" --out "$work/torchrun"
check "  with two ranks" has '^  ranks      2 on 1 node, gloo '
check "the same without torchrun" alone 2 "${train[@]}" --out "$work/here"
check "  gives the same weights" cmp "$work/torchrun/last/model.safetensors" "$work/here/last/model.safetensors"
fails() {  # fails by itself, not because the time is over
  local status=0
  ranks 3 "$@" || status=$?
  [ "$status" != 0 ] && [ "$status" != 124 ]
}
check "a rank that gives up ends the job" fails "$failing" abort
check "  once" [ "$(grep -c '^lockstep: error: rank 1: gave up' "$work/output")" = 1 ]
[ "$failures" = 0 ] || exit 1
echo "all as expected"
