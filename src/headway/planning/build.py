"""Resolve a job for one target into a plan: what would be sent, run, limited and paid, as one value."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway import targets
from headway._version import __version__
from headway.core.errors import BadJob, Problem
from headway.core.plan import BY_SCRIPT, EXACT, UNRESOLVED, WEBHOOK, Code, Plan
from headway.core.platform import make_state_dir
from headway.core.program import entry_files, placeholder_names
from headway.core.types import Target
from headway.packaging import dependencies
from headway.packaging.code import Package, build_wheel, package
from headway.packaging.resume_evidence import integrated, is_source, resume_kind
from headway.packaging.upload import data_fingerprint, data_problems
from headway.planning import compute, plugins
from headway.planning.cost import CEILING_HOURS, Cost, cost_of, price_record, reserved_s
from headway.plugins import plugin_of
from headway.spec import Job, dump
from headway.spec.rules import closest_name, processes
from headway.storage.secret_scan import find_secrets

if TYPE_CHECKING:
    import ast


# Static checks of a valid job: placeholders, arguments of its script, image architecture. Runs nothing, offline.


# Placeholders as in examples, to be replaced by the user's own names.
_PLACEHOLDER = re.compile(
    r"<[\w .-]+>|\b(?:YOUR|MY)[-_](?:PROJECT|BUCKET|REPO|REGISTRY|NAME|KEY|TOKEN)\b|(?i:change[-_ ]?me|replace[-_ ]?me)"
    r"|\byour-(?:project|bucket|repo|registry|name|key|token)\b|path/to/|\bTODO\b|\bFIXME\b"
)
_ARM = ("t2a-", "c4a-", "n4a-", "a4x-", "m7g.", "c7g.", "g5g.")


def problems(job: Job, options: Mapping[str, Any]) -> list[Problem]:
    return [
        *placeholders(job, options),
        *secret_values(job),
        *arguments(job),
        *architecture(job, options),
        *model_class(job),
    ]


def placeholders(job: Job, options: Mapping[str, Any]) -> Iterator[Problem]:
    """Find placeholders that were not filled in."""
    for path, value in _texts(job, options):
        found = _PLACEHOLDER.search(value)
        if found:
            yield Problem(
                what=f"{found[0]!r} in {value!r} is a placeholder", where=path, fix="replace it with your own value"
            )


def model_class(job: Job) -> Iterator[Problem]:
    """Find a model class whose module is neither in the project nor installed."""
    if job.model is None:
        return
    from importlib.util import find_spec

    from headway.model.code import has_module, module_of

    module = module_of(job.model)
    if not has_module(job.model, Path(job.root)) and find_spec(module.partition(".")[0]) is None:
        fix = "write it: headway init model, or correct the name (MODULE:CLASS, a dot per folder)"
        yield Problem(what=f"there is no module {module} in the project", where="model", fix=fix)


def secret_values(job: Job) -> Iterator[Problem]:
    """Find credentials among values that are written into the plan as they are."""
    env = ((f"env.{key}", f"{key}={value}", key) for key, value in job.env.items())
    for where, text, name in (*env, *(("args", word, "NAME") for word in (*job.args, *job.command))):
        for finding in find_secrets(text.encode("utf-8", "replace"))[:1]:
            what = f"{finding.kind} would be written into the plan, where everyone who reads it sees it"
            yield Problem(what=what, where=where, fix=f"export {name}=…, and secrets: {{{name}: env:{name}}} instead")


def _texts(job: Job, options: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "outputs", job.outputs
    for name in ("train", "val", "test"):
        yield from ((f"data.{name}", source.source) for source in getattr(job.data, name))
    yield from ((f"data.{key}", value) for key, value in job.named_data.items())
    yield from ((f"env.{key}", value) for key, value in job.env.items())
    yield from (("args", value) for value in job.args)
    yield from (("command", value) for value in job.command)
    yield from ((f"secrets.{key}", secret.ref) for key, secret in job.secrets.items())
    named = {"export.to": job.export.to, "image.uri": job.image.uri, "image.repository": job.image.repository}
    yield from ((key, value) for key, value in named.items() if value)
    yield from ((f"targets.{key}", value) for key, value in options.items() if isinstance(value, str))


def architecture(job: Job, options: Mapping[str, Any]) -> Iterator[Problem]:
    """Find an image for one processor architecture on a machine of another."""
    machine = job.resources.machine or ""
    platform = str(job.image.platform or options.get("platform") or "linux/amd64")
    if not platform.startswith("linux/"):
        return
    arm = machine.startswith(_ARM)
    if machine and arm != platform.startswith("linux/arm64"):
        wanted = "linux/arm64" if arm else "linux/amd64"
        where = "image.platform" if job.image.platform else "the target"
        what = f"{machine} needs an image for {wanted}, but {where} says {platform}"
        fix = f"platform: {wanted} in {'image' if job.image.platform else where}, or another machine"
        yield Problem(what=what, where="resources.machine", fix=fix)


# Arguments: the script's argparse parser, read from its source


def arguments(job: Job) -> Iterator[Problem]:
    """Find arguments that the script's argparse would reject. Reports nothing where the source is not conclusive."""
    if not job.script or not job.script.endswith(".py"):
        return
    try:
        source = (Path(job.root) / job.script).read_text()
    except (OSError, UnicodeDecodeError):
        return
    if "add_argument" not in source:
        return
    script_options = _parse_options(source)
    if script_options is not None:
        yield from _argument_problems(job, script_options)


