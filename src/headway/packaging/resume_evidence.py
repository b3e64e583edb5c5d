"""Determine statically, from the uploaded sources, whether a script can resume from its saved files. Runs nothing."""

from __future__ import annotations

import ast
import gzip
import hashlib
import io
import re
import tarfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from headway.core.plan import BEGINNING, BY_FRAMEWORK, BY_SCRIPT, EXACT, KERAS, LIGHTNING, TRANSFORMERS, UNKNOWN
from headway.core.program import entry_files, program_words
from headway.packaging.code import archive_path
from headway.packaging.load_order import loads_only_after_training

if TYPE_CHECKING:
    from headway.core.plan import Plan

MAX_SOURCE_BYTES = 1 << 20  # bytes; anything longer is data
SOURCES = (".py", ".sh", ".bash", ".yaml", ".yml", ".json", ".toml", ".cfg", ".ini", ".ipynb", "")

# Names and short strings found only in programs that load earlier state. Taken from PyTorch, Lightning, Transformers,
# Accelerate, DeepSpeed, Keras, TensorFlow, Flax, Orbax, fairseq, and common habits.
_LOAD_CALLS = re.compile(
    r"resum(e|ing)|HEADWAY_(RUN|RESUME)_DIR|get_last_checkpoint|latest_checkpoint|last_ckpt|load_state$|load_optimizer"
    r"|restore_checkpoint|BackupAndRestore|CheckpointManager|train\.Checkpoint|ckpt_path[=:]|--ckpt.path|orbax"
    r"|restore_file|xgb_model=|load_sharded|load_pytree|dcp\.load|estimator\.train|MonitoredTrainingSession"
    r"|^-+load_(checkpoint|model|weights)",
    re.IGNORECASE,
)
# Calls that also load the best weights for a last evaluation: evidence only if one of them comes before the training.
_AMBIGUOUS_CALLS = re.compile(
    r"torch\.load|load_state_dict|load_checkpoint|load_ckpt|load_weights|load_model|load_variables|from_checkpoint",
    re.IGNORECASE,
)
# General-purpose serializers: evidence only if the same sources both write and read with them.
_SAVE_LOAD_PAIRS = (
    ("pickle.dump", "pickle.load"),
    ("joblib.dump", "joblib.load"),
    ("dill.dump", "dill.load"),
    ("np.save", "np.load"),
    ("numpy.save", "numpy.load"),
    ("np.savez", "np.load"),
    ("np.savez_compressed", "np.load"),
    ("serialization.to_bytes", "serialization.from_bytes"),  # Flax
    ("tree_serialise_leaves", "tree_deserialise_leaves"),  # Equinox
    ("save_file", "load_file"),
    ("torch.save", "jit.load"),
)
# Frameworks with an integration: the packages that a program imports, and the last part of a name that it then uses.
_FRAMEWORKS = (
    (TRANSFORMERS, ("transformers", "trl"), re.compile(r"Trainer$")),
    (LIGHTNING, ("lightning", "pytorch_lightning"), re.compile(r"^(Trainer|LightningCLI)$")),
    (KERAS, ("keras", "tensorflow"), re.compile(r"^fit$")),
)
# A program that starts others, or imports modules by string, may use any source that is sent.
_DYNAMIC = {"importlib", "runpy", "subprocess", "hydra", "exec", "execv", "execvp", "Popen", "__import__", "system"}
_MAX_WORD = 200  # characters of a string; longer ones are prose


@dataclass(kw_only=True, slots=True)
class _Source:
    """One parsed file: its names and short strings, and the modules it imports."""

    words: set[str] = field(default_factory=set)
    imports: set[str] = field(default_factory=set)
    starts_headway: bool = False


