"""A project's own model behind the verbs: its class, found and trusted, over the files of a run, a bundle or a file."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headway.artifacts.evaluate import Evaluation
from headway.artifacts.outputs import answers_of, rendered
from headway.artifacts.predictor import Answer, Field, Instance
from headway.artifacts.samples import Sample, decoded, is_table, samples_in, truths, typed_sample
from headway.artifacts.scoring import examples_of, score_output
from headway.bundle.format import CARD, CONFIG, RECORD, WEIGHTS, Bundle, to_json
from headway.bundle.publish import publish
from headway.core.errors import BadInput
from headway.metrics.samples import of_values
from headway.model import Model, Tensor
from headway.model.bundling import complete_bundle, is_needed
from headway.model.code import CODE, called, has_module, is_same, load_class
from headway.model.types import described
from headway.rundir.history import scores_at
from headway.rundir.layout import RunFolder
from headway.storage import fetch_file, local_path, open_store

if TYPE_CHECKING:
    from headway.artifacts.onnx import Graph
    from headway.core.plan import Plan
    from headway.storage.base import Store

_VERBS = {
    "boxes": "Find",
    "caption": "Describe",
    "classes": "Classify",
    "labels": "Label",
    "number": "Estimate",
    "ordinal": "Grade",
    "text": "Write",
}
AT_ONCE = 32  # samples given to `predict` together, outside of the server


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """Which class to load, and whose code may run.

    Attributes:
        model: The class as the user named it (`--model`); None: the one that the run or the bundle names.
        trust: Whether code that came with a run or a bundle may run.
        root: The user's project: code in it runs.
    """

    model: str | None = None
    trust: bool = False
    root: Path = field(default_factory=Path.cwd)


class OwnModel:
    """A loaded model of a project. Methods are those of `headway.artifacts.models.LoadedModel`."""

    def __init__(
        self,
        model: Model,
        *,
        name: str,
        kind: str,
        root: Path,
        folder: Path,
        metrics: Mapping[str, float],
        about: Mapping[str, Any],
        plan: Plan | None = None,
        kept: Any = None,
    ) -> None:
        self.model, self.name, self.kind, self.root, self.metrics = model, name, kind, root, metrics
        self.about = about  # for the report: where it comes from
        self._folder, self._plan, self._kept = folder, plan, kept

    @property
    def bundle(self) -> Bundle | None:
        """None: only a recipe's graph is cached by its bundle."""
        return None

    @property
    def outputs(self) -> Sequence[Mapping[str, Any]]:
        """The declared outputs, for the try-out page."""
        return [described(name, declared) for name, declared in self.model.outputs.items()]

    @property
    def verb(self) -> str:
        """The word on the button of the try-out page: what the first output is."""
        return _VERBS.get(next(iter(self.model.outputs.values())).kind, "Run")

    def service(self) -> OwnService:
        return OwnService(self.model)

    def answers(self, inputs: Sequence[str]) -> list[dict[str, Any]]:
        """Answer inputs as typed on the command line; a table, a folder or a glob gives an answer per sample."""
        samples = [sample for text in inputs for sample in samples_of(text, self.model)]
        made = []
        for first in range(0, len(samples), AT_ONCE):
            part = samples[first : first + AT_ONCE]
            found = predictions(self.model, [decoded(each, self.model.inputs) for each in part])
            made += [
                {"input": sample.name, **rendered(self.model, answer)}
                for sample, answer in zip(part, found, strict=True)
            ]
        return made

    def evaluate(self, split: str, data: str | None, root: str | None) -> Evaluation:
        """Score it by the class's own `evaluate`, or by a table with the true outputs."""
        paths = {**_job_data(self._plan), **({split: data} if data else {})}
        if type(self.model).implements("evaluate"):
            return self._own_scores({name: Path(path) for name, path in paths.items()}, split)
        source = paths.get(split)
        if source is None:
            named = f"; the job's data are {', '.join(paths)}" if paths else ""
            raise BadInput(
                f"no data is named {split}{named}",
                fix="headway eval RUN --data FILE.csv (columns named as the model's inputs and outputs), "
                f"or data: {{{split}: FILE.csv}} in the job file",
            )
        if not is_table(source):
            raise BadInput(
                f"{source} is not a table: CSV, JSON lines, JSON or Parquet",
                fix="give a table, or write evaluate(self, data) in the model class",
            )
        return self._table_scores(source, root)

    def graphs(self) -> Sequence[Graph]:
        if not type(self.model).implements("graph"):
            raise BadInput(
                f"{self.kind} has no graph to export",
                fix="write graph(self) in the class, which returns a headway.Graph; or export its weights: --as pth",
            )
        made = called(self.model.graph, f"{self.kind}.graph failed")
        return list(made) if isinstance(made, Sequence) else [made]

    def companions(self) -> dict[str, bytes]:
        """Return the small settings that a program needs beside a graph."""
        path = self._folder / CONFIG
        return {f"{self.name}_config.json": path.read_bytes()} if path.is_file() else {}

    def export(self, to: str) -> str:
        """Publish it as a bundle, with the code of its class."""
        with tempfile.TemporaryDirectory(prefix="headway-export-") as name:
            folder = Path(name) / "bundle"
            shutil.copytree(self._folder, folder, ignore=lambda _, names: {RECORD, CODE} & {*names})
            complete_bundle(
                folder, reference=self.kind, cls=type(self.model), root=self.root, name=self.name, metrics=self.metrics
            )
            return publish(folder, to)

    def _own_scores(self, data: Mapping[str, Path], split: str) -> Evaluation:
        scores = called(lambda: self.model.evaluate(data), f"{self.kind}.evaluate failed")
        counts = {name: len(values) for name, values in getattr(scores, "samples", {}).items()}
        if not counts or len({*counts.values()}) > 1 or not min(counts.values()):
            raise BadInput(
                f"{self.kind}.evaluate must return headway.Scores with as many values for each metric, not "
                f"{counts or type(scores).__name__}",
                fix='return headway.Scores({"accuracy": [1, 0, …]})',
            )
        where = scores.data or str(data.get(split, "its own data"))
        samples = {name: of_values(np.asarray(values, np.float64)) for name, values in scores.samples.items()}
        return Evaluation(data=where, count=max(counts.values()), metrics=scores.means(), samples=samples)

    def _table_scores(self, source: str, root: str | None) -> Evaluation:
        from headway.core.progress import with_progress

        model = self.model
        samples = samples_in(source, model.inputs)
        samples = [Sample(each.name, each.values, root or each.base, each.row) for each in samples]
        truth = truths(samples, model.outputs, source)
        answers: list[dict[str, Any]] = []
        parts = [samples[first : first + AT_ONCE] for first in range(0, len(samples), AT_ONCE)]
        for part in with_progress(iter(parts), "predicting", len(parts)):
            answers += predictions(model, [decoded(each, model.inputs) for each in part])
        metrics: dict[str, float] = {}
        records: dict[str, Any] = {}
        found = {
            name: score_output(
                name,
                model.outputs[name],
                [answer[name] for answer in answers],
                _with_base(wanted, model.outputs[name].kind, root or samples[0].base),
            )
            for name, wanted in truth.items()
        }
        for name, scores in found.items():
            prefix = f"{name}_" if len(found) > 1 else ""
            metrics |= {f"{prefix}{metric}": value for metric, value in scores.metrics.items()}
            records |= {f"{prefix}{metric}": record for metric, record in scores.samples.items()}
        first = found[next(iter(found))]
        names = [json.dumps(dict(each.values), ensure_ascii=False, default=str) for each in samples]
        plain = [rendered(model, answer) for answer in answers]
        shown: Any = examples_of(names, plain, model.outputs, truth, first)
        return Evaluation(
            data=source,
            count=len(samples),
            metrics=metrics,
            samples=records,
            baseline=first.baseline,
            tables=first.tables,
            **shown,
        )


