"""Projects as they are: modules, commands and notebooks run by a real supervisor, with placeholders and `resume`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headway.core.plan import BEGINNING, BY_SCRIPT, EXACT
from headway.supervisor import rank_env
from tests.supervisor.supervised import Case, cases, plan_of

Make = Callable[..., Case]


@pytest.fixture(name="make")
def _make(tmp_path: Path) -> Iterator[Make]:
    yield from cases(tmp_path)


def test_a_module_is_started_from_the_root_and_a_script_in_a_folder_imports_from_it(make: Make) -> None:
    files = {"models/__init__.py": "", "models/net.py": "NAME = 'net'", "training/train.py": "", "src/__init__.py": ""}
    for job in ({"script": None, "module": "src.train"}, {"script": "training/train.py"}):
        case = make("", job={**job, "args": ["{run}", "{attempt}/{rank}/{world}", '{"lr": 1}', "{{run}}"]})
        for name, text in files.items():
            (case.tmp / "code" / name).parent.mkdir(exist_ok=True, parents=True)
            (case.tmp / "code" / name).write_text(text)
        program = "import sys\nfrom models.net import NAME\nprint(NAME, *sys.argv[1:])\n"
        for name in ("src/train.py", "training/train.py"):
            (case.tmp / "code" / name).write_text(program)
        assert case.run() == 0, case.explain()
        assert case.log() == [f'net {case.folder.name} 1/0/1 {{"lr": 1}} {{run}}']


def test_another_interpreter_imports_headway_and_none_of_its_neighbours(make: Make, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "env")], check=True)
    body = "from headway.integrations.accelerate import resume\nimport obstore\n"
    case = make(body, job={"python": str(tmp_path / "env/bin/python"), "retries": 0})
    assert case.run() == 1
    assert case.log()[-1] == "ModuleNotFoundError: No module named 'obstore'"


def test_a_command_is_run_as_it_is_and_variables_take_placeholders(make: Make) -> None:
    job = {"script": None, "command": ["sh", "-c", 'echo "$WHERE|$0|$1"', "zero", "{nodes}"]}
    case = make("", job={**job, "env": {"WHERE": "{run_dir}/logs"}})
    assert case.run() == 0, case.explain()
    (line,) = case.log()
    where, zero, nodes = line.split("|")
    assert where.endswith("/files/logs")
    assert (zero, nodes) == ("zero", "1")


RESUMED = """
done = int(sys.argv[sys.argv.index("--from") + 1]) if "--from" in sys.argv else 0
print("from", done, flush=True)
Path("state").mkdir(exist_ok=True)
(Path("state") / "last").write_text("3")
sys.exit(0 if done else 9)
"""


@pytest.mark.parametrize("needed", ["state/last", "state/other", None])
def test_the_arguments_for_a_resume_are_added_once_an_earlier_attempt_left_its_file(
    make: Make, needed: str | None
) -> None:
    resume = {"args": ["--from", "3"], "if_exists": needed}
    case = make(RESUMED, job={"resume": resume, "retries": 1})
    resumes = needed != "state/other"
    assert (case.run() == 0) is resumes, case.explain()
    assert [line for line in case.log() if line.startswith("from")][-1] == ("from 3" if resumes else "from 0")


COUNTS = """
import os, time
first = 3 if CONTINUES and os.environ["HEADWAY_ATTEMPT"] == "2" else 1
for epoch in range(first, 6):
    print(f"epoch {epoch}/5 loss: 0.5", flush=True)
    time.sleep(2.0 if epoch == first else 0.05)
    if epoch == 4 and os.environ["HEADWAY_ATTEMPT"] == "1":
        wait_for_report()
        sys.exit(1)
wait_for_report()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("continues", "kind"), [(False, BY_SCRIPT), (True, BY_SCRIPT), (False, BEGINNING)])
def test_a_program_that_may_continue_and_begins_again_is_named(make: Make, continues: bool, kind: str) -> None:
    body = "wait_for_report = lambda: time.sleep(2.5)\n" + COUNTS.replace("CONTINUES", str(continues))
    case = make(body, job={"retries": 1}, resume=kind)
    assert case.run() == 0, case.explain()
    expected = [(2, 4)] if kind == BY_SCRIPT and not continues else []
    assert [(event["number"], event["reached"]) for event in case.events("began_again")] == expected


@pytest.mark.parametrize(("kind", "state"), [(BY_SCRIPT, "stopped"), (BEGINNING, "stopped"), (EXACT, "finished")])
def test_a_program_that_answers_a_stop_with_exit_code_0_is_not_finished(make: Make, kind: str, state: str) -> None:
    case = make("signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); mark('up'); wait()", resume=kind)
    supervisor = case.start()
    case.marked("up")
    supervisor.send(signal.SIGTERM)
    supervisor.ends()
    assert case.ended["state"] == state


