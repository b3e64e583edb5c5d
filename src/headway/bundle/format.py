"""The bundle format: an exported model as plain files, independent of the training code. Opening one checks every byte.

    bundle.json           the record, with size and SHA-256 of every other file; written last: without it, no bundle
    model.safetensors     the weights
    config.json           the recipe's settings
    README.md             the model card
    …                     what the recipe adds: vocabulary.json, word_to_id.json, …

The bundle of a project's own model holds the files that its class loads, under their own paths, and in `headway_code/`
the code of that class, which only runs for who trusts it.

In a folder, the files have these names, and the folder is replaced as a whole. An object store cannot do that:
there each file has a key that holds its checksum, and bundle.json, the one object that changes, points to them. Copies
with the plain names stand beside them.
"""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headway._version import __version__
from headway.core.errors import BadBundle, NotThere, json_of
from headway.storage import fetch_file, local_path, open_store

if TYPE_CHECKING:
    from torch import Tensor

    from headway.storage.base import Store

FORMAT: Final = 2  # 1: without `model`
AGAIN: Final = "export it again: headway export RUN"
RECORD: Final = "bundle.json"
WEIGHTS, CONFIG, CARD = "model.safetensors", "config.json", "README.md"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")  # a file in a bundle: never a path
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9 ._=+@,()\[\]-]{0,199}")  # of the path of a file of a project's own model
_DEEPEST = 16
_CHUNK = 1 << 20


def to_json(value: Any) -> bytes:
    r"""Serialize a value as the JSON files of a bundle are: indented, with sorted keys.

    Args:
        value: Plain values.

    Returns:
        UTF-8 bytes that end with a line break.

    Example:
        >>> from headway.bundle import to_json
        >>> to_json({"width": 64})
        b'{\n  "width": 64\n}\n'
    """
    return (json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()


@dataclass(frozen=True, kw_only=True)
class BundleParts:
    """The contents of a bundle, as a recipe or a script provides them for export.

    Attributes:
        recipe: Name of the recipe that can load it, or any other name for a script's model.
        name: The model's name.
        config: Settings that rebuild the model, as plain values.
        weights: Tensors by name.
        files: Further files by name, besides the weights, the config and the card.
        metrics: Scores to show with the model.
        card: Text of the model card, in Markdown.

    Example:
        >>> import torch
        >>> from pathlib import Path
        >>> from headway.bundle import BundleParts
        >>> weights = {"weight": torch.ones(2)}
        >>> BundleParts(recipe="line", name="line", config={"width": 2}, weights=weights).write(Path("model"))
        >>> sorted(path.name for path in Path("model").iterdir())
        ['README.md', 'bundle.json', 'config.json', 'model.safetensors']
    """

    recipe: str
    name: str
    config: Mapping[str, Any]
    weights: Mapping[str, Tensor]
    files: Mapping[str, bytes] = field(default_factory=dict)  # besides the weights, the config and the card
    metrics: Mapping[str, float] = field(default_factory=dict)
    card: str = ""

    def write(self, folder: Path) -> None:
        """Write all files, bundle.json last.

        Args:
            folder: The folder to write into; created if it does not exist.
        """
        from safetensors.torch import save_file

        folder.mkdir(parents=True, exist_ok=True)
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in self.weights.items()}
        save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
        bodies = {**self.files, CONFIG: to_json(self.config), CARD: self.card.encode()}
        for name, body in bodies.items():
            assert _NAME.fullmatch(name), name
            (folder / name).write_bytes(body)
        files = {name: BundleFile.of(folder / name) for name in sorted([WEIGHTS, *bodies])}
        record = Record(recipe=self.recipe, name=self.name, headway=__version__, metrics=self.metrics, files=files)
        (folder / RECORD).write_bytes(to_json(record.as_json()))


