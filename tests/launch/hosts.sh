# Sourced by the tests in this folder, never run alone. Makes two "hosts" on one machine from Linux namespaces. A host
# has its own network (joined to the other host's by a virtual cable), name, System V memory, /dev/shm and $TMPDIR. So
# ranks of two hosts are separated as on two machines. Files and process numbers are common to both hosts.
#
#   enter_island "$@"     comes first: restarts the script in new namespaces that no other process sees
#   make_hosts node1 node2
#   on node1 COMMAND...   runs COMMAND on that host
#   run CODE NAME COMMAND...      runs COMMAND and checks its exit code
#   lines COUNT PATTERN           counts matching lines of the last output
#   finish                ends the script with its exit status
#
# Nothing outlives the script, however it ends. Its processes belong to a process namespace that ends with it. Its files
# are in a memory file system that is mounted in its namespace only, below a folder in /tmp. Root is not needed if the
# kernel lets users make user namespaces. If something is missing, the script is skipped (exit status 77, with the
# reason on the first line) and does not fail.
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
    # needs. scripts/lib.sh sets the same variables, except those for starting processes on another host, which are
    # tested here.
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
  # Kills the script with all its processes when its time limit has passed.
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
  # Writes a script that replaces ssh: agent HOST COMMAND... runs COMMAND on HOST.
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
# show FILE: prints the file, indented.
show() { sed 's/^/        | /' "$1"; }

# run CODE NAME COMMAND...: runs COMMAND and checks that its exit code is CODE. 'nonzero' as CODE means any failure. The
# output is in $work/output.
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

# wait_until SECONDS COMMAND...: repeats the command until it succeeds. Status 1 if it has not succeeded in that time.
wait_until() {
  local until=$((${EPOCHREALTIME/./} + $1 * 1000000))
  shift
  until "$@" > /dev/null 2>&1; do
    [ "${EPOCHREALTIME/./}" -lt "$until" ] || return 1
    sleep 0.05
  done
}

none_left() { ! pgrep -x "$1"; }
# gone PROGRAM: checks that no process of this name is left on any host. The system keeps only 15 letters of a name.
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
