# Finds the bundle's programs, NVIDIA's libraries and the GPUs of the machine. Sourced by gpu-check.sh.

# unpack: sets `programs`, the folder of the programs, and Open MPI's environment. If there are no programs, adds a
# failed row to the report and returns status 1.
unpack() {
  commit=$(git -C "$repository" describe --always --dirty 2> /dev/null || echo unknown)
  bundle_commit=$(cat "$bundle/commit" 2> /dev/null || echo none)
  host="$(uname -srm), $(nproc) processors, $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo 2> /dev/null | sort -u | head -n 1)"
  mkdir -p "$work/programs" "$work/log"
  own_path=$PATH own_libraries=${LD_LIBRARY_PATH:-}
  # Some ways to copy a tree lose the permission to execute, so it is set again.
  chmod +x "$bundle"/deps/bin/* "$bundle"/programs/* 2> /dev/null || true
  if [ -f "$bundle/deps/environment" ]; then source "$bundle/deps/environment"; fi
  mpi_environment
  if [ -d "$bundle/programs" ]; then
    programs=$bundle/programs
  elif [ -f "$bundle/programs.tar.xz" ]; then
    programs=$work/programs
    if ! tar -xJf "$bundle/programs.tar.xz" -C "$programs" > "$work/log/unpack.log" 2>&1; then  # deps/ has xz
      row "unpack" failed 0 1 0 "$SECONDS" "programs.tar.xz: $(tail -n 1 "$work/log/unpack.log")"
      return 1
    fi
    chmod +x "$programs"/*
  else
    row "unpack" failed 0 1 0 0 "no programs in $bundle; make it with scripts/gpu-check.sh --prepare where the CUDA toolkit is"
    return 1
  fi
}

# same_sources: adds a row that says whether the programs are built from this tree. Programs of other sources are no failure:
# the row is "skipped".
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

# find_libraries: finds NVIDIA's libraries; sets nvidia_libraries (a search path) and writes their paths to
# $work/libraries. Python's packages come first, so that lockstep and PyTorch use the same libraries and can be
# compared.
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

# programs_start: adds a row with the libraries that the programs would not find; the machine's owner has to install
# missing libraries of NVIDIA. ldd does not show libcublasLt and libcudnn, because programs load them only when needed.
# Without them the numbers would differ silently, so the row also names them if they are missing.
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

# smi ARGUMENT...: runs nvidia-smi for at most 30 s, as it may hang on a broken GPU; status 127 without nvidia-smi.
smi() { timeout 30 nvidia-smi "$@" 2> /dev/null < /dev/null; }

# find_gpus: sets `gpus` to the number of GPUs that CUDA can use, as counted by lockstep-devices. If lockstep-devices
# counts none but nvidia-smi does, sets `gpus` to nvidia-smi's number and adds a failed row to the report. Sets `gpu` to
# a description of the GPUs. If neither counts any, sets `no_gpu` to the reason.
find_gpus() {
  local said='' log=$work/log/lockstep-devices.log ours listed
  gpus=0 gpu="none found" no_gpu=
  if said=$(timeout 60 "$programs/lockstep-devices" --json --no-measure 2> "$log" < /dev/null); then
    gpus=$(grep -c '"uuid"' <<< "$said" || true)
    printf '%s\n' "$said" > "$work/machine.json"
    add_data machine "$work/machine.json"
  fi
  ours=$(tail -n 1 "$log" | grep . || echo "lockstep-devices lists none")
  listed=$(smi -L | grep -c '^GPU ' || true)
  gpu=$(smi --query-gpu=name,driver_version,memory.total --format=csv,noheader | paste -sd ';' || true)
  if [ -z "$gpu" ]; then gpu="none found by nvidia-smi"; fi
  if [ "$gpus" = 0 ] && [ "$listed" != 0 ]; then
    gpus=$listed
    row "lockstep-devices" failed 0 1 0 0 "counts no GPU ($ours), nvidia-smi counts $listed"
  elif [ "$gpus" = 0 ]; then
    no_gpu="no GPU that CUDA can use ($ours)"
  fi
}

# gpu_state: adds a row that says whether no other process uses the GPUs; the row is "skipped" without nvidia-smi.
gpu_state() {
  local index total used mode mig wrong='' holders
  if ! command -v nvidia-smi > /dev/null; then
    row "GPU is free" skipped 0 0 1 0 "no nvidia-smi on this machine: neither this is known nor clocks and watts of the figures"
    return
  fi
  while IFS=, read -r index total used mode mig; do
    if [[ $mode != *Default* ]]; then wrong+="GPU $index is in compute mode$mode, expected Default; "; fi
    if [[ $mig == *Enabled* ]]; then wrong+="GPU $index is under MIG; "; fi
    if [ "$((10 * used))" -gt "$((total))" ]; then wrong+="GPU $index has$used of$total MiB in use; "; fi
  done < <(smi --query-gpu=index,memory.total,memory.used,compute_mode,mig.mode.current --format=csv,noheader,nounits |
    grep -E '^[0-9]+, *[0-9]+, *[0-9]+,' || true)
  holders=$(smi --query-compute-apps=pid,process_name,used_memory --format=csv,noheader | paste -sd ';' || true)
  if [ -n "$holders" ]; then wrong+="other processes: $holders; "; fi
  if [ -n "$wrong" ]; then
    row "GPU is free" failed 0 1 0 0 "${wrong%; }; figures and tests may be wrong"
  else
    row "GPU is free" passed 1 0 0 0 "compute mode Default, no MIG, no other process"
  fi
}

# loaded_versions: prints "NAME VERSION" of each library that programs load here, and of the CUDA that the driver supports.
loaded_versions() {
  python3 - << 'END_PYTHON' 2> /dev/null || true
import ctypes
def dotted(value, step):
    return f"{value // step ** 2}.{value // step % step}.{value % step}"
def ask(name, library, call):
    try:
        print(name, call(ctypes.CDLL(library)), flush=True)
    except (OSError, AttributeError):
        pass
def by_address(function, numbers=1):
    values = [ctypes.c_int() for _ in range(numbers)]
    getattr(*function)(*map(ctypes.byref, values))
    return [value.value for value in values]
def size_of(function):
    function.restype = ctypes.c_size_t
    return function()
ask("cudnn", "libcudnn.so.9", lambda l: dotted(size_of(l.cudnnGetVersion), 100))
ask("cublaslt", "libcublasLt.so.13", lambda l: dotted(size_of(l.cublasLtGetVersion), 100))
ask("nccl", "libnccl.so.2", lambda l: dotted(by_address((l, "ncclGetVersion"))[0], 100))
ask("nvrtc", "libnvrtc.so.13", lambda l: ".".join(map(str, by_address((l, "nvrtcVersion"), 2))))
ask("driver", "libcuda.so.1", lambda l: "{}.{}".format(*divmod(by_address((l, "cuDriverGetVersion"))[0] // 10, 100)))
END_PYTHON
}

# find_versions: adds rows that compare the versions of this machine's libraries with the versions at the programs'
# build, and the driver's version with the toolkit's version.
find_versions() {
  local name built loaded differ='' driver toolkit
  loaded_versions > "$work/versions"
  driver=$(sed -n 's/^driver //p' "$work/versions")
  if [ -z "$driver" ]; then driver=$(smi | sed -nE 's/.*CUDA Version: *([0-9.]+).*/\1/p' || true); fi
  versions=$(sed '/^driver /d' "$work/versions" | paste -sd ',' | sed 's/,/, /g')
  versions="${versions:-not known without python3}; driver ${driver:+for CUDA }${driver:-none}; nvcc $(
    { nvcc --version 2> /dev/null || echo "release none,"; } | sed -n 's/.*release \([^,]*\),.*/\1/p')"
  if [ ! -f "$bundle/versions" ]; then
    row "library versions" skipped 0 0 1 0 "the bundle does not say what it was built with; here $versions"
    return
  fi
  while read -r name built; do
    loaded=$(sed -n "s/^$name //p" "$work/versions")
    if [ -n "$loaded" ] && [ "$loaded" != "$built" ]; then differ+="$name $loaded, built with $built; "; fi
  done < "$bundle/versions"
  if [ -n "$differ" ]; then
    row "library versions" skipped 0 0 1 0 "other ones: $differ$versions"
  elif [ -s "$work/versions" ]; then
    row "library versions" passed 1 0 0 0 "$versions"
  else
    row "library versions" skipped 0 0 1 0 "not known: no python3 that could ask, or no library"
  fi
  toolkit=$(sed -n 's/^cuda //p' "$bundle/versions")
  if [ -n "$driver" ] && [ -n "$toolkit" ] && [ "${driver%%.*}" -lt "${toolkit%%.*}" ]; then
    row "driver" failed 0 1 0 0 "the driver is for CUDA $driver, the programs are built with $toolkit"
  fi
}

# watch_clocks: lets nvidia-smi log the state of the GPUs every two seconds, for clocks(). This also keeps the driver
# loaded. Otherwise each program would wait seconds until the driver is loaded.
watch_clocks() {
  command -v nvidia-smi > /dev/null || return 0
  timeout "$((budget + 60))" stdbuf -oL nvidia-smi dmon -d 2 -s puc 2>&1 < /dev/null |
    while IFS= read -r line; do printf '%s %s\n' "$SECONDS" "$line"; done > "$work/log/dmon.log" &
  helpers+=($!)
  disown
}

# on_ranks N COMMAND...: sets `ranks` to the command that runs COMMAND as N ranks. With fewer GPUs than ranks several ranks share
# one GPU (LOCKSTEP_ALLOW_SHARED_GPU=1, see NcclCommunicator); the times of such runs mean nothing.
on_ranks() {
  ranks=(mpirun -np "$1" --oversubscribe --bind-to none)
  if [ "$1" -gt "$gpus" ]; then ranks+=(-x LOCKSTEP_ALLOW_SHARED_GPU=1); fi
  shift
  ranks+=("$@")
}
