#!/usr/bin/env bash
# Tests the watchdog with two hosts. If all ranks of a host are stopped, the error must say that this host is silent. If
# only some of its ranks are stopped, the error must say that these ranks are silent.
#   silent_host.sh MPIRUN BIN FAILING GLOO     arguments as in two_hosts.sh
source "$(dirname "${BASH_SOURCE[0]}")/hosts.sh"
mpirun=$1 failing=$3 gloo=$4

[[ $("$mpirun" --version 2>&1) == *open-mpi.org* ]] || skip "needs mpirun of Open MPI, $mpirun is another"
enter_island "$@"
make_hosts node1 node2
export LOCKSTEP_TEST_WATCHDOG=12

# mpi RANKS-ON-EACH COMMAND...: runs COMMAND with RANKS-ON-EACH ranks on each host.
mpi() {
  local each=$1
  shift
  on node1 "$mpirun" --mca plm_rsh_agent "$work/agent" --host "node1:$each,node2:$each" -np $((2 * each)) \
    -x LOCKSTEP_TEST_WATCHDOG "$@"
}
# without_mpi RANKS-ON-EACH COMMAND...: runs COMMAND with RANKS-ON-EACH ranks on each host, without MPI, and returns the
# status of rank 0. The ranks of a host have one parent process, as under torchrun. This function kills stopped
# processes that still exist after 5 s, as torchrun's agents do.
port=29600
ranks_of_host=$work/ranks
cat > "$ranks_of_host" << 'EOF'
for ((local = 0; local < LOCAL_WORLD_SIZE; local++)); do
  RANK=$((GROUP_RANK * LOCAL_WORLD_SIZE + local)) LOCAL_RANK=$local "$@" &
  first=${first:-$!}
done
wait "$first"
EOF
without_mpi() {
  local each=$1 node pids=() status=0
  shift
  port=$((port + 1))
  for node in 0 1; do
    on "node$((node + 1))" env WORLD_SIZE=$((2 * each)) LOCAL_WORLD_SIZE="$each" GROUP_RANK=$node MASTER_ADDR=node1 \
      MASTER_PORT=$port bash "$ranks_of_host" "$@" &
    pids+=($!)
  done
  wait "${pids[0]}" || status=$?
  wait_until 5 none_left session_program || pkill -KILL -x session_program
  wait "${pids[@]}"
  return "$status"
}

hangs='[0-9]+ s: the host, its network or'
was='computing step 3, 1 of 3 buckets enqueued, conv2.weight, for [0-9] s'
for ranks in mpi without_mpi; do
  if [ "$ranks" = without_mpi ] && [ "$gloo" != 1 ]; then continue; fi
  run 76 "$ranks: a stopped rank alone on its host" $ranks 1 "$failing" stall ever
  lines 1 "^lockstep: no word from host node2 \(rank 1\) for $hangs its rank hangs; its last word: rank 1: $was\$"
  lines 1 "^lockstep: error: rank 0: no word from host node2 \(rank 1\) for $hangs its rank hangs; its last word: rank 1: $was\$"
  lines 2 'no word from'
  run 0 "$ranks: a rank that goes on" $ranks 1 "$failing" stall 2
  lines 0 'no word from'
  run 76 "$ranks: all ranks of a host are stopped" $ranks 2 "$failing" stall host
  lines 1 "^lockstep: error: rank 0: no word from host node2 \(ranks 2, 3\) for $hangs all its ranks hang; its last word: rank 2: $was; rank 3: $was"
  lines 0 'no word from host node1'
  run 76 "$ranks: one of two ranks of a host is stopped" $ranks 2 "$failing" stall ever
  lines 1 '^lockstep: error: rank 0: no word from rank 1 \(host node1, pid [0-9]+\)'
  lines 0 'no word from host'
  gone session_program
done
finish
