"""Upload a plan's code beside its runs (named by content, checked, sent once); verify that a saved plan is still valid.

Also checks the data that a job names, from manifests on this machine alone. Data in a bucket is not touched, because
planning needs no credentials: it is checked when the run starts.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
import zlib
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

from headway._version import __version__
from headway.core.errors import BadInput, BadPlan, Conflict, NotThere, Problem
from headway.core.plan import UNRESOLVED, Plan
from headway.core.program import is_project
from headway.core.types import Request, Target
from headway.packaging.code import archive_path, wheel_path
from headway.packaging.resume_evidence import kind_in
from headway.plugins import RECIPES
from headway.rundir.layout import CODE_LISTING, RunFolder
from headway.spec import Data, Job
from headway.storage import ABSENT, Store, join, make_private, open_store

_BUILT_IN: Final = "builtin:"
_NAME_VAL: Final = "name what to validate on, such as  data: {val: [{source: DATA, split: test}]}"


def data_problems(job: Job) -> list[Problem]:
    """Find splits, weights, limits and filters that the prepared data on this machine does not support."""
    recipe = RECIPES.get(job.recipe or "")
    if recipe is None or not recipe.task:
        return []
    from headway.data.dataset.manifest import check_data, sources_of

    here = {
        name: tuple(source for source in getattr(job.data, name) if _dataset_fingerprint(source.source))
        for name in ("train", "val", "test")
    }
    found = check_data(replace(job.data, **here), task=recipe.task)
    if found or job.data.val:
        return found
    # Without data.val, the recipe validates on that split of the training data.
    implied = check_data(Data(val=sources_of(Data(train=here["train"]), "val", recipe.data_default)), task=recipe.task)
    return [replace(problem, where="data.val", fix=_NAME_VAL) for problem in implied]


def data_fingerprint(source: str) -> str:
    """Fingerprint the data if that needs no reading of it; UNRESOLVED for remote data, which is resolved at launch."""
    if "://" in source:
        return UNRESOLVED
    if source.startswith(_BUILT_IN):
        return f"{source}@{__version__}"
    if _dataset_fingerprint(source):
        from headway.data.dataset.manifest import fingerprint as manifest_fingerprint

        return manifest_fingerprint(source)
    if Path(source).exists():
        return UNRESOLVED
    raise BadInput(f"no such data: {source}", fix="headway data prepare, or fix the path in the job file")


def _dataset_fingerprint(source: str) -> bool:
    return "://" not in source and not source.startswith(_BUILT_IN) and (Path(source) / "manifest.json").is_file()


def verify_plan(plan: Plan, target: Target) -> None:
    """Raise BadPlan if executing a saved plan would now differ from what it states."""
    if plan.headway != __version__:
        raise _stale_plan(f"it was made by Headway {plan.headway}, and this is {__version__}")
    if _requests_text(target.render(plan)) != _requests_text(plan.requests):
        raise _stale_plan("its requests would differ now: the interpreter changed, or the plan was edited by hand")
    for source, pinned in sorted(plan.data.items()):
        found = data_fingerprint(source)
        if UNRESOLVED not in (pinned, found) and found != pinned:
            raise _stale_plan(f"the data at {source} has changed")


def send_code(plan: Plan, *, also_at: str | None = None) -> None:
    """Upload the archive, our own wheel and the supervisor's runtime to `<outputs>/code/`.

    `also_at` is another outputs that may have them.
    """
    outputs = str(plan.job["outputs"])
    make_private(join(outputs, "code"))
    code = plan.code
    for key in filter(None, (f"{code.sha256}.tar.gz", code.wheel, code.runtime)):
        store = open_store(join(outputs, "code"))
        if not _is_stored(store, key):
            body = _cached(plan, key) or _find_elsewhere(also_at, key)
            if body is None:
                raise _stale_plan(f"{key} is not on this machine")
            _check_code(plan, key, body)
            try:
                store.write(key, body, when=ABSENT)
            except Conflict:
                pass  # another process has sent the same content
    if plan.job.get("named_data"):
        from headway.packaging.project_data import send_data

        send_data(plan)


def list_code(plan: Plan, folder: RunFolder) -> None:
    """Write names, sizes and hashes of a script's code files into the run folder: any other file that is later in the
    working folder was written by the script."""
    if not is_project(plan.job):
        return
    tar = gzip.decompress(_uploaded_code(plan))
    files = {}
    with tarfile.open(fileobj=io.BytesIO(tar)) as members:
        for member in members:
            body = members.extractfile(member)
            if body is not None:
                files[member.name] = [member.size, hashlib.sha256(body.read()).hexdigest()]
    folder.write_json(CODE_LISTING, {"sha256": plan.code.sha256, "files": files})


def resume_recorded(plan: Plan) -> str:
    """Determine how a run resumes if its plan does not say: from its recorded code, which `send_code` has uploaded."""
    return plan.resumes or kind_in(plan, _uploaded_code(plan))


def _uploaded_code(plan: Plan) -> bytes:
    """Read the uploaded archive, checked."""
    outputs, key = str(plan.job["outputs"]), f"{plan.code.sha256}.tar.gz"
    body = open_store(join(outputs, "code")).read(key)
    try:
        _check_code(plan, key, body)
    except BadPlan as error:
        where = join(outputs, "code", key)
        raise BadPlan(f"the code archive is damaged: {error.problem.what}", where=where, fix="headway plan") from None
    return body


def _requests_text(requests: Iterable[Request]) -> str:
    return json.dumps([asdict(request) for request in requests], sort_keys=True)


def _is_stored(store: Store, key: str) -> bool:
    try:
        return store.stat(key).size > 0
    except NotThere:
        return False


def _cached(plan: Plan, key: str) -> bytes | None:
    try:
        return _cache_path(plan, key).read_bytes()
    except OSError:
        return None


def _cache_path(plan: Plan, key: str) -> Path:
    if key == plan.code.runtime:
        from headway.packaging import supervisor_runtime

        return supervisor_runtime.archive_path(key)
    return wheel_path(key) if key == plan.code.wheel else archive_path(plan.code.sha256)


def _find_elsewhere(outputs: str | None, key: str) -> bytes | None:
    try:
        return open_store(join(outputs, "code")).read(key) if outputs else None
    except NotThere:
        return None


def _check_code(plan: Plan, key: str, body: bytes) -> None:
    """Check a file's hash. The archive's hash in the plan is of the uncompressed tar; the wheel's is of the file."""
    if key == plan.code.runtime:
        from headway.packaging import supervisor_runtime

        supervisor_runtime.check(body, key)
        return
    try:
        content, pinned = (
            (body, plan.code.wheel_sha256) if key == plan.code.wheel else (gzip.decompress(body), plan.code.sha256)
        )
    except (OSError, EOFError, zlib.error) as error:
        raise _stale_plan(f"{key} is damaged: {error}") from None
    if hashlib.sha256(content).hexdigest() != pinned:
        raise _stale_plan(f"{key} differs from the one in the plan")


def _stale_plan(why: str) -> BadPlan:
    return BadPlan(f"this plan is no longer valid: {why}", fix="headway plan, and review it again")
