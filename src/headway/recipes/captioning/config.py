"""The settings of the captioning recipe. Imports nothing heavy, because the job file's loader reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from headway.spec.constraints import RECORDED
from headway.spec.renamed import FormerKey, Renamed, ShareOfSteps

Count = Annotated[int, ">= 1"]
Share = Annotated[float, ">= 0", "< 1"]
Part = Annotated[float, ">= 0", "<= 1"]
OWN_SIDE, PUBLISHED_SIDE = 64, 224
WARMUP_SHARE = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """Settings of a captioner, its training and its search. The defaults train on generated scenes in minutes."""

    # the image encoder: maps a picture to a grid of features
    encoder: Literal["cnn", "efficientnet_lite0", "resnet18", "resnet34", "resnet50", "resnet101"] = "cnn"
    weights: str = "imagenet"  # pretrained weights of an encoder other than cnn: imagenet, a path, a URL, or none
    image_size: Annotated[int, ">= 32"] | None = None  # side of its square input in pixels: 64 for the cnn, else 224
    width: Annotated[int, ">= 8"] = 16  # channels of the cnn's first layer
    # epoch from which an encoder other than cnn is fine-tuned; until then it is frozen. By default it stays frozen, and
    # its features are computed once and cached under cache.dir
    finetune_from: Annotated[int, ">= 0"] | None = None
    encoder_lr_factor: Annotated[float, "> 0"] = 0.1  # its learning rate, as a factor of `lr`
    mirror: bool = False  # also train on mirrored pictures (not for captions that mention left and right)

    decoder: Literal["glimpse", "attention", "lstm", "transformer"] = "glimpse"  # maps the grid to words
    embedding_size: Count = 128  # size of a word's embedding; for a transformer, its d_model
    hidden_size: Count = 192  # hidden size of the LSTM or GRU; for a transformer, its dim_feedforward
    layers: Count = 1  # layers of the attention and transformer decoders
    cell: Literal["lstm", "gru"] = "lstm"  # recurrent cell of the attention decoder
    attention_size: Count = 256  # hidden size of the attention decoder's additive attention
    heads: Count = 4  # attention heads of the glimpse and transformer decoders
    syntax: Annotated[int, ">= 0"] = 12  # size of the bottleneck for a glimpse decoder's previous words; 0: none
    tied: bool = False  # share weights between the word embeddings and the output layer
    min_count: Count = 2  # words rarer than this in the training captions become <unk>
    max_words: Count = 50_000  # size of the vocabulary, at most: the most frequent words
    max_length: Count = 20  # words per caption, at most

    epochs: Count = 8  # passes over the pictures
    batch_size: Count = 32  # pictures per step, over all ranks
    accumulate: Count = 1  # micro-batches per step, to save memory
    captions: Count = 5  # reference captions per picture to train on in an epoch
    lr: Annotated[float, "> 0"] = 3e-3  # the highest learning rate
    # warm-up steps, by default a tenth of all steps; a cosine decay follows
    warmup: Annotated[int, ">= 0"] | None = None
    weight_decay: Annotated[float, ">= 0"] = 0.01  # AdamW's weight decay
    clip: Annotated[float, "> 0"] = 5.0  # largest gradient norm
    ema_decay: Share = 0.0  # decay of the exponential moving average of the weights; 0: no average
    dropout: Share = 0.0  # dropout of the decoder's features
    word_dropout: Share = 0.3  # share of input words masked in training, so that the decoder relies on the picture
    label_smoothing: Share = 0.0  # label smoothing, as in torch
    doubly_stochastic: Annotated[float, ">= 0"] = 1.0  # weight of an attention decoder's penalty for ignored cells
    # share of words in the last epoch for which an attention decoder gets the reference word instead of its own
    # prediction; falls linearly to this from 1 in the first epoch
    teacher_forcing: Part = 1.0

    self_critical_epochs: Annotated[int, ">= 0"] = 0  # more epochs, of self-critical training that maximises CIDEr
    self_critical_bleu: Annotated[float, ">= 0"] = 0.0  # weight of BLEU-4 in its reward, beside CIDEr
    self_critical_lr: Annotated[float, "> 0"] = 5e-5  # its learning rate, with cosine decay
    self_critical_samples: Annotated[int, ">= 2"] = 5  # captions sampled per picture, each compared with the others
    self_critical_temperature: Annotated[float, "> 0"] = 0.5  # sampling temperature; lower: likelier words

    beam: Count = 3  # beam size of the search for a caption; 1: greedy
    length_penalty: Annotated[float, ">= 0"] = 0.7  # a hypothesis scores log-probability / words ^ length_penalty
    # test-time augmentation: average predictions over the picture and its mirror image, in twice the time; for models
    # trained with `mirror`
    both_sides: bool = False
    best: Literal["bleu_4", "cider", "rouge_l"] = "bleu_4"  # the metric by which the best checkpoint is chosen
    workers: Annotated[int, ">= 0"] = 0  # processes that prefetch batches

    train_samples: Count = 8000  # generated scenes for training …
    val_samples: Count = 300  # … for validation …
    test_samples: Count = 800  # … and for `headway eval`; every second one shows a combination that is not in training

    # share of the steps if `warmup` is left out: former versions recorded other shares, with which their runs resume
    warmup_share: Share = field(default=WARMUP_SHARE, metadata={"key": RECORDED})

    RENAMED: ClassVar[Mapping[str, FormerKey]] = {
        "attention": Renamed("attention_size"),
        "average": Renamed("ema_decay"),
        "batch": Renamed("batch_size"),
        "embedding": Renamed("embedding_size"),
        "finetune_rate": Renamed("encoder_lr_factor"),
        "hidden": Renamed("hidden_size"),
        "picture": Renamed("image_size"),
        "test_pictures": Renamed("test_samples"),
        "train_pictures": Renamed("train_samples"),
        "val_pictures": Renamed("val_samples"),
        "warmup": ShareOfSteps("warmup", kept="warmup_share", default=WARMUP_SHARE),
        "warmup_share": ShareOfSteps("warmup", kept="warmup_share", default=WARMUP_SHARE),
    }

    def warmup_steps(self, steps: int) -> int:
        """Return the number of warm-up steps out of `steps`."""
        return round(steps * self.warmup_share) if self.warmup is None else self.warmup

    @property
    def side(self) -> int:
        """Return the side of the encoder's square input, in pixels."""
        return self.image_size or (OWN_SIDE if self.encoder == "cnn" else PUBLISHED_SIDE)


def sizes(cfg: Config) -> dict[str, object]:
    """Return the model's sizes, from which the training time is estimated."""
    decoder = {"hidden_size": cfg.hidden_size, "layers": cfg.layers, "captions": cfg.captions}
    frozen = cfg.encoder != "cnn" and cfg.finetune_from is None
    passes = (2 if cfg.mirror else 1) / cfg.epochs  # in an epoch: the features are computed once, and cached
    return {
        **decoder,
        "encoder": cfg.encoder,
        "image_size": cfg.side,
        "width": cfg.width,
        **({"frozen_passes": passes} if frozen else {}),
    }
