"""Moved to `headway.testing.counting`."""

from headway.testing.counting import *  # noqa: F403
