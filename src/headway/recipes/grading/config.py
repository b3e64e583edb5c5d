"""The settings of the grading recipe. Imports nothing heavy, because the job file's loader reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from headway.spec.renamed import FormerKey, Renamed

Count = Annotated[int, ">= 1"]
Rate = Annotated[float, "> 0"]
Share = Annotated[float, ">= 0", "<= 1"]
Weight = Annotated[float, ">= 0"]
NARROW, PUBLISHED = 16, 64  # channels of a ResNet's first layer: in a small branch, and as published
Encoder = Literal["efficientnet_lite0", "resnet101", "resnet18", "resnet34", "resnet50"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """Settings of a grader and its training."""

    # small: at most 128 pixels and narrow branches, for machines without a GPU
    model_size: Literal["full", "small"] = "full"
    views: Literal["both", "single"] = "both"  # pictures per item: front and back, or one
    image_size: Annotated[int, ">= 32"] = 224  # side of the square input, in pixels; at most 128 if small
    channels: Literal["rgb", "six"] = "six"  # six: CLAHE-L, a, b, |Sobel x|, |Sobel y|, |Laplacian|
    front: Encoder = "resnet18"  # encoder of the front …
    back: Encoder = "resnet34"  # … and of the back, or of the only picture
    weights: str = "none"  # pretrained weights of both encoders: imagenet, a path, a URL, or none
    lambda_fusion: Share = 0.7  # weight of the back in the fusion; the front has the rest
    rim: Annotated[float, "> 0", "< 0.5"] = 0.07  # width of the rim on each side, as a share of the picture
    head: Literal["coral", "corn", "softmax"] = "softmax"  # output head: ordinal (coral, corn) or softmax
    decode: Literal["likeliest", "mean", "median"] = "mean"  # the chosen grade; `mean` minimises the squared error
    dropout: Annotated[float, ">= 0", "< 1"] = 0.2  # dropout of the fused features

    batch_size: Count = 32  # items per step, over all ranks
    accumulate: Count = 1  # micro-batches per step, to save memory
    phase1_epochs: Annotated[int, ">= 0"] = 10  # epochs that train the back alone (`views: single`: the head); 0: none
    phase2_epochs: Annotated[int, ">= 0"] = 30  # epochs that train everything
    phase1_lr: Rate = 1e-3  # learning rate of the first phase …
    phase2_lr: Rate = 3e-4  # … and of the second
    weight_decay: Weight = 1e-4  # AdamW's weight decay
    clip: Rate = 5.0  # largest gradient norm
    plateau_patience: Annotated[int, ">= 0"] = 3  # validations without a better QWK before the learning rate falls …
    plateau_factor: Annotated[float, "> 0", "< 1"] = 0.5  # … by this factor
    alpha_emd: Weight = 0.7  # weight of the squared earth mover's distance, added to the head's loss
    beta_edge: Weight = 0.05  # weight of the error in edge damage, if the data has it
    beta_center: Weight = 0.1  # weight of the error in centring, if the data has it
    # balanced: sample rare grades more often, P ∝ 1 / frequency ^ 0.5
    sampler: Literal["balanced", "uniform"] = "balanced"
    checkpoint_epochs: Count = 5  # epochs between checkpoints kept as epoch_N; `checkpoint.keep_every` overrides it

    mirror: bool = True  # mirror pictures at random
    rotate: Annotated[float, ">= 0", "<= 180"] = 0.0  # rotate pictures by up to this many degrees
    zoom: Annotated[float, "> 0", "<= 1"] = 1.0  # smallest share of the area that a random crop keeps
    color_jitter: Share = 0.1  # vary brightness and contrast by up to this much

    train_samples: Count = 5000  # generated cards for training …
    val_samples: Count = 500  # … for validation …
    test_samples: Count = 1000  # … and for `headway eval`
    skewed: bool = False  # generate few low and many high grades, as in real data, instead of equally many

    RENAMED: ClassVar[Mapping[str, FormerKey]] = {
        "colour": Renamed("color_jitter"),
        "lr_phase1": Renamed("phase1_lr"),
        "lr_phase2": Renamed("phase2_lr"),
        "picture": Renamed("image_size"),
        "size": Renamed("model_size"),
        "test_cards": Renamed("test_samples"),
        "train_cards": Renamed("train_samples"),
        "use_sampler": Renamed("sampler", {True: {"sampler": "balanced"}, False: {"sampler": "uniform"}}),
        "val_cards": Renamed("val_samples"),
        "weights": Renamed("weights", {None: {"weights": "none"}}),
    }

    @property
    def side(self) -> int:
        return min(self.image_size, 128) if self.model_size == "small" else self.image_size


def sizes(cfg: Config) -> dict[str, object]:
    """Return the model's sizes, from which the training time is estimated."""
    names = {"back": cfg.back, **({"front": cfg.front} if cfg.views == "both" else {})}
    narrow = cfg.model_size == "small" and all(name.startswith("resnet") for name in names.values())
    return {**names, "image_size": cfg.side, "channels_factor": NARROW / PUBLISHED if narrow else 1.0}
