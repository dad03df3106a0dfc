#!/usr/bin/env bash
# Makes .bundle/deps: Open MPI of Debian 12 with the libraries that it needs, for a machine with a GPU but no network and
# no Open MPI. That machine needs x86-64, glibc 2.36 and libstdc++ of GCC 12, or newer ones; libgomp may be missing. On
# that machine, the folder may have any path: a shell only has to source the file `environment` in the folder.
#   scripts/bundle-deps.sh [--into FOLDER] [PROGRAM...]     default folder: .bundle/deps (ignored by git)
# Also takes the libraries of each PROGRAM, except those of NVIDIA, the driver, glibc and libstdc++. Calls apt-get only
# if openmpi-bin is not installed. Prints the folder's files with their sizes. The folder may have at most 24 MiB.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

folder=$repository/.bundle/deps
if [ "${1:-}" = --into ]; then
  [ $# -ge 2 ] || die "bundle-deps.sh: --into needs a folder"
  folder=$2
  shift 2
fi
case "${1:-}" in
  --help | -h)
    sed -n '2,7s/^# \{0,1\}//p' "$0"
    exit 0
    ;;
  -*) die "bundle-deps.sh: unknown option '$1', expected --into FOLDER or programs" ;;
esac
limit=$((24 * 1024 * 1024))
for program in "$@"; do
  [ -x "$program" ] || die "bundle-deps.sh: $program is no program"
done
[ "$(uname -m)" = x86_64 ] || die "bundle-deps.sh: this machine is $(uname -m), the bundle is for x86_64"
if ! command -v orterun > /dev/null || ! command -v ompi_info > /dev/null; then
  "$repository/scripts/install-deps.sh" run
fi