def resume_kind(
    script: str, args: Sequence[str], sources: Mapping[str, str], frameworks: Sequence[str] = BY_FRAMEWORK
) -> str:
    """Determine how a script resumes: `exact`, by its framework, by the `script`, or from the `beginning`. Pure.

    Args:
        script: its path among the sources.
        args: its arguments; `--resume` among them counts.
        sources: text by path of everything readable that is sent. Only those that the script imports or names are
            searched; all of them if it starts other programs, or is not Python.
        frameworks: those whose integration is on.
    """
    parsed = {path: _parse(path, text) for path, text in sources.items()}
    paths = _reachable(script, args, parsed)
    used = [parsed[path] for path in paths]
    if any(source.starts_headway for source in used):
        return EXACT
    framework = _framework(used)
    if framework in frameworks:
        return framework
    words = {word for source in used for word in source.words} | set(args)
    if any(_LOAD_CALLS.search(word) for word in words):
        return BY_SCRIPT
    if not _may_load_state(words):
        return BEGINNING
    return BEGINNING if _loads_too_late(script, paths, parsed, sources) else BY_SCRIPT


def _loads_too_late(
    script: str, paths: Iterable[str], parsed: Mapping[str, _Source], sources: Mapping[str, str]
) -> bool:
    """Return whether a Python program loads only after its training. False if it starts other programs."""
    entry = PurePosixPath(script).as_posix()
    if not entry.endswith(".py") or entry not in sources or any(_is_dynamic(parsed[path]) for path in paths):
        return False
    others = (sources[path] for path in paths if path.endswith(".py") and path != entry)
    return loads_only_after_training(others, sources[entry])


def integrated(job: Mapping[str, Any]) -> Sequence[str]:
    """Return the frameworks whose integration is on for a job (a dumped one, as in a plan)."""
    if str((job.get("env") or {}).get("HEADWAY_INTEGRATIONS")) == "0":
        return ()
    one = _is_one_process(job.get("resources") or {})
    return tuple(name for name in BY_FRAMEWORK if one or name != KERAS)  # Keras' integration is for one process


def _is_one_process(resources: Mapping[str, Any]) -> bool:
    accelerator = resources.get("accelerator") or {}
    count = accelerator.get("count", 1) if isinstance(accelerator, Mapping) else str(accelerator).partition(":")[2] or 1
    processes = resources.get("processes", "auto")
    return int(resources.get("nodes") or 1) == 1 and int(count if processes == "auto" else processes) == 1


def _framework(used: Iterable[_Source]) -> str:
    imports = {name.split(".")[0] for source in used for name in source.imports}
    last_parts = {word.rpartition(".")[2] for source in used for word in source.words}
    for kind, packages, name in _FRAMEWORKS:
        if imports & {*packages} and any(name.search(part) for part in last_parts):
            return kind
    return UNKNOWN


def kind_of(plan: Plan) -> str:
    """Return how the plan's run resumes: as recorded in the plan, else from the code if this machine has it."""
    if plan.resumes:
        return plan.resumes
    try:
        archive = archive_path(plan.code.sha256).read_bytes()
    except OSError:
        return UNKNOWN
    return kind_in(plan, archive)


def kind_in(plan: Plan, archive: bytes) -> str:
    """Determine how the plan's run resumes from its code archive."""
    try:
        tar = gzip.decompress(archive)
        if hashlib.sha256(tar).hexdigest() != plan.code.sha256:
            return UNKNOWN
        found = dict(_texts(tar))
    except (OSError, EOFError, zlib.error, tarfile.TarError):
        return UNKNOWN
    if (plan.job.get("resume") or {}).get("args"):
        return BY_SCRIPT
    entries = [name for name in entry_files(plan.job) if name in found]
    return resume_kind(entries[0] if entries else "", program_words(plan.job)[1:], found, integrated(plan.job))


def is_source(path: str, size: int) -> bool:
    return size <= MAX_SOURCE_BYTES and PurePosixPath(path).suffix.lower() in SOURCES


def _texts(tar: bytes) -> Iterator[tuple[str, str]]:
    with tarfile.open(fileobj=io.BytesIO(tar)) as members:
        for member in members:
            body = members.extractfile(member) if member.isreg() and is_source(member.name, member.size) else None
            if body is not None:
                yield member.name, body.read().decode("utf-8", "replace")


