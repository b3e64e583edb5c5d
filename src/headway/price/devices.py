"""How fast devices train, for estimates: sustained, not peak. Rough by nature, and shown as rough.

Peak figures are the vendors' (dense, mixed precision where the device has it); the share that training reaches is ours.
"""

from __future__ import annotations

# Teraflops a second at mixed precision, dense; CPU cores in single precision.
PEAK_TFLOPS = {
    "P4": 5.5, "P100": 19.0, "V100": 125.0, "V100-32GB": 125.0, "T4": 65.0, "A10": 125.0, "A10G": 70.0, "A30": 165.0,
    "A40": 150.0, "A100": 312.0, "A100-80GB": 312.0, "L4": 121.0, "L40": 181.0, "L40S": 362.0, "H100": 989.0,
    "H100-MEGA": 989.0, "H200": 989.0, "GH200": 989.0, "B200": 2250.0, "B300": 2500.0, "GB200": 2500.0,
    "RTX3090": 71.0, "RTX4090": 165.0, "RTX5090": 210.0, "RTXA5000": 111.0, "RTXA6000": 155.0, "RTX6000ADA": 182.0,
    "RTXPRO6000": 250.0, "MI250X": 383.0, "MI300X": 1307.0,
}  # fmt: skip
CPU_CORE_TFLOPS = 0.11  # measured here: 218 GFLOPS on two cores
# Of the peak. The faster a device, the less of it a model of ordinary size keeps busy: between a T4 and an A100 people
# see a factor of 2.5 to 3, not 4.8 (T4 6–8 h, V100 3–4 h, A100 2–3 h for one and the same job).
GPU_SHARE, CPU_SHARE, DAMPED = 0.25, 0.5, 0.65


def sustained_tflops(kind: str | None, count: int = 1, *, cpus: int = 1) -> float | None:
    """What a training of ordinary size reaches on one node; None for a device nobody has figures of."""
    if kind is None:
        return CPU_CORE_TFLOPS * CPU_SHARE * max(1, cpus)
    peak = PEAK_TFLOPS.get(kind)
    if peak is None:
        return None
    reference = PEAK_TFLOPS["T4"]
    return float(GPU_SHARE * reference * (peak / reference) ** DAMPED * count**0.9)
