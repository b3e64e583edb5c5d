"""What a script writes below its working folder is kept, given back, and never destroyed by a new start."""

from __future__ import annotations

import hashlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headway.rundir.layout import CODE_LISTING, SUBMISSION, RunFolder
from headway.storage import Store, open_store
from headway.supervisor.keep_rules import format_size
from headway.supervisor.workdir import Workdir, is_shared
from tests.supervisor.supervised import Case, cases, plan_of
from tests.waiting import wait_until


@pytest.fixture(name="store")
def _store(tmp_path: Path) -> Store:
    return open_store(f"memory://{tmp_path.name}/run")


def stored(store: Store) -> dict[str, bytes]:
    return {entry.key: store.read(entry.key) for entry in store.list("files/")}


class Host:
    """One machine: its unpacked code, and the folder beside it."""

    def __init__(self, tmp: Path, store: Store, code: dict[str, str], *, node: int = 0) -> None:
        self.root, self.beside, self.store, self.node = tmp / "code", tmp, store, node
        self.code = code
        self.said: list[str] = []
        self.unpack()

    def unpack(self) -> None:
        for name, text in self.code.items():
            self.write(name, text)

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def workdir(self) -> Workdir:
        listing = {n: (len(t.encode()), hashlib.sha256(t.encode()).hexdigest()) for n, t in self.code.items()}
        return Workdir(
            self.root, self.store, node=self.node, code=lambda: listing, state_dir=self.beside, log=self.said.append
        )

    @property
    def files(self) -> dict[str, str]:
        return {p.relative_to(self.root).as_posix(): p.read_text() for p in self.root.rglob("*") if p.is_file()}


CODE = {"train.py": "print()", "conf/a.yaml": "a: 1"}


def test_only_what_the_script_made_or_changed_is_kept(tmp_path: Path, store: Store) -> None:
    host = Host(tmp_path, store, CODE)
    host.write("built/by-setup.so", "setup")
    workdir = host.workdir()
    workdir.prepare(fresh=False, last_attempt=0)
    host.write("models/model.pt", "weights")
    host.write("conf/a.yaml", "a: 2")
    for left_out in ("__pycache__/x.pyc", ".git/index", "venv/lib/x.py", "my-env/pyvenv.cfg", "my-env/lib/y.py"):
        host.write(left_out, "x")
    workdir.sync(final=True)
    assert stored(store) == {"files/workdir/conf/a.yaml": b"a: 2", "files/workdir/models/model.pt": b"weights"}
    assert workdir.saved == (2, 11)
    assert [text for text in host.said if "virtual environment" in text]
    host.write("conf/a.yaml", "a: 1")  # as it came, and all the same written by the script
    host.write("built/by-setup.so", "changed by the script")
    workdir.sync(final=True)
    kept = stored(store)
    assert sorted(kept) == [f"files/workdir/{name}" for name in ("built/by-setup.so", "conf/a.yaml", "models/model.pt")]
    assert kept["files/workdir/conf/a.yaml"] == b"a: 1"


def test_it_is_restored_on_another_machine_with_its_times(tmp_path: Path, store: Store) -> None:
    first, second = Host(tmp_path / "1", store, CODE), Host(tmp_path / "2", store, CODE)
    workdir = first.workdir()
    workdir.prepare(fresh=False, last_attempt=0)
    first.write("out/z-older.pt", "1")
    os.utime(first.root / "out/z-older.pt", (1000, 1000))
    first.write("out/a-newer.pt", "2")
    first.write("train.py", "changed")
    workdir.sync(final=True)
    again = second.workdir()
    assert again.prepare(fresh=False, last_attempt=1).restored == 3
    assert second.files == first.files
    newest = max((second.root / "out").iterdir(), key=lambda path: path.stat().st_mtime)
    assert newest.name == "a-newer.pt"
    assert again.sync(final=True) == 0  # nothing is sent again


