#!/usr/bin/env bash
# Runs the CUDA code on a real GPU and writes a report: tests, training, speed. The machine with the GPU needs its
# driver and the libraries of a PyTorch installation. It needs no network, Open MPI, oneDNN or GoogleTest. Run
# `scripts/gpu-check.sh --help`.
parts=$(cd "$(dirname "${BASH_SOURCE[0]}")/gpu_check" && pwd -P)
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
for file in report checks machine prepare build_here calls; do source "$parts/$file.sh"; done

usage() {
  cat << 'END'
usage: scripts/gpu-check.sh --prepare [options] [CMAKE OPTION...]        with the CUDA toolkit, no GPU needed
       scripts/gpu-check.sh first CALL [SECONDS] [options]               on a machine with a GPU

--prepare      builds the programs for sm_90 and packs them with Open MPI (scripts/bundle-deps.sh), Fashion-MNIST and the
               peer's program into .bundle/ (ignored by git). With the tree at most 58 MiB, refused otherwise; then
               Fashion-MNIST is cut. Copy the tree with .bundle/ to the machine with the GPU.

CALL is one of
  a      (430 s) does it work: steps of ResNet-50 and of PyTorch's, the tests of every op, memcheck
  b      (430 s) is it right: norms served by engines, convergence, races, the same steps in every way, several ranks,
         tensors beyond 2^31; the tuned steps, whose choices are kept
  c      (360 s) is it fast: whole steps beside PyTorch's, GPT-2, copies, kernels, counters, a trace
  d      (560 s) what else there is: what moving data costs, fp16, the sanitizers' rest, a build with nvcc
  again  (430 s) what failed in earlier calls, by the names of the rows, then what had no time
  all    a, b, c and d without a limit
SECONDS  the time of the call in place of the one above; what does not fit is a row "skipped" that says so

--bundle FOLDER  what was brought along, default .bundle
--kept FOLDER    what calls leave to later ones: rows and choices of the libraries, default out/kept
--data FOLDER    --prepare: with Fashion-MNIST's four .gz files, default ../shared/data/fashion-mnist
--peer FOLDER    --prepare: with torch_resnet.py, default ../shared/peer

Writes gpu-check-CALL.tsv (a row a check), .json, .md (again with every row) and .tgz (logs, again every 10 s) and the
choices of the libraries into $OUT, or out/ when OUT is not set. Whatever ends this script, the rows that it printed are
there.
Exit status: 0 when everything that ran passed, 1 when something failed, 2 for wrong usage, 77 when there is no GPU
(the reports say so: nothing was checked on one).
END
}

action='' call='' budget=''
bundle=$repository/.bundle
kept=$repository/out/kept
data_folder=$repository/../shared/data/fashion-mnist
peer_folder=$repository/../shared/peer
cmake_options=()
while [ $# -gt 0 ]; do
  case "$1" in
    --help | -h)
      usage
      exit 0
      ;;
    --prepare) action=prepare ;;
    --*=*)
      set -- "${1%%=*}" "${1#*=}" "${@:2}"
      continue
      ;;
    --bundle | --kept | --data | --peer)
      [ $# -ge 2 ] || die "gpu-check.sh: $1 needs a value"
      case "$1" in
        --bundle) bundle=$2 ;;
        --kept) kept=$2 ;;
        --data) data_folder=$2 ;;
        --peer) peer_folder=$2 ;;
      esac
      shift
      ;;
    -D*) cmake_options+=("$1") ;;
    -*) die "gpu-check.sh: unknown option '$1'; scripts/gpu-check.sh --help lists them" ;;
    *)
      if [ -z "$action" ]; then
        [ "$1" = first ] || die "gpu-check.sh: '$1' was given, expected first or --prepare"
        action=first
      elif [ -z "$call" ]; then
        call=$1
      elif [ -z "$budget" ]; then
        budget=$1
      else
        die "gpu-check.sh: '$1' was given behind first $call $budget, expected nothing"
      fi
      ;;
  esac
  shift
done
if [ "$action" = prepare ]; then
  prepare "${cmake_options[@]}"
  exit
fi
[ "$action" = first ] || die "gpu-check.sh: nothing was given, expected first CALL or --prepare; --help explains them"
[ ${#cmake_options[@]} = 0 ] || die "gpu-check.sh: '${cmake_options[0]}' goes with --prepare"
patience=1  # factor of the time limit of each check
case "$call" in
  a | b | again) usual=430 ;;
  c) usual=360 ;;
  d) usual=560 ;;
  all) usual=99999 patience=10 ;;
  *) die "gpu-check.sh: first is '$call', expected a, b, c, d, again or all" ;;
esac
budget=${budget:-$usual}
[[ $budget =~ ^[1-9][0-9]{0,4}$ ]] || die "gpu-check.sh: SECONDS is '$budget', expected a number from 1 to 99999"
[ -d "$bundle" ] ||
  die "gpu-check.sh: no folder $bundle; make it with scripts/gpu-check.sh --prepare where the CUDA toolkit is"
bundle=$(cd "$bundle" && pwd -P)

export LC_ALL=C
# Gives the GPU more hardware queues, so that a waiting stream does not block other streams.
export CUDA_DEVICE_MAX_CONNECTIONS="${CUDA_DEVICE_MAX_CONNECTIONS:-32}"
out=${OUT:-$repository/out}
mkdir -p "$out" "$kept"
work=$(mktemp -d)
mkdir -p "$work/log" "$work/data" "$work/tables" "$work/runs"
files=$out/gpu-check-$call
for file in "$files.tsv" "$work/checks.json" "$work/checks.md" "$work/figures"; do : > "$file"; done
# Collects the rows of results that earlier calls of this script left in the tree, the bundle and --kept. If a KILL has
# cut the last row of rows.tsv, first ends that row with a new line.
if [ -s "$kept/rows.tsv" ] && [ -n "$(tail -c 1 "$kept/rows.tsv")" ]; then echo >> "$kept/rows.tsv"; fi
for folder in "$repository/docs/results/gpu" "$bundle"; do
  for letter in all a b c d again; do cat "$folder/gpu-check-$letter.tsv" 2> /dev/null || true; done
done > "$work/earlier.tsv"
cat "$kept/rows.tsv" >> "$work/earlier.tsv" 2> /dev/null || true
for file in "$bundle"/choices-*.json "$repository"/docs/results/gpu/choices-*.json; do
  if [ -f "$file" ] && [ ! -s "$kept/$(basename "$file")" ]; then cp "$file" "$kept/"; fi
done

trap 'kill "${helpers[@]}" 2> /dev/null || true; rm -rf "$work" || true' EXIT
(while sleep 10 && kill -0 $$; do pack || true; done) > /dev/null 2>&1 &
helpers+=($!)
disown
# finish: writes the report of the results so far when a signal stops this script.
finish() {
  trap - TERM INT
  local pid
  for pid in $running $(jobs -p); do kill "$pid" 2> /dev/null || true; done
  wait 2> /dev/null || true  # until the background checks have written their rows
  row "stopped" failed 0 1 0 "$SECONDS" "by a signal: the checks that follow did not run"
  write_reports
  exit 1
}
trap finish TERM INT
begin
if [ "$call" = all ]; then
  for letter in a b c d; do "call_$letter" || true; done
else
  "call_$call" || true
fi
all_over
write_reports
exit "$(exit_status)"
