# --prepare: builds and packs the files that a machine with a GPU needs. Sourced by gpu-check.sh.

limit=$((58 * 1024 * 1024))  # most bytes of the bundle and the tree together
tools=(hello_ranks lockstep-devices lockstep-cost train_resnet train_text bench_kernels bench_copy bench_allreduce)

# device_tests BUILD: prints the programs of the tests with the label gpu, one per line. Programs with the label
# gpu_ranks, which take any number of ranks, are followed by "ranks". lockstep_add_test() gives the program of the test
# A.B the name test_A_B. A test that is not in this build has no program, and is left out.
device_tests() {
  local label program of_ranks
  names_with() { ctest --test-dir "$1" -N -L "^$2\$" 2> /dev/null | sed -n 's/^ *Test *#[0-9]*: //p' | tr . _; }
  of_ranks=" $(names_with "$1" gpu_ranks | tr '\n' ' ')"
  for program in $(names_with "$1" gpu); do
    ninja -C "$1" -t query "test_$program" > /dev/null 2>&1 || continue
    label=
    if [[ $of_ranks == *" $program "* ]]; then label=ranks; fi
    echo "test_$program $label"
  done
}

# tracked_sources: prints the hash of each source file that git tracks, in the form of sha256sum --check.
tracked_sources() {
  (cd "$repository" && git ls-files -z -- '*.cpp' '*.hpp' '*.cu' '*.cuh' '*.h' '*CMakeLists.txt' '*.cmake' '*.cmake.in' |
    xargs -0 -r sha256sum)
}

# built_with: prints "NAME VERSION" of the toolkit and of the libraries whose headers were compiled, for find_versions().
built_with() {
  printf '%s\n' '#include <cuda_runtime_api.h>' '#include <cudnn_version.h>' '#include <cublas_api.h>' '#include <nccl.h>' \
    'cuda CUDART_VERSION' 'nvrtc CUDART_VERSION' 'cudnn CUDNN_MAJOR.CUDNN_MINOR.CUDNN_PATCHLEVEL' \
    'cublaslt CUBLAS_VER_MAJOR.CUBLAS_VER_MINOR.CUBLAS_VER_PATCH' 'nccl NCCL_MAJOR.NCCL_MINOR.NCCL_PATCH' |
    "${CUDACXX:-nvcc}" -E -x cu - | awk '
      /^(cuda|nvrtc) [0-9]+$/ { print $1, int($2 / 1000) "." int($2 % 1000 / 10) }
      /^(cudnn|cublaslt|nccl) / { name = $1; gsub(/^[a-z]+| /, ""); print name, $0 }'
}

# bytes_together FOLDER: sets `bytes` to the size of FOLDER, the future bundle, and `tree` to the size of the files that
# git tracks.
bytes_together() {
  bytes=$(du -sb "$1" | cut -f 1)
  tree=$(cd "$repository" && git ls-files -z | xargs -0 du -cb 2> /dev/null | awk '$2 == "total" {sum += $1} END {print sum + 0}')
}

