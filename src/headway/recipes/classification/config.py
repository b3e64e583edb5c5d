"""The settings of the classification recipe. Plain types: read by the job file's loader, nothing heavy is imported."""

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
    """How a classifier is built and trained. The defaults learn the drawn leaves in minutes on two cores."""

    model: Model = "alexnet"  # from scratch, in three sizes; the others are fine-tuned
    model_size: Literal["small", "base", "large"] = "base"  # of alexnet: 0.13, 0.53 or 2.1 million weights
    image_size: Annotated[int, ">= 32"] = 64  # side of the square that the model sees, in pixels
    weights: str = "imagenet"  # where other models start: as published, a path, a URL, or none
    freeze: Literal["nothing", "norms", "all"] = "norms"  # batch statistics stay; all: the last layer alone learns
    dropout: Annotated[float, ">= 0", "< 1"] = 0.2  # of the features before the last layer

    train_share: Part = 0.8  # of pictures that come without splits; val and test halve the rest
    max_samples: Count | None = None  # of each source and split, at most; a sample, the same each time
    in_memory: bool = False  # decode everything once and keep it there, instead of in every epoch

    epochs: Count = 10  # passes over the pictures
    batch_size: Count = 32  # pictures a step, over all ranks
    accumulate: Count = 1  # parts a step is computed in, where memory is short
    lr: Annotated[float, "> 0"] = 3e-3  # the highest learning rate
    encoder_lr_factor: Share = 0.1  # learning rate of published weights, as a part of `lr`
    schedule: Literal["one_cycle", "cosine", "linear", "constant"] = "one_cycle"  # how it rises and falls
    warmup: Annotated[int, ">= 0"] = 0  # steps in which it rises, where it is not one_cycle
    weight_decay: Annotated[float, ">= 0"] = 0.01  # of AdamW
    clip: Annotated[float, "> 0"] = 5.0  # largest norm of a step's gradient
    label_smoothing: Annotated[float, ">= 0", "< 1"] = 0.1  # spread evenly over all classes, as torch does
    patience: Count | None = None  # validations without a better one that end the training

    zoom: Annotated[float, "> 0", "<= 1"] = 0.6  # smallest share of a picture that a training crop shows
    mirror: bool = True  # half of the training pictures are
    rotate: Annotated[float, ">= 0", "<= 180"] = 20.0  # by up to so many degrees, either way
    color_jitter: Share = 0.2  # brightness, contrast and saturation by a factor of 1 ± this

    sampler: Literal["balanced", "uniform"] = "uniform"  # balanced: rare classes are drawn more often
    class_weights: bool = False  # rare classes count more in the loss
    balance: Share = 0.5  # how much more, for either: 0 not at all, 1 all classes alike

    groups: Mapping[str, str] = field(default_factory=healthy_or_sick)  # part of a class's name: its group
    without: tuple[str, ...] = ()  # classes that give themselves away: accuracy is also told without them
    top: Count = 5  # the right class among so many counts too

    train_samples: Count = 1600  # how many leaves are drawn for training …
    val_samples: Count = 240  # … for choosing the best checkpoint …
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
