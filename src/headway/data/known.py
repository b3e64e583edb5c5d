"""Data sets known by name: where their makers keep them, in which parts, and what each part's bytes hash to."""

from __future__ import annotations

from dataclasses import dataclass

from headway.errors import BadInput


@dataclass(frozen=True, slots=True)
class Part:
    url: str
    md5: str = ""  # as published; empty where nobody did


@dataclass(frozen=True, kw_only=True, slots=True)
class Known:
    parts: tuple[Part, ...]
    format: str
    terms: str  # what one agrees to by using it
    year: str | None = None


_COCO = "http://images.cocodataset.org"
_VIZWIZ = "https://vizwiz.cs.colorado.edu/VizWiz_final"
_FLICKR = "https://github.com/jbrownlee/Datasets/releases/download/Flickr8k"
_COCO_TERMS = "annotations CC BY 4.0; pictures under their Flickr licences (cocodataset.org/#termsofuse)"

KNOWN = {
    "coco2014": Known(
        parts=(
            Part(f"{_COCO}/annotations/annotations_trainval2014.zip", "0a379cfc70b0e71301e0f377548639bd"),
            Part(f"{_COCO}/zips/val2014.zip", "a3d79f5ed8d289b7a7554ce06a5782b3"),
            Part(f"{_COCO}/zips/train2014.zip", "0da8c0bd3d6becc4dcb32757491aca88"),
        ),
        format="coco",
        year="2014",
        terms=_COCO_TERMS,
    ),
    "coco2017": Known(
        parts=(
            Part(f"{_COCO}/annotations/annotations_trainval2017.zip", "f4bbac642086de4f52a3fdda2de5fa2c"),
            Part(f"{_COCO}/zips/val2017.zip", "442b8da7639aecaf257c1dceb8ba8c80"),
            Part(f"{_COCO}/zips/train2017.zip", "cced6f7f71b7629ddf16f17bbcfab6b2"),
        ),
        format="coco",
        year="2017",
        terms=_COCO_TERMS,
    ),
    "flickr8k": Known(
        parts=(
            Part(f"{_FLICKR}/Flickr8k_text.zip", "bf6c1abcb8e4a833b7f922104de18627"),
            Part(f"{_FLICKR}/Flickr8k_Dataset.zip", "f18a1e2920de5bd84dae7cf08ec78978"),
        ),
        format="flickr8k",
        terms="non-commercial research and education only",
    ),
    "vizwiz": Known(
        parts=(
            Part(f"{_VIZWIZ}/caption/annotations.zip"),
            Part(f"{_VIZWIZ}/images/val.zip"),
            Part(f"{_VIZWIZ}/images/train.zip"),
        ),
        format="vizwiz",
        terms="CC BY 4.0",
    ),
}


def known(name: str) -> Known:
    if name not in KNOWN:
        raise BadInput(
            f"no data set is known as {name!r}", fix=f"choose one of {', '.join(KNOWN)}, or give its address"
        )
    return KNOWN[name]
