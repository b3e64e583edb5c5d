"""Moved to `headway.testing.waiting`."""

from headway.testing.waiting import *  # noqa: F403
