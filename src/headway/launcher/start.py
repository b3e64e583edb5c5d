"""Train a job with one call: `headway.run`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from headway.launcher.lifecycle import RunHandle, launch
from headway.planning import plan
from headway.spec import Job


def run(
    job: Job | str | Path,
    on: str = "local",
    *,
    set: Sequence[str] = (),
    name: str | None = None,
    env: Mapping[str, str] | None = None,
    secrets: Sequence[str] = (),
    say: Callable[[str], None] = lambda text: None,
) -> RunHandle:
    """Start training a job on a target, as `headway run` does, and return a handle on the run at once.

    Args:
        job: The job, or the path of its job file.
        on: Name of a target in the job file's `targets`, or a kind of target.
        set: Overrides of the job file's keys, such as `config.lr=0.1`.
        name: The run's name, which must not exist in the outputs folder. None: the job's name and a number.
        env: Environment variables to add.
        secrets: Names of variables of this process to pass to the run as secrets.
        say: Called with messages for the user.

    Returns:
        A handle: wait for the run, read its log and its metrics, stop it, resume it, copy its files.

    Raises:
        BadJob: With all problems that would prevent the run.
        BadInput: If no target has that name.
        TargetError: If the target does not accept the run.

    Example:
        >>> import headway
        >>> run = headway.run("headway.yaml", set=["config.lr=0.1"], name="first")
        >>> run.wait().status.state.value
        'finished'
        >>> [line.text for line in run.logs(rank=0)]
        ['one line']
    """
    if not isinstance(job, Job):
        job = Job.load(job, set=set)
    elif set:
        raise TypeError("overrides belong to the loading of a job file: Job.load(path, set=[…])")
    return launch(plan(job, on=on), name=name, detach=True, env=env, secrets=secrets, say=say)
