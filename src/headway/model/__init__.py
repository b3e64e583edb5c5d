"""The contract of a model: what it takes and gives, and what Headway's verbs call. Imports neither torch nor numpy."""

from __future__ import annotations

from headway.model.contract import Model, Scores
from headway.model.types import (
    Audio,
    Boxes,
    Caption,
    Classes,
    Image,
    Input,
    Labels,
    Number,
    Ordinal,
    Output,
    Picture,
    Row,
    Tensor,
    Text,
)

__all__ = [
    "Audio",
    "Boxes",
    "Caption",
    "Classes",
    "Image",
    "Input",
    "Labels",
    "Model",
    "Number",
    "Ordinal",
    "Output",
    "Picture",
    "Row",
    "Scores",
    "Tensor",
    "Text",
]
