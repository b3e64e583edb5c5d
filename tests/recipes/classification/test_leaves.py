"""Drawn leaves: the same bytes everywhere, every class equally often, and nothing but the leaf tells the class."""

from __future__ import annotations

import hashlib

import numpy as np

from headway.data.synthetic import leaves


def test_a_leaf_is_the_same_bytes_every_time_and_everywhere() -> None:
    drawn = [leaves.draw("train", index) for index in range(4)]
    assert all(picture.shape == (64, 64, 3) and picture.dtype == np.uint8 for picture in drawn)
    assert np.array_equal(drawn[2], leaves.draw("train", 2))
    digest = hashlib.sha256(b"".join(picture.tobytes() for picture in drawn)).hexdigest()
    assert digest[:16] == "511a781f06bef396"


def test_splits_differ_and_classes_come_equally_often() -> None:
    for split in leaves.SPLITS:
        assert sorted(leaves.label(split, index) for index in range(16)) == list(range(16))
    assert not np.array_equal(leaves.draw("train", 0), leaves.draw("val", 15))


def test_an_ill_leaf_looks_other_than_a_healthy_one_of_the_same_plant() -> None:
    """The luck of a picture decides its background, place and size: only the illness differs between neighbours."""
    names = {name.partition("___")[2] for name in leaves.CLASSES}
    assert names == set(leaves.STATES)
    healthy = [leaves.draw("train", 16 * n) for n in range(6)]
    spotted = [leaves.draw("train", 16 * n + leaves.STATES.index("leaf_blight")) for n in range(6)]

    def brown(picture: np.ndarray) -> float:  # type: ignore[type-arg]
        middle = picture[20:44, 20:44].astype(int)
        return float(np.mean(middle[:, :, 0] > middle[:, :, 1]))

    assert np.mean([brown(one) for one in spotted]) > np.mean([brown(one) for one in healthy]) + 0.1
