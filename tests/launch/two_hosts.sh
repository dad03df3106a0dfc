#!/usr/bin/env bash
# Tests mpirun over two hosts: the host of each rank, sums, training, and the processes left after a failure on the
# second host. Then tests the same without MPI.
#   two_hosts.sh MPIRUN BIN FAILING GLOO
#     MPIRUN is mpirun of Open MPI, BIN the folder of the programs, and FAILING tests/comm's session_program. GLOO is 1
#     if the programs have gloo.
source "$(dirname "${BASH_SOURCE[0]}")/hosts.sh"
mpirun=$1 bin=$2 failing=$3 gloo=$4

[[ $("$mpirun" --version 2>&1) == *open-mpi.org* ]] || skip "needs mpirun of Open MPI, $mpirun is another"
enter_island "$@"
make_hosts node1 node2

# mpi RANKS-ON-1 RANKS-ON-2 COMMAND...: runs COMMAND with these numbers of ranks on node1 and node2.
mpi() {
  local ranks=$(($1 + $2)) hosts=node1:$1,node2:$2
  shift 2
  on node1 "$mpirun" --mca plm_rsh_agent "$work/agent" --host "$hosts" -np "$ranks" "$@"
}

run 0 "two ranks on each host" mpi 2 2 "$bin/hello_ranks" --devices cpu
lines 1 '^4 ranks on 2 nodes, Open MPI'
lines 1 '^rank 0 of 4  node1  local 0 of 2 '
lines 1 '^rank 1 of 4  node1  local 1 of 2 '
lines 1 '^rank 2 of 4  node2  local 0 of 2 '
lines 1 '^rank 3 of 4  node2  local 1 of 2 '
lines 1 '^all-reduced sum of the ranks: 6, as expected$'

# The local rank must not be computed as a remainder of the world rank. Here ranks are dealt to the hosts in turn, three
# to one host and one to the other.
run 0 "three ranks and one, dealt out" mpi 3 1 --map-by node "$bin/hello_ranks" --devices cpu
lines 1 '^4 ranks on 2 nodes'
lines 1 '^rank 0 of 4  node1  local 0 of 3 '
lines 1 '^rank 1 of 4  node2  local 0 of 1 '
lines 1 '^rank 2 of 4  node1  local 1 of 3 '
lines 1 '^rank 3 of 4  node1  local 2 of 3 '

# "cpu:2" requests two ranks per node. The second host has only one rank, so the program must refuse the option.
run 2 "cpu:2 with two ranks and one" mpi 2 1 "$bin/hello_ranks" --devices cpu:2
lines 1 '^lockstep: error: .*cpu:2'

# The program must start its own ranks from a host file, and print the mpirun command.
printf '%s slots=2\n' node1 node2 > "$work/hostfile"
run 0 "ranks that the program starts" on node1 env OMPI_MCA_plm_rsh_agent="$work/agent" PATH="$(dirname "$mpirun"):$PATH" \
  "$bin/hello_ranks" --devices cpu:2 --nodes 2 --hostfile "$work/hostfile"
lines 1 '^4 ranks on 2 nodes, '
lines 1 '^started by itself: mpirun .*--hostfile'
lines 1 '^rank 3 of 4  node2  local 1 of 2 '

# Training must give the same losses as on one host, because sums do not depend on the connection between ranks.
train=("$bin/train_resnet" --devices cpu --model mlp --train-images 64 --test-images 32 --image-size 8 --batch-size 16
  --epochs 1 --log-every 1 --workers 0)
losses() { sed -n 's/.*\("loss":[^,}]*\).*/\1/p' "$1/metrics.jsonl"; }
run 0 "training on two hosts" mpi 1 1 "${train[@]}" --out "$work/two"
lines 1 '^  ranks      2 on 2 nodes'
run 0 "training on one host" mpi 2 0 "${train[@]}" --out "$work/one"
lines 1 '^  ranks      2 on 1 node,'
run 0 "training with another seed" on node1 "${train[@]}" --out "$work/other" --seed 2
losses "$work/two" > "$work/output"
lines 5 '^"loss":[0-9.]+$'  # four steps and one epoch
if [ "$(losses "$work/two")" = "$(losses "$work/one")" ]; then
  passed "  the losses are those of one host"
