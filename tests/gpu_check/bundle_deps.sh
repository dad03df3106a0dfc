#!/usr/bin/env bash
# bundle_deps.sh SOURCE HELLO_RANKS: checks the folder that scripts/bundle-deps.sh makes. The folder must need only
# glibc and libstdc++ of this system, and its mpirun must start ranks wherever the folder is.
source "$(dirname "${BASH_SOURCE[0]}")/../launch/hosts.sh"
source=$1 hello=$2
[ "$(uname -m)" = x86_64 ] || skip "the bundle is for x86_64"
need orterun openmpi-bin ompi_info libopenmpi-dev
[[ $(orterun --version 2>&1) =~ (Open\ MPI|OpenRTE)\)\ 4\. ]] || skip "needs Open MPI 4"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

run 0 "makes the folder" "$source/scripts/bundle-deps.sh" --into "$work/made" "$hello"
lines 1 ' KiB  lib/libmpi\.so\.40$'
lines 1 ' plugins of Open MPI$'
mv "$work/made" "$work/moved"
deps=$work/moved
files=("$deps"/bin/* "$deps"/lib/*.so* "$deps"/lib/pmix/*.so)
while read -r plugin; do files+=("$plugin"); done < <(find "$deps" -name 'mca_*.so')
LD_LIBRARY_PATH=$deps/lib ldd "${files[@]}" "$hello" 2> /dev/null | awk '/=>/ {print $1, $3}' | sort -u > "$work/needs"
lines 1 '^libmpi\.so\.40 .*/moved/lib/libmpi\.so\.40$' "$work/needs"
grep -vE "^(lib(c|m|dl|rt|pthread|util|resolv|stdc\+\+|gcc_s)|ld-linux-x86-64|linux-vdso|lib(cuda|cudart|cublas|cublasLt|cudnn|nccl))\.so|/moved/lib/" "$work/needs" \
  > "$work/others"
if [ -s "$work/others" ]; then
  failed "what the folder needs of this system: $(tr '\n' ';' < "$work/others")"
else
  passed "needs nothing of this system but glibc and libstdc++"
fi

ranks='. "$1/environment"; export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  export OMPI_MCA_btl_vader_single_copy_mechanism=none
  command -v mpirun; exec mpirun -np 2 --oversubscribe --bind-to none "$2" --devices cpu'
run 0 "starts two ranks from another folder" env -i PATH=/usr/bin:/bin bash -c "$ranks" ranks "$deps" "$hello"
lines 1 "^$deps/bin/mpirun\$"
lines 1 '^2 ranks on 1 node, Open MPI 4'
lines 1 '^all-reduced sum of the ranks: 1, as expected$'
run 9 "mpirun's own messages are there" env -i PATH=/usr/bin:/bin bash -c '. "$1/environment"
  OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun -np 1 "$1/no-such-program" || exit 9' message "$deps"
lines 1 'unable to launch the specified application'
lines 0 'open the help file'

run 2 "a program that is none" "$source/scripts/bundle-deps.sh" --into "$work/again" "$work/nothing"
run 2 "an unknown option" "$source/scripts/bundle-deps.sh" --from x
finish
