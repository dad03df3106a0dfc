#!/usr/bin/env bash
# Installs packages, builds, and trains under mpirun. Safe to run again: only missing steps are done.
#   scripts/train.sh [--ranks N] [options of train_resnet]
# --ranks N (or RANKS=N in the environment): number of ranks, 2 by default. The ranks compute on the CPU unless
# --devices (or the file of --config) says otherwise: --ranks 2 --devices 2 takes two GPUs. Other arguments go to
# train_resnet; scripts/train.sh --help shows its options. Without any option it trains on synthetic images.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

ranks=${RANKS:-2}
options=()
while [ $# -gt 0 ]; do
  case "$1" in
    --ranks)
      [ $# -ge 2 ] || die "train.sh: --ranks needs a number"
      ranks=$2
      shift 2
      ;;
    --ranks=*)
      ranks=${1#--ranks=}
      shift
      ;;
    *)
      options+=("$1")
      shift
      ;;
  esac
done
case "$ranks" in
  '' | *[!0-9]* | 0*) die "train.sh: --ranks is '$ranks', expected a positive number" ;;
esac

"$repository/scripts/install-deps.sh" run
build=$(build_folder release)
log=$build/train.sh.log
mkdir -p "$build"
say "building train_resnet in $build (log: $log)"
# Tests are switched off only in a new build folder, because scripts/test.sh may have configured an existing build
# folder with tests.
test_options=()
if [ ! -f "$build/CMakeCache.txt" ]; then
  test_options=(-DLOCKSTEP_TESTS=OFF)
fi
if ! configure release "${test_options[@]}" > "$log" 2>&1; then
  tail -n 40 "$log" >&2
  die "configuring the build failed; the end of $log is above"
fi
build_quietly "$build" "$log" --target train_resnet

# mpi_environment (lib.sh) prepares mpirun for few slots, root, no ssh, and containers. On a machine with a configured
# Open MPI, a user can instead run `mpirun -np N build/bin/train_resnet`.
mpi_environment
# Every start without options is the same run, so it overwrites the last results. With options, a run overwrites results
# only if --overwrite is one of them.
if [ ${#options[@]} = 0 ]; then
  options=(--out out/first-run --overwrite)
fi
# The CPU is the default, because two ranks can run on every machine, but a machine may have fewer than two GPUs.
case " ${options[*]}" in
  *" --devices"* | *" --config"*) ;;
  *) options=(--devices cpu "${options[@]}") ;;
esac
exec mpirun -np "$ranks" "$build/bin/train_resnet" "${options[@]}"