else
  failed "  the losses differ: $(losses "$work/two" | tr '\n' ' ') and $(losses "$work/one" | tr '\n' ' ')"
fi
if [ "$(losses "$work/two")" != "$(losses "$work/other")" ]; then
  passed "  the losses are not those of another seed"
else
  failed "  another seed gives the same losses: they say nothing"
fi

# With at least twice as many ranks as nodes, ranks of a node sum in shared memory, then the nodes sum over MPI.
by_node='^  sums       in shared memory within a node, by MPI between 2 nodes$'
flat='^  sums       by MPI over all ranks of 2 nodes$'
run 0 "two ranks on each host train" mpi 2 2 "${train[@]}" --out "$work/even"
lines 1 "$by_node"
for again in uneven again; do
  run 0 "three ranks and one train ($again)" mpi 3 1 "${train[@]}" --out "$work/$again"
  lines 1 "$by_node"
done
if cmp "$work/uneven/last/model.safetensors" "$work/again/last/model.safetensors"; then
  passed "  the same bits twice"
else
  failed "  other bits the second time"
fi
run 0 "the same with flat sums" mpi 2 2 -x LOCKSTEP_HOST_ALL_REDUCE=mpi "${train[@]}" --epochs 2 --resume auto --out "$work/even"
lines 1 "$flat"
lines 1 "^  differs    options 'sums': checkpoint .*in shared memory within a node.*, now .*by MPI over all ranks of 2 nodes"
run 2 "a way that does not exist" mpi 2 2 -x LOCKSTEP_HOST_ALL_REDUCE=tree "$bin/hello_ranks" --devices cpu
lines 1 "LOCKSTEP_HOST_ALL_REDUCE is 'tree', expected auto, mpi, shared or hierarchical"

# A rank on the second host is killed, and the first host has lost its copies of the state. The job must continue from
# the second host's copies. The ranks are stopped while the test deletes the copies and kills the rank.
job=("$bin/train_resnet" "${train[@]:1}" --devices cpu:1 --nodes 2 --hostfile "$work/hostfile" --train-images 4800
  --log-every 100 --max-restarts 1)
start() { on node1 env OMPI_MCA_plm_rsh_agent="$work/agent" PATH="$(dirname "$mpirun"):$PATH" "${job[@]}" "$@"; }
copied() { on node2 sh -c 'ls -d /dev/shm/lockstep-copies-*/last.1'; }
run 0 "training that is left alone" start --out "$work/alone"
start --out "$work/killed" --copy-every 1 > "$work/job" 2>&1 < /dev/null &
wait_until 30 copied || failed "  no copies on the second host"
pkill -STOP -x train_resnet
on node1 sh -c 'rm -r /dev/shm/lockstep-copies-*/last*'
pkill -KILL -x -f "$bin/train_resnet .*--out $work/killed .*" --newest
pkill -CONT -x train_resnet
status=0
wait $! || status=$?
cp "$work/job" "$work/output"
[ "$status" = 0 ] && passed "a job that lost a rank and copies: exit code 0" || failed "the job ended with $status"
lines 1 ': restart 1 of 1$'
lines 1 '^  resuming   /dev/shm/lockstep-copies-.*/last at epoch '
if cmp "$work/alone/last/model.safetensors" "$work/killed/last/model.safetensors"; then
  passed "  the weights are those of the run that was left alone"
else
  failed "  other weights than those of the run that was left alone"
fi
for host in node1 node2; do
  on "$host" sh -c '! ls -d /dev/shm/lockstep-copies-* 2> /dev/null' && passed "  no copies are left on $host" || failed "  copies are left on $host"
done

# Rank 1 is on the second host. It gives up while the other ranks wait for it.
run 76 "a failing rank on the second host" mpi 2 2 --map-by node "$failing" abort
lines 1 '^lockstep: error: rank 1: gave up$'
gone session_program
gone orted
[ "$gloo" = 1 ] || finish

