# Sourced by the tests in this folder, never run: two "hosts" on one machine, made of Linux namespaces. A host has its own
# network (joined to the other's by a virtual cable), name, System V memory, /dev/shm and $TMPDIR, so that ranks of two
# hosts meet only where ranks of two machines would. Files and process numbers are common.
#
#   enter_island "$@"     first: the script goes on, from its beginning, in namespaces that nobody else sees
#   make_hosts node1 node2
#   on node1 COMMAND...   runs it there
#   run CODE NAME COMMAND...; lines COUNT PATTERN      runs and looks at the exit code and at the output
#   finish                the exit status of the script
#
# Nothing outlives the script, whatever ends it: its processes belong to a process namespace that ends with it, its files
# are in memory below a folder in /tmp that is mounted in there only. Root is not needed where the kernel lets users make
# user namespaces. What is missing is a skip (exit status 77, the reason on the first line), not a failure.
set -uo pipefail
PATH=$PATH:/usr/sbin:/sbin
export LC_ALL=C

skip() {
  echo "$*"
  exit 77
}

# need PROGRAM PACKAGE...
need() {
  while [ $# -gt 0 ]; do
    command -v "$1" > /dev/null || skip "needs $1 (Debian's package $2; scripts/install-deps.sh ci)"
    shift 2
  done
}

enter_island() {
  local limit=200 isolate as_root=() reason status=0
  if [ -n "${LOCKSTEP_ISLAND:-}" ]; then
    work=$LOCKSTEP_ISLAND
    mount -t tmpfs -o mode=755 tmpfs "$work" || exit 1
    # Clears the variables that mpirun and the programs would take from this shell, and sets those that a small machine
    # needs. It is as in scripts/lib.sh, except for the way to start processes on another host, which is tested here.
    local name
    for name in $(compgen -e OMPI_) $(compgen -e PMIX_) $(compgen -e SLURM_); do unset "$name"; done
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_mpi_yield_when_idle=1
    export OMPI_MCA_btl_vader_single_copy_mechanism=none OMPI_MCA_hwloc_base_binding_policy=none
    export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive TMPDIR=$work/private
    return
  fi
  need unshare util-linux nsenter util-linux mount mount ip iproute2 pgrep procps
  [ "$(id -u)" = 0 ] || as_root=(--user --map-root-user)
  isolate=(unshare "${as_root[@]}" --net --mount --uts --ipc --pid --fork --kill-child --mount-proc)
  reason=$("${isolate[@]}" true 2>&1) || skip "needs root or user namespaces: ${reason//$'\n'/; }"
  work=$(mktemp -d /tmp/lockstep.XXXXXX) || exit 1
  # Kills the script, with all its processes, when it takes too long.
  LOCKSTEP_ISLAND=$work LOCKSTEP_UID=$(id -u) LOCKSTEP_GID=$(id -g) \
    timeout --signal=KILL "$limit" "${isolate[@]}" bash "$0" "$@" || status=$?
  rmdir "$work"
  [ "$status" != 137 ] || echo "killed after $limit s"
  exit "$status"
}

declare -A host_pid
make_hosts() {
  local host number=0 ends=(cable1 cable2)
  mkdir "$work/private"
  mkfifo "$work/ready"
  echo "127.0.0.1 localhost" > "$work/hosts"
  for host; do
    number=$((number + 1))
    echo "10.11.0.$number $host" >> "$work/hosts"
  done
  ip link add "${ends[0]}" type veth peer name "${ends[1]}" || skip "the kernel gives no pair of virtual network devices (veth)"
  number=0
  for host; do
    unshare --net --mount --uts --ipc sh -c "hostname $host && mount -t tmpfs tmpfs /dev/shm &&
      mount -t tmpfs tmpfs $work/private && mount --bind $work/hosts /etc/hosts && ip link set lo up &&
      echo ready > $work/ready; exec sleep infinity" &
    host_pid[$host]=$!
    read -r _ < "$work/ready"
    number=$((number + 1))
    ip link set "${ends[number - 1]}" netns "${host_pid[$host]}" name eth0
    on "$host" ip address add "10.11.0.$number/24" dev eth0
    on "$host" ip link set eth0 up
  done
  # Writes the stand-in for ssh: agent HOST COMMAND...
  {
    echo '#!/bin/sh'
    echo 'case $1 in'
    for host; do echo "  $host) pid=${host_pid[$host]} ;;"; done
    echo '  *) echo "agent: no host $1" >&2; exit 255 ;;'
    echo 'esac'
    echo 'shift'
    echo 'exec nsenter --target "$pid" --net --mount --uts --ipc -- sh -c "$*"'
  } > "$work/agent"
  chmod +x "$work/agent"
}

on() {
  local host=$1
  shift
  nsenter --target "${host_pid[$host]}" --net --mount --uts --ipc -- "$@"
}

failures=0
passed() { echo "ok      $*"; }
failed() {
  failures=$((failures + 1))
  echo "FAILED  $*"
}
# show FILE: prints all of it, indented.
show() { sed 's/^/        | /' "$1"; }

# run CODE NAME COMMAND...: checks the exit code; 'nonzero' as CODE takes any failure. The output is in $work/output.
run() {
  local code=$1 name=$2 status=0
  shift 2
  "$@" > "$work/output" 2>&1 < /dev/null || status=$?
  if [ "$status" = "$code" ]; then
    passed "$name: exit code $code"
  else
    failed "$name: exit code $status, expected $code"
    show "$work/output"
  fi
}

# lines COUNT PATTERN [FILE]: checks that COUNT lines of the last output match the extended regular expression.
lines() {
  local count=$1 pattern=$2 file=${3:-$work/output} found
  found=$(grep -cE -- "$pattern" "$file")
  if [ "$found" = "$count" ]; then
    passed "  $count x '$pattern'"
  else
    failed "  $found lines match '$pattern', expected $count"
    show "$file"
  fi
}

# wait_until SECONDS COMMAND...: waits until the command succeeds; status 1 if it has not by then.
wait_until() {
  local until=$((${EPOCHREALTIME/./} + $1 * 1000000))
  shift
  until "$@" > /dev/null 2>&1; do
    [ "${EPOCHREALTIME/./}" -lt "$until" ] || return 1
    sleep 0.05
  done
}

none_left() { ! pgrep -x "$1"; }
# gone PROGRAM: checks that no host has a process of that name (its first 15 letters).
gone() {
  if wait_until 5 none_left "$1"; then
    passed "  no $1 is left on any host"
  else
    failed "  processes are left: $(pgrep -a -x "$1" | tr '\n' ';')"
  fi
}

finish() {
  if [ "$failures" = 0 ]; then
    echo "all as expected"
    exit 0
  fi
  echo "$failures checks failed"
  exit 1
}
