"""The fixed parts of job.sbatch. Bash, as every cluster has it; no part holds a value that a user chose."""

REPORT = r"""
rm -f "$place/exit"
# How this script ended, for a reader who comes when Slurm has long forgotten the job.
ended() { rm -rf "$place/private"; echo "$SLURM_JOB_ID $1" > "$place/exit"; exit "$1"; }
fail() { echo "headway: $1" >&2; ended 1; }
keep_secrets() { :; }  # there are none
cd "$HEADWAY_CODE_DIR" || fail "no $HEADWAY_CODE_DIR on $(hostname): \`outputs\` must be a folder that every node sees"
"""

REQUIREMENTS = r"""
# -- requirements: once for a run, into an environment on top of the interpreter's own packages
if [ ! -e "$place/env/ready-{code}" ]; then
  rm -rf "$place/env"
  "$python" -m venv --system-site-packages "$place/env" || fail "no virtual environment could be made with $python"
  packages='import sysconfig; print(sysconfig.get_path("purelib"))'
  # An interpreter that is itself in a virtual environment lends its packages too.
  "$python" -c "$packages" > "$("$place/env/bin/python" -c "$packages")/lent.pth" || fail "$python does not run"
  "$place/env/bin/python" -m pip install --disable-pip-version-check --requirement {file} \
    || fail "the requirements cannot be installed"
  touch "$place/env/ready-{code}"
fi
python="$place/env/bin/python"
"""

SECRETS = r"""
# -- secrets: taken off the disk, kept in this shell alone, told to the supervisors over their standard input
secrets=$(cat "$place/private/secrets.json") \
  || fail "the secrets went with the node that had them: headway resume $HEADWAY_RUN_URL brings them again"
rm -rf "$place/private"
keep_secrets() { (umask 077 && mkdir -p "$place/private" && printf %s "$secrets" > "$place/private/secrets.json"); }
"""

ADDRESSES = r"""
# -- where the nodes meet: by the first one's address, for its name may mean nothing to the others
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
address=$(scontrol show node "$first" --oneliner | sed -n 's/.* NodeAddr=\([^ ]*\).*/\1/p')
export HEADWAY_SLURM_ADDRS="$first=${address:-$first}"
export HEADWAY_MASTER_PORT=$((12000 + SLURM_JOB_ID % 10000 * 2))  # another one for each job: nodes may be shared
"""

WARNING = r"""
# -- Slurm's warning before the time limit comes to this shell alone, and is passed on. When Slurm ends the job it tells
# the supervisors itself: then nothing is passed on, because a second signal would mean "at once".
warned="" state="" restarts="" preempted=""
ask() { read -r state restarts preempted < <(squeue --noheader --jobs="$SLURM_JOB_ID" \
  --Format=State:30,RestartCnt:12,PreemptTime:30); }
requeued() { [ "$state" = COMPLETING ] && [ "${restarts:-0}" -gt "${SLURM_RESTART_COUNT:-0}" ]; }
warn() {
  interrupted=yes
  ask
  if [ "$state" = RUNNING ]; then
    warned=yes
    scancel --signal=TERM "$SLURM_JOB_ID"
  elif requeued; then
    keep_secrets
  fi
}
trap warn TERM
"""

START = r"""
# -- one supervisor on each node
{feed}srun {shape} --kill-on-bad-exit=0 --wait=0 --input={input} \
  bash -c 'HEADWAY_SPOOL="$1/node-$SLURM_NODEID/spool" exec "$2" -m headway.runtime.worker --run "$HEADWAY_RUN_URL"' \
  supervisor "$place" "$python" &
step=$!
while interrupted=""; wait "$step"; code=$?; [ "$interrupted" ]; do :; done
"""

END = r"""
# -- 143 means: start me again. Slurm does so by itself after a preemption; after a warning, and when a preemption's
# period of grace is still running, we ask for it. Whoever told the supervisors to stop wanted them to stop.
if [ "$code" -eq 143 ]; then
  ask
  if requeued; then exit 143; fi
  if [ "$state" = RUNNING ] && { [ "$warned" ] || [ "$preempted" != N/A ]; }; then
    keep_secrets
    if scontrol requeue "$SLURM_JOB_ID"; then exit 143; fi
  fi
fi
ended "$code"
"""

END_FOR_GOOD = r"""
ended "$code"
"""