def test_what_a_killed_attempt_wrote_after_the_last_look_is_newer_than_the_store(tmp_path: Path, store: Store) -> None:
    host = Host(tmp_path, store, CODE)
    workdir = host.workdir()
    workdir.prepare(fresh=False, last_attempt=0)
    host.write("model.pt", "step 1")
    workdir.sync(final=True)
    host.write("model.pt", "step 2")
    host.write("extra.pt", "step 2")
    host.unpack()
    again = host.workdir()
    assert again.prepare(fresh=False, last_attempt=1).restored == 0
    assert host.files["model.pt"] == "step 2"
    again.sync(final=True)
    assert stored(store) == {"files/workdir/extra.pt": b"step 2", "files/workdir/model.pt": b"step 2"}


def test_what_a_later_attempt_elsewhere_wrote_is_newer_than_what_lies_here(tmp_path: Path, store: Store) -> None:
    here, there = Host(tmp_path / "1", store, CODE), Host(tmp_path / "2", store, CODE)
    workdir = here.workdir()
    workdir.prepare(fresh=False, last_attempt=0)
    here.write("model.pt", "step 1")
    here.write("rotated-1.pt", "step 1")
    workdir.sync(final=True)
    later = there.workdir()
    later.prepare(fresh=False, last_attempt=1)
    there.write("model.pt", "step 9")
    there.write("rotated-9.pt", "step 9")
    (there.root / "rotated-1.pt").unlink()
    later.sync(final=True)
    here.workdir().prepare(fresh=False, last_attempt=2)
    assert here.files == {**CODE, "model.pt": "step 9", "rotated-9.pt": "step 9"}


@pytest.mark.parametrize("kind", ["memory", "folder"])
def test_a_start_from_the_beginning_moves_what_was_kept_aside(tmp_path: Path, store: Store, kind: str) -> None:
    store = store if kind == "memory" else open_store(str(tmp_path / "run"))
    host = Host(tmp_path, store, CODE)
    host.write("built.so", "setup")
    workdir = host.workdir()
    assert workdir.prepare(fresh=True, last_attempt=0).moved == 0
    host.write("out/checkpoint-500/w", "500")
    workdir.sync(final=True)
    host.write("out/checkpoint-600/w", "600")  # not yet in the store when the rank is killed
    done = workdir.prepare(fresh=True, last_attempt=1)
    assert (done.moved, done.moved_to) == (2, "files/earlier/a0001/")
    assert host.files == {**CODE, "built.so": "setup"}
    host.write("out/checkpoint-100/w", "100")
    workdir.sync(final=True)
    expected = {
        "files/earlier/a0001/out/checkpoint-500/w": b"500",
        "files/earlier/a0001/out/checkpoint-600/w": b"600",
        "files/workdir/out/checkpoint-100/w": b"100",
    }
    assert stored(store) == expected
    fresh = Host(tmp_path / "another", store, CODE)
    fresh.workdir().prepare(fresh=True, last_attempt=2)
    assert fresh.files == CODE
    assert set(stored(store)) == {key.replace("files/workdir/", "files/earlier/a0002/") for key in expected}


def test_nodes_keep_their_files_apart_unless_they_share_a_folder(tmp_path: Path, store: Store) -> None:
    hosts = [Host(tmp_path / str(node), store, CODE, node=node) for node in range(2)]
    for host in hosts:
        workdir = host.workdir()
        workdir.prepare(fresh=False, last_attempt=0)
        host.write("model.pt", f"of node {host.node}")
        workdir.sync(final=True)
    assert stored(store) == {
        "files/other-nodes/1/workdir/model.pt": b"of node 1",
        "files/workdir/model.pt": b"of node 0",
    }
    again = Host(tmp_path / "again", store, CODE, node=1)
    again.workdir().prepare(fresh=False, last_attempt=1)
    assert again.files["model.pt"] == "of node 1"
    assert is_shared(plan_of(kind="slurm"))
    assert is_shared(plan_of(kind="docker", job={"image": {"uri": "mine"}}))
    assert not is_shared(plan_of(kind="docker"))