def _with_base(truth: Sequence[Any], kind: str, base: str) -> Sequence[Any]:
    if kind != "picture" or base in ("", "."):
        return truth
    return [value if str(value).startswith("/") else f"{base}/{value}" for value in truth]


def samples_of(text: str, model: Model) -> list[Sample]:
    """Return the samples that one word of the command line names."""
    path = local_path(text) if "://" in text or len(text) < 4096 else None
    several = is_table(text) or any(sign in text for sign in "*?") or (path is not None and path.is_dir())
    takes_files = any(each.kind in ("image", "audio") for each in model.inputs.values())
    if text.startswith("{") or not several or not (takes_files or is_table(text)):
        return [typed_sample(text, model.inputs)]
    return samples_in(text, model.inputs)


def predictions(model: Model, batch: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the answers to a batch, checked."""
    name = type(model).__name__
    return answers_of(model, called(lambda: model.predict(batch), f"{name}.predict failed"), len(batch))


class OwnService:
    """A project's model behind the server. It answers in one thread; pictures arrive decoded."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.fields = tuple(
            Field(
                name=name,
                kind=_KINDS.get(each.kind, "value"),
                summary=each.about or name,
                required=each.required,
                declared=each,
            )
            for name, each in model.inputs.items()
        )
        self.outputs = model.outputs
        self.streams = next(iter(model.outputs.values())).kind == "text"

    def prepare(self, instance: Instance) -> Instance:
        tensors = {name for name, each in self.model.inputs.items() if isinstance(each, Tensor)}
        return {name: np.asarray(value, np.float32) if name in tensors else value for name, value in instance.items()}

    def stream(self, prepared: Any) -> Iterator[str]:
        """Answer one instance piece by piece."""
        yield from self.model.stream(prepared)

    def answer(self, prepared: Sequence[Any], *, explain: bool) -> list[Answer]:
        return [rendered(self.model, answer) for answer in predictions(self.model, prepared)]


