"""The settings of the classification recipe. Imports nothing heavy, because the job file's loader reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from headway.spec.renamed import FormerKey, Renamed

Count = Annotated[int, ">= 1"]
Share = Annotated[float, ">= 0", "<= 1"]
Part = Annotated[float, "> 0", "< 1"]
Model = Literal["alexnet", "efficientnet_lite0", "resnet18", "resnet34", "resnet50", "resnet101"]


def healthy_or_sick() -> dict[str, str]:
    return {"healthy": "healthy", "*": "sick"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """Settings of a classifier and its training. The defaults train on generated leaves in minutes on two cores."""

    model: Model = "alexnet"  # alexnet is trained from scratch, the others are fine-tuned
    model_size: Literal["small", "base", "large"] = "base"  # size of alexnet: 0.13, 0.53 or 2.1 million weights
    image_size: Annotated[int, ">= 32"] = 64  # side of the square input, in pixels
    weights: str = "imagenet"  # pretrained weights of the other models: imagenet, a path, a URL, or none
    freeze: Literal["nothing", "norms", "all"] = "norms"  # norms: batch-norm statistics; all: all but the last layer
    dropout: Annotated[float, ">= 0", "< 1"] = 0.2  # dropout before the last layer

    train_share: Part = 0.8  # share for training if the data has no splits; val and test get half of the rest each
    max_samples: Count | None = None  # pictures per source and split, at most: a fixed random sample
    in_memory: bool = False  # decode all pictures once and keep them in memory, instead of in every epoch

    epochs: Count = 10  # passes over the pictures
    batch_size: Count = 32  # pictures per step, over all ranks
    accumulate: Count = 1  # micro-batches per step, to save memory
    lr: Annotated[float, "> 0"] = 3e-3  # the highest learning rate
    encoder_lr_factor: Share = 0.1  # learning rate of pretrained weights, as a factor of `lr`
    schedule: Literal["one_cycle", "cosine", "linear", "constant"] = "one_cycle"  # learning-rate schedule
    warmup: Annotated[int, ">= 0"] = 0  # warm-up steps of schedules other than one_cycle
    weight_decay: Annotated[float, ">= 0"] = 0.01  # AdamW's weight decay
    clip: Annotated[float, "> 0"] = 5.0  # largest gradient norm
    label_smoothing: Annotated[float, ">= 0", "< 1"] = 0.1  # label smoothing, as in torch
    patience: Count | None = None  # early stopping: validations without improvement before training ends

    zoom: Annotated[float, "> 0", "<= 1"] = 0.6  # smallest share of a picture that a random training crop keeps
    mirror: bool = True  # mirror half of the training pictures
    rotate: Annotated[float, ">= 0", "<= 180"] = 20.0  # rotate training pictures by up to this many degrees, either way
    color_jitter: Share = 0.2  # vary brightness, contrast and saturation by a factor of 1 ± this

    sampler: Literal["balanced", "uniform"] = "uniform"  # balanced: sample rare classes more often
    class_weights: bool = False  # weight rare classes more in the loss
    balance: Share = 0.5  # strength of both: 0 no effect, 1 all classes equal

    groups: Mapping[str, str] = field(default_factory=healthy_or_sick)  # part of a class's name: its group in scores
    without: tuple[str, ...] = ()  # also report the accuracy without these classes
    top: Count = 5  # also report top-k accuracy, with this k

    train_samples: Count = 1600  # generated leaves for training …
    val_samples: Count = 240  # … for validation …
    test_samples: Count = 320  # … and for `headway eval`

    RENAMED: ClassVar[Mapping[str, FormerKey]] = {
        "batch": Renamed("batch_size"),
        "colour": Renamed("color_jitter"),
        "encoder_lr": Renamed("encoder_lr_factor"),
        "imbalance": Renamed(
            "sampler",
            {
                "none": {"sampler": "uniform", "class_weights": False},
                "sampler": {"sampler": "balanced", "class_weights": False},
                "weights": {"sampler": "uniform", "class_weights": True},
            },
        ),
        "test_pictures": Renamed("test_samples"),
        "train_pictures": Renamed("train_samples"),
        "turn": Renamed("rotate"),
        "val_pictures": Renamed("val_samples"),
    }


# Billions of multiply-adds per picture of 224 × 224, counted by hooks on the layers.
_ALEXNET_GMACS = {"small": 0.140, "base": 0.510, "large": 1.892}


def sizes(cfg: Config) -> dict[str, object]:
    """Return the model's sizes, from which the training time is estimated."""
    own = {"gmacs": _ALEXNET_GMACS[cfg.model_size]} if cfg.model == "alexnet" else {"model": cfg.model}
    frozen = {"frozen_passes": 1.0} if cfg.model != "alexnet" and cfg.freeze == "all" else {}
    return {**own, "image_size": cfg.image_size, **frozen}
