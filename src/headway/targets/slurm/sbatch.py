"""Render job.sbatch, the readable batch script that contains everything Slurm is asked to do. Pure.

Slurm runs it on the first node. It prepares the environment, starts one supervisor per node through srun, forwards
Slurm's warning signal to them, and requeues the job if the run has not ended.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headway.core.plan import RUN
from headway.core.types import OWNER, OWNER_NAME
from headway.packaging import dependencies
from headway.rundir.status import local_dir, run_url
from headway.storage.secrets import parse
from headway.targets.shell import install_commands, setup_commands
from headway.targets.slurm.client import label
from headway.targets.slurm.options import Options

if TYPE_CHECKING:
    from headway.core.plan import Plan


# Fixed parts of the script, in bash. None contains a value chosen by a user.


REPORT = r"""
rm -f "$place/exit"
# Record the exit code of this script: Slurm forgets ended jobs after a while.
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
  # If the interpreter is in a virtual environment itself, make that one's packages importable too.
  "$python" -c "$packages" > "$("$place/env/bin/python" -c "$packages")/lent.pth" || fail "$python does not run"
  env=$place/env
  install() {{ "$env/bin/python" -m pip install --disable-pip-version-check "$@"; }}
{installs}
  touch "$place/env/ready-{code}"
fi
python="$place/env/bin/python"
"""

SECRETS_SHELL = r"""
# -- secrets: read and deleted from the disk, then passed to the supervisors over their standard input
secrets=$(cat "$place/private/secrets.json") \
  || fail "the secrets were lost with their node: headway resume $HEADWAY_RUN_URL sends them again"
rm -rf "$place/private"
keep_secrets() { (umask 077 && mkdir -p "$place/private" && printf %s "$secrets" > "$place/private/secrets.json"); }
"""

ADDRESSES = r"""
# -- rendezvous: at the first node's address, because the other nodes may not resolve its name
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
address=$(scontrol show node "$first" --oneliner | sed -n 's/.* NodeAddr=\([^ ]*\).*/\1/p')
export HEADWAY_SLURM_ADDRS="$first=${address:-$first}"
export HEADWAY_MASTER_PORT=$((12000 + SLURM_JOB_ID % 10000 * 2))  # one port per job: jobs may share a node
"""

WARNING = r"""
# -- Slurm sends its warning before the time limit to this shell only: forward it. When Slurm ends the job, it signals
# the supervisors itself: then forward nothing, because a second signal would make them exit at once.
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
# -- Exit code 143 requests a restart. After a preemption Slurm requeues the job by itself; after a warning, and during
# the grace period of a preemption, requeue it here. In all other cases the stop was requested: do not requeue.
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

NO_REQUEUE_END = r"""
ended "$code"
"""


KIND = "slurm"
SCRIPT, LOG, EXIT = "job.sbatch", "job-%j.log", "exit"
PRIVATE, SECRETS_VARIABLE = "private", "secrets.json"
EXPIRES = "{EXPIRES}"  # placeholder for the expiry in Unix seconds, filled in at launch
WARNING_S = 120  # before the time limit, Slurm sends SIGTERM …
EARLY_S = 60  # … or up to this much earlier
CLIENT_SIDE_KINDS = ("env", "file")  # kinds of secret reference that only the client's machine can resolve


def sbatch_script(plan: Plan, options: Options, python: str) -> str:
    """Render the script, with placeholders such as {RUN}, {EXPIRES} and {OWNER} for what is known only at launch."""
    run_dir = str(local_dir(run_url(str(plan.job["outputs"]), RUN), KIND))
    parts = [
        _header(plan, options),
        _variables(plan, run_dir, python),
        REPORT,
        setup_commands(plan, "`module load` stays in effect"),
        _requirements(plan),
        SECRETS_SHELL if client_secrets(plan.job) else "",
        ADDRESSES if plan.nodes > 1 else "",
        WARNING,
        _start(plan, options),
        END if options.requeue else NO_REQUEUE_END,
    ]
    return "\n".join(part.strip("\n") + "\n" for part in parts if part)


def resources(job: Mapping[str, Any], ranks: int, options: Options) -> list[str]:
    """Return sbatch's options for the resources per node and for the placement."""
    requested = job["resources"]
    accelerator, memory = requested.get("accelerator"), requested.get("memory")
    arguments = [f"--nodes={requested['nodes']}", "--ntasks-per-node=1", f"--cpus-per-task={cpus(requested, ranks)}"]
    if memory:
        arguments.append(f"--mem={math.ceil(memory / 2**20)}M")
    if accelerator:
        kind = options.gres or f"gpu:{str(accelerator['kind']).lower()}"
        arguments.append(f"--gres={kind}:{accelerator['count']}")
    site_options = ("partition", "account", "qos", "constraint")
    return [*arguments, *(f"--{name}={value}" for name in site_options if (value := getattr(options, name)))]


