"""Generated examples have no deadline: a busy machine is not a failure."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("score", deadline=None)
settings.load_profile("score")