def test_it_goes_from_the_machine_only_when_all_is_kept(tmp_path: Path, store: Store) -> None:
    host = Host(tmp_path / "node", store, CODE)
    workdir = host.workdir()
    workdir.prepare(fresh=False, last_attempt=0)
    host.write("model.pt", "1")
    workdir.sync(final=True)
    workdir.clear()
    assert host.files == CODE
    assert not (host.beside / "workdir.json").exists()


def test_what_could_not_be_sent_waits_beside_a_working_folder_that_does_not_last(tmp_path: Path, store: Store) -> None:
    host = Host(tmp_path / "container", store, CODE)
    host.beside = tmp_path / "node"  # a folder of the host, mounted
    workdir = host.workdir()
    workdir.prepare(fresh=False, last_attempt=0)
    host.write("model.pt", "1")
    workdir.sync(final=True)
    host.write("model.pt", "22")
    workdir.rescue()
    again = Host(tmp_path / "container-2", store, CODE)
    again.beside = host.beside
    next_one = again.workdir()
    next_one.prepare(fresh=False, last_attempt=1)
    assert again.files["model.pt"] == "22"
    next_one.sync(final=True)
    assert stored(store) == {"files/workdir/model.pt": b"22"}


def test_sizes_are_said_as_people_do() -> None:
    assert [format_size(count) for count in (3, 12_400_000, 1_500_000_000_000)] == ["3 B", "12.4 MB", "1.5 TB"]


# -- with a supervisor ------------------------------------------------------------------------------------------------

Make = Callable[..., Case]
PRICE = {"usd_per_hour": 2.0}
SCRIPT = """
    saved = Path("out/checkpoint")
    print("from", saved.read_text() if saved.exists() else 0, sorted(p.name for p in Path("out").glob("*")))
    Path("out").mkdir(exist_ok=True)
    saved.write_text(str(ATTEMPT * 100))
    Path(f"out/only-{ATTEMPT}").write_text("x")
"""


@pytest.fixture(name="make")
def _make(tmp_path: Path) -> Iterator[Make]:
    def prepared(script: str, **changes: Any) -> Case:
        case = make(script, **changes)
        text = (case.tmp / "code" / "train.py").read_bytes()
        listing = {"train.py": [len(text), hashlib.sha256(text).hexdigest()]}
        case.folder.write_json(CODE_LISTING, {"sha256": case.plan.code.sha256, "files": listing})
        case.env["HEADWAY_SPOOL"] = str(case.tmp / "place" / "spool")
        return case

    given = cases(tmp_path)
    make = next(given)
    yield prepared
    for _ in given:
        pass


def keys(case: Case) -> list[str]:
    return [entry.key for entry in case.folder.store.list("files/")]


def test_what_a_plain_script_writes_is_kept_and_said(make: Make) -> None:
    case = make(SCRIPT, resume="script")
    assert case.run() == 0
    assert keys(case) == ["files/workdir/out/checkpoint", "files/workdir/out/only-1"]
    assert "kept 2 files (4 B) that the program wrote, in files/ of the run folder" in case.log(-1)
    assert [path.name for path in (case.tmp / "code").iterdir()] == ["train.py"]


def test_a_stopped_script_finds_its_files_again(make: Make) -> None:
    case = make(SCRIPT + "\n    on_term(); mark(f'up-{ATTEMPT}'); wait() if ATTEMPT == 1 else None\n", resume="script")
    supervisor = case.start()
    case.marked("up-1")
    supervisor.send(signal.SIGTERM)
    assert supervisor.ends() == 143
    assert case.run() == 0
    assert case.log() == ["from 0 []", "from 100 ['checkpoint', 'only-1']"]
    assert any("restored 2 files into the script's working folder" in line for line in case.log(-1))
    assert any("whether it continues from them is up to the program" in line for line in case.log(-1))


