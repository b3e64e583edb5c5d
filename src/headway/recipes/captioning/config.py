"""The settings of the captioning recipe. Plain types: read by the job file's loader, so nothing heavy is imported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from headway.spec.fields import RECORDED
from headway.spec.renamed import FormerKey, Renamed, ShareOfSteps

Count = Annotated[int, ">= 1"]
Share = Annotated[float, ">= 0", "< 1"]
Part = Annotated[float, ">= 0", "<= 1"]
OWN_SIDE, PUBLISHED_SIDE = 64, 224
WARMUP_SHARE = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """How a captioner is built, trained and asked. The defaults train on the drawn scenes in minutes on two cores."""

    # what turns a picture into a grid of features
    encoder: Literal["cnn", "efficientnet_lite0", "resnet18", "resnet34", "resnet50", "resnet101"] = "cnn"
    weights: str = "imagenet"  # of an encoder other than cnn: as published, a path, a URL, or `none` to begin at random
    image_size: Annotated[int, ">= 32"] | None = None  # side of the square it sees, in pixels: 64 for the cnn, or 224
    width: Annotated[int, ">= 8"] = 16  # channels of the cnn's first layer
    # the epoch from which an encoder other than cnn learns too; until then it is frozen, and where it is to the end,
    # what it sees is computed once and kept under cache.dir
    finetune_from: Annotated[int, ">= 0"] | None = None
    encoder_lr_factor: Annotated[float, "> 0"] = 0.1  # its learning rate, as a part of `lr`
    mirror: bool = False  # learn from mirrored pictures too (not where captions say left and right)

    decoder: Literal["glimpse", "attention", "lstm", "transformer"] = "glimpse"  # what turns the grid into words
    embedding_size: Count = 128  # numbers a word; of a transformer, its d_model
    hidden_size: Count = 192  # of the LSTM or GRU; of a transformer, its dim_feedforward
    layers: Count = 1  # of the attention and transformer decoders
    cell: Literal["lstm", "gru"] = "lstm"  # of the attention decoder
    attention_size: Count = 256  # width of the attention decoder's additive attention
    heads: Count = 4  # places that the glimpse and transformer decoders look at in one step
    syntax: Annotated[int, ">= 0"] = 12  # numbers by which words so far bear on a glimpse decoder's next; 0: no limit
    tied: bool = False  # the scores of words are made with their embeddings
    min_count: Count = 2  # words rarer than this in the training captions become <unk>
    max_words: Count = 50_000  # the most frequent ones kept
    max_length: Count = 20  # words of a caption, at most

    epochs: Count = 8  # passes over the pictures
    batch_size: Count = 32  # pictures a step, over all ranks
    accumulate: Count = 1  # parts a step is computed in, where memory is short
    captions: Count = 5  # of each picture's references, how many are learnt from in an epoch
    lr: Annotated[float, "> 0"] = 3e-3  # the highest learning rate
    # steps in which it rises, by default a tenth of them; it falls as a cosine afterwards
    warmup: Annotated[int, ">= 0"] | None = None
    weight_decay: Annotated[float, ">= 0"] = 0.01  # of AdamW
    clip: Annotated[float, "> 0"] = 5.0  # largest norm of a step's gradient
    ema_decay: Share = 0.0  # of the exponential moving average of the weights; 0: no average
    dropout: Share = 0.0  # of the decoder's features
    word_dropout: Share = 0.3  # of the words it is given while learning, so that it looks instead of guessing
    label_smoothing: Share = 0.0  # spread evenly over all words, as torch does
    doubly_stochastic: Annotated[float, ">= 0"] = 1.0  # how much it costs an attention decoder to overlook places
    # how often, in the last epoch, an attention decoder is given the word that was said, and not its own guess; from
    # always in the first epoch it falls evenly to this
    teacher_forcing: Part = 1.0

    self_critical_epochs: Annotated[int, ">= 0"] = 0  # more of them, to raise the CIDEr of what it says itself …
    self_critical_bleu: Annotated[float, ">= 0"] = 0.0  # … and, so many times as much, their BLEU-4 …
    self_critical_lr: Annotated[float, "> 0"] = 5e-5  # … at this rate, falling as a cosine …
    self_critical_samples: Annotated[int, ">= 2"] = 5  # … by so many captions a picture, each judged by the others …
    self_critical_temperature: Annotated[float, "> 0"] = 0.5  # … drawn at this: the lower, the nearer to the surest

    beam: Count = 3  # captions kept in the running when one is searched; 1 is greedy
    length_penalty: Annotated[float, ">= 0"] = 0.7  # a caption's score is its log-probability / words ^ this
    # asked for a caption, judge every word by the picture and its mirror image together, in twice the time; for a
    # model that has learnt from mirrored pictures too
    both_sides: bool = False
    best: Literal["bleu_4", "cider", "rouge_l"] = "bleu_4"  # what the best checkpoint is chosen by
    workers: Annotated[int, ">= 0"] = 0  # processes that prepare batches ahead

    train_samples: Count = 8000  # how many scenes are drawn for training …
    val_samples: Count = 300  # … for choosing the best checkpoint …
    test_samples: Count = 800  # … and for `headway eval`; every second one is of a kind never trained on

    # of the steps, where `warmup` is left out: former versions recorded other shares, which their runs resume with
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
        """Return in how many of `steps` the learning rate rises."""
        return round(steps * self.warmup_share) if self.warmup is None else self.warmup

    @property
    def side(self) -> int:
        """Of the square that the encoder sees, in pixels."""
        return self.image_size or (OWN_SIDE if self.encoder == "cnn" else PUBLISHED_SIDE)
