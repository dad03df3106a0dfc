# What is there on the machine: the programs that were brought along, NVIDIA's libraries, GPUs. Sourced by gpu-check.sh.

# unpack: the folder of the programs, and Open MPI's environment. Without programs: a failed row, and status 1.
unpack() {
  commit=$(git -C "$repository" describe --always --dirty 2> /dev/null || echo unknown)
  bundle_commit=$(cat "$bundle/commit" 2> /dev/null || echo none)
  host="$(uname -srm), $(nproc) processors, $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo 2> /dev/null | sort -u | head -n 1)"
  mkdir -p "$work/programs" "$work/log"
  own_path=$PATH own_libraries=${LD_LIBRARY_PATH:-}
  # Some ways to copy a tree lose who may execute what.
  chmod +x "$bundle"/deps/bin/* "$bundle"/programs/* 2> /dev/null || true
  if [ -f "$bundle/deps/environment" ]; then source "$bundle/deps/environment"; fi
  mpi_environment
  if [ -d "$bundle/programs" ]; then
    programs=$bundle/programs
  elif [ -f "$bundle/programs.tar.xz" ]; then
    programs=$work/programs
    if ! tar -xJf "$bundle/programs.tar.xz" -C "$programs" > "$work/log/unpack.log" 2>&1; then  # xz lies in deps
      row "unpack" failed 0 1 0 "$SECONDS" "programs.tar.xz: $(tail -n 1 "$work/log/unpack.log")"
      return 1
    fi
    chmod +x "$programs"/*
  else
    row "unpack" failed 0 1 0 0 "no programs in $bundle; make it with scripts/gpu-check.sh --prepare where the CUDA toolkit is"
    return 1
  fi
}

# same_sources: a row that tells whether the programs are from this tree. Others do not make a check fail: a row "skipped".
same_sources() {
  local others count
  if [ ! -f "$bundle/sources" ]; then return; fi
  others=$(cd "$repository" && sha256sum --check --quiet "$bundle/sources" 2> /dev/null | sed -n 's/: FAILED.*//p' || true)
  if [ -z "$others" ]; then
    row "sources" passed 1 0 0 0 "the programs are built from this tree"
  else
    count=$(printf '%s\n' "$others" | wc -l)
    others=$(head -n 3 <<< "$others" | paste -sd ' ')
    row "sources" skipped 0 0 1 0 "the programs are NOT built from this tree: $count files differ, $others"
  fi
}

# find_libraries: NVIDIA's libraries by name, into nvidia_libraries (a search path) and $work/libraries (what lies where).
# Python's packages come first: then PyTorch and we use the same ones, and a comparison means something.
find_libraries() {
  local sites='' folders=() name folder site found
  nvidia_libraries=
  if command -v python3 > /dev/null; then
    sites=$(python3 -c "import sys; print('\n'.join(p for p in sys.path if p.endswith(('site-packages', 'dist-packages'))))" \
      2> /dev/null || true)
  fi
  while IFS= read -r site; do
    [ -d "$site/nvidia" ] || continue
    for folder in "$site"/nvidia/*/lib; do
      [ -d "$folder" ] && folders+=("$folder")
    done
  done <<< "$sites"
  if command -v nvcc > /dev/null; then
    folder=$(dirname "$(dirname "$(readlink -f "$(command -v nvcc)")")")
    folders+=("$folder/lib64" "$folder/lib" "$folder/targets/x86_64-linux/lib")
  fi
  for folder in "${CUDA_HOME:-}" /usr/local/cuda /usr/local/cuda-13*; do
    if [ -n "$folder" ]; then folders+=("$folder/lib64" "$folder/lib" "$folder/targets/x86_64-linux/lib"); fi
  done
  for name in libcublasLt.so.13 libcudnn.so.9 libnccl.so.2 libnvrtc.so.13 libnvjpeg.so.13; do
    found=
    for folder in "${folders[@]}"; do
      if [ -e "$folder/$name" ]; then
        found=$folder
        break
      fi
    done
    if [ -n "$found" ]; then
      if [[ :$nvidia_libraries: != *:$found:* ]]; then nvidia_libraries=${nvidia_libraries:+$nvidia_libraries:}$found; fi
      printf '%s in %s\n' "$name" "$found"
    elif { ldconfig -p 2> /dev/null || true; } | grep -F "$name" > /dev/null; then
      printf '%s of the system\n' "$name"
    else
      printf '%s nowhere\n' "$name"
    fi
  done > "$work/libraries"
  if [ -n "$nvidia_libraries" ]; then
    export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$nvidia_libraries
  fi
}

# programs_start: a row for what each program would not find. Without NVIDIA's libraries that is for the machine's owner.
# libcublasLt and libcudnn are loaded when they are needed, which ldd does not see: without them there would be other numbers,
# and nothing else would say so.
programs_start() {
  local program missing all='' count=0 loaded=''
  if [ "$gpus" != 0 ]; then
    loaded=$(sed -n 's/^\(lib\(cublasLt\|cudnn\)\.so[^ ]*\) nowhere$/\1/p' "$work/libraries" | paste -sd ' ')
  fi
  for program in "$programs"/*; do
    [ -x "$program" ] || continue
    count=$((count + 1))
    missing=$(ldd "$program" 2> /dev/null | awk '/=> not found|version .* not found/ {print $1}' | sort -u | paste -sd " " || true)
    if [ -n "$missing" ]; then all+="$(basename "$program"): $missing; "; fi
  done
  if [ "$count" = 0 ]; then
    row "libraries" failed 0 1 0 0 "no program in $bundle"
  elif [ -n "$loaded" ]; then
    row "libraries" failed 0 1 0 0 "not found: $loaded; $all$(paste -sd ';' "$work/libraries")"
  elif [ -n "$all" ]; then
    row "libraries" failed $((count - 1)) 1 0 0 "not found: $all$(paste -sd ';' "$work/libraries")"
  else
    row "libraries" passed "$count" 0 0 0 "$(paste -sd ';' "$work/libraries")"
  fi
}

# find_gpus: `gpus` that CUDA can use, counted by our own program; `gpu` in words. Sets `reason` when there are none.
find_gpus() {
  local said
  gpus=0 gpu="none found"
  if said=$("$programs/lockstep-devices" --json --no-measure 2> "$work/log/lockstep-devices.log" < /dev/null); then
    gpus=$(printf '%s\n' "$said" | grep -c '"uuid"' || true)
    add_json machine "$said"
  fi
  if command -v nvidia-smi > /dev/null; then
    gpu=$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2> /dev/null | paste -sd ';' || true)
  fi
  if [ -z "$gpu" ]; then gpu="none found by nvidia-smi"; fi
  if [ "$gpus" = 0 ]; then
    no_gpu="no GPU that CUDA can use ($(tail -n 1 "$work/log/lockstep-devices.log" | grep . || echo "lockstep-devices lists none"))"
  else
    no_gpu=
  fi
}

# on_ranks N COMMAND...: prints the command that runs it as N ranks. Fewer GPUs than ranks: several ranks on one GPU, by
# the recipe that LOCKSTEP_ALLOW_SHARED_GPU=1 switches on in NcclCommunicator. Its times mean nothing.
on_ranks() {
  ranks=(mpirun -np "$1" --oversubscribe --bind-to none)
  if [ "$1" -gt "$gpus" ]; then ranks+=(-x LOCKSTEP_ALLOW_SHARED_GPU=1); fi
  shift
  ranks+=("$@")
}