def test_a_script_that_cannot_resume_starts_from_the_beginning_and_says_so(make: Make) -> None:
    case = make(SCRIPT + "\n    os.kill(os.getpid(), 9) if ATTEMPT == 1 else None\n", resume="beginning")
    assert case.run() == 0
    assert case.log() == ["from 0 []", "from 0 []"]
    assert keys(case) == [
        "files/earlier/a0001/out/checkpoint",
        "files/earlier/a0001/out/only-1",
        "files/workdir/out/checkpoint",
        "files/workdir/out/only-2",
    ]
    said = "\n".join(case.log(-1))
    assert "it starts from the beginning" in said
    assert "goes on" not in said


def test_on_a_billed_machine_it_is_not_started_again_by_itself(make: Make) -> None:
    crash = SCRIPT + "\n    os.kill(os.getpid(), 9)\n"
    case = make(crash, resume="beginning", price=PRICE)
    assert case.run() == 1
    assert len(case.events("attempt")) == 1
    assert "not restarted automatically" in case.ended["reason"]
    assert "headway resume run" in case.ended["reason"]
    assert keys(case) == ["files/workdir/out/checkpoint", "files/workdir/out/only-1"]


@pytest.mark.slow
def test_a_supervisor_that_its_place_starts_again_refuses_to_train_again_for_money(make: Make) -> None:
    case = make(SCRIPT + "\n    mark('up'); wait('go')\n", resume="beginning", price=PRICE)
    case.folder.write_json(SUBMISSION, {"attempts": [{"after": 0}]})
    supervisor = case.start()
    case.marked("up")
    wait_until(lambda: case.events("started") and len(keys(case)) == 2, case.explain)
    (case.tmp / "code" / "out" / "late").write_text("after the last look")
    supervisor.process.kill()
    supervisor.ends()
    assert case.run() == 1
    assert case.log() == ["from 0 []"]
    assert "files/workdir/out/late" in keys(case)
    assert "headway resume run" in case.ended["reason"]
    assert case.run() == 1  # and again: it has ended
    assert len(case.events("attempt")) == 2
    case.mark("go")
    case.folder.write_json(SUBMISSION, {"attempts": [{"after": 0}, {"after": 2}]})  # as `headway resume` records it
    assert case.run() == 0
    assert case.log()[-1] == "from 0 []"
    assert [key for key in keys(case) if "earlier" in key] == [
        f"files/earlier/a0001/out/{name}" for name in ("checkpoint", "late", "only-1")
    ]


def test_a_billed_script_that_loads_its_state_is_started_again(make: Make) -> None:
    case = make(SCRIPT + "\n    os.kill(os.getpid(), 9) if ATTEMPT == 1 else None\n", resume="script", price=PRICE)
    assert case.run() == 0
    assert case.log()[-1].startswith("from 100")


def test_a_recipe_has_no_working_folder_to_keep() -> None:
    from headway.supervisor.workdir import make_workdir

    plan = plan_of(job={"script": None, "recipe": "classification"})
    assert make_workdir(plan, None, None, node=0, env={"HEADWAY_CODE_DIR": "/x"}, log=print) is None  # type: ignore[arg-type]


def test_what_is_written_while_it_runs_is_kept_while_it_runs(make: Make) -> None:
    case = make(SCRIPT + "\n    mark('up'); wait('go')\n", resume="script")
    case.start()
    case.marked("up")
    wait_until(lambda: len(keys(case)) == 2, case.explain)
    assert not case.events("ended")
    case.mark("go")
    assert case.supervisors[0].ends() == 0


# What a later attempt must not destroy


def test_a_rotated_checkpoint_of_an_earlier_attempt_stays_until_the_new_one_is_past_it(
    tmp_path: Path, store: Store
) -> None:
    host = Host(tmp_path, store, CODE)
    workdir = host.workdir()
    workdir.prepare(fresh=False, last_attempt=0)
    host.write("out/step-505.pt", "weights")
    host.write("out/notes.txt", "x")
    workdir.sync(final=True)
    workdir.prepare(fresh=False, last_attempt=1)  # it was killed, and does not continue from its file after all
    host.write("out/step-1.pt", "young")
    for name in ("step-505.pt", "notes.txt"):
        (host.root / "out" / name).unlink()
    workdir.sync(final=True)
    assert sorted(stored(store)) == ["files/workdir/out/step-1.pt", "files/workdir/out/step-505.pt"]
    record = RunFolder(store).read_json("workdir/node-0.json")
    assert record is not None
    assert {name: each["attempt"] for name, each in record["files"].items()} == {
        "out/step-1.pt": 2,
        "out/step-505.pt": 1,
    }
    host.write("out/step-510.pt", "older")
    (host.root / "out/step-1.pt").unlink()
    workdir.sync(final=True)
    assert sorted(stored(store)) == ["files/workdir/out/step-510.pt"]


