"""Recognise progress and metrics in one line of a program's output.

Reads the bars of tqdm, rich, Keras and Lightning, the dictionaries of the Hugging Face Trainer, and lines with an epoch
or a step (`epoch 3/20`, `step 100/5000`, `Epoch: [3][ 10/500]`), with the numbers beside them (`loss=0.5`, `acc: 0.9`).

Cost: every pattern is linear in the length of the line, and no more than `MAX_CHARS` of a line are read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

MAX_CHARS = 2000
_NUMBER = r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
_MULTIPLES = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}

_WORTHWHILE = re.compile(r"[0-9]%\||[=>.]\] |[0-9]/[0-9]|epoch|step|iter|loss|acc|[0-9]it |^\{", re.IGNORECASE)
_TQDM = re.compile(
    r"(?P<percent>[0-9]{1,3})%\|[^|]{0,400}\| *(?P<done>[0-9.]+)(?P<done_unit>[kKMGTP]?)/(?P<total>[0-9.]+)"
    r"(?P<total_unit>[kKMGTP]?) *\[[0-9:.]*<(?P<left>[0-9:?]*),? *(?P<rate>[0-9.?]+[kKMGTP]?)? *"
    r"(?P<unit>[A-Za-z ]{0,30}/s|s/[A-Za-z]{1,20})?(?:, ?(?P<postfix>[^\]]*))?\]"
)
_TQDM_ENDLESS = re.compile(
    r"(?:^|: *|\s)(?P<done>[0-9]+)(?:it|[A-Za-z]{0,12}) \[[0-9:.]+, *(?P<rate>[0-9.?]+) *"
    r"(?P<unit>[A-Za-z]{1,20}/s|s/[A-Za-z]{1,20})(?:, ?(?P<postfix>[^\]]*))?\]"
)
_KERAS = re.compile(r"^ *(?P<done>[0-9]+)/(?P<total>[0-9]+) +(?:\[[=>.]{1,100}\]|━{1,100})(?P<rest>.*)")
_KERAS_SPEED = re.compile(r"(?P<number>[0-9.]+)(?P<unit>us|ms|s|min)/(?:step|epoch)")
_RICH = re.compile(r"[━╸╺]{3,400} +(?P<done>[0-9]+)/(?P<total>[0-9]+)(?P<rest> .*|$)")
_RICH_SPEED = re.compile(r"(?P<rate>[0-9.]+)it/s")

_XLUA = re.compile(r"^ *\[[=>.]{5,100}\] (?P<rest>.*?)(?P<done>[0-9]{1,9})/(?P<total>[0-9]{1,9}) *$")  # pytorch-cifar's

_BRACKETS = re.compile(
    r"\b(?:epoch|train):? *\[? *(?P<epoch>[0-9]{1,7})\]?:? *\[ *(?P<step>[0-9]{1,9}) */ *(?P<steps>[0-9]{1,9})", re.I
)
_EPOCH = re.compile(
    r"\bepoch[ :#=\[(]{0,4}(?P<epoch>[0-9]{1,7})\b(?![.][0-9])\]?(?: *(?:/|of) *(?P<epochs>[0-9]{1,7}))?", re.I
)
_STEP = re.compile(
    r"\b(?:global[ _])?(?:step|iter|iteration)[ :#=\[(]{0,4}(?P<step>[0-9]{1,9})\b(?![.][0-9])\]?"
    r"(?: *(?:/|of) *(?P<steps>[0-9]{1,9}))?",
    re.I,
)
_OF_BATCHES = re.compile(
    r"(?<![\w./])(?P<step>[0-9]{1,9}) */ *(?P<steps>[0-9]{1,9}) +(?:batches|steps|iters|iterations)\b", re.I
)
_BATCH = re.compile(r"\bbatch[ :#=\[(]{0,4}(?P<step>[0-9]{1,9}) *(?:/|of) *(?P<steps>[0-9]{1,9})", re.I)

_ITEM = re.compile(
    rf"""['"](?P<name>[A-Za-z_][\w./ @-]{{0,60}})['"]: *['"]?(?P<value>{_NUMBER}|nan|inf|-inf)['"]?(?=[,}}])"""
)
_PHASE = r"(?:train|training|val|valid|validation|test|eval)"
_KNOWN = (
    r"loss|acc|accuracy|acc@[0-9]|top[0-9]|prec@[0-9]|lr|ppl|perplexity|bleu|f1|auc|auroc|mAP|iou|miou|dice|mse|mae|rmse|"
    r"wer|error"
)
_END = r"(?!\w|[:/]|\.[0-9])"  # not 12s, 12:30 or 9/10
_SEPARATED = re.compile(
    rf"(?<![\w./@-])(?:(?P<phase>{_PHASE})[ _])?(?P<name>[A-Za-z_][\w./@-]{{0,48}}) ?[:=] *"
    rf"(?P<value>{_NUMBER}|nan){_END}",
    re.I,
)
_SPACED = re.compile(
    rf"(?<![\w./@-])(?:(?P<phase>{_PHASE})[ _])?(?P<name>{_KNOWN})[ \t]+(?P<value>{_NUMBER}|nan){_END}", re.I
)
_LINE_PHASE = re.compile(rf"^\W{{0,4}}(?P<phase>{_PHASE})\b", re.I)
_KNOWN_NAME = re.compile(rf"(?:{_PHASE}[ _/])?(?:\w{{1,20}}_)?(?:{_KNOWN})\Z", re.I)