# path NAME: prints the folder that Open MPI's configuration calls NAME. All folders are below the folder `prefix`,
# except the folder of the settings.
path() { ompi_info --path "$1" --parsable | sed -n "s/^path:$1://p" | sort -u; }
prefix=$(path prefix)
plugins=$(path pkglibdir)
help=$(path pkgdatadir)
case "$plugins" in "$prefix"/*) ;; *) die "bundle-deps.sh: Open MPI's plugins are in $plugins, not below $prefix" ;; esac
[ -d "$plugins" ] && [ -d "$help" ] || die "bundle-deps.sh: $plugins or $help is missing: is openmpi-common installed?"

rm -rf "$folder"
mkdir -p "$folder/bin" "$folder/lib" "$folder/etc/openmpi"
folder=$(cd "$folder" && pwd -P)
inside=$folder/${plugins#"$prefix"/}
mkdir -p "$inside" "$folder/${help#"$prefix"/}"

# These libraries are not copied. The target machine must use its own glibc, which fits its loader. An older libstdc++
# from the bundle would break cmake and Python of the target machine. NVIDIA's libraries come from the target machine's
# toolkit or Python, because libcublasLt alone is larger than the bundle may be.
elsewhere='^(linux-vdso|ld-linux-x86-64|lib(c|m|dl|rt|pthread|util|resolv|anl|stdc\+\+|gcc_s)|lib(cuda|cudart|cublas|cublasLt|cudnn.*|nccl|nvjpeg|nvrtc.*|nvidia.*))\.so'
# take_libraries FILE...: copies the libraries that the files need, except those that were copied before. Each copy has
# the name by which the files load the library.
take_libraries() {
  local name file
  while read -r name file; do
    if [[ $name =~ $elsewhere ]] || [ -e "$folder/lib/$name" ]; then continue; fi
    [ -n "$file" ] || die "bundle-deps.sh: $name was not found on this machine"
    cp -L "$file" "$folder/lib/$name"
  done < <(LD_LIBRARY_PATH='' ldd "$@" 2> /dev/null | awk '/=> not found/ {print $1; next} /=>/ {print $1, $3}' | sort -u)
}

# scripts/gpu-check.sh --prepare packs the programs with xz, and the target machine may lack xz, so xz is in the bundle.
for name in orterun orted xz; do
  file=$(command -v "$name") || die "bundle-deps.sh: no $name on this machine; Debian: apt-get install openmpi-bin xz-utils"
  cp -L "$file" "$folder/bin/$name"
done
take_libraries "$folder"/bin/*
# mpirun is a copy of orterun instead of a symbolic link, because some ways to copy a tree lose symbolic links.
cp "$folder/bin/orterun" "$folder/bin/mpirun"
libmpi=$(ldconfig -p | awk '$1 == "libmpi.so.40" && !found {print $NF; found = 1}')
[ -n "$libmpi" ] || die "bundle-deps.sh: no libmpi.so.40 (Open MPI 4) on this machine"
cp -L "$libmpi" "$folder/lib/libmpi.so.40"
take_libraries "$libmpi"

# A single machine needs no fabric: the plugins for InfiniBand, libfabric, UCX and PSM would add 20 MB of libraries.
# OpenSHMEM is not used, either.
fabric='lib(fabric|ibverbs|rdmacm|ucp|uct|psm2|psm_infinipath|oshmem|nl-3)\.so'
taken=0
for plugin in "$plugins"/mca_*.so; do
  needs=$(ldd "$plugin")
  if [[ $needs =~ $fabric ]]; then continue; fi
  cp -L "$plugin" "$inside/"
  take_libraries "$plugin"
  taken=$((taken + 1))
done
cp -L "$help"/*.txt "$folder/${help#"$prefix"/}/"
# PMIx, which starts the ranks, has its own plugins and texts.
pmix=$(ldd "$plugins"/mca_pmix_ext3x.so 2> /dev/null | awk '/libpmix\.so/ {print $3}')
if [ -n "$pmix" ]; then
  pmix=$(dirname "$(dirname "$(readlink -f "$pmix")")")
  mkdir -p "$folder/lib/pmix" "$folder/share/pmix"
  cp -L "$pmix"/lib/pmix/*.so "$folder/lib/pmix/"
  cp -L "$pmix"/share/pmix/*.txt "$folder/share/pmix/"
fi
if [ $# -gt 0 ]; then take_libraries "$@"; fi
strip --strip-unneeded "$folder"/lib/*.so* "$inside"/*.so "$folder"/bin/* 2> /dev/null || true

cat > "$folder/environment" << 'END'
# Source this file. It sets the variables by which Open MPI finds its plugins and texts in this folder. Variables that
# are set already keep their values.
lockstep_deps=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
export OPAL_PREFIX=$lockstep_deps OPAL_SYSCONFDIR=$lockstep_deps/etc/openmpi
export PMIX_PKGLIBDIR=$lockstep_deps/lib/pmix PMIX_PKGDATADIR=$lockstep_deps/share/pmix PMIX_SYSCONFDIR=$lockstep_deps/etc
export PATH=$lockstep_deps/bin:$PATH LD_LIBRARY_PATH=$lockstep_deps/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
# All ranks run on this machine, so Open MPI needs neither ssh nor a scheduler to start them. The bundle has no plugins
# of hwloc, so the path of plugins is a folder that does not exist.
export OMPI_MCA_plm=${OMPI_MCA_plm:-isolated} HWLOC_PLUGINS_PATH=$lockstep_deps/none
unset lockstep_deps
END
settings=$(path sysconfdir)/openmpi-mca-params.conf
if [ -f "$settings" ]; then cp -L "$settings" "$folder/etc/openmpi/"; fi

bytes=$(du -sb "$folder" | cut -f 1)
{
  (cd "$folder" && du -b bin/* lib/*.so* | sort -rn)
  printf '%s\t%s plugins of Open MPI\n' "$(du -sb "$inside" | cut -f 1)" "$taken"
  printf '%s\tin all\n' "$bytes"
} | awk '{printf "%10.1f KiB  ", $1 / 1024; $1 = ""; print substr($0, 2)}' >&2
[ "$bytes" -le "$limit" ] || die "bundle-deps.sh: $folder has $bytes bytes, at most $limit are allowed"
say "$(mpirun --version 2> /dev/null | head -n 1) is in $folder; source $folder/environment"
