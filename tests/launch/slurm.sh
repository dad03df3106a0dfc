#!/usr/bin/env bash
# Makes a SLURM cluster of two nodes and runs programs there as users do: with srun, with sbatch and the files of
# examples/slurm, and with mpirun in a job. Also sends the signal that SLURM sends before the time limit. SLURM takes
# each node to have two GPUs, although there are no such devices.
#   slurm.sh MPIRUN BIN FAILING     mpirun of Open MPI, the folder of the programs, tests/comm's session_program
source "$(dirname "${BASH_SOURCE[0]}")/hosts.sh"
mpirun=$1 bin=$2 failing=$3
examples=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../examples/slurm" && pwd)

need slurmctld slurmctld slurmd slurmd srun slurm-client munged munge
enter_island "$@"
make_hosts node1 node2

# SLURM as root gives up group memberships, which a user namespace does not allow. In a user namespace SLURM therefore
# runs as the user.
as_user=()
if [ "$LOCKSTEP_UID" != 0 ]; then
  as_user=(unshare --user --map-user="$LOCKSTEP_UID" --map-group="$LOCKSTEP_GID")
fi
user=$(id -un "$LOCKSTEP_UID") || skip "user $LOCKSTEP_UID has no name, which SLURM wants"
slurm() {  # slurm HOST COMMAND...
  local host=$1
  shift
  on "$host" "${as_user[@]}" "$@"
}

mkdir "$work/state" "$work/node1" "$work/node2" "$work/jobs"
head -c 1024 /dev/urandom > "$work/key"
chmod 400 "$work/key"
export SLURM_CONF=$work/slurm.conf
export SLURM_PMIX_FENCE=ring  # the reason is in several_nodes.sbatch
# Each host has its own folder TmpFS. If two slurmd shared one, the second slurmd could not make the folder of a step's
# PMIx server. cred_expire: a job that is queued again starts only after its old credentials have expired.
cat > "$SLURM_CONF" <<END
ClusterName=test
SlurmctldHost=node1
SlurmUser=$user
SlurmdUser=$user
AuthType=auth/munge
AuthInfo=socket=$work/munge,cred_expire=5
CredType=cred/munge
StateSaveLocation=$work/state
SlurmctldPidFile=$work/slurmctld.pid
SlurmctldLogFile=$work/slurmctld.log
SlurmdSpoolDir=$work/%n
SlurmdPidFile=$work/%n/pid
SlurmdLogFile=$work/%n.log
TmpFS=$work/private
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,batch_sched_delay=0,bf_interval=1
SlurmdParameters=config_overrides
GresTypes=gpu
KillWait=2
ReturnToService=2
NodeName=node1,node2 CPUs=4 Gres=gpu:2
PartitionName=main Nodes=ALL Default=YES
END
printf "Name=gpu File=/dev/%s\n" null zero > "$work/gres.conf"

slurm node1 munged --socket="$work/munge" --key-file="$work/key" --pid-file="$work/munged.pid" \
  --log-file="$work/munged.log" --seed-file="$work/munged.seed" > "$work/munged.out" 2>&1 ||
  { failed "munged does not start"; show "$work/munged.out"; finish; }
slurm node1 slurmctld -D -f "$SLURM_CONF" > "$work/slurmctld.out" 2>&1 &
for node in node1 node2; do
  slurm "$node" slurmd -D -f "$SLURM_CONF" -N "$node" > "$work/$node.out" 2>&1 &
