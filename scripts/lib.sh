# Shared by the scripts in this folder: sourced, never run.
set -euo pipefail
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)

say() { printf 'lockstep: %s\n' "$*" >&2; }
die() {
  printf 'lockstep: error: %s\n' "$*" >&2
  exit 2
}

# Build jobs: one per core, but not more than one per 1.5 GB of memory that is free.
jobs() {
  local cores memory
  cores=$(nproc)
  memory=$(awk '/MemAvailable/ {print int($2 / 1500000)}' /proc/meminfo 2> /dev/null || true)
  if [ -z "$memory" ]; then memory=$cores; fi
  if [ "$memory" -lt 1 ]; then memory=1; fi
  if [ "$memory" -lt "$cores" ]; then echo "$memory"; else echo "$cores"; fi
}

# Build folders of this tree share ccache's objects: paths below the tree count relative to the build folder, and the
# folder is left out of the debug information.
export CCACHE_BASEDIR="${CCACHE_BASEDIR:-$repository}"
export CCACHE_NOHASHDIR="${CCACHE_NOHASHDIR:-1}"

# What mpirun (Open MPI 4) needs on a small machine, as root and in a container; tests/CMakeLists.txt says the same for
# ctest. What the caller has already set stays.
mpi_environment() {
  # No ssh and no scheduler: all ranks are on this machine. Otherwise mpirun ends with "rsh agent not found".
  export OMPI_MCA_plm="${OMPI_MCA_plm:-isolated}"
  # More ranks than cores. Otherwise: "There are not enough slots available".
  export OMPI_MCA_rmaps_base_oversubscribe="${OMPI_MCA_rmaps_base_oversubscribe:-1}"
  # Ranks share what cores there are, so a waiting rank gives its core away, and nobody is pinned to one core (the
  # default pins a rank with all its threads to a single core).
  export OMPI_MCA_mpi_yield_when_idle="${OMPI_MCA_mpi_yield_when_idle:-1}"
  export OMPI_MCA_hwloc_base_binding_policy="${OMPI_MCA_hwloc_base_binding_policy:-none}"
  export OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-passive}"
  # Containers usually forbid ptrace between processes: copies go through shared memory without asking the kernel.
  # Otherwise: "Read -1, expected N, errno = 1".
  export OMPI_MCA_btl_vader_single_copy_mechanism="${OMPI_MCA_btl_vader_single_copy_mechanism:-none}"
  # Open MPI refuses root unless told twice; in a container root is what there is.
  if [ "$(id -u)" = 0 ]; then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  fi
}

# configure PRESET [cmake options]: again only when there is no build system yet or options are given.
configure() {
  local preset=$1
  shift
  (cd "$repository" && cmake --preset "$preset" "$@")
}

# The build folder of a preset, as in CMakePresets.json.
build_folder() {
  if [ "$1" = release ]; then echo "$repository/build"; else echo "$repository/build/$1"; fi
}

# debian_base FOLDER: FOLDER/base, a small Debian 12 with git and sudo, made by debootstrap from the package mirror that this
# system uses, which becomes `mirror`. One that is there already is taken as it is.
debian_base() {
  mirror=$(apt-get indextargets --format '$(REPO_URI) $(CODENAME)' | awk '$2 == "bookworm" && !found {print $1; found = 1}')
  [ -n "$mirror" ] || die "no source of bookworm in this system's apt sources"
  if [ -f "$1/base.done" ]; then return; fi
  command -v debootstrap > /dev/null || die "apt-get install debootstrap"
  say "making a Debian 12 base system in $1"
  debootstrap --variant=minbase --include=ca-certificates,git,sudo bookworm "$1/base" "$mirror" > "$1/debootstrap.log" 2>&1 ||
    die "debootstrap failed: $1/debootstrap.log"
  touch "$1/base.done"
}