def test_a_program_that_never_exits_is_finished_by_its_output_and_its_files_are_kept(make: Make) -> None:
    body = """
Path("model.bin").write_text("weights")
print("Training finished", flush=True)
wait()
"""
    case = make(body, job={"ends_when": {"output": "Training fin", "idle": 0.2}}, limits={"grace_s": 2.0})
    assert case.run(HEADWAY_CODE_DIR=str(case.tmp / "code")) == 0, case.explain()
    assert case.ended["state"] == "finished"
    assert "Training fin" in case.ended["reason"]
    assert case.folder.store.read("files/workdir/model.bin") == b"weights"


def test_an_end_condition_that_is_never_met_changes_nothing(make: Make) -> None:
    case = make("print('done')\nsys.exit(7)", job={"ends_when": {"output": "Training fin"}, "retries": 0})
    assert case.run() == 1
    assert case.ended["state"] == "failed"


def test_only_the_files_that_keep_names_are_saved_and_the_others_are_named_with_their_size(make: Make) -> None:
    body = """
for name in ("models/a.pt", "models/deep/b.pt", "other.bin"):
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_bytes(b"x" * 2000)
"""
    case = make(body, job={"keep": ["models/**"]})
    assert case.run(HEADWAY_CODE_DIR=str(case.tmp / "code")) == 0, case.explain()
    saved = sorted(entry.key for entry in case.folder.store.list("files/workdir/"))
    assert saved == ["files/workdir/models/a.pt", "files/workdir/models/deep/b.pt"]
    assert "not kept: other.bin (2.0 kB)" in case.supervisors[-1].printed


def test_a_secret_is_written_where_the_project_reads_it_and_removed_and_never_kept(make: Make) -> None:
    secrets = {"KEY": {"ref": "env:SOURCE", "as": "file", "at": "configuration/key.json"}}
    case = make("print(len(Path('configuration/key.json').read_text()))", job={"secrets": secrets})
    env = {"SOURCE": "very-secret-value", "HEADWAY_CODE_DIR": str(case.tmp / "code")}
    assert case.run(**env) == 0, case.explain()
    assert case.log() == ["17"]
    assert not (case.tmp / "code/configuration/key.json").exists()
    assert list(case.folder.store.list("files/")) == []


def test_a_secret_that_lies_where_the_project_reads_it_stays_there(make: Make) -> None:
    case = make("print(1)")
    key = case.tmp / "code/key.json"
    key.write_text("very-secret-value\n")
    case = make("print(1)", job={"secrets": {"KEY": {"ref": f"file:{key}", "as": "file", "at": "key.json"}}})
    assert case.run(HEADWAY_CODE_DIR=str(key.parent)) == 0, case.explain()
    assert key.read_text() == "very-secret-value\n"


def test_a_secret_does_not_overwrite_another_file_of_the_project(make: Make) -> None:
    case = make("", job={"secrets": {"KEY": {"ref": "env:SOURCE", "as": "file", "at": "key.json"}}})
    (case.tmp / "code/key.json").write_text("mine")
    assert case.run(SOURCE="value") == 2
    assert (case.tmp / "code/key.json").read_text() == "mine"
    assert "exists with another content" in case.ended["reason"]


def test_named_data_is_used_where_it_is_or_downloaded_once(make: Make, tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    (bucket / "set").mkdir(parents=True)
    (bucket / "set/a.txt").write_text("A")
    (tmp_path / "local.json").write_text("[1]")
    named = {"local": str(tmp_path / "local.json"), "far": f"file://{bucket}/set", "one": f"file://{bucket}/set/a.txt"}
    body = "print(*(Path(word).is_dir() or Path(word).read_text() for word in sys.argv[1:]))"
    job = {"named_data": named, "args": ["{data.local}", "{data.far}", "{data.one}"]}
    case = make(body, job={**job, "cache": {"dir": str(tmp_path / "cache")}})
    assert case.run() == 0, case.explain()
    assert case.log() == ["[1] True A"]
    assert sum(path.name == "a.txt" for path in (tmp_path / "cache").rglob("*")) == 2


def test_missing_data_ends_the_run_before_the_program_starts(make: Make) -> None:
    case = make("print('started')", job={"named_data": {"splits": "/nowhere/splits.json"}, "retries": 0})
    assert case.run() == 2
    assert "data.splits: there is no /nowhere/splits.json" in case.ended["reason"]
    assert case.log() == []


NOTEBOOK = {
    "cells": [
        {"cell_type": "markdown", "metadata": {}, "source": "# Prepare"},
        {"cell_type": "code", "metadata": {"tags": ["parameters"]}, "source": "rows = 1", "outputs": []},
        {"cell_type": "code", "metadata": {}, "source": "print('rows', rows)\nopen('out.csv', 'w').write('x')"},
    ],
    "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3"}},
    "nbformat": 4,
    "nbformat_minor": 4,
}


