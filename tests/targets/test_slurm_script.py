"""job.sbatch as text: the same plan gives the same script, and it says what Slurm must know. Needs no Slurm."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headway.core.plan import Code, Limits
from headway.core.types import Request
from headway.planning import Plan
from headway.spec import Accelerator, Budget, Job, Resources, Secret, dump
from headway.spec.rules import processes
from headway.targets.slurm import lifecycle, sbatch
from headway.targets.slurm.options import Options
from headway.targets.slurm.target import SlurmTarget

GOLDEN = Path(__file__).parents[1] / "golden" / "slurm"
PYTHON = "/shared/env/bin/python"

SMALL = Job(name="captions", script="train.py", outputs="/shared/runs")
LARGE = Job(
    name="captions",
    script="train.py",
    outputs="/shared/my läufe/100%",
    resources=Resources(nodes=2, accelerator=Accelerator(kind="T4", count=4), cpus=16, memory=30_000_000_000),
    budget=Budget(hours=8),
    max_wait=3600.0,
    secrets={"TOKEN": Secret(ref="env:TOKEN_HERE"), "KEY": Secret(ref="gcp-sm://key")},
    setup=("module load cuda/12.4", "echo 'ready' && date"),
    requirements="requirements.txt",
)
CHOSEN = Options(
    partition="gpu",
    account="vision",
    qos="long",
    constraint="nvlink",
    gres="gpu:tesla_t4",
    time=4 * 3600,
    python=PYTHON,
    args=("--exclusive",),
)
PLAIN = Options(python=PYTHON)
WHEEL = "headway-0.0.0-0-py3-none-any.whl"


def plan_of(job: Job, options: Options = PLAIN) -> Plan:
    """A plan as `headway plan` makes it, without a cluster to ask."""
    target = SlurmTarget(options)
    draft = Plan(
        headway="0.0.0",
        job=dump(job),
        target="cluster",
        kind="slurm",
        options={},
        code=Code(sha256="c0de" * 16, files=1, bytes=1, biggest=(), wheel=WHEEL, wheel_sha256=""),
        data={},
        nodes=job.resources.nodes,
        processes=processes(job),
        limits=target.limits(job),
        environment={"threads": str(target.cpus(job, processes(job)) // processes(job))},
        price={},
    )
    return replace(draft, requests=tuple(target.render(draft)))


def text_of(plan: Plan) -> str:
    (request,) = [request for request in plan.requests if request.name == "job.sbatch"]
    return str(request.body["text"])


def directives(plan: Plan) -> list[str]:
    return [line.removeprefix("#SBATCH ") for line in text_of(plan).splitlines() if line.startswith("#SBATCH ")]


@pytest.mark.parametrize(("name", "job", "options"), [("small", SMALL, PLAIN), ("large", LARGE, CHOSEN)])
def test_the_script_is_the_one_that_was_reviewed(name: str, job: Job, options: Options) -> None:
    golden = GOLDEN / f"{name}.sbatch"
    text = text_of(plan_of(job, options))
    if os.environ.get("HEADWAY_RENEW_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text(), "if this was meant: HEADWAY_RENEW_GOLDEN=1 pytest, and review the difference"


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.sbatch")), ids=lambda path: path.stem)
def test_every_shell_understands_it(path: Path) -> None:
    bash = shutil.which("bash")
    assert bash is not None
    subprocess.run([bash, "-n", str(path)], check=True)


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="no shellcheck here: apt-get install shellcheck")
@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.sbatch")), ids=lambda path: path.stem)
def test_a_linter_of_shell_scripts_finds_no_fault(path: Path) -> None:
    done = subprocess.run(["shellcheck", "--severity=warning", str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_same_plan_gives_the_same_requests_and_they_are_plain_json() -> None:
    first, second = plan_of(LARGE, CHOSEN), plan_of(LARGE, CHOSEN)
    assert first.to_json() == second.to_json()
    again = Plan.from_json(first.to_json())
    assert all(isinstance(request, Request) for request in again.requests)


def test_each_node_is_asked_for_once_with_all_that_its_ranks_need() -> None:
    words = directives(plan_of(LARGE))
    assert {"--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=16", "--mem=28611M", "--gres=gpu:t4:4"} <= set(words)
    assert "--cpus-per-task=3" in directives(plan_of(replace(SMALL, resources=Resources(processes=3))))
    assert "srun --nodes=2 --ntasks=2 --ntasks-per-node=1 --cpus-per-task=16 " in text_of(plan_of(LARGE))


def test_what_the_site_calls_things_is_said_by_options() -> None:
    words = directives(plan_of(LARGE, CHOSEN))
    assert "--gres=gpu:tesla_t4:4" in words
    assert {"--partition=gpu", "--account=vision", "--qos=long", "--constraint=nvlink", "--exclusive"} <= set(words)


def test_a_run_can_be_requeued_and_is_warned_before_its_time_is_over() -> None:
    words = directives(plan_of(SMALL))
    assert {"--requeue", "--signal=B:TERM@120", "--open-mode=append"} <= set(words)
    final = plan_of(SMALL, Options(requeue=False))
    assert "--no-requeue" in directives(final)
    assert "scontrol requeue" not in text_of(final)


def test_slurms_limit_is_the_budget_and_the_time_that_ending_takes() -> None:
    def limited(hours: float | None, **options: Any) -> list[str]:
        plan = plan_of(replace(SMALL, budget=Budget(hours=hours)), Options(**options))
        return [word for word in directives(plan) if word.startswith(("--time", "--deadline"))]

    assert limited(None) == []
    assert limited(8) == ["--time=8:04:00"]  # 8 h, 30 s of grace, Slurm's warning of 120 s, which may come 60 s early
    assert limited(8, grace=300.0) == ["--time=8:08:00"]
    assert limited(72, time=86400.0) == ["--time=1-00:00:00"]  # a longer run is requeued
    assert limited(None, time=5400.0) == ["--time=1:30:00"]


def test_waiting_is_limited_by_a_deadline_where_the_job_does_not_come_back() -> None:
    job = replace(SMALL, budget=Budget(hours=1), max_wait=600.0)
    assert f"--deadline=now+{600 + 3840}" in directives(plan_of(job, Options(requeue=False)))
    assert not any(word.startswith("--deadline") for word in directives(plan_of(job)))


def test_the_plan_says_which_limit_stands_behind_the_budget() -> None:
    assert plan_of(LARGE).limits == Limits(
        budget_s=28800.0, max_wait_s=3600.0, grace_s=30.0, second="Slurm's --time=8:04:00, each start"
    )
    assert plan_of(SMALL).limits.second == "none but the partition's own"


def test_a_run_that_may_not_wait_for_ever_says_when_it_expires() -> None:
    assert "headway.expires={EXPIRES}" in text_of(plan_of(LARGE))
    assert "headway.expires" not in text_of(plan_of(replace(LARGE, max_wait=None)))


def test_the_values_of_secrets_are_in_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN_HERE", "canary-77")
    assert "canary-77" not in plan_of(LARGE).to_json()
    (call,) = [request.body for request in plan_of(LARGE).requests if request.name == "sbatch.json"]
    assert call["secrets"] == {"TOKEN": "env:TOKEN_HERE", "KEY": "gcp-sm://key"}


def test_sbatch_is_not_given_what_a_secret_comes_from_nor_another_runs_world() -> None:
    shell = {
        "PATH": "/bin",
        "TOKEN_HERE": "canary",
        "SLURM_CONF": "/etc/slurm.conf",
        "SLURM_PROCID": "3",
        "SLURM_MEM_PER_NODE": "100",
        "SQUEUE_PARTITION": "elsewhere",
        "RANK": "1",
        "HEADWAY_RUN": "outer",
        "SBATCH_ACCOUNT": "mine",
        "SBATCH_PARTITION": "debug",
        "SBATCH_ARRAY_INX": "0-9",
    }
    kept = lifecycle.environment(shell, plan_of(LARGE, Options(partition="gpu")), Options(partition="gpu"))
    assert kept == {"PATH": "/bin", "SLURM_CONF": "/etc/slurm.conf", "SBATCH_ACCOUNT": "mine"}


def test_paths_with_any_sign_in_them_are_one_word_in_the_script(tmp_path: Path) -> None:
    odd = tmp_path / "a b'c\"d$(touch oops)`;&läufe"
    job = replace(SMALL, outputs=str(odd))
    lines = [line for line in text_of(plan_of(job)).splitlines() if line.startswith(("place=", "export HEADWAY_"))]
    shown = subprocess.run(
        ["bash", "-c", "\n".join([*lines, 'printf "%s|" "$place" "$HEADWAY_RUN_URL"'])],
        capture_output=True, text=True, check=True, cwd=tmp_path,
    )  # fmt: skip
    assert shown.stdout == f"{odd}/{{RUN}}/slurm|{odd}/{{RUN}}|"
    assert list(tmp_path.iterdir()) == []
    comment = next(word for word in directives(plan_of(job)) if word.startswith("--comment="))
    assert comment.isascii()
    assert not set(" '\"$`;&#\\") & set(comment)


def test_threads_are_shared_out_of_what_the_job_asked_for_not_of_the_login_nodes_cores() -> None:
    assert plan_of(LARGE).environment["threads"] == "4"
    assert json.loads(plan_of(SMALL).to_json())["environment"]["threads"] == "1"
    assert sbatch.cpus({"cpus": None}, 2) == 2
