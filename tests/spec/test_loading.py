"""The job file as a whole: what it means, and everything that can be wrong with it, at once and with its place."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headway.core.errors import BAD_INPUT, BadJob, MissingExtra
from headway.plugins import Catalog
from headway.spec import (
    Accelerator,
    Budget,
    Cadence,
    Checkpoint,
    Data,
    Job,
    Mount,
    Resources,
    Secret,
    Source,
    TargetEntry,
    load,
    loads,
)
from headway.spec.constraints import keys_of
from headway.spec.yaml_reader import MAX_BYTES
from tests.spec.world import CATALOG, Load, Local, Problems

WHOLE = """\
name: captions
recipe: captioning
config: {decoder: attention, epochs: 20, lr: 3e-4, clip: null, sizes: [32, 48], schedule: {kind: constant}}
seed: 7
data:
  train: [{source: gs://bucket/coco, weight: 1}, {source: "${env:DATA}/vizwiz", weight: 2.5, where: {blurred: [0, 1]}}]
  val:   [{source: gs://bucket/coco, limit: 100}, {source: builtin:scenes, split: test}]
outputs: gs://bucket/runs
export: {to: gs://bucket/models/captions_v1, name: captions}
checkpoint: {every: 10m, keep_last: 3, keep_best: 1, keep_every: 5 epochs}
resources: {accelerator: T4:2, machine: n1-standard-8, nodes: 2, processes: auto,
            cpus: 8, memory: 30GB, disk: 100GiB, spot: true}
budget: {usd: 5, hours: 8}
max_wait: 1h30m
retries: 2
secrets:
  WANDB_API_KEY: gcp-sm://wandb-key
  GCP_KEY: {ref: "file:~/key.json", as: file}
log_to: [wandb, tensorboard]
env: {OMP_NUM_THREADS: 4, DEBUG: true, RATE: 1e-3}
image: {base: python:3.12, repository: us-docker.pkg.dev/project/repo/captions}
requirements: requirements.txt
setup: [apt-get update]
cache: {dir: /data1/headway, size: 500GB}
mounts: [{nfs: "server:/export", at: /data}]
notify: {webhook: env:SLACK_URL}
targets:
  gke: {kind: kubernetes, namespace: ml, project: "${env:DATA}"}
"""


def test_the_whole_job_file_is_understood(read: Load) -> None:
    job = read(WHOLE, env={"DATA": "gs://b"})
    assert (job.name, job.seed, job.retries, job.max_wait) == ("captions", 7, 2, 5400.0)
    assert job.data.train == (
        Source(source="gs://bucket/coco"),
        Source(source="gs://b/vizwiz", weight=2.5, where={"blurred": [0, 1]}),
    )
    assert job.checkpoint == Checkpoint(every=Cadence(seconds=600), keep_every=Cadence(epochs=5))
    assert job.resources == Resources(
        accelerator=Accelerator(kind="T4", count=2), machine="n1-standard-8", nodes=2, cpus=8,
        memory=30 * 10**9, disk=100 * 2**30, spot=True,
    )  # fmt: skip
    assert job.budget == Budget(usd=5.0, hours=8.0)
    assert job.secrets == {
        "WANDB_API_KEY": Secret(ref="gcp-sm://wandb-key"),
        "GCP_KEY": Secret(ref="file:~/key.json", as_="file"),
    }
    assert job.env == {"OMP_NUM_THREADS": "4", "DEBUG": "true", "RATE": "1e-3"}
    assert job.log_to == ("wandb", "tensorboard")
    assert job.mounts == (Mount(at="/data", nfs="server:/export"),)


def test_a_recipes_config_is_checked_and_its_defaults_are_filled_in(read: Load) -> None:
    config = read(WHOLE, env={"DATA": "x"}).config
    assert config == {
        "decoder": "attention", "epochs": 20, "batch": 64, "lr": 3e-4, "dropout": 0.1, "clip": None,
        "sizes": [32, 48], "tags": [], "schedule": {"kind": "constant", "warmup": 0},
    }  # fmt: skip


def test_a_scripts_config_is_taken_as_it_is(read: Load) -> None:
    job = read("name: x\nscript: train.py\nargs: [--lr, 1e-3, --fast, true]\nconfig: {a: [1, {b: no}], c: null}\n")
    assert job.config == {"a": [1, {"b": "no"}], "c": None}
    assert job.args == ("--lr", "1e-3", "--fast", "true")


def test_two_lines_are_a_job(read: Load, project: Path) -> None:
    job = read("name: x\nscript: train.py\n")
    local = TargetEntry(kind="local", options={"grace": 30.0})
    assert job == Job(name="x", script="train.py", targets={"local": local})
    assert job.root == str(project)


def test_a_recipe_brings_its_own_data_where_a_job_names_none(read: Load) -> None:
    brought = (Source(source="builtin:scenes"),)
    assert read("name: x\nrecipe: captioning\n").data == Data(train=brought, val=brought, test=brought)
    own = read("name: x\nrecipe: captioning\ndata: {train: [{source: a}]}\n")
    assert own.data == Data(train=(Source(source="a"),))
    assert read("name: x\nscript: train.py\n").data == Data()


def test_keys_with_nothing_under_them_are_left_out(read: Load) -> None:
    job = read("name: x\nscript: train.py\nconfig:\ndata:\nresources:\ntargets:\nargs:\nenv:\nmax_wait:\n")
    assert job == read("name: x\nscript: train.py\n")


def test_the_target_local_is_always_there_and_can_be_told_more(read: Load) -> None:
    job = read("name: x\nscript: train.py\ntargets: {local: {kind: local, grace: 5s}, gke: {kind: kubernetes}}\n")
    assert job.targets["local"].options == {"grace": 5.0}
    assert job.targets["gke"].options == {
        "namespace": "default",
        "project": None,
        "engine": "pytorchjob",
        "price": None,
    }


def test_a_target_whose_extra_is_missing_here_does_not_spoil_the_file(project: Path) -> None:
    def not_installed() -> type:
        raise MissingExtra("gcp", needed_for="vertex as a target")

    catalog = Catalog(targets={"local": lambda: Local, "vertex": not_installed})
    text = "name: x\nscript: train.py\ntargets: {v: {kind: vertex, region: us-east1}}\n"
    assert loads(text, root=project, catalog=catalog).targets["v"].options == {"region": "us-east1"}


def test_all_problems_come_at_once_in_the_files_order_each_with_its_place(problems: Problems) -> None:
    found = problems(
        "nme: captions\n"
        "recipe: captionning\n"
        "seed: -7\n"
        "data:\n"
        "  train: [{source: gss://bucket/coco, weight: 0}]\n"
        "  val: gs://bucket/coco\n"
        "resources: {accelerator: T5:1, memory: 30, spot: yes}\n"
        "budget: {usd: 5, usd: 6}\n"
        "secrets: {KEY: hunter2}\n"
        "targets: {gke: {kind: kubernets}}\n"
    )
    assert {place: problem.fix for place, problem in found.items()} == {
        "1:1": "did you mean name?",
        "2:9": "did you mean captioning?",
        "3:7": "write seed: 0",
        "5:20": "write gs://bucket/coco",
        "5:47": "write weight: 1",
        "6:8": "write val: [{source: gs://bucket/coco}]",
        "7:26": found["7:26"].fix,
        "7:40": "write 30MB, 30GB or 30GiB",
        "7:50": "write spot: true",
        "8:18": "remove one of the two",
        "9:16": found["9:16"].fix,
        "10:23": "did you mean kubernetes?",
    }
    assert list(found) == sorted(found, key=lambda place: tuple(map(int, place.split(":"))))


GOOD = "name: x\nrecipe: captioning\n"


@pytest.mark.parametrize(
    ("line", "place", "what", "fix"),
    [
        # types
        ("seed: two", "3:7", "seed must be a whole number", "write it as in seed: 1"),
        ("seed: 1.0", "3:7", "seed must be a whole number", "write seed: 1"),
        ("seed: true", "3:7", "seed must be a whole number", "write it as in seed: 1"),
        ("seed:", "3:6", "seed must be a whole number, not nothing", "write it as in seed: 1"),
        (f"seed: {2**63}", "3:7", "is too large", "write a smaller number"),
        ("exact: on", "3:8", "exact must be true or false", "write exact: true"),
        ("outputs: 5", "3:10", "outputs must be text, not 5", 'write outputs: "5"'),
        ("outputs: [a]", "3:10", "outputs must be text, not a list", "write it as in outputs: text"),
        ("data: [a]", "3:7", "data must be a mapping of keys and values, not a list", "{train: …}"),
        ("data: {train: {source: x}}", "3:15", "data.train must be a list, not a mapping", "write train: [{…}]"),
        ("setup: ls", "3:8", "setup must be a list, not the text 'ls'", "write setup: [ls]"),
        ("setup: [[ls]]", "3:9", "setup.0 must be text, not a list", "write ls, each an item"),
        ("env: [A]", "3:6", "env must be a mapping of keys and values", "{…}"),
        ("budget: {usd: cheap}", "3:15", "budget.usd must be a number", "usd: 0.5"),
        ("resources: {processes: many}", "3:24", "must be a whole number, at least 1, or 'auto'", "1 or auto"),
        ("log_to: [wandbb]", "3:10", "log_to.0 must be 'mlflow' or", "did you mean wandb?"),
        # bounds
        ("retries: -1", "3:10", "retries must be at least 0", "write retries: 0"),
        ("resources: {nodes: 0}", "3:20", "resources.nodes must be at least 1", "write nodes: 1"),
        ("budget: {hours: 0}", "3:17", "budget.hours must be more than 0", "write hours: 1"),
        ("checkpoint: {keep_last: 0}", "3:25", "checkpoint.keep_last must be at least 1", "write keep_last: 1"),
        ("data: {train: [{source: x, limit: 0}]}", "3:35", "data.train.0.limit must be at least 1", "write limit: 1"),
        ("budget: {usd: .inf}", "3:15", "budget.usd: .inf is not a finite number", "write a finite one"),
        ("data: {train: [{source: x, where: {a: .nan}}]}", "3:39", ".nan is not a finite number", "a finite one"),
        ("config: {lr: 1e999}", "3:14", "config.lr: 1e999 is not a finite number", "write a finite one"),
        # units
        ("max_wait: 60", "3:11", "the duration 60 has no unit", "write 60s, 60m or 60h"),
        ("max_wait: [1h]", "3:11", "max_wait must be a duration, not a list", "write 90s"),
        ("max_wait: true", "3:11", "max_wait must be a duration, not true", "write 90s"),
        ("resources: {memory: lots}", "3:21", "'lots' is not a size", "write 512MB"),
        ("resources: {memory: 99999999PB}", "3:21", "is too large", "write a smaller one"),
        ("checkpoint: {every: 10}", "3:21", "'10' has no unit", "write 10m, 10 steps or 10 epochs"),
        ("checkpoint: {every: {steps: 5}}", "3:21", "must be how often", "every: 10m"),
        ("resources: {accelerator: t4:1}", "3:26", "unknown accelerator 't4'", "did you mean T4:1?"),
        ("resources: {accelerator: [T4]}", "3:26", "must be an accelerator such as T4:1", "accelerator: T4:1"),
        ("precision: int8", "3:12", "precision must be", "fp32"),
        ("accumulate: 0", "3:13", "accumulate", ""),
        ("clip: 0", "3:7", "clip must be more than 0", "write clip:"),
        ("clip: 1.0\nconfig: {clip: 5.0}", "3:1", "both clip and config.clip are given", "remove config.clip"),
        # forms
        ("outputs: http://x/y", "3:10", "outputs must be a folder, or a gs://", "write gs://bucket/runs"),
        ("outputs: ''", "3:10", "outputs must be a folder", "write gs://bucket/runs"),
        ("export: {name: a/b}", "3:16", "export.name must be a name", "write a-b"),
        ("export: {name: ..}", "3:16", "export.name must be a name", "write captions_v1"),
        ("mounts: [{at: data, pvc: x}]", "3:15", "mounts.0.at must be an absolute path", "write /data"),
        ("mounts: [{at: /d, nfs: server}]", "3:24", "mounts.0.nfs must be SERVER:/EXPORT", "write server:/export"),
        ("env: {A-B: x}", "3:7", "'A-B' is not the name of an environment variable", "OMP_NUM_THREADS"),
        ("requirements: none.txt", "3:15", "there is no file", "name a file, relative to the job file"),
        (f"requirements: {'x' * 300}", "3:15", "cannot be read: File name too long", "relative to the job file"),
        ("requirements: .", "3:15", "is a folder", "name a file, relative to the job file"),
        ("requirements: ../x", "3:15", "must be a file below the job file's folder", "write train.py"),
        ("requirements: /etc/passwd", "3:15", "must be a file below the job file's folder", "write train.py"),
        # keys
        ("ouputs: x", "3:1", "unknown key 'ouputs'", "did you mean outputs?"),
        ("zzz: x", "3:1", "unknown key 'zzz'", "remove it; the keys are name, recipe"),
        ("checkpoint: {keep-last: 2}", "3:14", "unknown key 'keep-last' in checkpoint", "did you mean keep_last?"),
        ("data: {train: [{weight: 2}]}", "3:16", "data.train.0.source is missing", "add source: a folder"),
        ("data: {train: [{sauce: x}]}", "3:17", "unknown key 'sauce' in data.train.0", "did you mean source?"),
        ("script: train.py", "3:1", "both recipe and script are given", "keep one of the two"),
        ("args: [a]", "3:1", "args cannot be used together with recipe", "write the recipe's settings under config"),
        ("mounts: [{at: /d}]", "3:10", "mounts.0: one of nfs, pvc and path is missing", "add nfs: …"),
        ("mounts: [{at: /d, pvc: x, path: /x}]", "3:27", "both pvc and path are given", "keep one of the two"),
        ("image: {uri: a, base: b}", "3:17", "image: base cannot be used together with uri", "remove one"),
        # config
        ("config: {epocs: 3}", "3:10", "unknown key 'epocs' in config", "did you mean epochs?"),
        ("config: {epochs: 0}", "3:18", "config.epochs must be at least 1", "write epochs: 1"),
        ("config: {dropout: 1}", "3:19", "config.dropout must be less than 1", "write dropout: 0"),
        ("config: {decoder: transformer}", "3:19", "config.decoder must be 'lstm' or 'attention'", "write 'lstm'"),
        ("config: {sizes: [1]}", "3:17", "config.sizes must have 2 entries, not 1", "write 2 of them"),
        ("config: {sizes: [1, a]}", "3:21", "config.sizes.1 must be a whole number", "1: 1"),
        ("config: {schedule: {warm: 1}}", "3:21", "unknown key 'warm' in config.schedule", "did you mean warmup?"),
        ("config: 5", "3:9", "config must be a mapping of keys and values, not 5", "{decoder: …}"),
        # targets
        ("targets: {gke: {}}", "3:16", "targets.gke.kind is missing", "add kind: one of kubernetes, local"),
        ("targets: {gke: kubernetes}", "3:16", "targets.gke must be a mapping", "{kind: …}"),
        ("targets: {gke: {kind: 5}}", "3:23", "targets.gke.kind must be text", 'write kind: "5"'),
        ("targets: {GKE: {kind: kubernetes}}", "3:11", "'GKE' is not a name of lower case", "gpu-vm"),
        ("targets: {local: {kind: kubernetes}}", "3:25", "targets.local is always this machine", "another name"),
        ("targets: {gke: {kind: kubernetes, namspace: x}}", "3:35", "unknown key 'namspace'", "mean namespace?"),
        ("targets: {gke: {kind: kubernetes, price: -1}}", "3:42", "targets.gke.price must be at least 0", "price: 0"),
        ("targets: {local: {kind: local, grace: 5}}", "3:39", "the duration 5 has no unit", "write 5s, 5m or 5h"),
        ("targets: 5", "3:10", "targets must be a mapping", "{…}"),
        # references
        ("outputs: ${env:NOPE}/x", "3:10", "the environment variable NOPE is not set", "export NOPE=…"),
        ("outputs: ${env:}/x", "3:10", "an unfinished ${env:…}", "write ${env:NAME}"),
        ("outputs: ${HOME}/x", "3:10", "${HOME} is not expanded", "write ${env:HOME}"),
        ("outputs: $HOME/x", "3:10", "$HOME is not expanded", "write ${env:HOME}"),
        ("setup: ['${env:X}']", "3:9", "setup.0: ${env:…} is not expanded here", "data sources, outputs"),
        ("config: {tags: ['${env:X}']}", "3:17", "config.tags.0: ${env:…} is not expanded here", "data sources"),
        # across keys
        ("env: {RANK: 1}", "3:7", "RANK is set by Headway", "remove it"),
        ("env: {HEADWAY_X: 1}", "3:7", "HEADWAY_X is set by Headway", "remove it"),
        ("secrets: {MASTER_ADDR: env:X}", "3:11", "MASTER_ADDR is set by Headway", "remove it"),
        ("phases: [{name: a, epochs: 1}, {name: a, epochs: 2}]", "3:39", "name a is given twice", "its own name"),
        ("mounts: [{at: /d, pvc: a}, {at: /d, pvc: b}]", "3:33", "at /d is given twice", "its own at"),
    ],
)  # fmt: skip
def test_a_wrong_line_is_one_problem_with_its_place_and_what_to_write(
    problems: Problems, line: str, place: str, what: str, fix: str
) -> None:
    found = problems(f"{GOOD}{line}\n")
    assert list(found) == [place], found
    assert what in found[place].what
    assert fix in found[place].fix


@pytest.mark.parametrize(
    ("text", "place", "what", "fix"),
    [
        ("recipe: captioning\n", "1:1", "name is missing", "add name: a name of lower case letters"),
        (
            "name: x\n",
            "1:1",
            "one of recipe, script, module, notebook and command is missing",
            "add recipe: … or script: …",
        ),
        ("name: x\nrecipe: translating\n", "2:9", "unknown recipe 'translating'", "write one of captioning"),
        ("name: x\nrecipe: 5\n", "2:9", "recipe must be text, not 5", 'write recipe: "5"'),
        ("name: x\nscript: no.py\n", "2:9", "there is no file", "relative to the job file"),
        ("name: 1x\nscript: train.py\n", "1:7", "name must be a name of lower case letters", "write captions-v2"),
        ("name: My Job\nscript: train.py\n", "1:7", "name must be a name", "write my-job"),
        (f"name: {'x' * 41}\nscript: train.py\n", "1:7", "at most 40", f"write {'x' * 40}"),
        ("name: x-\nscript: train.py\n", "1:7", "name must be a name", "write x"),
        ("", "1:1", "the file is empty", "start with name: my-job"),
        ("# nothing\n", "1:1", "the file is empty", "start with name: my-job"),
        ("---\n", "1:1", "the file is empty", "start with name: my-job"),
        ("- a\n", "1:1", "a job file is a mapping", "start with name: my-job"),
        ("just text\n", "1:1", "a job file is a mapping", "start with name: my-job"),
    ],
)
def test_a_file_that_is_no_job_says_why(problems: Problems, text: str, place: str, what: str, fix: str) -> None:
    found = problems(text)
    assert list(found) == [place], found
    assert what in found[place].what
    assert fix in found[place].fix


@pytest.mark.parametrize(
    "line",
    [
        "secrets: {KEY: hunter2}",
        "secrets: {KEY: {ref: hunter2}}",
        "secrets: {KEY: [hunter2]}",
        "secrets: {KEY: {value: hunter2}}",
        "secrets: {KEY: 'env:hunter2 '}",
        "notify: {webhook: https://hooks.example.com/hunter2}",
        "env: {WANDB_API_KEY: hunter2}",
        "env: {DB_PASSWORD: hunter2}",
    ],
)
def test_a_literal_secret_is_refused_and_never_repeated(problems: Problems, line: str) -> None:
    found = problems(f"{GOOD}{line}\n")
    assert "hunter2" not in str(found)
    assert "secret" in str(found)


def test_a_literal_secret_gets_the_line_to_write(problems: Problems) -> None:
    found = problems(f"{GOOD}secrets: {{WANDB_API_KEY: abc}}\n")
    assert "write env:WANDB_API_KEY" in found["3:26"].fix


def test_a_secret_that_would_be_expanded_into_the_plan_is_refused(problems: Problems) -> None:
    found = problems(f"{GOOD}env: {{TOKEN: '${{env:GITHUB_ACCESS_TOKEN}}'}}\n", env={"GITHUB_ACCESS_TOKEN": "hunter2"})
    assert found["3:14"].fix == "write it under secrets, as TOKEN: env:GITHUB_ACCESS_TOKEN"


def test_ordinary_variables_are_not_taken_for_secrets(read: Load) -> None:
    env = read(f"{GOOD}env: {{EOS_TOKEN: x, TOKENIZERS_PARALLELISM: false, KEY: y, MAX_TOKENS: 5}}\n").env
    assert len(env) == 4


def test_a_name_in_env_and_in_secrets_is_refused(problems: Problems) -> None:
    found = problems(f"{GOOD}env: {{A: x}}\nsecrets: {{A: env:A}}\n")
    assert "A is both in env and in secrets" in found["4:11"].what


def test_a_problem_behind_an_alias_is_told_once(problems: Problems) -> None:
    found = problems(f"{GOOD}data:\n  train: [&s {{source: x, weight: 0}}]\n  val: [*s]\n")
    assert list(found) == ["4:34"]


def test_a_flood_of_problems_is_cut_to_what_can_be_read(problems: Problems) -> None:
    lines = "".join(f"unknown{i}: 1\n" for i in range(5000))
    many_keys = problems(GOOD + lines)
    assert len(many_keys) == 21
    assert "4980 more unknown keys" in many_keys["23:1"].what
    many_values = problems(f"{GOOD}setup: [{'[],' * 500}]\n")
    assert len(many_values) == 101
    assert many_values[""].what == "and 400 more problems"


# The file itself


def bad(path: Path) -> str:
    with pytest.raises(BadJob) as caught:
        load(path, catalog=CATALOG)
    assert caught.value.exit_code == BAD_INPUT
    assert all(problem.fix for problem in caught.value.problems)
    return str(caught.value)


def test_a_missing_file_says_how_to_make_one(tmp_path: Path) -> None:
    assert "there is no such file" in bad(tmp_path / "headway.yaml")
    assert "headway init" in bad(tmp_path / "headway.yaml")


def test_a_folder_is_not_a_job_file(tmp_path: Path) -> None:
    assert f"-f {tmp_path / 'headway.yaml'}" in bad(tmp_path)


def test_a_path_through_a_file_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("")
    assert "cannot be read" in bad(tmp_path / "x" / "headway.yaml")


def test_a_file_that_may_not_be_read_says_so(tmp_path: Path) -> None:
    path = tmp_path / "headway.yaml"
    path.write_text("name: x\n")
    path.chmod(0)
    # Root may read anything.
    become_nobody = "os.setgroups([]); os.setgid(65534); os.setuid(65534)" if os.getuid() == 0 else "pass"
    script = f"import os; from headway.spec import load, yaml_reader; {become_nobody}; load({str(path)!r})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "BadJob" in done.stderr
    assert "cannot be read: Permission denied" in done.stderr


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "is not a regular file" in bad(tmp_path / "pipe")


def test_a_huge_file_is_not_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "headway.yaml"
    with path.open("wb") as file:
        file.truncate(10**12)  # sparse: a terabyte that takes no room
    assert f"at most {MAX_BYTES:,} bytes" in bad(path)


def test_what_is_not_utf8_is_placed(tmp_path: Path) -> None:
    path = tmp_path / "headway.yaml"
    path.write_bytes("name: x\nenv: {A: caf\xe9}\n".encode("latin-1"))
    assert f"{path}:2:13: not UTF-8 text" in bad(path)


def test_a_byte_order_mark_is_no_part_of_the_first_key(tmp_path: Path) -> None:
    path = tmp_path / "headway.yaml"
    path.write_bytes(b"\xef\xbb\xbfname: x\nrecipe: captioning\n")
    assert load(path, catalog=CATALOG).name == "x"


def test_a_name_that_no_file_can_have_is_bad_input() -> None:
    assert "cannot be read" in bad(Path("a\0b")) or "no such file" in bad(Path("a\0b"))


def test_files_are_looked_for_beside_the_job_file_not_here(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    (project / "headway.yaml").write_text("name: x\nscript: train.py\n")
    assert load(project / "headway.yaml", catalog=CATALOG).root == str(project)


def is_a_job_or_a_bad_job(text: str, project: Path) -> None:
    """Whatever is typed: the job, or problems that all say what to do. Never another exception."""
    with contextlib.suppress(BadJob):
        assert isinstance(loads(text, root=project, catalog=CATALOG, env={"X": "x"}), Job)
        return
    with pytest.raises(BadJob) as caught:
        loads(text, root=project, catalog=CATALOG, env={"X": "x"})
    assert all(problem.what and problem.fix for problem in caught.value.problems)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(alphabet="nameripctgdoux:-[]{}&*'\"#, \n0123456789.$", max_size=80))
def test_no_text_whatever_ends_in_anything_but_a_job_or_a_bad_job(project: Path, text: str) -> None:
    is_a_job_or_a_bad_job(text, project)
    is_a_job_or_a_bad_job(f"name: x\nscript: train.py\n{text}", project)


KEYS = st.sampled_from([*keys_of(Job), "train", "source", "every", "kind", "accelerator", "local", "captioning"])
WORDS = st.sampled_from(["x", "10m", "T4:1", "30GB", "env:X", "local", "${env:X}", "captioning", "train.py"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(KEYS, VALUES, max_size=6))
def test_any_shape_under_any_key_is_a_job_or_a_bad_job(project: Path, document: dict[str, object]) -> None:
    is_a_job_or_a_bad_job(json.dumps(document), project)
