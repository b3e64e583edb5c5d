"""Resume a run on another target, with the recorded code and the same batches; copy its folder there if needed.

All preconditions are checked before anything is changed. Earlier plans are kept in `plans/`.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from headway import targets
from headway.core.errors import BadInput, BadJob, Conflict, NotThere, Problem, RunBusy
from headway.core.plan import Code, Plan
from headway.packaging.code import package, unpack
from headway.packaging.upload import send_code
from headway.planning.build import _code_record, plan
from headway.rundir import lease, submission
from headway.rundir.layout import PLAN, RECEIPT, STOP, SUBMISSION, RunFolder
from headway.rundir.status import is_local_key, newest_attempt
from headway.spec.loading import undump
from headway.spec.model import Job, TargetEntry
from headway.storage import ABSENT, Store, join, local_path, make_private, open_store, require_conditional_put
from headway.storage.transfer import send_file

if TYPE_CHECKING:
    from headway.launcher.lifecycle import RunHandle

RECORDED, CURRENT = "recorded", "current"
MOVED = "moved.json"  # left in a folder whose run continues in another one
STORAGE_USD_PER_GB_MONTH = 0.02  # approximate price of the clouds' standard class; uploading to them is free
Confirm = Callable[[str], bool]


@dataclass(frozen=True, kw_only=True, slots=True)
class Migration:
    """A requested migration, to another target or to the current code.

    `job` is the current job file, for a target unknown to the run and for current code.
    """

    on: str
    code: str = RECORDED
    copy_to: str | None = None
    job: Job | None = None
    changed: tuple[str, ...] = ()  # files of the current code that differ from the recorded code
    confirm: Confirm = lambda text: True


@dataclass(frozen=True, kw_only=True, slots=True)
class Upload:
    """The files that a migration copies, with their destinations."""

    folder: tuple[str, ...]  # keys of the run folder
    data: Mapping[str, str]  # a folder of this machine -> its URL after the upload
    bytes: int
    files: int

    def describe(self, to: str) -> str:
        gigabytes = self.bytes / 1e9
        month = f"{gigabytes * STORAGE_USD_PER_GB_MONTH:.2f} $ a month for storage, upload is free"
        price = month if "://" in to else "nothing is billed"
        sources = "".join(f"\n  {source} → {url}" for source, url in sorted(self.data.items()))
        return f"copies {self.files} files, {gigabytes:.3f} GB, to {to}: {price}{sources}"


def require_not_migrated(folder: RunFolder) -> None:
    """Raise RunBusy if the folder's run was moved and continues elsewhere."""
    gone = folder.read_json(MOVED)
    if gone is not None:
        raise RunBusy(f"{folder.name} was moved to {gone['to']}", fix=f"headway resume {gone['to']}")


def prepare_migration(run: RunHandle, recorded: Plan, move: Migration) -> tuple[RunFolder, Plan]:
    """Prepare the folder in which the run continues, with its plan for the other target. Nobody runs it now."""
    outputs = run.url.rpartition("/")[0]
    job = _job_for_target(recorded, move, outputs)
    if move.copy_to is None:
        new_plan = _plan_for_target(recorded, job, move, outputs)
        _replace_plan(run.folder, recorded, new_plan)
        return run.folder, new_plan
    upload = _upload(run.folder, job, move.copy_to)
    if not move.confirm(upload.describe(move.copy_to)):
        raise BadInput("not confirmed: nothing was copied", fix="run it again with --yes")
    run.say(upload.describe(move.copy_to))
    for source, url in upload.data.items():  # named by content: if the plan is refused, a retry finds them there
        _send_data(source, url, run.say)
    new_plan = _plan_for_target(recorded, _with_uploaded_data(job, move.copy_to, upload.data), move, outputs)
    return _copy_run(run, recorded, new_plan, upload, move.copy_to), new_plan


def restore(folder: RunFolder, recorded: Plan) -> None:
    """Restore the recorded plan after a failed start on another target."""
    folder.store.write(PLAN, recorded.to_json().encode())