def _may_load_state(found: set[str]) -> bool:
    if any(_AMBIGUOUS_CALLS.search(word) for word in found):
        return True
    return any(
        any(word.endswith(writes) for word in found) and any(word.endswith(reads) for word in found)
        for writes, reads in _SAVE_LOAD_PAIRS
    )


def _parse(path: str, text: str) -> _Source:
    if not path.endswith(".py"):
        return _plain(text)
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):  # written for another Python version
        return _plain(text)
    source = _Source()
    prose = _docstrings(tree)
    for node in ast.walk(tree):
        if id(node) not in prose:
            _record_node(node, source)
    return source


def _plain(text: str) -> _Source:
    """Collect every word outside comments, and whether it may call headway.start()."""
    lines = (line.split("#", 1)[0] for line in text.splitlines())
    words = {word for line in lines for word in re.split(r"[\s\"'(){}\[\],;=]+", line) if word}
    return _Source(words=words, starts_headway="headway.start" in words)


def _record_node(node: ast.AST, source: _Source) -> None:
    if isinstance(node, ast.Import):
        source.imports |= {alias.name for alias in node.names}
        source.words |= {alias.name for alias in node.names}
    elif isinstance(node, ast.ImportFrom):
        module = node.module or ""
        names = {alias.name for alias in node.names}
        source.imports |= {module, *(f"{module}.{name}".strip(".") for name in names)} - {""}
        source.words |= {f"{module}.{name}".strip(".") for name in names}
        source.starts_headway |= module == "headway" and "start" in names
    elif isinstance(node, ast.Attribute):
        name = _dotted(node)
        source.words.add(name)
        source.starts_headway |= name == "headway.start"
    elif isinstance(node, ast.Name):
        source.words.add(node.id)
    elif isinstance(node, ast.keyword) and node.arg:
        source.words.add(f"{node.arg}=")
    elif isinstance(node, ast.arg):
        source.words.add(node.arg)
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        source.words.add(node.name)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) <= _MAX_WORD:
        source.words.add(node.value)


def _dotted(node: ast.Attribute) -> str:
    parts = [node.attr]
    inner: ast.expr = node.value
    while isinstance(inner, ast.Attribute):
        parts.append(inner.attr)
        inner = inner.value
    if isinstance(inner, ast.Name):
        parts.append(inner.id)
    return ".".join(reversed(parts))


def _docstrings(tree: ast.AST) -> set[int]:
    """Return the ids of strings that are statements by themselves (docstrings): they have no effect."""
    return {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }


def _reachable(script: str, args: Sequence[str], parsed: Mapping[str, _Source]) -> set[str]:
    start = PurePosixPath(script).as_posix()
    if start not in parsed or not start.endswith(".py"):
        return set(parsed)
    todo, visited = [start, *_files_named(args, parsed)], set[str]()
    while todo:
        path = todo.pop()
        if path in visited:
            continue
        visited.add(path)
        source = parsed[path]
        if _is_dynamic(source):
            return set(parsed)
        todo += [*_imported(source.imports, parsed), *_files_named(source.words, parsed)]
    return visited


def _is_dynamic(source: _Source) -> bool:
    return any(part in _DYNAMIC for word in source.words for part in word.split("."))


def _imported(modules: Iterable[str], parsed: Mapping[str, _Source]) -> Iterator[str]:
    """Yield the sent files that one of these modules may be, whatever folder it is imported from."""
    wanted = set(modules)
    for path in parsed:
        if path.endswith(".py"):
            dotted = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            if any(dotted == name or dotted.endswith(f".{name}") for name in wanted):
                yield path


def _files_named(words: Iterable[str], parsed: Mapping[str, _Source]) -> list[str]:
    """Return the sent files that a string names: a program to run, or a settings file."""
    ends = {PurePosixPath(word.rpartition("=")[2]).name for word in words if "." in word} - {""}
    return [path for path in parsed if PurePosixPath(path).name in ends]
