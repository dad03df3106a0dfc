#!/usr/bin/env bash
# Trains small models and prints the sha256 of the results of each run: two builds that compute the same numbers print the
# same lines. Run it before and after a change that must not change a number. Takes a minute per build.
#   scripts/same-numbers.sh BUILD             prints the hashes of the programs in BUILD/bin
#   scripts/same-numbers.sh BUILD OTHER       compares the hashes of both builds; exit status 1 when a line differs
# A line ".plan" holds the hash of a text: the table of the calls of a training step on an H100 (this machine need not
# have one). A line ".output" has the hash of the output of a host program in C or Fortran. A line ".evaluation" has the
# hash of the figures of a test set. The comparison of two builds shows the texts that differ.
# KEEP=FOLDER in the environment: keeps the models and texts in FOLDER.
# The hashes hold for one processor family and one set of libraries: compare builds on the same machine only.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

[ $# = 1 ] || [ $# = 2 ] || die "same-numbers.sh: expected one or two build folders, got $# arguments"
mpi_environment
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# launch NAME RANKS PROGRAM OPTIONS...: runs a program under mpirun, with its output in NAME.log.
launch() {
  local name=$1 ranks=$2
  shift 2
  mpirun -np "$ranks" "$@" > "$folder/$name.log" 2>&1 ||
    { tail -n 20 "$folder/$name.log" >&2; die "run '$name' of $build failed"; }
}
# run NAME RANKS OPTIONS...: trains with train_resnet into the folder NAME. One thread per rank, no reader threads.
run() {
  local name=$1 ranks=$2
  shift 2
  launch "$name" "$ranks" "$build/bin/train_resnet" --devices cpu --threads 1 --workers 0 --train-images 96 --test-images 16 \
    --epochs 100 --seed 3 --out "$folder/$name" "$@"
}
# text NAME RANKS OPTIONS...: trains with train_text into the folder NAME.
text() {
  local name=$1 ranks=$2
  shift 2
  launch "$name" "$ranks" "$build/bin/train_text" --devices cpu --threads 1 --workers 0 --data "$book" --layers 2 --heads 2 \
    --width 32 --length 24 --batch-size 8 --epochs 100 --sample 40 --out "$folder/$name" "$@"
}
# plan NAME PROGRAM OPTIONS...: writes the calls of a step for an H100 to NAME.plan.
plan() {
  local name=$1 program=$2
  shift 2
  "$build/bin/$program" --devices cpu --threads 1 --workers 0 --dry-run --describe-gpu h100 "$@" > "$folder/$name.log" 2>&1 ||
    { tail -n 20 "$folder/$name.log" >&2; die "plan '$name' of $build failed"; }
  sed -n '/^call  *layer/,/ plan, batch /p' "$folder/$name.log" > "$folder/$name.plan"
  grep -q ' plan, batch ' "$folder/$name.plan" || die "plan '$name' of $build: no table of calls in $name.log"
}
# output NAME RANKS PROGRAM OPTIONS...: writes the sorted output of a program to NAME.output.
output() {
  local name=$1 ranks=$2 program=$3
  shift 3
  launch "$name" "$ranks" "$build/bin/$program" "$@"
  sort "$folder/$name.log" > "$folder/$name.output"  # lines of two ranks come in any order
}

models() {
  local small=(--image-size 16 --classes 5 --batch-size 24)
  local resnet20=(--model resnet20 "${small[@]}" --steps 6)
  local mlp=(--model mlp --hidden 32,16 "${small[@]}" --steps 12)
  run resnet20-1-fp32 1 "${resnet20[@]}"
  run resnet20-2-fp32 2 "${resnet20[@]}"
  run resnet20-3-fp32-uneven 3 --model resnet20 "${small[@]}" --batch-size 25 --steps 6 --keep-last
  run resnet20-2-bf16 2 "${resnet20[@]}" --dtype bf16
  run resnet20-1-f64 1 --model resnet20 --image-size 8 --classes 5 --batch-size 6 --steps 3 --dtype f64
  run resnet20-2-accumulate-clip 2 "${resnet20[@]}" --accumulate 2 --clip-norm 0.5
  run resnet20-2-resume 2 --model resnet20 "${small[@]}" --steps 3
  run resnet20-2-resume 2 "${resnet20[@]}" --resume auto --log-every 2
  run resnet20-2-sync-batch-norm 2 "${resnet20[@]}" --sync-batch-norm
  run resnet20-1-recompute 1 "${resnet20[@]}" --recompute blocks
  run resnet20-2-ema 2 "${resnet20[@]}" --ema 0.9
  run resnet20-2-world 2 "${resnet20[@]}" --reproducible world --virtual-ranks 4
  run resnet20-2-layout-overlap 2 "${resnet20[@]}" --reproducible layout --overlap on --bucket-mb 0.1
  run resnet20-2-pictures 2 --model resnet20 "${small[@]}" --steps 6 --mixup 0.2 --cutmix 1 --random-erase 0.5 --label-smoothing 0.1
  run resnet20-1-frozen-beside 1 "${resnet20[@]}" --freeze layer1 --weights-beside
  run resnet18-1-fp32 1 --model resnet18 --image-size 32 --batch-size 8 --steps 3
  run resnet18-2-bf16 2 --model resnet18 --image-size 32 --batch-size 8 --steps 3 --dtype bf16
  run airbench94-1 1 --model airbench94 --image-size 32 --classes 5 --batch-size 12 --steps 3
  run mlp-3-fp32-adamw 3 --model mlp --hidden 32,16 "${small[@]}" --steps 20 --optimizer adamw --clip-norm 1 --overlap on \
    --bucket-mb 0.01
  run mlp-1-f64-lars 1 --model mlp --hidden 32 "${small[@]}" --steps 12 --dtype f64 --optimizer lars --keep-last \
    --label-smoothing 0.1 --batch-size 36
  run mlp-3-resume-from-2 2 --model mlp --hidden 32 "${small[@]}" --steps 5 --accumulate 3
  run mlp-3-resume-from-2 3 --model mlp --hidden 32 "${small[@]}" --steps 9 --accumulate 3 --resume auto
  run mlp-3-zero1 3 "${mlp[@]}" --strategy zero1 --optimizer adamw --clip-norm 1
  run mlp-2-zero1-resume-from-3 3 "${mlp[@]}" --strategy zero1 --optimizer adam --steps 5
  run mlp-2-zero1-resume-from-3 2 "${mlp[@]}" --strategy zero1 --optimizer adam --resume auto
  run mlp-2-powersgd-resume 2 "${mlp[@]}" --compress powersgd:2 --steps 5
  run mlp-2-powersgd-resume 2 "${mlp[@]}" --compress powersgd:2 --resume auto
  run mlp-2-bf16-sums 2 "${mlp[@]}" --reduce-dtype bf16
  run mlp-2-muon-ema 2 "${mlp[@]}" --optimizer muon --ema 0.8 --ema-every 2 --schedule step
  run mlp-2-skip-polynomial 2 "${mlp[@]}" --skip-non-finite --schedule polynomial --clip-value 0.01 --optimizer adam
  text gpt-1-fp32 1 --steps 8
  text gpt-2-bf16 2 --steps 8 --dtype bf16
  text gpt-2-zero1-accumulate 2 --steps 8 --strategy zero1 --accumulate 2
  text gpt-2-muon-recompute 2 --steps 8 --optimizer muon --recompute blocks
  text gpt-2-powersgd 2 --steps 8 --compress powersgd:4
}

# Prints the hashes of the last checkpoints' models, averages and optimizer states.
hashes_of_models() {
  local file name
  for file in "$folder"/*/last/{model,ema,optimizer}.safetensors; do
    [ -f "$file" ] || continue  # not all checkpoints have an average
    name=${file#"$folder"/}
    printf '%s  %s\n' "$(sha256sum < "$file" | cut -d ' ' -f 1)" "${name/\/last\//.}"
  done
}

plans() {
  local resnet20=(train_resnet --model resnet20 --train-images 96 --test-images 16 --batch-size 16 --dtype bf16)
  local resnet50=(train_resnet --model resnet50 --train-images 96 --test-images 16 --batch-size 4 --image-size 224 --classes 1000 --dtype bf16)
  local gpt2=(train_text --data "$book" --layers 3 --heads 12 --width 768 --length 256 --batch-size 2 --dtype bf16)
  local name
  for name in resnet20 resnet50 gpt2; do
    local -n model=$name
    plan "$name" "${model[@]}"
    plan "$name-recompute" "${model[@]}" --recompute blocks
    plan "$name-beside" "${model[@]}" --weights-beside
  done
  plan resnet20-fused "${resnet20[@]}" --fused-norms
  plan resnet50-fused "${resnet50[@]}" --fused-norms
  plan resnet50-fused-recompute "${resnet50[@]}" --fused-norms --recompute cheap --weights-beside
  plan resnet50-f32 "${resnet50[@]}" --dtype fp32
}

outputs() {
  launch evaluation 2 "$build/bin/train_resnet" --devices cpu --threads 1 --workers 0 --train-images 96 --test-images 16 \
    --image-size 16 --classes 5 --batch-size 24 --seed 3 --top-k 2 --evaluate "$folder/resnet20-2-ema/last"
  sed -n '/^test loss/,$p' "$folder/evaluation.log" > "$folder/resnet20-2.evaluation"
  cp "$folder/resnet20-2-ema/evaluation.json" "$folder/resnet20-2-ema.evaluation"
  output heat2d-c 2 heat2d
  output heat2d-fortran 2 heat2d_fortran --type f32
  output heat2d-c-half 2 heat2d --train half
}

hashes() {  # hashes BUILD FOLDER
  build=$1 folder=$2
  for program in train_resnet train_text heat2d heat2d_fortran; do
    [ -x "$build/bin/$program" ] || die "there is no program $build/bin/$program"
  done
  mkdir -p "$folder"
  book=$work/book.md
  head -c 4000 "$repository/LICENSE" > "$book"
  models
  plans
  outputs
  hashes_of_models
  for file in "$folder"/*.{plan,output,evaluation}; do
    printf '%s  %s\n' "$(sha256sum < "$file" | cut -d ' ' -f 1)" "${file#"$folder"/}"
  done
}

first=${KEEP:-$work}/first
hashes "$1" "$first" > "$work/first.txt"
cat "$work/first.txt"
if [ $# = 2 ]; then
  second=${KEEP:-$work}/second
  hashes "$2" "$second" > "$work/second.txt"
  if ! diff "$work/first.txt" "$work/second.txt"; then
    for file in "$first"/*.{plan,output,evaluation}; do
      diff -U 1 "$file" "$second/${file##*/}" | head -n 20 || true
    done
    die "$2 computes other numbers than $1 (lines with '>')"
  fi
  say "$2 computes the same numbers as $1"
fi