_KINDS: dict[str, Any] = {"image": "picture", "text": "text"}


# Find the class and the files


def open_own(ref: str, choice: Choice, checkpoint: str = "best") -> OwnModel:
    """Load the model of a run of the user's own program, of a bundle with a class, or of a file of weights."""
    store = open_store(ref)
    if any(entry.key == RECORD for entry in store.list(RECORD)):
        return _of_bundle(Bundle.open(ref), choice)
    return _of_run(store, choice, checkpoint)


def open_file(url: str, choice: Choice) -> OwnModel:
    """Load a file of weights: `headway eval some.pth --model src.serving:Grader`."""
    if choice.model is None:
        raise BadInput(f"{url} is a file, and no class is named that loads it", fix="--model MODULE:CLASS")
    kept = tempfile.TemporaryDirectory(prefix="headway-model-")
    folder = Path(kept.name)
    base, _, name = url.rpartition("/")
    fetch_file(open_store(base or "."), name, folder / name)
    _add_safetensors(folder / name, url)
    model = _loaded(load_class(choice.model, choice.root), folder, choice.model)
    return OwnModel(
        model,
        name=name.rpartition(".")[0] or name,
        kind=choice.model,
        root=choice.root,
        folder=folder,
        metrics={},
        about={"bundle": url, "validation": {}},
        kept=kept,
    )


def _add_safetensors(path: Path, url: str) -> None:
    """Offer a state dict under the name that a run's weights have, too."""
    from headway.training.checkpoint.init_weights import TORCH_SUFFIXES, read_torch_file
    from headway.training.checkpoint.weights import as_safetensors, weights_of

    if path.suffix == ".safetensors" and path.name != WEIGHTS:
        shutil.copyfile(path, path.with_name(WEIGHTS))
    elif path.suffix in TORCH_SUFFIXES:
        try:
            found = read_torch_file(path.read_bytes(), url)
        except BadInput:
            return  # the class may know how to open it
        models = weights_of(found) if isinstance(found, Mapping) else {}
        if models:
            path.with_name(WEIGHTS).write_bytes(as_safetensors(models))


def _of_bundle(bundle: Bundle, choice: Choice) -> OwnModel:
    record = bundle.record.model
    reference = choice.model or (str(record["class"]) if record else "")
    if not reference:
        raise BadInput("this bundle names no class", where=bundle.url, fix="--model MODULE:CLASS")
    root = choice.root if choice.model else _trusted_root(bundle, choice)
    model = _loaded(load_class(reference, root), bundle.folder, reference)
    return OwnModel(
        model,
        name=bundle.name,
        kind=reference,
        root=root,
        folder=bundle.folder,
        metrics=bundle.metrics,
        about={"bundle": bundle.url, "validation": dict(bundle.metrics)},
        kept=bundle,
    )


def _trusted_root(bundle: Bundle, choice: Choice) -> Path:
    """Return the folder from which the bundle's class may be imported. Raises BadInput unless the user trusts it."""
    names = [name for name in bundle.record.files if name.startswith(f"{CODE}/")]
    code = {name.removeprefix(f"{CODE}/"): bundle.read(name) for name in names}
    if is_same(code, choice.root):
        return choice.root
    if choice.trust:
        return bundle.folder / CODE if code else choice.root
    assert bundle.record.model is not None
    reference = bundle.record.model["class"]
    if not code:
        raise BadInput(
            f"this model is of the class {reference} of an installed package, which would be run",
            where=bundle.url,
            fix="add --trust if you trust it",
        )
    lines = sum(body.count(b"\n") for body in code.values())
    raise BadInput(
        f"this model brings code of its own, which would run with your rights: {len(code)} files, "
        f"{lines} lines, {bundle.record.model['code'][:12]}",
        where=f"{bundle.url}/{CODE}",
        fix="read it, then add --trust; its weights need no trust: headway export … --as safetensors",
    )