_PREPARING = re.compile(
    r"download|load|fetch|\bmap\b|tokeniz|extract|filter|generat|resolv|unpack|preproc|upload|sav|eval|valid|\bval\b|test|"
    r"predict|sanity|comput|writing|cach|convert",
    re.I,
)
_NOT_METRICS = frozenset(
    {
        *("epoch", "epochs", "step", "steps", "iter", "iteration", "batch", "batches", "eta", "time", "data", "v_num"),
        *("elapsed", "remaining", "seed", "pid", "rank", "port", "version", "line", "total", "num", "it", "s", "size"),
        *("runtime", "train_runtime", "eval_runtime", "total_flos", "mem", "max_mem"),
    }
)
_PHASES = {"training": "train", "valid": "val", "validation": "val"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    """A progress bar: what it counts, how far it is, and how fast."""

    description: str
    done: int
    total: int | None = None
    rate: float | None = None  # per second
    left_s: float | None = None
    counts_epochs: bool = False
    preparing: bool = False  # data, downloads, evaluation: not training steps

    @property
    def key(self) -> tuple[str, int | None]:
        """The key by which two states are recognised as the same bar."""
        return re.sub(r"[0-9]+", "", self.description), self.total


@dataclass(frozen=True, kw_only=True, slots=True)
class LineReading:
    """Progress and metrics in one line. Epochs and steps are as printed, which may begin at 0 or at 1."""

    bar: Bar | None = None
    epoch: int | None = None
    epochs: int | None = None
    epoch_fraction: float | None = None  # of the Trainer: 1.5 is in the middle of the second epoch
    step: int | None = None
    steps: int | None = None
    values: Mapping[str, float] = field(default_factory=dict)
    in_epoch: bool = False  # the step is counted from the beginning of the epoch
    own_step: bool = False  # the line says which step its values belong to


def parse_line(text: str, sources: frozenset[str]) -> LineReading | None:
    """Return what a line says, or None if it says nothing about progress. Values come from `sources` alone."""
    text = text[:MAX_CHARS]
    if not _WORTHWHILE.search(text) or text.startswith(("Namespace(", "usage:", "Traceback", "  File ")):
        return None
    for read in _FORMATS:
        reading = read(text, sources)
        if reading is not None:
            return reading
    return None


def _read_dictionary(text: str, sources: frozenset[str]) -> LineReading | None:
    text = text.strip()
    if not (text.startswith("{") and text.endswith("}")):
        return None
    items = {found["name"]: float(found["value"]) for found in _ITEM.finditer(text)}
    if not items or not ("epoch" in items or "step" in items or any("loss" in name for name in items)):
        return None
    step = items.get("step")
    values = {name: value for name, value in items.items() if _is_metric(name)} if "transformers" in sources else {}
    return LineReading(
        epoch_fraction=items.get("epoch"),
        step=None if step is None else int(step),
        values=values,
        own_step=step is not None,
    )


def _read_tqdm(text: str, sources: frozenset[str]) -> LineReading | None:
    found = _TQDM.search(text) or _TQDM_ENDLESS.search(text)
    if found is None:
        return None
    parts = found.groupdict()
    unit = (parts.get("unit") or "it/s").strip()
    description = text[: found.start()].strip().rstrip(":").strip()[-80:]
    done = _counted(parts["done"], parts.get("done_unit"))
    total = _counted(parts["total"], parts.get("total_unit")) if parts.get("total") else None
    if done is None:
        return None
    counts_epochs = unit.lower() in ("epoch/s", "s/epoch") or bool(re.fullmatch(r"(?:\w+ )?epochs?", description, re.I))
    bar = Bar(
        description=description,
        done=done,
        total=total,
        rate=_rate(parts.get("rate"), unit),
        left_s=_clock_s(parts.get("left")),
        counts_epochs=counts_epochs,
        preparing=unit in ("B/s", "s/B", "iB/s") or bool(_PREPARING.search(description)) or "examples" in unit,
    )
    wanted = {"tqdm", "lightning"} & sources and not bar.preparing
    values = _values(parts.get("postfix") or "", spaced=False) if wanted else {}
    epoch, epochs = (None, None) if counts_epochs else _epoch(description)
    return LineReading(bar=bar, epoch=epoch, epochs=epochs, values=values, own_step=True)


def _read_keras(text: str, sources: frozenset[str]) -> LineReading | None:
    found = _KERAS.match(text)
    if found is None:
        return None
    speed = _KERAS_SPEED.search(found["rest"])
    seconds = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0}
    per_step = _float(speed["number"]) * seconds[speed["unit"]] if speed else 0.0
    bar = Bar(
        description="", done=int(found["done"]), total=int(found["total"]), rate=1 / per_step if per_step else None
    )
    values = _values(found["rest"], spaced=False) if "keras" in sources else {}
    return LineReading(bar=bar, values=values, own_step=True)


