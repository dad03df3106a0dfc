# Functions of the scripts in this folder. This file is sourced, never run.
set -euo pipefail
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)

say() { printf 'lockstep: %s\n' "$*" >&2; }
die() {
  printf 'lockstep: error: %s\n' "$*" >&2
  exit 2
}

# build_jobs: prints the number of compile jobs: one per core, but at most one per 1.5 GB of free memory.
build_jobs() {
  local cores memory
  cores=$(nproc)
  memory=$(awk '/MemAvailable/ {print int($2 / 1500000)}' /proc/meminfo 2> /dev/null || true)
  if [ -z "$memory" ]; then memory=$cores; fi
  if [ "$memory" -lt 1 ]; then memory=1; fi
  if [ "$memory" -lt "$cores" ]; then echo "$memory"; else echo "$cores"; fi
}

# With these settings, all build folders of this tree share the objects in ccache: ccache takes paths below the tree
# relative to the build folder, and leaves the build folder out of the hash.
export CCACHE_BASEDIR="${CCACHE_BASEDIR:-$repository}"
export CCACHE_NOHASHDIR="${CCACHE_NOHASHDIR:-1}"
export CCACHE_SLOPPINESS="${CCACHE_SLOPPINESS:-pch_defines,time_macros}"  # ccache accepts precompiled headers
export CCACHE_PCH_EXTSUM="${CCACHE_PCH_EXTSUM:-1}"  # ccache compares their text (lockstep_precompile)

# mpi_environment: sets the variables that mpirun needs on a small machine, as root and in a container.
# tests/CMakeLists.txt sets the same variables for ctest. Open MPI 5 has other names (PRTE_MCA_*) for some settings;
# each version ignores the names of the other version. Variables that the caller has set keep their values.
mpi_environment() {
  # All ranks run on this machine, so mpirun needs no ssh to start them. Without this setting, mpirun looks for ssh and
  # ends with "rsh agent not found" if there is none.
  export OMPI_MCA_plm="${OMPI_MCA_plm:-isolated}"
  # Allows more ranks than cores. Without this setting mpirun ends with "There are not enough slots available".
  export OMPI_MCA_rmaps_base_oversubscribe="${OMPI_MCA_rmaps_base_oversubscribe:-1}"
  export PRTE_MCA_rmaps_default_mapping_policy="${PRTE_MCA_rmaps_default_mapping_policy:-:oversubscribe}"
  # Ranks share the cores: a waiting rank yields its core, and no rank is pinned (the default pins a rank with all its threads
  # to a single core).
  export OMPI_MCA_mpi_yield_when_idle="${OMPI_MCA_mpi_yield_when_idle:-1}"
  export OMPI_MCA_hwloc_base_binding_policy="${OMPI_MCA_hwloc_base_binding_policy:-none}"
  export PRTE_MCA_hwloc_default_binding_policy="${PRTE_MCA_hwloc_default_binding_policy:-none}"
  export OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-passive}"
  # Makes ranks copy messages through shared memory, without the kernel's help (CMA). CMA needs the right to ptrace
  # other processes, which containers usually forbid: Open MPI would report "Read -1, expected N, errno = 1".
  export OMPI_MCA_btl_vader_single_copy_mechanism="${OMPI_MCA_btl_vader_single_copy_mechanism:-none}"
  export OMPI_MCA_smsc="${OMPI_MCA_smsc:-^cma}"
  # Open MPI refuses root without these two variables; a container often has no other user.
  if [ "$(id -u)" = 0 ]; then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  fi
}

# keep_mpi_sessions: adds a folder to the session folder that all Open MPI 4 programs share, so that the session folder
# is never empty. Otherwise a program that ends would delete the empty session folder, and MPI_Init of a program that is
# just starting would fail ("ORTE_ERROR_LOG: Error in file session_dir.c").
keep_mpi_sessions() {
  local host=${HOSTNAME:-$(uname -n)}
  mkdir -p "${OMPI_MCA_orte_tmpdir_base:-${TMPDIR:-${TEMP:-${TMP:-/tmp}}}}/ompi.${host%%.*}.$(id -u)/kept"
}

# configure PRESET [cmake options]: runs cmake with a preset.
configure() {
  local preset=$1
  shift
  (cd "$repository" && cmake --preset "$preset" "$@")
}

