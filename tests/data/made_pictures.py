"""Pictures made up on the spot, with the spectrum and the edges of photographs."""

from __future__ import annotations

import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw


def photograph(width: int, height: int, seed: int = 0) -> Image.Image:
    """Noise whose power falls with frequency as in photographs, and a few sharp-edged things in front of it."""
    random = np.random.default_rng(seed)
    rows, columns = np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None, :]
    falling = 1 / np.maximum(np.hypot(rows, columns), 1 / max(width, height)) ** 1.2
    planes = []
    for _ in range(3):
        shape = (height, width // 2 + 1)
        plane = np.fft.irfft2((random.normal(size=shape) + 1j * random.normal(size=shape)) * falling, s=(height, width))
        planes.append(128 + 45 * (plane - plane.mean()) / plane.std())
    picture = Image.fromarray(np.clip(np.stack(planes, -1), 0, 255).astype(np.uint8))
    draw = ImageDraw.Draw(picture)
    for _ in range(12):
        x, y = random.integers(0, width), random.integers(0, height)
        far = random.integers(4, max(5, min(width, height) // 4), 2)
        draw.ellipse(
            (int(x), int(y), int(x + far[0]), int(y + far[1])), fill=tuple(map(int, random.integers(0, 255, 3)))
        )
    return picture


def jpeg(picture: Image.Image, **options: object) -> bytes:
    body = io.BytesIO()
    picture.save(body, "JPEG", **{"quality": 92, **options})
    return body.getvalue()


def saved(picture: Image.Image, kind: str) -> bytes:
    body = io.BytesIO()
    picture.save(body, kind, **({"quality": 98} if kind == "JPEG" else {}))
    return body.getvalue()


def psnr(a: NDArray[np.uint8], b: NDArray[np.uint8]) -> float:
    error = float(np.mean((a.astype(np.float64) - b) ** 2))
    return float("inf") if error == 0 else float(10 * np.log10(255**2 / error))