def _of_run(store: Store, choice: Choice, checkpoint: str) -> OwnModel:
    run = RunFolder(store)
    plan = run.plan()
    exported = _exported(store) if choice.model is None else None
    named = exported.record.model["class"] if exported is not None and exported.record.model else ""
    reference = choice.model or str(plan.job.get("model") or named)
    if exported is not None and named == reference and not has_module(reference, choice.root):
        root, kept_code = _trusted_root(exported, choice), exported
    else:
        root, kept_code = _root_of_run(store, plan, reference, choice)
    cls = load_class(reference, root)
    kept = tempfile.TemporaryDirectory(prefix="headway-model-")
    folder = Path(kept.name)
    step, name, environment = _fetch_files(store, plan, tuple(cls.files), checkpoint, folder)
    scores = scores_at(run, step) if step is not None else {}
    model = _loaded(cls, folder, reference)
    about = {"run": run.name, "checkpoint": name, "step": step or 0, "validation": scores, "environment": environment}
    return OwnModel(
        model,
        name=plan.job.get("export", {}).get("name") or str(plan.job["name"]),
        kind=reference,
        root=root,
        folder=folder,
        metrics=scores,
        about=about,
        plan=plan,
        kept=(kept, kept_code),
    )


def _exported(store: Store) -> Bundle | None:
    inside = f"{store.url.rstrip('/')}/export"
    return Bundle.open(inside) if any(entry.key == RECORD for entry in open_store(inside).list(RECORD)) else None


def _root_of_run(store: Store, plan: Plan, reference: str, choice: Choice) -> tuple[Path, Any]:
    """Return where the run's class is imported from: the user's project, else the run's own code, if it is trusted."""
    if choice.model or has_module(reference, choice.root) or not plan.code.sha256:
        return choice.root, None
    if not choice.trust:
        raise BadInput(
            f"the class {reference} of this run is not in this folder",
            where=str(choice.root),
            fix="cd to the project, or add --trust to run the code that was recorded with the run",
        )
    from headway.packaging.code import unpack

    kept = tempfile.TemporaryDirectory(prefix="headway-code-")
    parent = open_store(store.url.rstrip("/").rpartition("/")[0])
    archive = Path(kept.name) / "code.tar.gz"
    fetch_file(parent, f"code/{plan.code.sha256}.tar.gz", archive)
    unpack(archive, plan.code.sha256, Path(kept.name) / "code")
    return Path(kept.name) / "code", kept


def _fetch_files(
    store: Store, plan: Plan, patterns: tuple[str, ...], checkpoint: str, folder: Path
) -> tuple[int | None, str, Mapping[str, Any]]:
    """Bring the run's files into a folder: those it kept, and its weights from a checkpoint; return that."""
    from headway.artifacts.weights import kept_files

    for name, entry in kept_files(store).items():
        if is_needed(name, patterns) and name not in (RECORD, CARD) and not name.startswith(f"{CODE}/"):
            fetch_file(store, entry.key, folder / name)
    step, found, environment = _fetch_checkpoint(store, checkpoint, folder)
    if step is not None and not (folder / CONFIG).exists():
        (folder / CONFIG).write_bytes(to_json(dict(plan.job.get("config") or {})))
    if not any(folder.iterdir()):
        raise BadInput(
            "this run has kept no files that the model could load",
            where=store.url,
            fix="headway status RUN; what is kept: keep: in the job file, and `files` of the class",
        )
    return step, found, environment


def _fetch_checkpoint(store: Store, checkpoint: str, folder: Path) -> tuple[int | None, str, Mapping[str, Any]]:
    if not any(True for _ in store.list("checkpoints/")):
        if checkpoint != "best":
            raise BadInput(
                f"this run has no checkpoint {checkpoint!r}: its program saves files",
                where=store.url,
                fix="leave out --checkpoint",
            )
        return None, "files", {}
    from headway.artifacts.checkpoint_model import named_step
    from headway.training.checkpoint.reader import CheckpointReader
    from headway.training.checkpoint.weights import as_safetensors, weights_of

    step, name = named_step(store, checkpoint)
    loaded = CheckpointReader(store).load(step)
    (folder / WEIGHTS).write_bytes(as_safetensors(weights_of(loaded.state)))
    return step, name, loaded.environment


def _loaded(cls: type[Model], folder: Path, reference: str) -> Model:
    model = called(cls, f"{reference} cannot be created")
    if not model.inputs or not model.outputs:
        raise BadInput(
            f"{reference} has no {'outputs' if model.inputs else 'inputs'}",
            fix='inputs = {"image": headway.Image()}, outputs = {"class": headway.Classes([…])}',
        )
    called(lambda: model.load(folder), f"{reference}.load failed")
    return model


def _job_data(plan: Plan | None) -> dict[str, str]:
    """Return the paths of the job's data on this machine, by name: those of a project, or a source per split."""
    if plan is None:
        return {}
    from headway.supervisor.project_data import bring_data

    lists: Mapping[str, Any] = plan.job.get("data") or {}
    sources = {
        split: rows[0]["source"]
        for split, rows in lists.items()
        if len(rows or ()) == 1 and not str(rows[0]["source"]).startswith("builtin:")
    }
    return {**sources, **bring_data(plan, str(plan.job.get("outputs") or "runs"), lambda text: None)}
