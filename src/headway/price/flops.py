"""Counting a job's arithmetic and its pictures from its settings, without building its model. Rough."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

TRAINING = 3.0  # times the forward pass: backwards costs twice as much
PICTURES_A_CORE_S = 1500.0  # JPEGs of 224 pixels decoded and cropped by one core: 2,400 measured, less for what follows
TOKENS = 20.0  # of a caption or a sentence, where nothing says otherwise

# Billions of multiply-adds for one picture of 224 × 224, from the papers.
_GMACS = {
    "alexnet": 0.71, "resnet18": 1.82, "resnet34": 3.67, "resnet50": 4.11, "resnet101": 7.83, "resnet152": 11.56,
    "efficientnet_lite0": 0.41, "efficientnet_lite1": 0.63, "efficientnet_lite2": 0.89, "mobilenet_v3": 0.22,
    "vit_b_16": 17.6, "inception_v3": 5.7, "vgg16": 15.5,
}  # fmt: skip


# Layers of both sides, width and inner width of a translation's sizes.
_TRANSFORMERS = {"tiny": (4, 64, 256), "small": (8, 128, 512), "medium": (6, 256, 1024), "base": (12, 512, 2048)}


def flops_per_example(config: Mapping[str, Any]) -> float | None:
    """Of one step's share for one example, forwards and backwards; None where the settings do not tell."""
    forward = _pictures(config) + _words(config)
    return TRAINING * forward if forward else None


def loading_core_s(config: Mapping[str, Any]) -> float:
    """What one example costs a core before the device sees it. Sentences cost next to nothing."""
    if not _pictures(config):
        return 0.0
    sides = 2 if config.get("front") and config.get("back") else 1
    return sides * (_side(config) / 224.0) ** 2 / PICTURES_A_CORE_S


def examples_per_epoch(job: Mapping[str, Any]) -> float | None:
    """Rows that an epoch reads: what the settings draw, or what the data's manifests count."""
    config = dict(job.get("config") or {})
    sources = (job.get("data") or {}).get("train") or ()
    if sources and all(str(source["source"]).startswith("builtin:") for source in sources):
        drawn = [value for key, value in config.items() if key.startswith("train_") and type(value) is int]
        return float(sum(drawn)) or None
    counts = [_rows(source) for source in sources]
    return float(sum(count for count in counts if count is not None)) if counts and None not in counts else None


def _rows(source: Mapping[str, Any]) -> int | None:
    """Of a prepared data set on this machine."""
    split = source.get("split") or "train"
    try:
        manifest = json.loads((Path(str(source["source"])) / "manifest.json").read_text())
        parts = manifest["splits"][split]
        rows = int(parts["rows"] if isinstance(parts, dict) else sum(part["rows"] for part in parts))
    except (OSError, ValueError, KeyError, TypeError):  # remote, not prepared, or of another shape
        return None
    limit = source.get("limit")
    return min(rows, int(limit)) if limit else rows


def _pictures(config: Mapping[str, Any]) -> float:
    side = _side(config)
    names = [str(config[key]) for key in ("encoder", "backbone", "model", "front", "back") if config.get(key)]
    known = sum(_GMACS[_plain(name)] for name in names if _plain(name) in _GMACS)
    own = 0.0
    if "cnn" in names and _number(config, "width"):  # four layers that halve the picture, the last four times as wide
        own = 2.5 * 9 * float(config["width"]) ** 2 * (side / 2) ** 2 / 1e9
    return 2e9 * (known * (side / 224.0) ** 2 + own)


def _side(config: Mapping[str, Any]) -> float:
    return next((float(config[key]) for key in ("picture", "size", "image_size") if _number(config, key)), 224.0)


def _words(config: Mapping[str, Any]) -> float:
    """A decoder's or a Transformer's share: two operations a weight and token."""
    if "subwords" in config and config.get("size") in _TRANSFORMERS:  # what is left out comes from the size
        named = dict(zip(("layers", "dim", "ff"), _TRANSFORMERS[config["size"]], strict=True))
        given = {"layers": _layers(config), "dim": config.get("width"), "ff": config.get("inner")}
        config = {**named, **{key: value for key, value in given.items() if value}}
    width = next((float(config[key]) for key in ("d_model", "dim", "hidden", "embedding") if _number(config, key)), 0.0)
    if not width:
        return 0.0
    layers = _layers(config)
    inner = next((float(config[key]) for key in ("ff", "feed_forward") if _number(config, key)), 4 * width)
    weights = (layers or 1.0) * (4 * width**2 + 2 * width * inner)
    copies = float(config["captions"]) if _number(config, "captions") else 1.0
    return 2.0 * weights * TOKENS * copies


def _layers(config: Mapping[str, Any]) -> float:
    keys = ("layers", "encoder_layers", "decoder_layers")
    return sum(float(config[key]) for key in keys if _number(config, key))


def _number(config: Mapping[str, Any], key: str) -> bool:
    return isinstance(config.get(key), int | float) and not isinstance(config.get(key), bool)


def _plain(name: str) -> str:
    return name.lower().replace("-", "_").replace("resnet_", "resnet")