def _job_for_target(recorded: Plan, move: Migration, outputs: str) -> Job:
    """Return the recorded job with the other target added to its targets."""
    job = replace(undump(recorded.job, where="the run's plan"), outputs=outputs)
    entry = _target_entry(job, move)
    return replace(job, targets={**job.targets, move.on: entry})


def _target_entry(job: Job, move: Migration) -> TargetEntry:
    """Look up the target: in the current job file, in the run's own, or as the kind of that name."""
    if move.job is not None and move.on in move.job.targets:
        return move.job.targets[move.on]
    return targets.entry(job, move.on)


def _plan_for_target(recorded: Plan, job: Job, move: Migration, outputs: str) -> Plan:
    """Plan for the other target. Nodes, ranks, threads and data stay as they were: exact resume depends on them."""
    if move.code == CURRENT:
        if move.job is None:
            raise BadInput("--code current needs the job file", fix="-f headway.yaml")
        rooted = replace(job, root=move.job.root)
        return _planned(recorded, rooted, move, _code_record(package(rooted), ""))
    with _unpack_code(recorded, outputs) as root:
        new_plan = _planned(recorded, replace(job, root=str(root)), move, recorded.code)
    # The recorded wheel continues the run. It refuses a plan with keys that its version does not know.
    return replace(new_plan, headway=recorded.headway, resume=recorded.resume)


def _runtime_for(code: Code, fresh: Code) -> str:
    """Return the new target's runtime, if the wheel that continues the run can be started by one."""
    return fresh.runtime if code.runtime or code.wheel == fresh.wheel else ""


def _planned(recorded: Plan, job: Job, move: Migration, code: Code) -> Plan:
    try:
        fresh = plan(job, on=move.on)
    except BadJob as error:
        raise _explain_refusal(error, move) from None
    # Keys that the recorded version does not know; its code is continued as it was planned.
    unknown = {"dependencies"} - set(recorded.job) if move.code != CURRENT else set()
    new_plan = replace(
        fresh,
        job={key: value for key, value in fresh.job.items() if key not in unknown},
        code=replace(code, runtime=_runtime_for(code, fresh.code)),
        nodes=recorded.nodes,
        processes=recorded.processes,
        environment=recorded.environment,
    )
    return replace(new_plan, requests=tuple(targets.of_plan(new_plan).render(new_plan)))


def _explain_refusal(error: BadJob, move: Migration) -> BadJob:
    """Add the hint to use --copy-to if the other target cannot see the folder or the data."""
    unseen = [problem for problem in error.problems if problem.where.startswith(("outputs", "data", "init_from"))]
    if not unseen or move.copy_to is not None:
        return error
    fix = f"headway resume … --on {move.on} --copy-to gs://BUCKET/runs   moves folder and data there"
    return BadJob(
        [*error.problems, Problem(what=f"{move.on} cannot read the run folder and data on this machine", fix=fix)]
    )


@contextmanager
def _unpack_code(recorded: Plan, outputs: str) -> Iterator[Path]:
    """Unpack the recorded code into a temporary folder, so that its requirements can be checked."""
    name = f"{recorded.code.sha256}.tar.gz"
    with tempfile.TemporaryDirectory(prefix="headway-moving-") as folder:
        archive = Path(folder) / name
        for place in dict.fromkeys((outputs, str(recorded.job["outputs"]))):
            try:
                archive.write_bytes(open_store(join(place, "code")).read(name))
                break
            except NotThere:
                continue
        else:
            fix = "headway resume … --code current   (uses the current code, and records that)"
            raise BadInput(f"the recorded code is missing: {name} is in no code/ folder", fix=fix)
        unpack(archive, recorded.code.sha256, Path(folder) / "code")
        yield Path(folder) / "code"


