"""The contract of trackers, kept by the one that needs no server."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.testing import TrackerContract
from headway.testing.trackers import Series
from headway.training.metrics.trackers.base import TrackerRunInfo
from tests.training import tracker_files

pytest.importorskip("tensorboard")


class TestTensorBoard(TrackerContract):
    name = "tensorboard"

    def read(self, run_info: TrackerRunInfo) -> Series:
        return tracker_files.tensorboard(Path(run_info.folder, "tensorboard"))
