"""The reader on its own: any dataclass with annotations it knows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import pytest

from headway.core.errors import Problem
from headway.spec.model import Bytes, ReferenceString, Seconds
from headway.spec.rules import Node
from headway.spec.validate import read_dataclass
from headway.spec.yaml_reader import parse


@dataclass(frozen=True, kw_only=True, slots=True)
class Wheel:
    spokes: Annotated[int, ">= 3", "<= 99"]
    material: Literal["wood", "steel"] = "steel"


@dataclass(frozen=True, kw_only=True, slots=True)
class Cart:
    """What a plug-in might want to be told."""

    wheels: tuple[Wheel, ...]
    spare: Wheel | None = None
    load: Bytes = 0
    rest: Seconds = 0.0
    speed: float | Literal["max"] = "max"
    axis: tuple[int, str] = (0, "x")
    names: list[str] = field(default_factory=list)
    notes: Mapping[str, float] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)
    home: ReferenceString | None = None
    from_: str = "here"


def tree(text: str) -> Node:
    node = parse(text, "f", [])
    assert node is not None
    return node


def test_a_dataclass_is_read_by_its_annotations() -> None:
    text = """
      wheels: [{spokes: 8}, {spokes: 12, material: wood}]
      load: 2GB
      rest: 90s
      speed: 3
      axis: [1, y]
      names: [a, b]
      notes: {a: 1}
      extra: {deep: [1, {er: null}]}
      home: ${env:HOME}/cart
      from: there
    """
    problems: list[Problem] = []
    cart = read_dataclass(tree(text), Cart, problems, env={"HOME": "/me"})
    assert problems == []
    assert cart == Cart(
        wheels=(Wheel(spokes=8), Wheel(spokes=12, material="wood")),
        load=2 * 10**9,
        rest=90.0,
        speed=3.0,
        axis=(1, "y"),
        names=["a", "b"],
        notes={"a": 1.0},
        extra={"deep": [1, {"er": None}]},
        home="/me/cart",
        from_="there",
    )


def test_problems_are_collected_and_nothing_half_read_comes_back() -> None:
    problems: list[Problem] = []
    text = "wheels: [{spokes: 2}, {spokes: 100}, {}, 5]\nspeed: fast\naxis: [y, 1]\nnames: a\nnotes: {a: b}\n"
    assert read_dataclass(tree(text), Cart, problems, path="cart") is None
    assert [f"{problem.where} {problem.what}" for problem in problems] == [
        "f:1:19 cart.wheels.0.spokes must be at least 3, not 2",
        "f:1:32 cart.wheels.1.spokes must be at most 99, not 100",
        "f:1:38 cart.wheels.2.spokes is missing",
        "f:1:42 cart.wheels.3 must be a mapping of keys and values, not 5",
        "f:2:8 cart.speed must be a number, or 'max', not the text 'fast'",
        "f:3:8 cart.axis.0 must be a whole number, not the text 'y'",
        "f:3:11 cart.axis.1 must be text, not 1",
        "f:4:8 cart.names must be a list, not the text 'a'",
        "f:5:12 cart.notes.a must be a number, not the text 'b'",
    ]


def test_an_annotation_that_no_document_can_hold_is_our_own_bug() -> None:
    @dataclass
    class Odd:
        when: complex = 0j

    with pytest.raises(AssertionError, match="a document cannot hold"):
        read_dataclass(tree("when: 1"), Odd, [])
