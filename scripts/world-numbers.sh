#!/usr/bin/env bash
# Trains ResNet-20 and a small transformer for 50 steps with --reproducible world --virtual-ranks 8, on each of the
# given numbers of ranks, and compares model.safetensors: exit status 1 when the bytes differ between numbers of ranks.
# Then trains with --reproducible run as a control: these models must differ.
#   scripts/world-numbers.sh BUILD            on 1, 2, 4 and 8 ranks
#   scripts/world-numbers.sh BUILD RANKS...   compares the models of all RANKS with those of the first
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

[ $# -ge 1 ] || die "world-numbers.sh: expected a build folder"
build=$1
shift
ranks=("$@")
if [ ${#ranks[@]} = 0 ]; then ranks=(1 2 4 8); fi
mpi_environment
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# model PROGRAM RANKS OPTIONS...: trains and prints the sha256 of the model.
model() {
  local program=$1 count=$2
  shift 2
  mpirun -np "$count" --oversubscribe "$build/bin/$program" --devices cpu --workers 0 --steps 50 --seed 3 --overwrite \
    --out "$folder/run" "$@" > "$folder/log" 2>&1 ||
    { tail -n 20 "$folder/log" >&2; die "$program $* on $count ranks failed"; }
  sha256sum < "$folder/run/last/model.safetensors" | cut -d ' ' -f 1
}

failed=0
for program in train_resnet train_text; do
  case $program in
    train_resnet) job=(--train-images 240 --test-images 32 --image-size 16 --batch-size 30 --epochs 100 --keep-last) ;;
    train_text) job=(--layers 2 --heads 2 --width 32 --length 32 --batch-size 16 --sample 0 --clip-norm 1) ;;
  esac
  first=
  for count in "${ranks[@]}"; do
    hash=$(model "$program" "$count" "${job[@]}" --reproducible world --virtual-ranks 8)
    echo "$hash  $program, $count ranks"
    if [ "$hash" != "${first:=$hash}" ]; then failed=1; fi
  done
  one=$(model "$program" 1 "${job[@]}" --threads 1)
  two=$(model "$program" 2 "${job[@]}" --threads 1)
  echo "$one  $program, the control on 1 rank"
  echo "$two  $program, the control on 2 ranks"
  if [ "$one" = "$two" ]; then failed=1; fi
done
[ "$failed" = 0 ] || die "the models depend on the number of ranks, or those of the control do not"
say "the models of $build do not depend on the number of ranks"