# show_progress LOG: appends the output of `cmake --build` (standard input) to LOG. Prints to standard error how much of
# the build is done, and an estimate of the remaining time: in one line on a terminal, otherwise a line every 5 percent.
show_progress() {
  local log=$1 line built total seconds percent shown=-5 text='' terminal=0
  if [ -t 2 ] && [ "${TERM:-dumb}" != dumb ]; then terminal=1; fi
  while IFS= read -r line; do
    printf '%s\n' "$line" >&3
    if [[ $line =~ ^\[([0-9]+)/([0-9]+)\ ([0-9]+) ]]; then
      built=${BASH_REMATCH[1]} total=${BASH_REMATCH[2]} seconds=${BASH_REMATCH[3]}
      percent=$((100 * built / total))
      text="$built of $total files built, $percent %, $(minutes "$seconds")"
      if [ "$built" -lt "$total" ] && [ "$percent" -ge 5 ]; then
        text+=", about $(minutes $((seconds * (total - built) / built))) left"
      fi
      if [ "$terminal" = 1 ]; then
        printf '\rlockstep: %s\033[K' "$text" >&2
      elif [ "$percent" -ge $((shown + 5)) ]; then
        say "$text"
        shown=$((percent - percent % 5))
      fi
    fi
  done 3>> "$log"
  if [ "$terminal" = 1 ] && [ -n "$text" ]; then printf '\n' >&2; fi
}
minutes() { printf '%d:%02d min' $(($1 / 60)) $(($1 % 60)); }

# build_quietly FOLDER LOG [arguments of cmake --build]: builds with show_progress; on failure prints the end of LOG.
build_quietly() {
  local folder=$1 log=$2
  shift 2
  if ! NINJA_STATUS='[%f/%t %e] ' cmake --build "$folder" --parallel "$(build_jobs)" "$@" 2>&1 < /dev/null | show_progress "$log"; then
    { grep -E '(error:|^FAILED)' "$log" | sed -n 1,20p; tail -n 40 "$log"; } >&2
    die "the build failed; the end of $log is above"
  fi
}

# python_packages NAME PACKAGE...: installs Python packages, for the libraries or programs in them, into the virtual
# environment build/NAME. Prints a message and fails if the packages cannot be installed.
python_packages() {
  local venv=$repository/build/$1
  shift
  { [ -d "$venv" ] || python3 -m venv "$venv"; } && "$venv/bin/pip" -q install "$@" && return
  say "$* could not be installed"
  return 1
}

# nvjpeg_header: sets NVJPEG_ROOT, which CMake reads, to nvJPEG's Python package if there is a toolkit without nvJPEG.
nvjpeg_header() {
  local nvcc find_header header
  nvcc=$(command -v nvcc) || return 0
  if [ -n "${NVJPEG_ROOT:-}" ] || [ -e "$(dirname "$(readlink -f "$nvcc")")/../include/nvjpeg.h" ]; then return 0; fi
  find_header=(find "$repository/build/nvjpeg" -name nvjpeg.h -print -quit)
  header=$("${find_header[@]}" 2> /dev/null || true)
  if [ -z "$header" ]; then
    python_packages nvjpeg nvidia-nvjpeg || true
    header=$("${find_header[@]}" 2> /dev/null || true)
  fi
  if [ -z "$header" ]; then
    say "nvJPEG's decoder is not compiled"
  else
    NVJPEG_ROOT=$(dirname "$(dirname "$header")")
    export NVJPEG_ROOT
  fi
}

# onednn3: installs oneDNN 3.2 for the preset ci-onednn3, in addition to Debian 12's 2.6.
onednn3() {
  [ -e "$repository/build/onednn3/lib/libdnnl.so" ] ||
    python_packages onednn3 onednn-cpu-gomp==2023.2.0 onednn-devel-cpu-gomp==2023.2.0
}

# build_folder PRESET: prints the build folder of a preset, as in CMakePresets.json.
build_folder() {
  if [ "$1" = release ]; then echo "$repository/build"; else echo "$repository/build/$1"; fi
}

# debian_base FOLDER SUITE: makes FOLDER/SUITE by debootstrap: a small Debian 12 (bookworm) or 13 (trixie) with git and
# sudo. Sets `mirror` to the package mirror of this system, from which the packages come. A system that exists already
# is used as it is.
debian_base() {
  local own
  own=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
  mirror=$(apt-get indextargets --format '$(REPO_URI) $(CODENAME)' | awk -v own="$own" '$2 == own && !found {print $1; found = 1}')
  [ -n "$mirror" ] || die "no source of '$own' in this system's apt sources"
  if [ -f "$1/$2.done" ]; then return; fi
  command -v debootstrap > /dev/null || die "apt-get install debootstrap"
  say "making a base system of Debian $2 in $1"
  rm -rf --one-file-system "${1:?}/$2"
  debootstrap --variant=minbase --include=ca-certificates,git,sudo "$2" "$1/$2" "$mirror" > "$1/debootstrap-$2.log" 2>&1 ||
    die "debootstrap failed: $1/debootstrap-$2.log"
  touch "$1/$2.done"
}
