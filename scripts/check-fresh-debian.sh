#!/usr/bin/env bash
# Runs the README's two commands, scripts/train.sh and scripts/test.sh, in two fresh Debian systems (chroots made by
# debootstrap from the package mirror that this system uses): as root, and as a user with sudo. The systems get a clone of
# this tree's last commit. Needs root, debootstrap and about 6 GB.
#   scripts/check-fresh-debian.sh [--suite SUITE] LOG [options for scripts/train.sh]
# SUITE: bookworm (Debian 12, the default) or trixie (Debian 13: GCC 14, Open MPI 5, oneDNN 3).
# FOLDER=... in the environment: the folder in which the systems are made (default: a temporary one, removed at the end).
# USERS="root" or "builder": runs as one of the two users only.
# OBJECTS=FOLDER: ccache keeps compiled objects there, so that the second system of a suite compiles nothing anew.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# With --inside, the script runs its second half, in its own mount namespace. So its mounts end with the process.
if [ "${1:-}" = --inside ]; then
  system=$2 who=$3
  shift 3
  for mount in proc sys dev; do
    mkdir -p "$system/$mount"
  done
  mount -t proc proc "$system/proc"
  mount --rbind /dev "$system/dev"
  mount --bind /sys "$system/sys"
  if [ -n "${OBJECTS:-}" ]; then
    mkdir -p "$system/srv/objects"
    mount --bind "$OBJECTS" "$system/srv/objects"
  fi
  enter=(chroot "$system" env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 "TERM=${TERM:-dumb}")
  if [ -n "${OBJECTS:-}" ]; then enter+=(CCACHE_DIR=/srv/objects CCACHE_UMASK=000); fi
  for name in http_proxy https_proxy no_proxy; do
    if [ -n "${!name:-}" ]; then enter+=("$name=${!name}"); fi
  done
  run() {  # run COMMAND: runs it as `who` in the clone and prints its exit status and time
    local start=$SECONDS status=0
    echo "==== $who: $1"
    if [ "$who" = root ]; then
      "${enter[@]}" HOME=/srv/check bash -c "cd /srv/check/lockstep && $1" < /dev/null || status=$?
    else
      "${enter[@]}" HOME=/srv/check setpriv --reuid "$who" --regid "$who" --init-groups \
        bash -c "cd /srv/check/lockstep && $1" < /dev/null || status=$?
    fi
    echo "==== $who: $1: exit status $status after $((SECONDS - start)) s"
    return "$status"
  }
  options=$(printf ' %q' "$@")
  if [ $# = 0 ]; then options=; fi
  result=0
  run "scripts/train.sh$options" || result=1
  run "scripts/test.sh" || result=1
  run "scripts/train.sh --help" || result=1  # a second time, when everything is set up
  exit "$result"
fi

suite=bookworm
if [ "${1:-}" = --suite ]; then
  suite=${2:-}
  case "$suite" in
    bookworm | trixie) ;;
    *) die "check-fresh-debian.sh: --suite is '$suite', expected bookworm or trixie" ;;
  esac
  shift 2
fi
[ $# -ge 1 ] || die "check-fresh-debian.sh: expected the file for the log"
[ "$(id -u)" = 0 ] || die "check-fresh-debian.sh: needs root for chroot and mounts"
log=$(realpath "$1")
shift
folder=${FOLDER:-$(mktemp -d)}
mkdir -p "$folder"
if [ -z "${FOLDER:-}" ]; then trap 'rm -rf --one-file-system "$folder"' EXIT; fi

# The base system has git, and sudo for the run as a user.
debian_base "$folder" "$suite"

failures=0
{
  echo "Debian $(cat "$folder/$suite/etc/debian_version"), commit $(git -C "$repository" rev-parse HEAD), $(nproc) cores, $(date -u +%Y-%m-%d)${OBJECTS:+, with ccache}"
  for who in ${USERS:-root builder}; do
    system=$folder/$who
    rm -rf --one-file-system "$system"
    cp -a "$folder/$suite" "$system"
    # The new system's /etc/hosts must have the machine's name. Otherwise every MPI_Init waits for the name server.
    cp -L /etc/resolv.conf /etc/hosts "$system/etc/"
    proxy=$(apt-config dump Acquire::http::Proxy)
    if [ -n "$proxy" ]; then echo "$proxy" > "$system/etc/apt/apt.conf.d/90proxy"; fi
    if [ -n "${OBJECTS:-}" ]; then
      mkdir -p -m 777 "$OBJECTS"
      chroot "$system" sh -c 'apt-get -qq update && apt-get -qq install -y --no-install-recommends ccache' > /dev/null 2>&1 || die "no ccache"
    fi
    mkdir -p "$system/srv/check"
    git clone -q --no-hardlinks "$repository" "$system/srv/check/lockstep"
    if [ "$who" != root ]; then
      chroot "$system" useradd --no-create-home --home-dir /srv/check --shell /bin/bash "$who"
      echo "$who ALL=(ALL) NOPASSWD: ALL" > "$system/etc/sudoers.d/$who"
      chroot "$system" chown -R "$who:$who" /srv/check
    fi
    unshare --mount --propagation private "$0" --inside "$system" "$who" "$@" 2>&1 || failures=$((failures + 1))
    rm -rf --one-file-system "$system"
  done
  echo "$failures systems failed"
} | sed -u -e "s|$mirror|MIRROR|g" -e 's|https\{0,1\}://[^ ]*|URL|g' | tee "$log" >&2
[ "$(tail -n 1 "$log")" = "0 systems failed" ]
