"""Moved to `headway.testing.plays`."""

from headway.testing.plays import *  # noqa: F403