# cut_fashion_mnist FOLDER: keeps the first 20,000 (0x4e20) of 60,000 training images, and expects less accuracy.
cut_fashion_mnist() {
  local name size file
  say "--prepare: too large with all of Fashion-MNIST: its first 20000 training images are taken"
  for name in "train-images-idx3 $((8 + 20000 * 784))" "train-labels-idx1 20000"; do
    size=${name#* } file=$1/${name% *}-ubyte
    gzip -d "$file.gz"
    { head -c 4 "$file"; printf '\0\0\x4e\x20'; tail -c +9 "$file" | head -c "$size" || true; } | gzip -9 -n > "$file.gz"
    rm "$file"
  done
  echo 0.90 > "$1/wanted"
}

# prepare [CMAKE OPTION...]: builds the programs and makes the bundle.
prepare() {
  local build=$repository/build/gpu-check staged program found bytes tree name
  [ "$(uname -m)" = x86_64 ] || die "--prepare: this machine is $(uname -m), the bundle is for x86_64"
  command -v nvcc > /dev/null || [ -n "${CUDACXX:-}" ] || die "--prepare: needs nvcc on PATH, or CUDACXX"
  nvjpeg_header  # without it the tests of the JPEG decoder are left out
  # Kernels are machine code for sm_90, and PTX for newer GPUs. Host code is for any x86-64 with AVX2. The target
  # machine finds libraries by LD_LIBRARY_PATH, because the programs have no rpath. The programs contain libstdc++ and
  # hide its symbols, so that libraries of the target machine do not use this copy.
  cmake -S "$repository" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DLOCKSTEP_CUDA=ON -DLOCKSTEP_MPI=ON \
    -DLOCKSTEP_NCCL=ON -DLOCKSTEP_CUDNN=ON -DLOCKSTEP_CUBLASLT=ON -DLOCKSTEP_ONEDNN=OFF \
    -DLOCKSTEP_BENCH=ON -DLOCKSTEP_EXAMPLES=ON -DLOCKSTEP_TESTS=ON \
    -DLOCKSTEP_CPU_ARCH=x86-64-v3 -DLOCKSTEP_CUDA_ARCHITECTURES=90 -DCMAKE_SKIP_RPATH=ON \
    -DCMAKE_EXE_LINKER_FLAGS="-static-libstdc++ -static-libgcc -Wl,--exclude-libs,ALL" "$@"
  staged=$bundle.new
  rm -rf "$staged"
  mkdir -p "$staged/programs" "$staged/peer"
  device_tests "$build" > "$staged/tests"
  [ -s "$staged/tests" ] || die "--prepare: this build has no test with the label gpu"
  mapfile -t names < <(printf '%s\n' "${tools[@]}"; cut -d ' ' -f 1 "$staged/tests")
  # The hashes are taken before compiling: a file that changes meanwhile counts as different.
  tracked_sources > "$staged/sources"
  built_with > "$staged/versions"
  cmake --build "$build" --parallel "$(build_jobs)" --target "${names[@]}"
  for program in "${names[@]}"; do
    found=$(find "$build" -type f -name "$program" -perm -u+x | sort)
    [ -n "$found" ] || die "--prepare: $program was not built"
    cp "${found%%$'\n'*}" "$staged/programs/"
    strip --strip-all "$staged/programs/$program"
  done
  "$repository/scripts/bundle-deps.sh" --into "$staged/deps" "$staged"/programs/*
  if [ -f "$data_folder/train-images-idx3-ubyte.gz" ]; then
    mkdir -p "$staged/data/fashion-mnist"
    cp "$data_folder"/*-ubyte.gz "$staged/data/fashion-mnist/"
  else
    say "--prepare: $data_folder has no Fashion-MNIST (--data): without it nothing is trained there"
  fi
  if [ -f "$peer_folder/torch_resnet.py" ]; then
    cp "$peer_folder"/*.py "$staged/peer/"
  else
    say "--prepare: $peer_folder has no torch_resnet.py (--peer): without it nothing is compared with PyTorch"
  fi
  # The new bundle keeps the library choices that an earlier gpu-check.sh on a machine with a GPU has found.
  cp "$bundle"/choices-*.json "$staged/" 2> /dev/null || true
  git -C "$repository" describe --always --dirty > "$staged/commit" 2> /dev/null || echo unknown > "$staged/commit"
  {
    du -b "$staged"/programs/* | sort -rn
    # The programs share most of their code. So xz gets a dictionary that is larger than all programs together.
    tar -C "$staged/programs" --sort=name --owner=0 --group=0 --mtime=@0 -c . | xz --threads=1 --lzma2=preset=6,dict=192MiB \
      > "$staged/programs.tar.xz"
    rm -r "$staged/programs"
    for name in programs.tar.xz deps data peer; do
      if [ -e "$staged/$name" ]; then du -sb "$staged/$name"; fi
    done
  } | awk -v at="$staged/" '{name = $2; sub(at, "", name); printf "%10.1f KiB  %s\n", $1 / 1024, name}' >&2
  bytes_together "$staged"
  if [ $((bytes + tree)) -gt "$limit" ] && [ -d "$staged/data/fashion-mnist" ]; then
    cut_fashion_mnist "$staged/data/fashion-mnist"
    bytes_together "$staged"
  fi
  if [ $((bytes + tree)) -gt "$limit" ]; then
    rm -rf "$staged"
    die "--prepare: the bundle has $bytes bytes and the tree $tree, at most $limit are allowed together; sizes are above"
  fi
  rm -rf "$bundle"
  mv "$staged" "$bundle"
  say "prepared $bundle: $bytes bytes, with the tree $((bytes + tree)) of at most $limit, commit $(cat "$bundle/commit")"
}
