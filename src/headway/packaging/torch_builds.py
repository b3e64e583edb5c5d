"""Which versions of torch have kernels for an accelerator in the wheels that pip installs by default.

A wheel without them installs, and fails at the first kernel: "no kernel image is available for execution on the
device". From PyTorch's lists of architectures per CUDA version: wheels up to 2.6 (CUDA 12.4) start at Pascal; those of
CUDA 13 (the default from 2.12), and of CUDA 12.8 from 2.11, no longer have Volta's sm_70. Blackwell needs CUDA 12.8,
the default from 2.8.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

CAPABILITY: Final[Mapping[str, tuple[int, int]]] = {
    "P4": (6, 1), "P100": (6, 0), "V100": (7, 0), "V100-32GB": (7, 0), "T4": (7, 5), "A10": (8, 6), "A10G": (8, 6),
    "A30": (8, 0), "A40": (8, 6), "A100": (8, 0), "A100-80GB": (8, 0), "L4": (8, 9), "L40": (8, 9), "L40S": (8, 9),
    "H100": (9, 0), "H100-MEGA": (9, 0), "H200": (9, 0), "GH200": (9, 0), "B200": (10, 0), "B300": (10, 3),
    "GB200": (10, 0), "RTX3090": (8, 6), "RTX4090": (8, 9), "RTX5090": (12, 0), "RTXA5000": (8, 6),
    "RTXA6000": (8, 6), "RTX6000ADA": (8, 9), "RTXPRO6000": (12, 0),
}  # fmt: skip
AMD: Final = ("MI250X", "MI300X")  # the default wheels are for CUDA: an image with ROCm's torch is needed
_OLD: Final = "torch<2.7"
_NEW: Final = "torch>=2.8"


def torch_for(kind: str | None) -> str:
    """Return the requirement that selects a default wheel with kernels for this accelerator; "" if all have them."""
    capability = CAPABILITY.get(kind or "")
    if capability is None:
        return ""
    return _OLD if capability < (7, 5) else _NEW if capability >= (10, 0) else ""


def accelerator_of(job: Mapping[str, Any]) -> str | None:
    """Return the kind of accelerator that a recorded job asks for."""
    asked = (job.get("resources") or {}).get("accelerator")
    if isinstance(asked, Mapping):
        return str(asked.get("kind"))
    return str(asked).partition(":")[0] if asked else None