def _read_rich(text: str, sources: frozenset[str]) -> LineReading | None:
    found = _RICH.search(text)
    if found is None:
        return None
    description = text[: found.start()].strip()[-80:]
    speed = _RICH_SPEED.search(found["rest"])
    bar = Bar(
        description=description,
        done=int(found["done"]),
        total=int(found["total"]),
        rate=_float(speed["rate"]) or None if speed else None,
        preparing=bool(_PREPARING.search(description)),
    )
    epoch, epochs = _epoch(description)
    values = _values(found["rest"], spaced=False) if {"lightning", "tqdm"} & sources and not bar.preparing else {}
    return LineReading(bar=bar, epoch=epoch, epochs=epochs, values=values, own_step=True)


def _read_xlua(text: str, sources: frozenset[str]) -> LineReading | None:
    found = _XLUA.match(text)
    if found is None:
        return None
    bar = Bar(description="", done=int(found["done"]), total=int(found["total"]))
    values = _values(found["rest"], spaced=False) if "lines" in sources else {}
    return LineReading(bar=bar, values=values, own_step=True)


def _read_counters(text: str, sources: frozenset[str]) -> LineReading | None:
    bracketed = _BRACKETS.search(text)
    epoch, epochs = (int(bracketed["epoch"]), None) if bracketed else _epoch(text)
    of_batches = None if epoch is None else _OF_BATCHES.search(text)
    counted = bracketed or of_batches or _STEP.search(text) or _BATCH.search(text)
    step = int(counted["step"]) if counted else None
    steps = int(counted["steps"]) if counted and counted["steps"] else None
    values = _values(text[bracketed.end() if bracketed else 0 :], spaced=True) if "lines" in sources else {}
    positioned = epoch is not None or step is not None
    if not positioned:
        values = {name: value for name, value in values.items() if _KNOWN_NAME.match(name)}
    if not positioned and not values:
        return None
    return LineReading(
        epoch=epoch,
        epochs=epochs,
        step=step,
        steps=steps,
        values=values,
        in_epoch=bracketed is not None or of_batches is not None,
        own_step=positioned,
    )


_FORMATS: tuple[Callable[[str, frozenset[str]], LineReading | None], ...] = (
    _read_dictionary,
    _read_tqdm,
    _read_keras,
    _read_rich,
    _read_xlua,
    _read_counters,
)


def _values(text: str, *, spaced: bool) -> dict[str, float]:
    """Return the numbers with a name in a text, as in `loss=0.5 - acc: 0.9`."""
    line_phase = _LINE_PHASE.match(text)
    found: dict[str, float] = {}
    for pattern in (_SEPARATED, _SPACED) if spaced else (_SEPARATED,):
        for each in pattern.finditer(text):
            phase = each["phase"] or (line_phase["phase"] if line_phase else "")
            name = _metric_name(each["name"], phase)
            if _is_metric(name):
                found.setdefault(name, float(each["value"]))
    return found


def _metric_name(name: str, phase: str) -> str:
    short = _PHASES.get(phase.lower(), phase.lower())
    name = name.rstrip(".-/")
    plain = name.lower() if _KNOWN_NAME.match(name) else name
    return f"{short}_{plain}" if short and not plain.lower().startswith((short, f"{short}_")) else plain


def _is_metric(name: str) -> bool:
    low = name.lower()
    return low not in _NOT_METRICS and not low.endswith(("per_second", "_runtime", "/s", "_time"))


def _epoch(text: str) -> tuple[int | None, int | None]:
    found = _EPOCH.search(text)
    if found is None:
        return None, None
    return int(found["epoch"]), int(found["epochs"]) if found["epochs"] else None


def _counted(number: str, unit: str | None) -> int | None:
    value = _float(number)
    return None if value is None else int(value * _MULTIPLES.get(unit or "", 1.0))


def _rate(text: str | None, unit: str) -> float | None:
    number = _float((text or "").rstrip("kKMGTP"))
    if not number:
        return None
    number *= _MULTIPLES.get((text or "")[-1:], 1.0)
    return 1 / number if unit.startswith("s/") else number


def _clock_s(text: str | None) -> float | None:
    parts = (text or "").split(":")
    if not all(part.isdigit() for part in parts) or len(parts) > 3:
        return None
    seconds = 0.0
    for part in parts:
        seconds = seconds * 60 + int(part)
    return seconds


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