def cpus(requested: Mapping[str, Any], ranks: int) -> int:
    """Return the CPUs per node: as requested, or one per rank."""
    return int(requested.get("cpus") or ranks)


def time_s(budget_s: float | None, options: Options) -> float | None:
    """Return Slurm's limit per start, in whole minutes: the budget plus the time to end, or `time` if that is less."""
    limits = [] if options.time is None else [options.time]
    if budget_s is not None:
        limits.append(budget_s + options.grace + WARNING_S + EARLY_S)
    return math.ceil(min(limits) / 60) * 60.0 if limits else None


def time_options(budget_s: float | None, max_wait_s: float | None, options: Options) -> list[str]:
    """Return sbatch's options for time limits.

    A deadline covers waiting and running together, so a job that may be requeued gets none.
    """
    limit = time_s(budget_s, options)
    if limit is None:
        return []
    arguments = [f"--time={format_time(limit)}"]
    if max_wait_s is not None and not options.requeue:
        arguments.append(f"--deadline=now+{math.ceil(max_wait_s + limit)}")
    return arguments


def format_time(seconds: float) -> str:
    """Format a duration for Slurm, in whole minutes: 8:04:00, 2-00:00:00."""
    minutes = round(seconds / 60)
    days, hours = divmod(minutes // 60, 24)
    return f"{days}-{hours:02d}:{minutes % 60:02d}:00" if days else f"{hours}:{minutes % 60:02d}:00"


def lifetime_s(plan: Plan, options: Options) -> float | None:
    """Return the age after which a run may be removed in any case; None without a budget or a limit on waiting."""
    limits = plan.limits
    if limits.budget_s is None or limits.max_wait_s is None:
        return None
    return limits.budget_s + limits.max_wait_s + limits.grace_s + 3600.0


def client_secrets(job: Mapping[str, Any]) -> dict[str, str]:
    """Return the secrets that the client must send, as variable -> reference. Nodes fetch cloud secrets themselves."""
    references = {name: str(secret["ref"]) for name, secret in job.get("secrets", {}).items()}
    return {name: reference for name, reference in references.items() if parse(reference).kind in CLIENT_SIDE_KINDS}


def _header(plan: Plan, options: Options) -> str:
    url, limits = run_url(str(plan.job["outputs"]), RUN), plan.limits
    expires = EXPIRES if lifetime_s(plan, options) is not None else ""
    directives = [
        f"--job-name={RUN}",
        f"--comment={label(url, RUN, expires, OWNER, OWNER_NAME)}",
        f"--output={LOG}",
        "--open-mode=append",
        *resources(plan.job, plan.processes, options),
        *time_options(limits.budget_s, limits.max_wait_s, options),
        "--requeue" if options.requeue else "--no-requeue",
        f"--signal=B:TERM@{WARNING_S}",
        *options.args,
    ]
    comment = f"# {plan.job['name']}: {plan.nodes} × {plan.processes} ranks. Made by Headway {plan.headway}."
    return "\n".join(["#!/bin/bash", comment, *(f"#SBATCH {directive}" for directive in directives)])


def _variables(plan: Plan, run_dir: str, python: str) -> str:
    values = {
        "HEADWAY_RUN": RUN,
        "HEADWAY_RUN_URL": run_url(str(plan.job["outputs"]), RUN),
        "HEADWAY_TARGET": KIND,
        "HEADWAY_CODE_DIR": f"{run_dir}/code",
    }
    if client_secrets(plan.job):
        values["HEADWAY_SECRETS_STDIN"] = "1"
    lines = [
        f"place={shlex.quote(run_dir)}  # seen by every node",
        f"python={shlex.quote(python)}",
        *(f"export {name}={shlex.quote(value)}" for name, value in values.items()),
        # Every node runs the Headway version that made the plan, whatever its interpreter has installed.
        'export PYTHONPATH="$place/headway${PYTHONPATH:+:$PYTHONPATH}"',
    ]
    return "\n".join(lines)


def _requirements(plan: Plan) -> str:
    needed = dependencies.of_record(plan.job)
    installs = "\n".join(install_commands(needed))
    return REQUIREMENTS.format(installs=installs, code=plan.code.sha256[:12]) if needed else ""


def _start(plan: Plan, options: Options) -> str:
    secret = bool(client_secrets(plan.job))
    # srun does not inherit the job's CPUs and, on some clusters, not its accelerators.
    gpu_option = [
        option for option in resources(plan.job, plan.processes, options) if option.startswith(("--cpus", "--gres"))
    ]
    shape = " ".join([f"--nodes={plan.nodes}", f"--ntasks={plan.nodes}", "--ntasks-per-node=1", *gpu_option])
    return START.format(
        feed='printf %s "$secrets" | ' if secret else "", shape=shape, input="all" if secret else "none"
    )
