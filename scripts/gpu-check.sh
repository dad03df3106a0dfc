#!/usr/bin/env bash
# Runs the CUDA code on a real GPU and writes a report: tests, training, speed. The machine with the GPU needs its driver
# and what PyTorch brings; no network, Open MPI, oneDNN or GoogleTest. Run `scripts/gpu-check.sh --help`.
parts=$(cd "$(dirname "${BASH_SOURCE[0]}")/gpu_check" && pwd -P)
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
for file in report checks machine prepare parts; do source "$parts/$file.sh"; done

usage() {
  cat << 'END'
usage: scripts/gpu-check.sh --prepare [options] [CMAKE OPTION...]     with the CUDA toolkit, no GPU needed
       scripts/gpu-check.sh [--part PART] [options]                   on a machine with a GPU

--prepare      builds the programs for sm_90 and packs them with Open MPI (scripts/bundle-deps.sh), Fashion-MNIST and the
               peer's program into .bundle/ (ignored by git). With the tree at most 60 MiB, refused otherwise. Copy the
               tree with .bundle/ to the machine with the GPU.
--part smoke   (default) the device tests once, and a build of runtime and kernels there with cmake, ninja and nvcc
--part check   the device tests (without the two longest) and those with 1, 2 and 4 ranks over NCCL; the gradient of 1 rank against 2 and 4; the captured
               step against the uncaptured one; Fashion-MNIST in bf16 to 92 %
--part sanitizers  kernels under compute-sanitizer: memcheck, racecheck, initcheck
--part perf    whole steps of ResNet-50 beside PyTorch's, of one setting (--setting); a command for each setting
--part speed   kernels and copies with their share of what the GPU can do, the report of lockstep-cost with one rank and
               with several over NCCL

--bundle FOLDER  what was brought along, default .bundle
--setting TYPE:BATCH  of perf: bf16:256 (default), fp16:64, ..
--seconds N      of one part, default 480 for smoke, else 560; what does not fit is a row "skipped" that says so
--no-build       smoke: leaves out the build
--data FOLDER    --prepare: with Fashion-MNIST's four .gz files, default ../shared/data/fashion-mnist
--peer FOLDER    --prepare: with torch_resnet.py, default ../shared/peer

Writes gpu-check-PART.json, .md and .log (of perf gpu-check-perf-TYPE-BATCH) into $OUT, or out/ when OUT is not set, again
after every check: a report says whether its part is over.
Exit status: 0 when everything that ran passed, 1 when something failed, 2 for wrong usage, 77 when there is no GPU
(the reports say so: nothing was checked on one).
END
}

action=part part=smoke build_too=yes budget= setting=bf16:256
bundle=$repository/.bundle
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
    --no-build) build_too=no ;;
    --*=*)
      set -- "${1%%=*}" "${1#*=}" "${@:2}"
      continue
      ;;
    --part | --bundle | --seconds | --setting | --data | --peer)
      [ $# -ge 2 ] || die "gpu-check.sh: $1 needs a value"
      case "$1" in
        --part) part=$2 ;;
        --bundle) bundle=$2 ;;
        --seconds) budget=$2 ;;
        --setting) setting=$2 ;;
        --data) data_folder=$2 ;;
        --peer) peer_folder=$2 ;;
      esac
      shift
      ;;
    -D*) cmake_options+=("$1") ;;
    *) die "gpu-check.sh: unknown option '$1'; scripts/gpu-check.sh --help lists them" ;;
  esac
  shift
done
case "$part" in
  smoke | check | sanitizers | perf | speed) ;;
  *) die "gpu-check.sh: --part is '$part', expected smoke, check, sanitizers, perf or speed" ;;
esac
[[ $setting =~ ^(fp32|bf16|fp16):[1-9][0-9]{0,5}$ ]] ||
  die "gpu-check.sh: --setting is '$setting', expected fp32, bf16 or fp16, a colon and a batch size"
if [ -z "$budget" ]; then
  if [ "$part" = smoke ]; then budget=480; else budget=560; fi
fi
report=$part
if [ "$part" = perf ]; then report=perf-${setting/:/-}; fi
[[ $budget =~ ^[1-9][0-9]{0,4}$ ]] || die "gpu-check.sh: --seconds is '$budget', expected a number from 1 to 99999"
if [ "$action" = prepare ]; then
  prepare "${cmake_options[@]}"
  exit
fi
[ ${#cmake_options[@]} = 0 ] || die "gpu-check.sh: '${cmake_options[0]}' goes with --prepare"
[ -d "$bundle" ] || die "gpu-check.sh: no folder $bundle; make it with scripts/gpu-check.sh --prepare where the CUDA toolkit is"
bundle=$(cd "$bundle" && pwd -P)

out=${OUT:-$repository/out}
mkdir -p "$out"
work=$(mktemp -d)
# Stopped from outside: what is known so far is still worth a report.
finish() {
  trap - TERM INT
  if [ -n "$running" ]; then kill "$running" 2> /dev/null || true; fi
  row "stopped" failed 0 1 0 "$SECONDS" "by a signal: the checks that follow did not run"
  write_reports
  exit 1
}
trap 'rm -rf "$work"' EXIT
trap finish TERM INT
case "$part" in
  smoke) smoke ;;
  check) check_all ;;
  sanitizers) sanitizers ;;
  perf) perf "${setting%:*}" "${setting#*:}" ;;
  speed) speed ;;
esac
write_reports
exit "$(exit_status)"
