"""A trained captioner as a bundle, and a bundle as something that captions picture files."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from headway.bundle import Bundle, BundleParts
from headway.errors import BadBundle, BadInput
from headway.recipes.captioning.config import Config
from headway.recipes.captioning.data import SCENES
from headway.recipes.captioning.decode import caption
from headway.recipes.captioning.model import Captioner
from headway.recipes.captioning.words import Vocabulary
from headway.spec import Job
from headway.spec.plain import from_plain, to_plain

MAX_PIXELS: Final = 64_000_000  # a picture that claims more is refused before it is decoded
_AT_ONCE: Final = 64  # pictures captioned together


def bundle(model: Captioner, cfg: Config, job: Job, scores: Mapping[str, float]) -> BundleParts:
    """Weights, settings, vocabulary and card. `scores` are the validation's, of these very weights."""
    name = job.export.name or job.name
    weights = {key: value.detach().clone() for key, value in model.state_dict().items() if isinstance(value, Tensor)}
    return BundleParts(
        recipe="captioning",
        name=name,
        config=to_plain(cfg),
        weights=weights,
        files=model.vocabulary.files(),
        metrics=dict(scores),
        card=_card(name, model, cfg, job, scores),
    )


class Predictor:
    """Captions picture files with the model of a bundle."""

    def __init__(self, bundle: Bundle) -> None:
        self._cfg = from_plain(bundle.config, Config, where=f"{bundle.url}/config.json")
        self._model = Captioner(self._cfg, Vocabulary.from_file(bundle.read("vocabulary.json")), fresh=False)
        missing, extra = self._model.load_state_dict(bundle.weights(), strict=False)
        if set(missing) - {"_extra_state"} or extra:
            raise BadBundle(
                f"its weights do not fit its settings: {', '.join([*missing, *extra][:3])}",
                where=bundle.url,
                fix="export it again: headway export RUN",
            )
        self._model.eval()

    @property
    def side(self) -> int:
        """Of the square pictures it takes, in pixels."""
        return self._cfg.side

    def __call__(self, inputs: Sequence[str]) -> list[dict[str, Any]]:
        """One answer an input, in order: {"input", "text"}. Every input is read before the first is captioned."""
        texts = self.captions([read_picture(path, self.side) for path in inputs])
        return [{"input": path, "text": text} for path, text in zip(inputs, texts, strict=True)]

    def captions(self, pictures: Sequence[Tensor]) -> list[str]:
        """What is said of each picture, given as the encoder takes it."""
        said: list[str] = []
        for first in range(0, len(pictures), _AT_ONCE):
            rows = caption(
                self._model,
                torch.stack(list(pictures[first : first + _AT_ONCE])),
                max_length=self._cfg.max_length,
                beam=self._cfg.beam,
                length_penalty=self._cfg.length_penalty,
            )
            said += [self._model.vocabulary.decode(row) for row in rows.tolist()]
        return said


def read_picture(path: str, side: int) -> Tensor:
    """The middle square of a picture file, as the encoder takes it. BadInput unless it is whole and of sane size."""
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # we have a limit of our own
            with Image.open(Path(path)) as file:
                _refuse_bombs(path, *file.size)
                upright = ImageOps.exif_transpose(file).convert("RGB")
    except UnidentifiedImageError:
        raise BadInput(f"{path} is not a picture", fix="give a PNG, JPEG, WebP or GIF file") from None
    except Image.DecompressionBombError as error:
        raise BadInput(f"{path} is too large: {error}", fix="make it smaller first") from None
    except FileNotFoundError:
        raise BadInput(f"{path} does not exist", fix="check the path") from None
    except (OSError, SyntaxError, ValueError) as error:  # Pillow's ways to say that the bytes are damaged
        raise BadInput(
            f"{path} cannot be read: {error}", fix="check that the file is whole and yours to read"
        ) from None
    square = ImageOps.fit(upright, (side, side), Image.Resampling.BICUBIC)
    return torch.from_numpy(np.array(square)).permute(2, 0, 1)


def _refuse_bombs(path: str, width: int, height: int) -> None:
    if width * height > MAX_PIXELS:
        raise BadInput(
            f"{path} claims {width} by {height} pixels, more than {MAX_PIXELS // 1_000_000} million",
            fix="make it smaller first",
        )


def _card(name: str, model: Captioner, cfg: Config, job: Job, scores: Mapping[str, float]) -> str:
    weights = sum(parameter.numel() for parameter in model.parameters())
    named = [source.source for source in job.data.train] or [SCENES]
    sources = ", ".join(f"`{source}`" for source in named)
    rows = "\n".join(f"| {metric} | {value:.4f} |" for metric, value in sorted(scores.items()))
    measured = (
        f"| on validation | |\n| --- | --- |\n{rows}" if scores else "It was not validated before it was exported."
    )
    licence = (
        "The drawn scenes are generated by Headway itself: no rights of others are involved. The weights are yours."
        if set(named) == {SCENES}
        else "The weights are yours as far as the licences of the training data allow; see the sources above."
    )
    return f"""# {name}

Says in a sentence what a picture shows. Encoder `{cfg.encoder}`, decoder `{cfg.decoder}`,
{weights:,} weights and {len(model.vocabulary)} words, trained by Headway's `captioning` recipe on {sources},
seed {job.seed}.

{measured}

## Use

    headway predict PATH_OF_THIS_FOLDER picture.png

`model.safetensors` holds the weights, `config.json` the settings, `vocabulary.json` the words in the order of their
numbers (`word_to_id.json` and `id_to_word.json` say the same), `bundle.json` the checksums. Pictures are cut to their
middle square and brought to {cfg.side} pixels a side.

## Limits

It knows the words and the kinds of pictures that it was trained on, and describes everything in those terms.

## Licence

{licence}
"""
