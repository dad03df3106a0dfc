#!/usr/bin/env bash
# Installs the packages that lockstep needs. Does nothing, and needs no rights, when all are installed. The names are those
# of Debian 12 and 13 and of Ubuntu 24.04, where most are in the component universe.
#   scripts/install-deps.sh run     packages for scripts/train.sh (default)
#   scripts/install-deps.sh test    also packages for the tests and benchmarks
#   scripts/install-deps.sh ci      also packages for .ci/run: clang 14, clang-tidy, clang-format, lld, gfortran, ccache, gloo,
#                                   MPICH (mpirun and mpicxx stay Open MPI's), libabigail, pkg-config, SLURM (its services
#                                   are not started; tests/launch/slurm.sh makes its own cluster). Debian 13 has no clang
#                                   14: this set is for Debian 12 and Ubuntu 24.04
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

packages=(g++ cmake ninja-build libopenmpi-dev openmpi-bin libdnnl-dev zlib1g-dev nlohmann-json3-dev libcli11-dev
  libtomlplusplus-dev libjpeg-dev libpng-dev libdeflate-dev)
# The tests in tests/launch simulate two hosts with iproute2 and procps. bundle-deps.sh copies xz into the bundle.
test_packages=(libgtest-dev libbenchmark-dev iproute2 procps xz-utils)
slurm=(slurmctld slurmd slurm-client munge)
case "${1:-run}" in
  run) ;;
  test) packages+=("${test_packages[@]}") ;;
  ci) packages+=("${test_packages[@]}" "${slurm[@]}" clang-14 libomp-14-dev clang-tidy-14 clang-format-14 lld gfortran ccache
    libgloo-dev git libmpich-dev mpich abigail-tools pkg-config python3-venv) ;;
  *) die "install-deps.sh: unknown set '$1', expected run, test or ci" ;;
esac

if ! command -v dpkg-query > /dev/null || ! command -v apt-get > /dev/null; then
  say "no apt on this system: make sure that the equivalents of these packages of Debian and Ubuntu are installed:" \
    "${packages[*]}"
  exit 0
fi

missing=()
for package in "${packages[@]}"; do
  if [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2> /dev/null)" != installed ]; then
    missing+=("$package")
  fi
done
if [ ${#missing[@]} = 0 ]; then
  exit 0
fi

as_root=()
if [ "$(id -u)" != 0 ]; then
  if ! command -v sudo > /dev/null; then
    die "these packages are missing, and this user is not root and has no sudo: ${missing[*]}." \
      "As root: apt-get install --no-install-recommends ${missing[*]}"
  fi
  as_root=(sudo)
fi

# Tries several times, because the package mirror may be updated at the moment, or another apt may hold the lock.
apt() {
  local try
  for try in 1 2 3 4; do
    if "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=120 "$@" < /dev/null; then
      return 0
    fi
    if [ "$try" -lt 4 ]; then
      say "apt-get $1 failed (try $try of 4); again in $((try * 10)) s"
      sleep $((try * 10))
    fi
  done
  return 1
}

# Debian's packages start their daemons unless this file forbids it.
policy=/usr/sbin/policy-rc.d
if [[ " ${missing[*]}" =~ \ (slurm|munge) ]] && [ ! -e "$policy" ]; then
  trap '"${as_root[@]}" rm -f "$policy"' EXIT
  printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" tee "$policy" > /dev/null
  "${as_root[@]}" chmod 755 "$policy"
fi

say "installing ${missing[*]}"
apt update || say "apt-get update failed; going on with the package lists that are there"
apt install -y --no-install-recommends "${missing[@]}" ||
  die "apt-get could not install: ${missing[*]}. Its own message is above." \
    "The names are those of Debian 12 and 13 and of Ubuntu 24.04 (there: add-apt-repository universe)."