@dataclass(frozen=True, slots=True)
class BundleFile:
    """One file of a bundle.

    Attributes:
        sha256: Digest of its content.
        bytes: Its size.
        at: Its key, where that is not its name.
    """

    sha256: str
    bytes: int
    at: str | None = None  # its key, where that is not its name

    @classmethod
    def of(cls, path: Path) -> BundleFile:
        """Measure a file.

        Args:
            path: The file.

        Returns:
            Its digest and size.
        """
        digest, size = hashlib.sha256(), 0
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
                size += len(chunk)
        return cls(digest.hexdigest(), size)

    def as_json(self) -> dict[str, Any]:
        """Return the entry as bundle.json holds it.

        Returns:
            Plain values.
        """
        plain = {"sha256": self.sha256, "bytes": self.bytes}
        return {**plain, "at": self.at} if self.at else plain


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """A parsed bundle.json.

    Attributes:
        recipe: Name of the recipe that can load the bundle.
        name: The model's name.
        headway: Version of Headway that exported it.
        metrics: Scores of the model.
        files: Size and digest of every other file, by name.
        replaces: In an object store: keys of the previous bundle that are still there.
        model: Of a project's own model: its class, a hash of its code, and the types of its inputs and outputs.

    Example:
        >>> from headway.bundle import Record, to_json
        >>> record = Record(recipe="line", name="line", headway="1.0", metrics={"mse": 0.1}, files={})
        >>> Record.read(to_json(record.as_json()), where="bundle.json") == record
        True
    """

    recipe: str
    name: str
    headway: str
    metrics: Mapping[str, float]
    files: Mapping[str, BundleFile]
    replaces: tuple[str, ...] = ()  # in an object store: keys of the previous bundle that are still there
    model: Mapping[str, Any] | None = None  # of a project's own model

    @property
    def kind(self) -> str:
        """What can load it: the name of a recipe, or a model's class."""
        return str(self.model["class"]) if self.model else self.recipe

    @classmethod
    def read(cls, text: bytes, where: str) -> Record:
        """Parse a record.

        Args:
            text: The bytes of a bundle.json.
            where: Its location, for error messages.

        Returns:
            The record.

        Raises:
            BadBundle: If it is damaged, or of a newer format.
        """
        try:
            raw = json_of(text)
            if not isinstance(raw["format"], int):
                raise TypeError("its format is not a number")
            if raw["format"] > FORMAT:
                raise BadBundle(
                    f"{RECORD} has format {raw['format']}, of Headway {raw.get('headway')}; this one reads {FORMAT}",
                    where=where,
                    fix="use a Headway at least as new as the one that exported it",
                )
            files = {_checked(name, entry): BundleFile(**entry) for name, entry in raw["files"].items()}
            metrics = {str(name): float(value) for name, value in raw["metrics"].items()}
            return cls(
                recipe=str(raw["recipe"]),
                name=str(raw["name"]),
                headway=str(raw["headway"]),
                metrics=metrics,
                files=files,
                replaces=tuple(map(str, raw.get("replaces", ()))),
                model=_model(raw.get("model")),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadBundle(f"{RECORD} is damaged: {type(error).__name__}: {error}", where=where, fix=AGAIN) from None

    def as_json(self) -> dict[str, Any]:
        """Return the content of bundle.json.

        Returns:
            Plain values.
        """
        plain: dict[str, Any] = {
            "format": FORMAT if self.model else 1,
            "headway": self.headway,
            "recipe": self.recipe,
            "name": self.name,
            "metrics": dict(self.metrics),
            "files": {name: entry.as_json() for name, entry in self.files.items()},
        }
        optional = {"replaces": list(self.replaces), "model": self.model}
        return {**plain, **{name: value for name, value in optional.items() if value}}


def _checked(name: str, entry: Mapping[str, Any]) -> str:
    """Return the name, or raise ValueError: a file must not lead out of the bundle's folder (bundles are untrusted)."""
    at = entry.get("at", name)
    checked_name(name)
    if at.startswith("/") or ".." in at.split("/"):
        raise ValueError(f"{name!r} at {at!r} cannot be a file of a bundle")
    return name


def checked_name(name: str) -> str:
    """Return a file's name, or raise ValueError unless it is a relative path of plain parts.

    Args:
        name: The name in a record.

    Returns:
        The name.
    """
    parts = name.split("/")
    if len(parts) > _DEEPEST or not all(_PART.fullmatch(part) for part in parts):
        raise ValueError(f"{name!r} cannot be a file of a bundle")
    return name


def _model(entry: Any) -> Mapping[str, Any] | None:
    if entry is None:
        return None
    if not (isinstance(entry["class"], str) and isinstance(entry["code"], str)):
        raise TypeError("its model is not described")
    for each in (*entry["inputs"], *entry["outputs"]):
        str(each["name"]), str(each["kind"])
    return dict(entry)


class Bundle:
    """An exported model on this machine, with every file checked. Open one with `Bundle.open`.

    Args:
        url: Where it was opened.
        folder: The local folder of its files.
        record: Its bundle.json.
        kept: Temporary folder of a downloaded bundle, which lives as long as this object.

    Attributes:
        url: Where it was opened.
        folder: The local folder of its files.
        record: Its bundle.json.

    Example:
        >>> import torch
        >>> from pathlib import Path
        >>> from headway.bundle import Bundle, BundleParts
        >>> parts = BundleParts(
        ...     recipe="line", name="line", config={"width": 2}, weights={"weight": torch.ones(2)}, metrics={"mse": 0.1}
        ... )
        >>> parts.write(Path("model"))
        >>> bundle = Bundle.open("model")
        >>> bundle.name, bundle.config, bundle.metrics
        ('line', {'width': 2}, {'mse': 0.1})
        >>> bundle.weights()
        {'weight': tensor([1., 1.])}
    """

    def __init__(self, url: str, folder: Path, record: Record, kept: Any = None) -> None:
        self.url, self.folder, self.record = url, folder, record
        self._kept = kept  # temporary folder of a downloaded bundle: lives as long as this object

    @classmethod
    def open(cls, url: str) -> Bundle:
        """Open the bundle in a folder or object store, and check every file.

        The files of one in an object store are downloaded to a temporary folder.

        Args:
            url: A folder, or a gs://, s3:// or az:// URL: what `headway export` wrote, or `export` in a run folder.

        Returns:
            The bundle.

        Raises:
            BadBundle: If a file is missing, short or changed; the error names it.

        Example:
            >>> from headway.bundle import Bundle
            >>> Bundle.open("runs")
            Traceback (most recent call last):
                ...
            headway.core.errors.BadBundle: runs is not a bundle: it has no bundle.json
                fix: name a folder that `headway export` wrote, or a run
        """
        store = open_store(url)
        record = read_record(store, url)
        while True:
            try:
                return cls._checked(url, store, record)
            except BadBundle:
                newer = read_record(store, url)
                if newer == record:
                    raise
                record = newer  # it was replaced while we read: read again

    @classmethod
    def _checked(cls, url: str, store: Store, record: Record) -> Bundle:
        folder = local_path(url)
        if folder is not None and all((folder / name).is_file() for name in record.files):
            bundle = cls(url, folder, record)
        else:
            bundle = cls._fetched(url, store, record)
        for name, entry in record.files.items():
            _verify(bundle.folder / name, entry, f"{url}/{name}")
        return bundle

    @classmethod
    def _fetched(cls, url: str, store: Store, record: Record) -> Bundle:
        kept = tempfile.TemporaryDirectory(prefix="headway-bundle-")
        for name, entry in record.files.items():
            try:
                fetch_file(store, entry.at or name, Path(kept.name) / name)
            except NotThere:
                raise BadBundle(f"{name} is missing", where=f"{url}/{name}", fix=AGAIN) from None
        return cls(url, Path(kept.name), record, kept)

    @property
    def recipe(self) -> str:
        """Name of the recipe that can load it."""
        return self.record.recipe

    @property
    def name(self) -> str:
        """The model's name."""
        return self.record.name

    @property
    def metrics(self) -> Mapping[str, float]:
        """Scores of the model, by name."""
        return self.record.metrics

    @property
    def config(self) -> dict[str, Any]:
        """The settings that rebuild the model, from config.json. Raises BadBundle unless it is a JSON object."""
        try:
            config = json_of(self.read(CONFIG))
        except ValueError as error:
            raise BadBundle(f"{CONFIG} is not JSON: {error}", where=self.url, fix=AGAIN) from None
        if not isinstance(config, dict):
            raise BadBundle(f"{CONFIG} is not a JSON object", where=self.url, fix=AGAIN)
        return config

    def read(self, name: str) -> bytes:
        """Read a file, checked again.

        Args:
            name: Name of a file in the bundle.

        Returns:
            Its bytes.

        Raises:
            BadBundle: If the bundle has no file of that name, or it was changed after the bundle was opened.
        """
        if name not in self.record.files:
            raise BadBundle(f"it has no {name}", where=self.url, fix=AGAIN)
        where = f"{self.url}/{name}"
        try:
            body = (self.folder / name).read_bytes()
        except FileNotFoundError:
            raise BadBundle(f"{name} is missing", where=where, fix=AGAIN) from None
        if hashlib.sha256(body).hexdigest() != self.record.files[name].sha256:
            raise BadBundle(f"{name} was changed after the bundle was opened", where=where, fix="open it again")
        return body

    def weights(self) -> dict[str, Tensor]:
        """Load the weights. Needs torch.

        Returns:
            Tensors by name, on the CPU.

        Raises:
            BadBundle: If they cannot be read.
        """
        from safetensors import SafetensorError
        from safetensors.torch import load

        try:
            return load(self.read(WEIGHTS))
        except SafetensorError as error:
            raise BadBundle(f"{WEIGHTS} cannot be read: {error}", where=self.url, fix=AGAIN) from None


def read_record(store: Store, url: str) -> Record:
    """Read the record of a bundle without downloading the bundle.

    Args:
        store: The bundle's store.
        url: Its location, for error messages.

    Returns:
        The record.

    Raises:
        BadBundle: If there is no bundle, or its record is damaged.

    Example:
        >>> from headway.bundle import RECORD, Record, read_record, to_json
        >>> from headway.storage import open_store
        >>> store = open_store("memory://example-bundle")
        >>> record = Record(recipe="line", name="line", headway="1.0", metrics={}, files={})
        >>> _ = store.write(RECORD, to_json(record.as_json()))
        >>> read_record(store, store.url).recipe
        'line'
    """
    try:
        return Record.read(store.read(RECORD), f"{url}/{RECORD}")
    except NotThere:
        raise BadBundle(
            f"{url} is not a bundle: it has no {RECORD}", fix="name a folder that `headway export` wrote, or a run"
        ) from None


def _verify(path: Path, entry: BundleFile, where: str) -> None:
    try:
        found = BundleFile.of(path)
    except FileNotFoundError:
        raise BadBundle(f"{path.name} is missing", where=where, fix=AGAIN) from None
    if found.bytes != entry.bytes:
        raise BadBundle(f"{path.name} has {found.bytes} bytes of {entry.bytes}", where=where, fix=AGAIN)
    if found.sha256 != entry.sha256:
        raise BadBundle(f"{path.name} does not match its checksum", where=where, fix=AGAIN)
