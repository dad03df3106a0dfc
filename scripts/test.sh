#!/usr/bin/env bash
# Sets up, builds everything and runs all tests. Safe to run again. The last line is "N passed, N failed, N skipped",
# counted in single tests (scripts/count-tests.awk); the exit status is not 0 when something failed.
#   scripts/test.sh [--preset NAME] [--targets "NAME ..."] [-DOPTION=VALUE of cmake ...] [arguments of ctest]
# --targets builds only these targets; the arguments of ctest then have to select tests of these targets.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

preset=release
if [ "${1:-}" = --preset ]; then
  [ $# -ge 2 ] || die "test.sh: --preset needs a name of CMakePresets.json"
  preset=$2
  shift 2
fi

targets=()
if [ "${1:-}" = --targets ]; then
  [ $# -ge 2 ] || die "test.sh: --targets needs names, one argument of them"
  for name in $2; do targets+=(--target "$name"); done
  shift 2
fi

"$repository/scripts/install-deps.sh" test
build=$(build_folder "$preset")
options=()
if [ "$preset" = release ]; then
  options=(-DLOCKSTEP_TESTS=ON)  # scripts/train.sh may have configured without tests
fi
while [[ ${1:-} == -D* ]]; do
  options+=("$1")
  shift
done
configure "$preset" "${options[@]}"
# The build continues after an error (-k 0). CI prints the whole output; a user sees only the progress.
if [ "${CI:-}" = true ]; then
  cmake --build "$build" --parallel "$(build_jobs)" "${targets[@]}" -- -k 0
else
  say "building in $build (log: $build/test.sh.log)"
  : > "$build/test.sh.log"
  build_quietly "$build" "$build/test.sh.log" "${targets[@]}" -- -k 0
fi

mpi_environment
keep_mpi_sessions
report=$build/tests.xml
rm -f "$report"
status=0
# Runs two more tests at a time than there are processors, because tests that start ranks mostly wait for mpirun.
ctest --test-dir "$build" --parallel "$(($(nproc) + 2))" --output-on-failure --no-tests=error --output-junit "$report" \
  --test-output-size-passed 100000000 --test-output-size-failed 100000000 "$@" < /dev/null || status=$?
[ -f "$report" ] || die "ctest left no report $report"
awk -f "$repository/scripts/count-tests.awk" "$report"
exit "$status"