def _upload(folder: RunFolder, job: Job, copy_to: str) -> Upload:
    if local_path(copy_to) is not None and local_path(copy_to) == local_path(folder.url.rpartition("/")[0]):
        raise BadInput(f"the run is already in {copy_to}", fix="leave out --copy-to")
    entries = [entry for entry in folder.store.list() if not is_local_key(entry.key)]
    sources = {source.source for part in (job.data.train, job.data.val, job.data.test) for source in part}
    local = sorted(source for source in sources if "://" not in source and not source.startswith("builtin:"))
    from headway.targets.ssh.sync import fingerprint, scan_source

    parcels = {source: scan_source(source) for source in local}
    data = {
        source: join(copy_to, "data", fingerprint(each), *([Path(source).name] if each.files[0][0] == "" else []))
        for source, each in parcels.items()
        if each.files
    }
    size = sum(entry.size for entry in entries) + sum(each.bytes for each in parcels.values())
    count = len(entries) + sum(len(each.files) for each in parcels.values())
    return Upload(folder=tuple(entry.key for entry in entries), data=data, bytes=size, files=count)


def _with_uploaded_data(job: Job, copy_to: str, data: Mapping[str, str]) -> Job:
    lists = {
        name: tuple(
            replace(source, source=data.get(source.source, source.source)) for source in getattr(job.data, name)
        )
        for name in ("train", "val", "test")
    }
    return replace(job, outputs=copy_to, data=replace(job.data, **lists))


def _copy_run(run: RunHandle, recorded: Plan, new_plan: Plan, upload: Upload, copy_to: str) -> RunFolder:
    """Copy everything, the plan last (without it there is no run there), then mark the old folder as moved."""
    require_conditional_put(open_store(copy_to))
    store, there = run.folder.store, RunFolder(open_store(join(copy_to, run.run)))
    make_private(there.url)
    for key in upload.folder:
        if key not in (PLAN, RECEIPT, STOP, MOVED):
            _copy(store, there.store, key)
    send_code(new_plan, also_at=run.url.rpartition("/")[0])
    _archive_plan(there, recorded)
    try:
        there.store.write(PLAN, new_plan.to_json().encode(), when=ABSENT)
    except Conflict:
        raise BadInput(f"a run named {run.run} already exists in {copy_to}", fix="choose another --copy-to") from None
    run.folder.write_json(MOVED, {"to": there.url, "at": submission.utc_now(), "by": submission.user_at_host()})
    return there


def _copy(source: Store, to: Store, key: str) -> None:
    folder = local_path(source.url)
    size = source.stat(key).size
    try:
        if to.stat(key).size == size and key not in (SUBMISSION, lease.KEY):
            return  # copied by an earlier, interrupted migration
    except NotThere:
        pass
    if folder is not None:
        send_file(to, key, folder / key)
    else:
        to.write(key, source.read(key))


def _send_data(source: str, url: str, log: Callable[[str], None]) -> None:
    """Upload data under its fingerprint. Files that are there already have the same content and are skipped."""
    from headway.targets.ssh.sync import scan_source

    upload = scan_source(source)
    single = upload.files[0][0] == ""
    base = url.rpartition("/")[0] if single else url
    store = open_store(base)
    log(f"data: {source} → {url}: {upload.bytes / 1e9:.3f} GB")
    for name, size in upload.files:
        key = name or Path(source).name
        try:
            if store.stat(key).size == size:
                continue
        except NotThere:
            pass
        send_file(store, key, Path(source, name) if name else Path(source))


def _replace_plan(folder: RunFolder, recorded: Plan, made: Plan) -> None:
    _archive_plan(folder, recorded)
    folder.store.write(PLAN, made.to_json().encode())


def _archive_plan(folder: RunFolder, recorded: Plan) -> None:
    """Keep the plan of the attempts so far, under the number of the last of them."""
    text = recorded.to_json().encode()
    key = f"plans/a{newest_attempt(folder):04d}-{hashlib.sha256(text).hexdigest()[:8]}.json"
    folder.store.write(key, text)
