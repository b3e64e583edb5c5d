"""The settings of the grading recipe. Plain types: read by the job file's loader, so nothing heavy is imported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from headway.spec.renamed import FormerKey, Renamed

Count = Annotated[int, ">= 1"]
Rate = Annotated[float, "> 0"]
Share = Annotated[float, ">= 0", "<= 1"]
Weight = Annotated[float, ">= 0"]
Encoder = Literal["efficientnet_lite0", "resnet101", "resnet18", "resnet34", "resnet50"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """How a grader is built, trained and asked."""

    # small: at most 128 pixels and narrow branches, for machines without a GPU
    model_size: Literal["full", "small"] = "full"
    views: Literal["both", "single"] = "both"  # front and back, or one picture of each thing
    image_size: Annotated[int, ">= 32"] = 224  # side of the square that is seen, in pixels; at most 128 if small
    channels: Literal["rgb", "six"] = "six"  # six: CLAHE-L, a, b, |Sobel x|, |Sobel y|, |Laplacian|
    front: Encoder = "resnet18"  # what looks at the front …
    back: Encoder = "resnet34"  # … and at the back, or at the one picture there is
    weights: str = "none"  # where both encoders start: `imagenet` as published, a path, a URL, or none: at random
    lambda_fusion: Share = 0.7  # what the back weighs; the front weighs the rest
    rim: Annotated[float, "> 0", "< 0.5"] = 0.07  # width of the rim on each side, as a share of the picture
    head: Literal["coral", "corn", "softmax"] = "softmax"  # how features become the probabilities of grades
    decode: Literal["likeliest", "mean", "median"] = "mean"  # which grade is named: `mean` serves the squared error
    dropout: Annotated[float, ">= 0", "< 1"] = 0.2  # of the fused features

    batch_size: Count = 32  # pairs a step, over all ranks
    accumulate: Count = 1  # parts a step is computed in, where memory is short
    phase1_epochs: Annotated[int, ">= 0"] = 10  # the back alone (of one picture: its head alone); 0 leaves it out
    phase2_epochs: Annotated[int, ">= 0"] = 30  # everything
    phase1_lr: Rate = 1e-3  # learning rate of the first phase …
    phase2_lr: Rate = 3e-4  # … and of the second
    weight_decay: Weight = 1e-4  # of AdamW
    clip: Rate = 5.0  # largest norm of a step's gradient
    plateau_patience: Annotated[int, ">= 0"] = 3  # validations without a better QWK before the rate falls …
    plateau_factor: Annotated[float, "> 0", "< 1"] = 0.5  # … to this share
    alpha_emd: Weight = 0.7  # of the squared earth mover's distance, beside the head's own loss
    beta_edge: Weight = 0.05  # of the error in edge damage, where the data knows it
    beta_center: Weight = 0.1  # of the error in centring, where the data knows it
    # balanced: rare grades are drawn more often, P ∝ 1 / frequency ^ 0.5
    sampler: Literal["balanced", "uniform"] = "balanced"
    checkpoint_epochs: Count = 5  # every so many epochs one is kept as epoch_N, unless `checkpoint.keep_every` says so

    mirror: bool = True  # left and right are swapped at random
    rotate: Annotated[float, ">= 0", "<= 180"] = 0.0  # turned by up to so many degrees
    zoom: Annotated[float, "> 0", "<= 1"] = 1.0  # smallest share of the area that a random crop keeps
    color_jitter: Share = 0.1  # brightness and contrast vary by up to so much

    train_samples: Count = 5000  # how many cards are drawn for training …
    val_samples: Count = 500  # … for choosing the best checkpoint …
    test_samples: Count = 1000  # … and for `headway eval`
    skewed: bool = False  # drawn grades are spread as in real life (few low, many high) instead of evenly

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
