"""Enough of HCL to read what `headway infra` prints: blocks, their labels, their attributes."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_BLOCK = re.compile(r'(?P<kind>[\w-]+)(?P<labels>(?: "[^"]+")*) \{(?P<empty>\})?')
_ATTRIBUTE = re.compile(r"(?P<name>[\w-]+)\s*= (?P<value>.*)")


@dataclass
class Block:
    kind: str
    labels: tuple[str, ...] = ()
    attributes: dict[str, str] = field(default_factory=dict)
    blocks: list[Block] = field(default_factory=list)


def parse(text: str) -> Block:
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("#")]
    root, rest = _block(Block("root"), lines)
    assert not rest, rest[:3]
    return root


def _block(block: Block, lines: list[str]) -> tuple[Block, list[str]]:
    while lines:
        line, lines = lines[0], lines[1:]
        if line == "}":
            return block, lines
        opened, given = _BLOCK.fullmatch(line), _ATTRIBUTE.fullmatch(line)
        if given:
            value, lines = _value(given["value"], lines)
            block.attributes[given["name"]] = value
        elif opened:
            inner = Block(opened["kind"], tuple(re.findall(r'"([^"]+)"', opened["labels"])))
            if not opened["empty"]:
                inner, lines = _block(inner, lines)
            block.blocks.append(inner)
        else:
            raise ValueError(f"neither a block nor an attribute: {line}")
    assert block.kind == "root", f"{block.kind} is not closed"
    return block, lines


def _value(text: str, lines: list[str]) -> tuple[str, list[str]]:
    """What goes over several lines: lists, maps and texts."""
    if text.startswith("<<-"):
        end = lines.index(text[3:])
        return "\n".join(lines[:end]), lines[end + 1 :]
    depth = sum(text.count(sign) for sign in "([{") - sum(text.count(sign) for sign in ")]}")
    while depth > 0:
        text, lines = f"{text}\n{lines[0]}", lines[1:]
        depth = sum(text.count(sign) for sign in "([{") - sum(text.count(sign) for sign in ")]}")
    return text, lines