# without_mpi RANKS COMMAND...: starts RANKS ranks on each host, with torchrun's variables, or with Lightning's if
# lightning=1. Returns the first status that is not 0, in the order of ranks.
port=29500
without_mpi() {
  local each=$1 rank host node=0 pids=() status=0 own=() ended
  shift
  port=$((port + 1))
  for host in node1 node2; do
    for ((rank = node * each; rank < (node + 1) * each; rank++)); do
      own=(RANK="$rank" LOCAL_WORLD_SIZE="$each" GROUP_RANK="$node")
      if [ -n "${lightning:-}" ]; then own=(NODE_RANK="$node"); fi
      on "$host" env "${own[@]}" WORLD_SIZE=$((2 * each)) LOCAL_RANK=$((rank - node * each)) \
        MASTER_ADDR="${address:-node1}" MASTER_PORT="$port" "$@" &
      pids+=($!)
    done
    node=$((node + 1))
  done
  for rank in "${!pids[@]}"; do
    ended=0
    wait "${pids[rank]}" || ended=$?
    if [ "$status" = 0 ]; then status=$ended; fi
  done
  return "$status"
}

run 0 "two ranks on each host without MPI" without_mpi 2 "$bin/hello_ranks" --devices cpu
lines 1 '^4 ranks on 2 nodes, gloo'
lines 1 '^rank 1 of 4  node1  local 1 of 2 '
lines 1 '^rank 2 of 4  node2  local 0 of 2 '
lines 1 '^rank 3 of 4  node2  local 1 of 2 '
lines 1 '^all-reduced sum of the ranks: 6, as expected$'
lightning=1 run 0 "the same in Lightning's form" without_mpi 2 "$bin/hello_ranks" --devices cpu:2
lines 1 '^4 ranks on 2 nodes, gloo'
lines 1 '^rank 3 of 4  node2  local 1 of 2 '
# Tests that rank 0 does not give ranks on the other host the address 127.0.1.1, to which Debian resolves a host's own
# name. Of two ranks, gloo lets the rank with the higher address connect to the other. The hosts get addresses above
# 127.0.1.1 here, so that the ranks on node2 must connect to those on node1, and fail if they connect to 127.0.1.1.
know() {  # know HOST LINE: replaces its /etc/hosts by this line
  on "$1" sh -c "echo '$2' > $work/private/hosts && mount --bind $work/private/hosts /etc/hosts"
}
for number in 1 2; do on node$number ip address add 192.168.11.$number/24 dev eth0; done
know node1 '127.0.1.1 node1'
know node2 '192.168.11.1 node1'
run 0 "a host's own name" on node1 getent ahostsv4 node1
lines 3 '^127\.0\.1\.1 '
run 0 "rank 0's own name is 127.0.1.1" without_mpi 2 "$bin/hello_ranks" --devices cpu
lines 1 '^4 ranks on 2 nodes, gloo'
lines 1 '^all-reduced sum of the ranks: 6, as expected$'
run 0 "  and its neighbour comes last" without_mpi 2 sh -c "[ \$RANK != 1 ] || sleep 1; exec $bin/hello_ranks --devices cpu"
lines 1 '^all-reduced sum of the ranks: 6, as expected$'
run 0 "  or first" without_mpi 2 sh -c "[ \$RANK -lt 2 ] || sleep 1; exec $bin/hello_ranks --devices cpu"
lines 1 '^all-reduced sum of the ranks: 6, as expected$'
for host in node1 node2; do on "$host" umount /etc/hosts; done
run 0 "training on two hosts without MPI" without_mpi 1 "${train[@]}" --out "$work/without"
lines 1 '^  ranks      2 on 2 nodes, gloo'
losses "$work/without" > "$work/output"
lines 5 '^"loss":[0-9.]+$'
if [ "$(losses "$work/without")" = "$(losses "$work/one")" ]; then
  passed "  the losses are those of MPI"
else
  failed "  the losses differ: $(losses "$work/without" | tr '\n' ' ') and $(losses "$work/one" | tr '\n' ' ')"
fi
run 76 "a failing rank without MPI" without_mpi 2 "$failing" abort
lines 1 '^lockstep: error: rank 1: gave up$'
gone session_program
export LOCKSTEP_MEET_SECONDS=2
address=10.11.0.9 run 2 "a host that is not there" without_mpi 1 "$bin/hello_ranks" --devices cpu
lines 1 'rank 0 of 2 does not answer at 10.11.0.9:'
finish
