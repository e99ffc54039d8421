#!/bin/bash
# Run sst2: 1 node, 4 processes on each.
# Written by paratune launch: edit the site file and submit again.
#SBATCH --job-name=sst2
#SBATCH --partition=gpu
#SBATCH --account=my-project
#SBATCH --time=08:00:00
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=32
#SBATCH --mem=200G
#SBATCH --gres=gpu:4
#SBATCH --signal=B:USR1@300
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --chdir=/home/me/work
#SBATCH --output=/home/me/work/runs/sst2/slurm/%j.txt

folder=/home/me/work/runs/sst2/slurm
job="$SLURM_JOB_ID"
restarts=${SLURM_RESTART_COUNT:-0}
max_requeues=100 max_hang_requeues=1
processes=4

log() { echo "$(date +%FT%T) $*"; }
not_ready() {
  log "$1 cannot be loaded: the run was not started"
  echo 5 > "$folder/$job.exit"
  exit 5
}

# Signals: the time limit is near, or the job is preempted. The run saves and ends; see the end of this script.
signal=none step=
forward() {
  [ "$signal" = none ] || return 0
  signal=$1
  log "$1: forwarded to the run, which saves and ends"
  send_usr1 >/dev/null 2>&1 &
}
send_usr1() {
  # Repeatedly: a rank that is starting does not handle the signal.
  trap - USR1 TERM
  while [ -n "$step" ] && kill -USR1 "$step"; do sleep 5; done
}
trap 'forward USR1' USR1
trap 'forward TERM' TERM

. "$HOME/paratune/.venv/bin/activate" || not_ready "$HOME/paratune/.venv/bin/activate"

export config=/home/me/work/runs/sst2/slurm/config.yaml
run_folder=/home/me/work/runs/sst2

# Runs once on each node.
task() {
  trap '' USR1  # for the ranks, which handle it; torchrun would die from it
  trap : TERM  # the run gets it, too; wait for the run
  paratune train "$config" --nproc 4 --resume
}

codes_folder="$folder/$job.codes"
rm -rf "$codes_folder" && mkdir -p "$codes_folder" || exit 4
export PARATUNE_EXIT_CODES="$codes_folder"
newest() { ls "$run_folder/checkpoints" 2>/dev/null | grep -E '^step_[0-9]+$' | sort -V | tail -n 1; }
newest_before=$(newest)

start() {
  # If one node ends, the others have two minutes to end.
  srun --nodes=1 --ntasks=1 --ntasks-per-node=1 --kill-on-bad-exit=0 --wait=120 \
    --open-mode=append --output="${folder//%/%%}/$job.node%n.txt" bash -c "$(declare -f task); task" &
  step=$!
  [ "$signal" = none ] || send_usr1 >/dev/null 2>&1 &
  while :; do
    wait "$step"
    code=$?
    kill -0 "$step" 2>/dev/null || break  # otherwise the trap has ended the wait
  done
  wait "$step"
  code=$?
}
code=75
log "start $restarts of job $job on $SLURM_JOB_NODELIST: $config"
[ "$signal" = none ] && start

# The exit codes of ranks are more specific than that of srun, or of torchrun, which is always 1.
codes=" $(cat "$codes_folder"/* 2>/dev/null | tr '\n' ' ') "
has() { case "$codes" in *" $1 "*) ;; *) return 1 ;; esac; }
if [ "$code" != 0 ] || has 75; then  # below torchrun, a rank that saved and stopped ends with 0
  for rank_code in 2 3 4 6 7 8 9 10 1 5 75; do
    if has "$rank_code"; then code=$rank_code; break; fi
  done
  silent=
  for ((rank = 0; rank < processes; rank++)); do
    [ -e "$codes_folder/rank$rank" ] || silent="$silent $rank"
  done
  [ "$processes" -gt 1 ] && [ -n "$silent" ] && log "no exit code, probably killed: rank$silent of $processes"
fi

lost_nodes() {
  for node in $(scontrol show hostnames "$SLURM_JOB_NODELIST"); do
    timeout 20 srun --overlap --nodes=1 --ntasks=1 --nodelist="$node" true >/dev/null 2>&1 || echo "$node"
  done
}
hung() {
  # The first hang may have a transient cause; repeated hangs have not.
  hangs=0
  [ "$restarts" = 0 ] || hangs=$(cat "$folder/$job.hangs" 2>/dev/null || echo 0)
  if [ "$hangs" -lt "$max_hang_requeues" ]; then
    echo $((hangs + 1)) > "$folder/$job.hangs" && why="it hung"
  else
    log "it hung: not queued again, after $hangs times of max_hang_requeues: $max_hang_requeues"
  fi
}
stalled() {
  # A run that reaches no checkpoint in the time of its job would be queued again without end.
  stalls=0
  [ "$restarts" = 0 ] || stalls=$(cat "$folder/$job.stalls" 2>/dev/null || echo 0)
  if [ "$(newest)" = "$newest_before" ]; then stalls=$((stalls + 1)); else stalls=0; fi
  echo "$stalls" > "$folder/$job.stalls"
  [ "$stalls" -gt 2 ]
}
job_state() { scontrol --oneliner show job "$SLURM_JOB_ID" | sed -n 's/.*JobState=\([A-Z_]*\).*/\1/p'; }

why= note=
if [ "$code" != 0 ]; then
  if [ "$signal" != none ] && { has 75 || [ "$codes" = "  " ]; }; then
    why="$signal"
    code=75
  elif [ "$signal" = none ] && { [ "$code" = 5 ] || [ "$code" = 10 ] || [ "$codes" = "  " ]; }; then
    lost=$(lost_nodes | tr '\n' ' ')
    [ -n "$lost" ] && why="lost $lost"
  fi
  [ -z "$why" ] && [ "$code" = 10 ] && hung
fi
# A cancelled job is not queued again; Slurm itself requeues a job that it preempts.
if [ -n "$why" ] && [ "$(job_state)" = RUNNING ]; then
  if [ "$restarts" -ge "$max_requeues" ]; then
    log "$why: not queued again, after $restarts times of max_requeues: $max_requeues"
  elif stalled; then
    log "$why: not queued again, after 2 times without a new checkpoint: the job needs more time (time: of the site)"
    code=5 note=" no progress"
  else
    log "$why: queued again"
    echo requeued > "$folder/$job.exit"
    trap - USR1 TERM
    scontrol requeue "$SLURM_JOB_ID" && sleep 300  # Slurm ends this script
  fi
fi
echo "$code$note" > "$folder/$job.exit"
log "ended with exit code $code"
exit "$code"
