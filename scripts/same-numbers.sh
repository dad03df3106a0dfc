#!/usr/bin/env bash
# Trains twelve small models and prints the sha256 of each model.safetensors: two builds that compute the same numbers
# print the same lines. Run it before and after a change that must not change a number.
#   scripts/same-numbers.sh BUILD             the hashes of BUILD/bin/train_resnet
#   scripts/same-numbers.sh BUILD OTHER       those of both builds, compared; exit status 1 when a line differs
# The hashes hold for one processor family and one set of libraries: compare builds on the same machine only.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

[ $# = 1 ] || [ $# = 2 ] || die "same-numbers.sh: expected one or two build folders, got $# arguments"
mpi_environment
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# run BUILD NAME RANKS OPTIONS...: trains into the folder NAME. One thread a rank, no reader threads.
run() {
  local build=$1 name=$2 ranks=$3
  shift 3
  mpirun -np "$ranks" "$build/bin/train_resnet" --devices cpu --threads 1 --workers 0 --train-images 96 --test-images 16 \
    --epochs 100 --seed 3 --out "$folder/$name" "$@" > "$folder/$name.log" 2>&1 ||
    { tail -n 20 "$folder/$name.log" >&2; die "run '$name' of $build failed"; }
}

hashes() {
  local build=$1 name
  [ -x "$build/bin/train_resnet" ] || die "there is no program $build/bin/train_resnet"
  rm -rf "${folder:?}"/*
  local small=(--image-size 16 --classes 5 --batch-size 24)
  run "$build" resnet20-1-fp32 1 --model resnet20 "${small[@]}" --steps 6
  run "$build" resnet20-2-fp32 2 --model resnet20 "${small[@]}" --steps 6
  run "$build" resnet20-3-fp32-uneven 3 --model resnet20 "${small[@]}" --batch-size 25 --steps 6 --keep-last
  run "$build" resnet20-2-bf16 2 --model resnet20 "${small[@]}" --steps 6 --dtype bf16
  run "$build" resnet20-1-f64 1 --model resnet20 --image-size 8 --classes 5 --batch-size 6 --steps 3 --dtype f64
  run "$build" resnet20-2-accumulate-clip 2 --model resnet20 "${small[@]}" --steps 6 --accumulate 2 --clip-norm 0.5
  run "$build" resnet20-2-resume 2 --model resnet20 "${small[@]}" --steps 3
  run "$build" resnet20-2-resume 2 --model resnet20 "${small[@]}" --steps 6 --resume auto --log-every 2
  run "$build" resnet18-1-fp32 1 --model resnet18 --image-size 32 --batch-size 8 --steps 3
  run "$build" resnet18-2-bf16 2 --model resnet18 --image-size 32 --batch-size 8 --steps 3 --dtype bf16
  run "$build" mlp-3-fp32-adamw 3 --model mlp --hidden 32,16 "${small[@]}" --steps 20 --optimizer adamw --clip-norm 1 \
    --overlap on --bucket-mb 0.01
  run "$build" mlp-1-f64-lars 1 --model mlp --hidden 32 "${small[@]}" --steps 12 --dtype f64 --optimizer lars --keep-last \
    --label-smoothing 0.1 --batch-size 36
  run "$build" mlp-3-resume-from-2 2 --model mlp --hidden 32 "${small[@]}" --steps 5 --accumulate 3
  run "$build" mlp-3-resume-from-2 3 --model mlp --hidden 32 "${small[@]}" --steps 9 --accumulate 3 --resume auto
  for name in "$folder"/*/; do
    printf '%s  %s\n' "$(sha256sum < "$name/last/model.safetensors" | cut -d ' ' -f 1)" "$(basename "$name")"
  done
}

hashes "$1" > "$folder.first"
cat "$folder.first"
if [ $# = 2 ]; then
  hashes "$2" > "$folder.second"
  if ! diff "$folder.first" "$folder.second"; then
    rm -f "$folder.first" "$folder.second"
    die "$2 computes other numbers than $1 (lines with '>')"
  fi
  say "$2 computes the same numbers as $1"
fi
rm -f "$folder.first" "$folder.second"
