"""The settings of the captioning recipe. Plain types: read by the job file's loader, so nothing heavy is imported."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

Count = Annotated[int, ">= 1"]
Share = Annotated[float, ">= 0", "< 1"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """How a captioner is built, trained and asked. The defaults train on the drawn scenes in minutes on two cores."""

    encoder: Literal["cnn"] = "cnn"  # what turns a picture into a grid of features
    decoder: Literal["attention", "lstm"] = "attention"  # what turns the grid into words
    picture: Annotated[int, ">= 32"] = 64  # side of the square the encoder sees, in pixels
    width: Annotated[int, ">= 8"] = 16  # channels of the cnn's first layer; the last has four times as many
    embedding: Count = 128  # numbers a word
    hidden: Count = 192  # numbers the LSTM remembers
    heads: Count = 4  # places the attention decoder looks at in one step
    syntax: Annotated[int, ">= 0"] = 12  # numbers by which its words so far bear on the next directly; 0: no limit
    min_count: Count = 1  # words rarer than this in the training captions become <unk>
    max_words: Count = 50_000  # the most frequent ones kept
    max_length: Count = 20  # words of a caption, at most

    epochs: Count = 8  # passes over the pictures
    batch: Count = 32  # pictures a step, over all ranks
    accumulate: Count = 1  # parts a step is computed in, where memory is short
    captions: Count = 5  # of each picture's references, how many are learnt from in an epoch
    lr: Annotated[float, "> 0"] = 3e-3  # the highest learning rate
    warmup: Share = 0.1  # share of the steps in which it rises; it falls as a cosine afterwards
    weight_decay: Annotated[float, ">= 0"] = 0.01  # of AdamW
    clip: Annotated[float, "> 0"] = 5.0  # largest norm of a step's gradient
    dropout: Share = 0.0  # of the decoder's features
    word_dropout: Share = 0.3  # of the words it is given while learning, so that it looks instead of guessing
    label_smoothing: Share = 0.0  # spread evenly over all words, as torch does

    beam: Count = 3  # captions kept in the running when one is searched; 1 is greedy
    length_penalty: Annotated[float, ">= 0"] = 0.7  # a caption's score is its log-probability / words ^ this
    workers: Annotated[int, ">= 0"] = 0  # processes that prepare batches ahead

    train_pictures: Count = 8000  # how many scenes are drawn for training …
    val_pictures: Count = 300  # … for choosing the best checkpoint …
    test_pictures: Count = 800  # … and for `headway eval`; every second one is of a kind never trained on
