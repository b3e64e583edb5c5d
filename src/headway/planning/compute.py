"""How a plan's job computes: the default precision of recipes on a GPU, and keys without effect."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from headway.core.plan import EXACT
from headway.packaging.torch_builds import AMD, torch_for
from headway.spec import Job
from headway.spec.rules import COMPUTE

# GPUs without bf16. Of these, P4 and P100 gain nothing from fp16.
_FP16 = ("T4", "V100", "V100-32GB")
_FP32 = ("P4", "P100")


def best_precision(accelerator: str) -> str:
    """Return the fastest usual precision of a GPU; fp32 for one that is not known."""
    if accelerator in _FP16:
        return "fp16"
    from headway.pricing.table import PEAK_TFLOPS

    return "bf16" if accelerator in PEAK_TFLOPS and accelerator not in _FP32 else "fp32"


def with_defaults(job: Job, *, here: bool) -> Job:
    """Fill in the precision of a recipe on a GPU. A script computes as it is written.

    `here`: the run uses this machine, which may lack the accelerator that the job names for its targets.
    """
    accelerator = job.resources.accelerator
    if job.recipe is None or accelerator is None or job.precision is not None or here:
        return job
    best = best_precision(accelerator.kind)
    return job if best == "fp32" else replace(job, precision=best)  # type: ignore[arg-type]


def torch_notes(job: Job) -> Iterator[str]:
    """Say which versions of torch have kernels for the accelerator, where pip's newest or oldest have none."""
    kind = job.resources.accelerator.kind if job.resources.accelerator else None
    if kind in AMD:
        yield f"torch: pip's wheels are for NVIDIA; {kind} needs an image with ROCm's torch (image.base or image.uri)"
    elif needed := torch_for(kind):
        where = "the generated image installs it" if job.image.uri is None else "check the image"
        yield f"torch: {kind} needs {needed}; other wheels have no kernels for it ({where}, own requirements go first)"


def notes(job: Job, resume: str) -> Iterator[str]:
    """Say in which precision the job computes on a GPU, and which keys have no effect on its program."""
    given = [name for name in COMPUTE if getattr(job, name) is not None]
    if job.recipe is None and resume != EXACT:
        for name in given:
            yield f"{name} has no effect: the program does not call headway.start()"
        return
    accelerator = job.resources.accelerator
    if accelerator is None:
        return
    precision, best = job.precision or job.config.get("precision"), best_precision(accelerator.kind)
    if precision:
        yield f"precision: {precision} (of fp32, tf32, bf16, fp16)"
    elif best != "fp32":
        yield f"computes in fp32: `precision: {best}` is faster on {accelerator.kind}, with run.autocast() in it"
