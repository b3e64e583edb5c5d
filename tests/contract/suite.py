"""Moved to `headway.testing.targets`."""

from headway.testing.targets import *  # noqa: F403