@pytest.mark.slow
@pytest.mark.parametrize("fails", [False, True])
def test_a_notebook_is_executed_with_its_parameters_and_kept_filled_in(make: Make, fails: bool) -> None:
    pytest.importorskip("nbclient", reason="nbclient is not installed")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed")
    notebook = json.loads(json.dumps(NOTEBOOK))
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell |= {"execution_count": None, "outputs": []}
    if fails:
        notebook["cells"][-1]["source"] += "\nraise ValueError('bad row')"
    case = make("", job={"script": None, "notebook": "Prepare.ipynb", "args": ["rows=5"], "retries": 3})
    (case.tmp / "code/Prepare.ipynb").write_text(json.dumps(notebook))
    code = case.run(HEADWAY_CODE_DIR=str(case.tmp / "code"), PATH=os.environ["PATH"])
    assert code == (1 if fails else 0), case.explain()
    tries = 2 if fails else 1  # the same error in the same cell is not tried again
    assert case.log().count("rows 5") == tries
    assert case.log().count('  File "Prepare.ipynb", line 3, in cell 3') == (tries if fails else 0)
    assert any("bad row" in line for line in case.log()) is fails
    saved = json.loads(case.folder.store.read("files/Prepare.ipynb"))
    assert any("rows 5" in "".join(out.get("text", "")) for cell in saved["cells"] for out in cell.get("outputs", []))


@pytest.mark.slow
@pytest.mark.parametrize(("args", "code", "line"), [("rows=5", 0, "rows 5"), ("row=5", 2, "no cell of the notebook")])
def test_a_parameter_follows_the_cell_that_assigns_it_and_an_unknown_one_is_refused(
    make: Make, args: str, code: int, line: str
) -> None:
    pytest.importorskip("nbclient", reason="nbclient is not installed")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed")
    cells = [
        {"cell_type": "code", "execution_count": None, "outputs": [], "metadata": {}, "source": source}
        for source in ("rows = 1  # a default", "print('rows', rows)")
    ]
    case = make("", job={"script": None, "notebook": "Prepare.ipynb", "args": [args], "retries": 3})
    (case.tmp / "code/Prepare.ipynb").write_text(json.dumps({**NOTEBOOK, "cells": cells}))
    assert case.run(HEADWAY_CODE_DIR=str(case.tmp / "code"), PATH=os.environ["PATH"]) == code
    assert sum(line in each for each in case.log()) == 1, case.explain()


ASKS = """
detected = int(os.environ.get("RANK", -1)) != -1
print("torchrun" if detected else "alone", os.environ.get("HEADWAY_ATTEMPT"))
"""
READS = """
print("rank", os.environ["RANK"], "of", os.environ.get("WORLD_SIZE", 1))
"""


@pytest.mark.parametrize(
    ("program", "processes", "said"),
    [(ASKS, 1, ["alone 1"]), (ASKS, 2, ["torchrun 1"] * 2), (READS, 1, ["rank 0 of 1"])],
)
def test_one_process_that_detects_torchrun_is_not_taken_for_a_part_of_it(
    make: Make, program: str, processes: int, said: list[str]
) -> None:
    case = make("", processes=processes)
    (case.tmp / "code" / "train.py").write_text(f"import os\n{program}")
    assert case.run() == 0, case.explain()
    assert [line for rank in range(processes) for line in case.log(rank)] == said


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("if 'RANK' in os.environ and 'WORLD_SIZE' in os.environ:", True),
        ('if os.environ.get("WORLD_SIZE") is None:', True),
        ("ddp = int(os.environ.get('RANK', -1)) != -1", True),
        ("rank = int(os.getenv('RANK', '-1'))", True),
        ('rank = int(os.environ.get("RANK", 0))', False),
        ('rank = int(os.environ["RANK"])', False),
        ('local = int(os.environ.get("LOCAL_RANK", -1))', False),
        ('name = config.get("MY_RANK")', False),
        ("from transformers import Trainer", True),
        ("import accelerate\nrank = int(os.environ['RANK'])", False),
    ],
)
def test_a_source_asks_for_torchrun_only_by_the_presence_of_its_variables(
    tmp_path: Path, source: str, found: bool
) -> None:
    (tmp_path / "train.py").write_text("import utils\n")
    (tmp_path / "utils.py").write_text(source)
    assert rank_env._detects_torchrun({"script": "train.py"}, tmp_path) is found


def test_a_command_s_python_is_the_interpreter_of_scripts_where_none_has_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "python3").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    plan = plan_of(job={"script": None, "command": ["python", "-m", "src.train"], "python": f"{tmp_path}/python3"})
    values, env = {"attempt": "1"}, {"PATH": str(tmp_path)}
    assert rank_env.argv(plan, tmp_path, values, env) == (f"{tmp_path}/python3", "-m", "src.train")
    (tmp_path / "python").touch(mode=0o755)
    assert rank_env.argv(plan, tmp_path, values, env) == ("python", "-m", "src.train")
