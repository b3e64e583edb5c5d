"""Types of a model's inputs and outputs. They describe values, and know nothing of where these come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar


class Input:
    """Base class of the types of inputs: each has `about`, shown on the try-out page, and `required`."""

    __slots__ = ()
    kind: ClassVar[str] = ""
    about: str
    required: bool


@dataclass(frozen=True, slots=True)
class Image(Input):
    """A picture: an array (height, width, 3) of uint8, upright, in RGB.

    Args:
        about: What it shows, in a few words.
        required: Whether a request must have it.

    Example:
        >>> import headway
        >>> headway.Image("the front of the card").kind
        'image'
    """

    kind: ClassVar[str] = "image"
    about: str = ""
    required: bool = True


@dataclass(frozen=True, slots=True)
class Text(Input):
    """A text, as an input or an output: str.

    Args:
        about: What it is, in a few words.
        required: Whether a request must have it.

    Example:
        >>> import headway
        >>> headway.Text("a sentence").kind
        'text'
    """

    kind: ClassVar[str] = "text"
    about: str = ""
    required: bool = True


@dataclass(frozen=True, slots=True)
class Number(Input):
    """A number, as an input or an output: float.

    Args:
        about: What it is, in a few words.
        required: Whether a request must have it.
        low: The smallest number allowed. None: any.
        high: The largest number allowed. None: any.
        unit: The unit, shown behind it.

    Example:
        >>> import headway
        >>> headway.Number("age", low=0, unit="years").unit
        'years'
    """

    kind: ClassVar[str] = "number"
    about: str = ""
    required: bool = True
    low: float | None = None
    high: float | None = None
    unit: str = ""


Column = type | Sequence[str]  # float, str, or the words to choose from


@dataclass(frozen=True, slots=True)
class Row(Input):
    """A row of a table: a dictionary with a value per column.

    Args:
        columns: Names of the columns with their types: `float`, `str`, or a list of the words allowed. A list of names
            means columns of numbers.
        about: What it is, in a few words.
        required: Whether a request must have it.

    Example:
        >>> import headway
        >>> headway.Row({"rooms": float, "heating": ["gas", "oil"]}).typed["heating"]
        ['gas', 'oil']
    """

    kind: ClassVar[str] = "row"
    columns: Mapping[str, Column] | Sequence[str] = ()
    about: str = ""
    required: bool = True

    @property
    def typed(self) -> dict[str, Column]:
        """The columns with their types."""
        if isinstance(self.columns, Mapping):
            return dict(self.columns)
        return dict.fromkeys(self.columns, float)


@dataclass(frozen=True, slots=True)
class Audio(Input):
    """Sound: an array (samples) of float32 between -1 and 1, one channel, from a WAV file.

    Args:
        about: What it is, in a few words.
        required: Whether a request must have it.
        rate: Samples per second; other rates are resampled to it.

    Example:
        >>> import headway
        >>> headway.Audio(rate=8000).rate
        8000
    """

    kind: ClassVar[str] = "audio"
    about: str = ""
    required: bool = True
    rate: int = 16_000


@dataclass(frozen=True, slots=True)
class Tensor(Input):
    """Numbers in a fixed number of dimensions, as an input (nested lists) or an output (anything with `tolist`).

    Args:
        shape: The size of each dimension; None: any.
        about: What it is, in a few words.
        required: Whether a request must have it.

    Example:
        >>> import headway
        >>> headway.Tensor((None, 2)).shape
        (None, 2)
    """

    kind: ClassVar[str] = "tensor"
    shape: Sequence[int | None] = ()
    about: str = ""
    required: bool = True


class Output:
    """Base class of the types of outputs that are no inputs: each has `about`, a few words on what it is."""

    __slots__ = ()
    kind: ClassVar[str] = ""
    about: str


@dataclass(frozen=True, slots=True)
class Classes(Output):
    """One of several classes. `predict` gives a name, or a probability per class (a mapping, or in order of `names`).

    Args:
        names: The classes.
        about: What is classified, in a few words.
        top: How many classes an answer lists.

    Example:
        >>> import headway
        >>> headway.Classes(["cat", "dog"]).names
        ['cat', 'dog']
    """

    kind: ClassVar[str] = "classes"
    names: Sequence[str] = ()
    about: str = ""
    top: int = 5


@dataclass(frozen=True, slots=True)
class Ordinal(Output):
    """A grade on a scale. `predict` gives the grade, or a probability per grade (a mapping, or in order).

    Args:
        low: The lowest grade.
        high: The highest grade.
        about: What is graded, in a few words.

    Example:
        >>> import headway
        >>> headway.Ordinal(1, 10).grades[-1]
        10
    """

    kind: ClassVar[str] = "ordinal"
    low: int = 1
    high: int = 10
    about: str = ""

    @property
    def grades(self) -> list[int]:
        """All grades, lowest first."""
        return list(range(self.low, self.high + 1))


@dataclass(frozen=True, slots=True)
class Labels(Output):
    """Any number of labels, each with a score of its own between 0 and 1: a mapping, or in order of `names`.

    Args:
        names: The labels.
        about: What is labelled, in a few words.

    Example:
        >>> import headway
        >>> headway.Labels(["rain", "wind"]).kind
        'labels'
    """

    kind: ClassVar[str] = "labels"
    names: Sequence[str] = ()
    about: str = ""


@dataclass(frozen=True, slots=True)
class Caption(Output):
    """A sentence about a picture: a text, or a list of words each with its attention over the picture (rows of cells).

    Args:
        about: What it describes, in a few words.

    Example:
        >>> import headway
        >>> headway.Caption().kind
        'caption'
    """

    kind: ClassVar[str] = "caption"
    about: str = ""


@dataclass(frozen=True, slots=True)
class Picture(Output):
    """A picture: an array (height, width) or (height, width, 3) of uint8, or of floats between 0 and 1.

    Args:
        about: What it shows, in a few words.

    Example:
        >>> import headway
        >>> headway.Picture("the mask").about
        'the mask'
    """

    kind: ClassVar[str] = "picture"
    about: str = ""


@dataclass(frozen=True, slots=True)
class Boxes(Output):
    """Boxes in a picture: a list of {"box": [left, top, right, bottom] in pixels, "label": …, "score": …}.

    Args:
        about: What they frame, in a few words.

    Example:
        >>> import headway
        >>> headway.Boxes("faces").kind
        'boxes'
    """

    kind: ClassVar[str] = "boxes"
    about: str = ""


def described(name: str, declared: Any) -> dict[str, Any]:
    """Return a type as plain values, for bundle.json and the try-out page."""
    plain: dict[str, Any] = {"name": name, "kind": declared.kind}
    for each in fields(declared):
        value = getattr(declared, each.name)
        if value != each.default and value not in ((), ""):
            plain[each.name] = _plain(value)
    return plain


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, type):
        return {float: "number", int: "number", str: "text"}.get(value, value.__name__)
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value
