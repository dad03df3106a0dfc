#!/usr/bin/env bash
# Runs every call of scripts/gpu-check.sh with the bundle of --prepare in a bare Debian 12 (a chroot made by debootstrap)
# that has no network, no Open MPI, no libgomp, no Python and no GPU. The programs must start, and Open MPI of the
# bundle must start ranks. Each call must write its reports and exit with status 77 (no GPU). Needs root.
#   scripts/check-air-gapped.sh [--bundle FOLDER] [--out FOLDER]     default: .bundle; the reports are kept in --out
# NVIDIA's libraries come from this machine's toolkit (CUDA_HOME, default /usr/local/cuda), as on a machine with a GPU.
# FOLDER=... in the environment: folder with the base system in bookworm/, which the script makes if it is missing. The
# default is a temporary folder, which the script removes at the end.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# With --inside, the script runs its second half, in its own mount and network namespaces. So its mounts end with the
# process.
if [ "${1:-}" = --inside ]; then
  system=$2 libraries=$3
  ip link set lo up  # a machine without a network still has the loopback device
  for mount in proc sys dev; do mkdir -p "$system/$mount"; done
  mount -t proc proc "$system/proc"
  mount --rbind /dev "$system/dev"
  mount --bind /sys "$system/sys"
  if [ -n "$libraries" ]; then
    mkdir -p "$system/usr/local/cuda/lib64"
    mount --bind "$libraries" "$system/usr/local/cuda/lib64"
  fi
  failures=0
  expect() {  # expect PATTERN: counts a failure unless the output of the last call matches
    if grep -qE -- "$1" "$system/srv/output"; then return; fi
    failures=$((failures + 1))
    say "$call: nothing matches '$1'"
  }
  for call in a b c d; do
    status=0
    chroot "$system" env -i PATH=/usr/bin:/bin HOME=/srv OUT=/srv/out \
      bash /srv/lockstep/scripts/gpu-check.sh first "$call" 90 > "$system/srv/output" 2>&1 < /dev/null || status=$?
    cat "$system/srv/output"
    if [ "$status" != 77 ]; then
      failures=$((failures + 1))
      say "$call: exit status $status, expected 77"
    fi
    expect '^passed   libraries '
    expect '^passed   2 ranks on the host '
    expect '^Nothing ran on a GPU'
    for kind in tsv json md tgz; do
      if [ ! -s "$system/srv/out/gpu-check-$call.$kind" ]; then
        failures=$((failures + 1))
        say "$call: no gpu-check-$call.$kind"
      fi
    done
  done
  [ "$failures" = 0 ]
  exit
fi

bundle=$repository/.bundle keep=
while [ $# -gt 0 ]; do
  [ $# -ge 2 ] || die "check-air-gapped.sh: $1 needs a value"
  case "$1" in
    --bundle) bundle=$2 ;;
    --out) keep=$2 ;;
    *) die "check-air-gapped.sh: unknown option '$1', expected --bundle or --out" ;;
  esac
  shift 2
done
[ -d "$bundle" ] || die "check-air-gapped.sh: no folder $bundle; scripts/gpu-check.sh --prepare makes it"
[ "$(id -u)" = 0 ] || die "check-air-gapped.sh: needs root for chroot and mounts"
command -v ip > /dev/null || die "check-air-gapped.sh: apt-get install iproute2"
folder=${FOLDER:-$(mktemp -d)}
mkdir -p "$folder"
system=$(mktemp -d "$folder/air-gapped.XXXXXX")
if [ -z "${FOLDER:-}" ]; then
  trap 'rm -rf --one-file-system "$folder"' EXIT
else
  trap 'rm -rf --one-file-system "$system"' EXIT
fi
debian_base "$folder" bookworm
cp -a "$folder/bookworm/." "$system"
mkdir -p "$system/srv/lockstep/.bundle"
(cd "$repository" && git ls-files -z | tar --null -T - -c) | tar -x -C "$system/srv/lockstep"
cp -a "$bundle/." "$system/srv/lockstep/.bundle"
libraries=
for name in "${CUDA_HOME:-/usr/local/cuda}"/lib64 "${CUDA_HOME:-/usr/local/cuda}"/lib; do
  if [ -z "$libraries" ] && [ -e "$name/libcublasLt.so.13" ]; then libraries=$(readlink -f "$name"); fi
done
status=0
unshare --mount --net --propagation private "$0" --inside "$system" "$libraries" || status=1
if [ -n "$keep" ]; then
  mkdir -p "$keep"
  cp "$system"/srv/out/* "$keep/"
fi
if [ "$status" = 0 ]; then say "air-gapped: as expected"; fi
exit "$status"