done
both_idle() { [ "$(slurm node1 sinfo --noheader --Node --format=%T | sort | uniq -c | tr -s ' ')" = " 2 idle" ]; }
if ! wait_until 20 both_idle; then
  failed "the cluster does not come up"
  tail -n 20 "$work"/*.out "$work"/*.log
  finish
fi

run 0 "srun on one node" slurm node1 srun --mpi=pmix --nodes=1 --ntasks=2 "$bin/hello_ranks" --devices cpu
lines 1 '^2 ranks on 1 node, Open MPI'
lines 1 '^rank 1 of 2  node1  local 1 of 2 '
lines 1 '^all-reduced sum of the ranks: 1, as expected$'

run 0 "srun on two nodes" slurm node1 srun --mpi=pmix --nodes=2 --ntasks-per-node=2 "$bin/hello_ranks" --devices cpu
lines 1 '^4 ranks on 2 nodes, Open MPI'
lines 1 '^rank 1 of 4  node1  local 1 of 2 '
lines 1 '^rank 2 of 4  node2  local 0 of 2 '
lines 1 '^rank 3 of 4  node2  local 1 of 2 '
lines 1 '^all-reduced sum of the ranks: 6, as expected$'

run 0 "srun deals ranks out" slurm node1 srun --mpi=pmix --nodes=2 --ntasks=3 --distribution=cyclic "$bin/hello_ranks"
lines 1 '^rank 1 of 3  node2  local 0 of 1 '
lines 1 '^rank 2 of 3  node1  local 1 of 2 '

# Without --mpi=pmix, each task is an MPI job of its own. In a step of several tasks this is an error, which exactly one
# task must report. A step of one task must succeed.
run 2 "srun without --mpi=pmix" slurm node1 srun --nodes=1 --ntasks=2 "$bin/hello_ranks" --devices cpu
lines 1 '^lockstep: error: .*SLURM_PROCID=0, SLURM_STEP_NUM_TASKS=2.*MPI reports 1 rank.*srun --mpi=pmix'
lines 0 'application appears to have been direct launched'
run 0 "srun of one task without --mpi=pmix" slurm node1 srun --ntasks=1 "$bin/hello_ranks" --devices cpu
lines 1 '^1 rank on 1 node'

# submit NAME FILE OPTIONS.. -- ARGUMENTS..: submits FILE of examples/slurm with options of sbatch, and with arguments
# for FILE. If $LIVES is set, it is the folder of the programs instead of $bin. Sets `job`. The log is jobs/NAME.log,
# for an array jobs/NAME.log.TASK.
submit() {
  local name=$1 file=$2 options=()
  shift 2
  while [ "$1" != -- ]; do
    options+=("$1")
    shift
  done
  shift
  run 0 "sbatch $file ($name)" slurm node1 env LOCKSTEP_BIN="${LIVES:-$bin}" LOCKSTEP_OUT="$work/jobs" LOCKSTEP_INTERFACE=eth0 \
    sbatch --parsable --chdir="$work/jobs" --output="$work/jobs/$name.log" "${options[@]}" "$examples/$file" "$@"
  job=$(cat "$work/output")
}
is_over() { [ -z "$(slurm node1 squeue --noheader --jobs="$1")" ]; }
# ended JOB NAME STATE: checks that all tasks of the job have this state in `scontrol show job`, and copies the log to
# $work/output.
ended() {
  wait_until 30 is_over "$1"
  slurm node1 scontrol --oneliner show job "$1" > "$work/$2.state"
  if [ -s "$work/$2.state" ] && [ "$(grep -vc -- "$3" "$work/$2.state")" = 0 ]; then
    passed "$2: $3"
  else
    failed "$2 is not '$3'"
    show "$work/$2.state"
  fi
  cat "$work/jobs/$2.log"* > "$work/output"
}
tiny=(--devices cpu --model mlp --train-images 64 --test-images 32 --image-size 8 --batch-size 16 --workers 0)

# Sends the signal that SLURM sends before the time limit. The run must write a checkpoint and end with exit code 75, so
# SLURM queues the job again. SLURM starts it when the credentials of its first start have expired; other tests run
# until then. The first start has too many epochs to end before the signal. The second start ends a few steps later.
lives=$work/lives
mkdir "$lives"
ln -s "$bin/hello_ranks" "$lives"
cat > "$lives/train_resnet" <<END
#!/bin/sh
at=\$(sed -n 's/^stopped by a signal at step \([0-9]*\).*/\1/p' "$work/jobs/stopped.log")
exec "$bin/train_resnet" "\$@" --steps \$((at > 0 ? at + 8 : 0))
END
chmod +x "$lives/train_resnet"
LIVES=$lives submit stopped one_node.sbatch --ntasks-per-node=2 --gpus-per-node=0 --cpus-per-task=1 -- "${tiny[@]}" \
  --epochs 1000000
stopped=$job
wait_until 20 test -s "$work/jobs/$stopped/metrics.jsonl" || failed "the job to be stopped does not start"
run 0 "a signal to the job's ranks" slurm node1 scancel --signal=USR1 "$stopped"