@pytest.mark.parametrize("kind", ["memory", "folder"])
def test_an_overwritten_checkpoint_of_an_earlier_attempt_stays_until_the_run_has_finished(
    tmp_path: Path, store: Store, kind: str
) -> None:
    store = store if kind == "memory" else open_store(str(tmp_path / "run"))
    host = Host(tmp_path, store, CODE)
    workdir = host.workdir()
    workdir.prepare(fresh=False, last_attempt=0)
    host.write("last.pt", "step 505")
    workdir.sync(final=True)
    for attempt in (2, 3):
        workdir.prepare(fresh=False, last_attempt=attempt - 1)
        for step in (1, 2):
            host.write("last.pt", f"attempt {attempt} step {step}")
            workdir.sync(final=True)
    earlier = {
        "files/earlier/a0001/last.pt": b"step 505",
        "files/earlier/a0002/last.pt": b"attempt 2 step 2",
        "files/workdir/last.pt": b"attempt 3 step 2",
    }
    assert stored(store) == earlier
    again = host.workdir()  # another supervisor, in the same folder
    again.prepare(fresh=False, last_attempt=3)
    again.finished = True
    again.sync(final=True)
    assert stored(store) == {"files/workdir/last.pt": b"attempt 3 step 2"}


def test_a_file_that_was_only_touched_is_not_sent_again(tmp_path: Path, store: Store) -> None:
    host, other = Host(tmp_path / "1", store, CODE), Host(tmp_path / "2", store, CODE)
    workdir = host.workdir()
    workdir.prepare(fresh=False, last_attempt=0)
    host.write("big.bin", "x" * (9 << 20))
    host.write("small.bin", "y")
    assert workdir.sync(final=True) == 2
    for name in ("big.bin", "small.bin"):
        os.utime(host.root / name)
    assert workdir.sync(final=True) == 0
    again = other.workdir()
    assert again.prepare(fresh=False, last_attempt=1).restored == 2
    os.utime(other.root / "big.bin")
    assert again.sync(final=True) == 0
    other.write("big.bin", "z" * (9 << 20))
    assert again.sync(final=True) == 1


def test_beyond_the_limit_the_newest_checkpoints_are_kept_and_the_others_named(tmp_path: Path, store: Store) -> None:
    host = Host(tmp_path, store, CODE)
    workdir = Workdir(host.root, store, state_dir=tmp_path, limit=5_000_000, log=host.said.append)
    workdir.prepare(fresh=False, last_attempt=0)
    for step in (1, 2, 3):
        host.write(f"ckpt/step-{step}.pt", "w" * 2_000_000)
        os.utime(host.root / f"ckpt/step-{step}.pt", (step, step))
        workdir.sync(final=True)
    host.write("predictions.npy", "p" * 2_000_000)
    host.write("train.log", "line")
    workdir.sync(final=True)
    kept = ["files/workdir/ckpt/step-2.pt", "files/workdir/ckpt/step-3.pt", "files/workdir/train.log"]
    assert sorted(stored(store)) == kept
    assert sum("exceed 5.0 MB (keep_limit" in text for text in host.said) == 1
    assert [each.path for each in workdir.left_out] == ["ckpt/step-1.pt", "predictions.npy"]
    record = RunFolder(store).read_json("workdir/node-0.json")
    assert record is not None
    assert [each["bytes"] for each in record["not_kept"]] == [2_000_000, 2_000_000]