class _ScriptOptions:
    """The options that a parser declares, as far as its source states them literally."""

    def __init__(self) -> None:
        self.flags: dict[str, bool] = {}  # option -> whether it takes a value
        self.required: dict[str, tuple[str, ...]] = {}  # first name -> all its names
        self.choices: dict[str, tuple[str, ...]] = {}
        self.numbers: dict[str, type] = {}
        self.positional = False


def _parse_options(source: str) -> _ScriptOptions | None:
    """Parse the declared options; None if the parser is built in ways that static reading cannot follow."""
    import ast

    if re.search(r"parse_known_args|add_subparsers|parents\s*=|fromfile_prefix_chars|HfArgumentParser", source):
        return None
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return None
    if sum(_is_add_argument(node) == "ArgumentParser" for node in ast.walk(tree)) != 1:
        return None
    script_options = _ScriptOptions()
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and _is_add_argument(node) == "add_argument"
            and not _add_argument(script_options, node)
        ):
            return None
    return script_options


def _is_add_argument(node: ast.AST) -> str:
    function = getattr(node, "func", None)
    return str(getattr(function, "attr", getattr(function, "id", "")))


def _add_argument(script_options: _ScriptOptions, call: ast.Call) -> bool:
    """Read one `add_argument` call; return False if a name is not a string literal."""
    import ast

    names = [arg.value for arg in call.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
    if len(names) != len(call.args) or not names or any(keyword.arg is None for keyword in call.keywords):
        return False
    if not names[0].startswith("-"):
        script_options.positional = True
        return True
    keywords = {str(keyword.arg): keyword.value for keyword in call.keywords}
    action = getattr(keywords.get("action"), "value", None)
    if "action" in keywords and not isinstance(action, str):  # BooleanOptionalAction, or a custom one
        names += [f"--no-{name[2:]}" for name in names if name.startswith("--")]
        action = "store_true"
    script_options.flags |= dict.fromkeys(
        names, action not in ("store_true", "store_false", "count", "store_const", "help")
    )
    if getattr(keywords.get("required"), "value", False) is True:
        script_options.required[names[0]] = tuple(names)
    offered = keywords.get("choices")
    if isinstance(offered, ast.List | ast.Tuple) and all(isinstance(e, ast.Constant) for e in offered.elts):
        script_options.choices |= dict.fromkeys(
            names, tuple(str(e.value) for e in offered.elts if isinstance(e, ast.Constant))
        )
    kind = {"int": int, "float": float}.get(str(getattr(keywords.get("type"), "id", "")))
    if kind is not None and "nargs" not in keywords:
        script_options.numbers |= dict.fromkeys(names, kind)
    return True


def _argument_problems(job: Job, script_options: _ScriptOptions) -> Iterator[Problem]:
    given: set[str] = set()
    words = list(job.args)
    for place, word in enumerate(words):
        if not re.match(r"--?[A-Za-z]", word):
            continue
        name, _, value = word.partition("=")
        if not word.startswith("--") and word not in script_options.flags:  # -b64: a short option with its value
            name, value = word[:2], word[2:]
        full = _matching_flag(name, script_options)
        if full is None:
            near = closest_name(name, script_options.flags)
            fix = (
                f"did you mean {near}?"
                if near
                else f"its arguments: {', '.join(sorted(script_options.flags)) or 'none'}"
            )
            yield Problem(what=f"{job.script} takes no argument {name}", where="args", fix=fix)
            continue
        given.add(full)
        follows = value or (words[place + 1] if place + 1 < len(words) else "")
        yield from _value_problem(job, full, follows, script_options)
    for first, names in script_options.required.items():
        if not given & set(names):
            yield Problem(what=f"{job.script} needs the argument {first}", where="args", fix=f"add {first} … to args")


def _matching_flag(name: str, script_options: _ScriptOptions) -> str | None:
    """Resolve an option name: argparse accepts any unambiguous prefix."""
    if name in script_options.flags or name in ("-h", "--help"):
        return name
    fitting = [flag for flag in script_options.flags if flag.startswith(name)]
    return fitting[0] if len(fitting) == 1 else None


def _value_problem(job: Job, name: str, value: str, script_options: _ScriptOptions) -> Iterator[Problem]:
    if not script_options.flags.get(name):
        return
    if not value or (value.startswith("--") and len(value) > 2):
        yield Problem(what=f"{name} of {job.script} needs a value", where="args", fix=f"write {name} VALUE")
    elif name in script_options.choices and value not in script_options.choices[name]:
        choices = ", ".join(script_options.choices[name])
        yield Problem(what=f"{name} of {job.script} cannot be {value}", where="args", fix=f"choose one of {choices}")
    elif name in script_options.numbers:
        try:
            script_options.numbers[name](value)
        except ValueError:
            kind = "a whole number" if script_options.numbers[name] is int else "a number"
            yield Problem(
                what=f"{name} of {job.script} must be {kind}, not {value}", where="args", fix=f"fix {name} in args"
            )


def pod_placeholders(job: Job, target: Target) -> Iterator[Problem]:
    """Find placeholders of a pod in a job that does not run in one."""
    if target.has_pods:
        return
    texts = {"command": job.command, "args": job.args, "resume.args": job.resume.args, "env": tuple(job.env.values())}
    texts["resume.if_exists"] = (job.resume.if_exists or "",)
    for where, words in texts.items():
        for name in {name for word in words for name in placeholder_names(word) if name.startswith("pod.")}:
            what = f"{{{name}}} is known on Kubernetes only"
            yield Problem(what=what, where=where, fix="use {run}, {rank} or {node}, or --on a Kubernetes target")


def plan(job: Job, on: str = "local") -> Plan:
    """Plan a job on a target: what would be sent, run, limited and paid. Starts nothing and spends nothing.

    Pure but for the code archive that it writes to this machine's cache.

    Args:
        job: The job, from `Job.load`.
        on: Name of a target in the job file's `targets`, or a kind of target (a key of `headway.plugins.TARGETS`) with
            default options.

    Returns:
        The plan, to print, save or give to `headway.launch`.

    Raises:
        BadJob: With all problems that would prevent the run.
        BadInput: If no target has that name.
        MissingExtra: If the target needs packages that are not installed.

    Example:
        >>> import headway
        >>> job = headway.Job.load("headway.yaml", set=["config.lr=0.1"])
        >>> plan = headway.plan(job, on="local")
        >>> plan.target, plan.nodes, plan.processes, plan.job["config"]
        ('local', 1, 1, {'lr': 0.1})
    """
    make_state_dir()  # the code archive is written there
    entry = targets.entry(job, on)
    unsuitable = problems(job, entry.options)
    job = _absolute(job)
    target = targets.make(job, on)
    missing = plugins.problems(job, entry.kind, entry.options, target.image_platform(job))
    refused = [*unsuitable, *missing, *pod_placeholders(job, target), *target.check(job), *data_problems(job)]
    if refused:
        raise BadJob(refused)
    in_place = target.runs_in_place and job.recipe is None
    packed = package(job, in_place=in_place)
    job = _with_dockerfile(replace(job, dependencies=dependencies.find(job)), packed)
    job = compute.with_defaults(job, here=plugin_of(entry.kind).on_this_machine)
    cost = cost_of(job, entry.kind, entry.options)
    named, job = job.budget, cost.with_ceiling(job, entry.options)
    limits = target.limits(cost.within(job))
    too_small = list(cost.budget_problems(job, limits.budget_s))
    if too_small:
        raise BadJob(too_small)
    environment = _environment_record(job, target)
    dumped, resume = dump(job), _resume_kind(job, packed)
    draft = Plan(
        headway=__version__,
        job=_notify_secrets(dumped, {**cost.variables(job), **reserved_s(job, dumped)}),
        target=on,
        kind=entry.kind,
        options=dict(entry.options),
        code=_code_record(packed, _runtime(job, target)),
        data={source: data_fingerprint(source) for source in _sources(job)} | _named_data(job, target),
        nodes=job.resources.nodes,
        processes=processes(job),
        limits=limits,
        environment=environment,
        price=price_record(job, dumped, entry.kind, cost, cpus=int(environment["threads"]) * processes(job)),
        resume=resume,
        project=str(Path(job.root).resolve()) if in_place else "",
        plugins=plugins.record(job, entry.kind),
        notes=(
            *file_notes(packed, in_place=in_place),
            *plugins.notes(job, entry.kind, entry.options),
            *_configured_notes(job, on, entry.options),
            *target.notes(job, processes(job)),
            *_cost_notes(job, cost, chosen=job.budget != named),
            *compute.notes(job, resume),
            *compute.torch_notes(job),
        ),
    )
    return replace(draft, requests=tuple(target.render(draft)))


def _configured_notes(job: Job, on: str, options: Mapping[str, Any]) -> Iterator[str]:
    """Say which options come from this machine's configuration: on another machine they may differ."""
    given = job.targets[on].options if on in job.targets else {}
    for key in sorted({*options} - {*given}):
        yield f"{key}: {options[key]} (from this machine's configuration; `{key}:` in the target sets it)"


def _absolute(job: Job) -> Job:
    """Resolve relative paths against the job file's folder, so that the plan can be launched from anywhere."""
    root = Path(job.root).resolve()

    def place(path: str) -> str:
        return path if "://" in path or path.startswith("builtin:") else os.path.normpath(root / path)

    lists = {
        name: tuple(replace(source, source=place(source.source)) for source in getattr(job.data, name))
        for name in ("train", "val", "test")
    }
    export = replace(job.export, to=place(job.export.to)) if job.export.to else job.export
    init_from = job.init_from and place(job.init_from)
    named = {name: place(source) for name, source in job.named_data.items()}
    secrets = {name: replace(secret, ref=_absolute_reference(secret.ref, root)) for name, secret in job.secrets.items()}
    job = replace(job, secrets=secrets)
    data = replace(job.data, **lists)
    return replace(job, outputs=place(job.outputs), data=data, named_data=named, export=export, init_from=init_from)


def _absolute_reference(reference: str, root: Path) -> str:
    path = reference.removeprefix("file:")
    return reference if path == reference or path.startswith("~") else f"file:{os.path.normpath(root / path)}"


def _sources(job: Job) -> list[str]:
    return sorted({source.source for part in (job.data.train, job.data.val, job.data.test) for source in part})


def _named_data(job: Job, target: Target) -> dict[str, str]:
    """Fingerprint what a project names under `data`: files of this machine are sent to targets that do not see them."""
    here = {name: source for name, source in job.named_data.items() if "://" not in source}
    remote = {source: UNRESOLVED for source in job.named_data.values() if "://" in source}
    if target.sees_local_paths:
        return remote | {source: data_fingerprint(source) for source in here.values()}
    from headway.packaging.project_data import upload_fingerprint

    return remote | {source: upload_fingerprint(name, source) for name, source in here.items()}


def _runtime(job: Job, target: Target) -> str:
    """Return the name of the archive with the supervisor's own interpreter, if the target starts it in an image."""
    image_platform = target.image_platform(job)
    if not image_platform:
        return ""
    from headway.packaging.supervisor_runtime import runtime_name

    return runtime_name(dump(job), image_platform)


def _with_dockerfile(job: Job, packed: Package) -> Job:
    """Record the content of the project's own Dockerfile, if the job names one."""
    if not job.image.dockerfile:
        return job
    from headway.packaging import own_dockerfile

    return own_dockerfile.with_content(job, packed)


def _code_record(packed: Package, runtime: str) -> Code:
    wheel, wheel_sha256 = build_wheel()
    return Code(
        sha256=packed.sha256,
        files=len(packed.files),
        bytes=packed.bytes,
        biggest=packed.largest_files(),
        wheel=wheel,
        wheel_sha256=wheel_sha256,
        runtime=runtime,
    )


def _resume_kind(job: Job, packed: Package) -> str:
    """Determine how the job resumes, from the sources that are sent."""
    if job.recipe is not None:
        return EXACT
    root = Path(job.root).resolve()
    texts = {
        name: (root / name).read_text(encoding="utf-8", errors="replace")
        for name, size in packed.files
        if is_source(name, size)
    }
    if job.resume.args:
        return BY_SCRIPT
    entries = [name for name in entry_files(dump(job)) if name in texts]
    return resume_kind(entries[0] if entries else "", (*job.command, *job.args), texts, integrated(dump(job)))


def _environment_record(job: Job, target: Target) -> dict[str, str]:
    """Record what bit-exactness depends on. The runtime sets the threads, and reports differences on a resume."""
    cpus = target.cpus(job, processes(job))
    from importlib.metadata import PackageNotFoundError, version

    found: dict[str, Any] = {"python": ".".join(map(str, sys.version_info[:3]))}
    for name in ("torch", "numpy"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    threads = job.env.get("OMP_NUM_THREADS") or str(max(1, cpus // processes(job)))
    return {**found, "threads": threads}


def _notify_secrets(job: Mapping[str, Any], variables: Mapping[str, str]) -> dict[str, Any]:
    """Add the run's price variables and webhook secret to the job."""
    webhook_secret = (job.get("notify") or {}).get("webhook")
    secrets = {WEBHOOK: {"ref": webhook_secret, "as": "env"}} if webhook_secret else {}
    return {**job, "env": {**job["env"], **variables}, "secrets": {**job["secrets"], **secrets}}


def _cost_notes(job: Job, cost: Cost, *, chosen: bool) -> list[str]:
    """Return notes about cost: a limit that Headway chose, that nothing limits it, or that a budget has no effect."""
    if chosen:
        return [_chosen_note(cost), *_cost_notes(job, cost, chosen=False)]
    if cost.quote is None:
        return [] if job.budget.usd is None else ["budget.usd has no effect here: nothing is billed on this target"]
    if cost.quote.missing:
        effect = "; without one, budget.usd has no effect" if job.budget.usd is not None else ""
        return [f"no price is known: {cost.quote.missing}{effect}. Set `price:` (USD per node-hour) in the target"]
    if job.budget.usd is None and job.budget.hours is None:
        if not job.budget.unlimited:
            return ["this run has no budget; its target's own limit is of each start"]
        return ["this run has no limit, as `budget: none` says: it may run, and cost, without end"]
    return []


def _chosen_note(cost: Cost) -> str:
    """Say which limit a billed run without a budget has."""
    usd = f", ${cost.quote.billed_usd * CEILING_HOURS:.2f} at most" if cost.quote is not None and cost.priced else ""
    another = "budget: {usd: 5} or {hours: 8} sets another limit, budget: none runs without one"
    return f"the job names no budget, so the run ends after {CEILING_HOURS:g} h{usd} ({another})"


def file_notes(packed: Package, *, in_place: bool) -> Iterator[str]:
    """Return notes about files of the project that are not part of its code."""
    how = "read in place, not recorded with the code" if in_place else "not sent"
    yield from (f"{how}, because it looks like a secret: {name}" for name in packed.secrets)
    if not packed.left_out:
        return
    shown = ", ".join(map(str, packed.left_out[:5]))
    more = len(packed.left_out) - 5
    listed = f"{shown} and {more} more" if more > 0 else shown
    if in_place:
        yield f"read in place, not recorded with the code: {listed}"
    else:
        yield f"not sent: {listed}: `!{packed.left_out[0].name}` in .headwayignore sends it; or name it under `data`"