# A job whose ranks cannot use their GPUs must end with an error, and not train on the host for days.
submit no_driver one_node.sbatch --ntasks-per-node=2 --gpus-per-node=2 --cpus-per-task=2 -- "${tiny[@]}" --epochs 1
ended "$job" no_driver 'JobState=FAILED .*Restarts=0 .*ExitCode=2:0 '
lines 1 '^lockstep: error: .*SLURM_JOB_GPUS=0,1.*none can be used.*--devices cpu'

# The cluster has no real GPUs, and the batch files call hello_ranks without options. So a stand-in for hello_ranks adds
# --devices cpu.
on_hosts=$work/on_hosts
mkdir "$on_hosts"
ln -s "$bin/train_resnet" "$on_hosts"
printf '#!/bin/sh\nexec "%s/hello_ranks" --devices cpu\n' "$bin" > "$on_hosts/hello_ranks"
chmod +x "$on_hosts/hello_ranks"
LIVES=$on_hosts submit one_node one_node.sbatch --ntasks-per-node=2 --gpus-per-node=2 --cpus-per-task=2 -- "${tiny[@]}" --epochs 1
ended "$job" one_node 'JobState=COMPLETED .*Restarts=0 .*ExitCode=0:0 '
lines 1 '^2 ranks on 1 node, '
lines 1 '^  ranks      2 on 1 node, '
lines 1 '^finished: test accuracy'

LIVES=$on_hosts submit several_nodes several_nodes.sbatch --nodes=2 --ntasks-per-node=2 --gpus-per-node=2 --cpus-per-task=1 \
  -- "${tiny[@]}" --epochs 1
ended "$job" several_nodes 'JobState=COMPLETED .*ExitCode=0:0 '
lines 1 '^4 ranks on 2 nodes, '
lines 1 '^rank 3 of 4  node2  local 1 of 2 '
lines 1 '^  ranks      4 on 2 nodes, '
lines 1 '^finished: test accuracy'

submit sweep sweep.sbatch --output="$work/jobs/sweep.log.%a" --cpus-per-task=1 -- "${tiny[@]}" --epochs 1
ended "$job" sweep 'JobState=COMPLETED .*ExitCode=0:0 '
lines 4 '^finished: test accuracy'
for rate in 0.03 0.1 0.3 1; do lines 1 "learning rate $rate "; done

submit mistake one_node.sbatch --ntasks-per-node=2 --gpus-per-node=0 --cpus-per-task=1 -- --model resnet19
ended "$job" mistake 'JobState=FAILED .*Restarts=0 .*ExitCode=2:0 '
lines 1 '^lockstep: error: .*resnet19'

# In a job, mpirun takes nodes and slots from SLURM and starts its helpers through srun.
run 0 "mpirun in a job" slurm node1 salloc --quiet --nodes=2 --ntasks-per-node=2 "$mpirun" "$bin/hello_ranks" --devices cpu
lines 1 '^4 ranks on 2 nodes, '
lines 1 '^rank 3 of 4  node2  local 1 of 2 '

# In a job, the program starts its own ranks with srun.
run 0 "ranks that the program starts" slurm node1 salloc --quiet --nodes=2 --ntasks-per-node=2 "$bin/hello_ranks" \
  --devices cpu:2 --nodes 2
lines 1 '^4 ranks on 2 nodes, '
lines 1 '^started by itself: srun .*--mpi=pmix'
lines 1 '^rank 3 of 4  node2  local 1 of 2 '

# Rank 1 is on the second node. It gives up while the other ranks wait for it.
run 76 "a failing rank on the second node" slurm node1 \
  srun --mpi=pmix --nodes=2 --ntasks-per-node=2 --distribution=cyclic "$failing" abort
lines 1 'lockstep: error: rank 1: gave up'
gone session_program

ended "$stopped" stopped 'JobState=COMPLETED .*Restarts=1 .*ExitCode=0:0 '
lines 1 '^stopped by a signal at step'
lines 1 '^  resuming .*, step [1-9]'
lines 1 '^finished: test accuracy'
if [ "$failures" != 0 ]; then
  tail -n 30 "$work"/*.log
fi
finish
