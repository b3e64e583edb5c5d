"""What a frozen encoder sees of every picture, computed once and kept on disk: 125 KB a picture for a 7 by 7 grid.

A file is named by all that its contents depend on: the encoder's weights and preprocessing, the pictures, whether they
are mirrored too. One process writes it, in pieces that survive a kill; the others of its machine wait, then map it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from headway.encoders.weights import fingerprint
from headway.errors import DiskFull
from headway.recipes.captioning.data import Numbers, Pictures
from headway.recipes.captioning.feed import Sources
from headway.recipes.captioning.published import Published
from headway.spec.model import Cache

_PIECE: Final = 256  # pictures: what a kill can cost
_AT_ONCE: Final = 8  # small batches stay in the processor's cache
_KIND: Final = np.float16


class Features:
    """Grids by number, from a memory map."""

    def __init__(self, path: Path, pictures: int, cells: int, channels: int, *, mirrored: bool) -> None:
        shape = (2 if mirrored else 1, pictures, cells, channels)
        self._grids: NDArray[np.float16] = np.memmap(path, _KIND, "r", shape=shape)

    def read(self, rows: Numbers, mirrored: NDArray[np.bool_] | None = None) -> Tensor:
        """Half precision (rows, cells, channels)."""
        sides = np.zeros(len(rows), np.int64) if mirrored is None else mirrored.astype(np.int64)
        return torch.from_numpy(self._grids[sides, rows])


def seen(
    encoder: nn.Module,
    pictures: list[Pictures],
    cache: Cache | None,
    *,
    learns: bool = False,
    mirrored: bool = False,
    device: torch.device | None = None,
) -> Sources:
    """What a model is given: the pictures, or what its encoder makes of them where that is published and never learns.

    Without a cache it is the pictures.
    """
    if cache is None or learns or not isinstance(encoder, Published):
        return Sources(pictures)
    at = device or torch.device("cpu")
    return Sources(pictures, [features(encoder, part, cache, mirrored=mirrored, device=at) for part in pictures])


def features(encoder: Published, pictures: Pictures, cache: Cache, *, mirrored: bool, device: torch.device) -> Features:
    """Those of all pictures, from the cache or computed now."""
    count, cells, channels = len(pictures), encoder.cells, encoder.channels
    key = (fingerprint(encoder.net), pictures.pixels.fingerprint, count, cells, channels, mirrored)
    name = hashlib.sha256(repr(key).encode()).hexdigest()[:24]
    folder = _folder(cache)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.f16"
    with (folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # goes when its holder dies
        if not path.exists():
            _write(path, encoder, pictures, mirrored=mirrored, device=device)
    return Features(path, count, cells, channels, mirrored=mirrored)


def _folder(cache: Cache) -> Path:
    if cache.dir is not None:
        return Path(cache.dir).expanduser() / "features"
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "headway" / "features"


def _write(path: Path, encoder: Published, pictures: Pictures, *, mirrored: bool, device: torch.device) -> None:
    """Append piece after piece to a file of another name. What an earlier process finished of it is kept."""
    count = len(pictures)
    size = encoder.cells * encoder.channels * np.dtype(_KIND).itemsize
    total = count * (2 if mirrored else 1)
    part = path.with_suffix(".part")
    done = (part.stat().st_size // size if part.exists() else 0) // _PIECE * _PIECE
    begun, first = time.monotonic(), done
    try:
        with part.open("r+b" if part.exists() else "wb") as file:
            file.truncate(done * size)
            file.seek(done * size)
            while done < total:
                places = np.arange(done, min(done + _PIECE, total))
                file.write(_seen(encoder, pictures, places % count, places >= count, device).tobytes())
                file.flush()
                os.fsync(file.fileno())
                done += len(places)
                rate = (done - first) / max(1e-9, time.monotonic() - begun)
                sys.stderr.write(f"features of {pictures.name}: {done:,} of {total:,} pictures, {rate:.0f} a second\n")
    except OSError as error:
        raise DiskFull(
            f"the features could not be kept: {error.strerror}",
            where=str(part),
            fix=f"make room ({total * size / 1e9:.1f} GB in all), or name another cache.dir",
        ) from None
    os.rename(part, path)


def _seen(
    encoder: Published, pictures: Pictures, rows: Numbers, flip: NDArray[np.bool_], device: torch.device
) -> NDArray[np.float16]:
    """Small batches side by side, each on one thread: these layers are too small to be shared between threads.

    So the features do not depend on the number of threads either.
    """

    def see(first: int) -> NDArray[np.float16]:
        torch.set_num_threads(1)
        pixels = pictures.pixels.read(rows[first : first + at_once], flip[first : first + at_once])
        with torch.inference_mode():
            grids: NDArray[np.float16] = encoder(pixels.to(device)).half().cpu().numpy()
        return grids

    alone = device.type != "cpu"
    threads, at_once = torch.get_num_threads(), _PIECE if alone else _AT_ONCE
    encoder(pictures.pixels.read(rows[:1]).to(device))  # folds the encoder, once
    try:
        with ThreadPoolExecutor(1 if alone else threads) as pool:
            return np.concatenate(list(pool.map(see, range(0, len(rows), at_once))))
    finally:
        torch.set_num_threads(threads)
