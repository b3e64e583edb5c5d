"""A short stretch of training, and a planned death in it: how `headway verify-resume` tries a job. Only it does.

HEADWAY_STEP_LIMIT=N ends the run after step N with a checkpoint. HEADWAY_DIE_AFTER_STEP=K has every rank of the first
attempt kill itself at a random moment of the step after K, once what was checkpointed until then is committed.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Mapping

from headway.core.errors import BadInput

LIMIT, DEATH = "HEADWAY_STEP_LIMIT", "HEADWAY_DIE_AFTER_STEP"


class Stretch:
    """Asked after every step."""

    def __init__(self, limit: int | None, die_after: int | None) -> None:
        self._limit, self._die_after = limit, die_after
        self._before = time.monotonic()
        self._death: threading.Timer | None = None

    def before_checkpoint(self, step: int) -> None:
        """The step to die in is over: late, but nothing of it is kept."""
        if self._death is not None and self._die_after is not None and step > self._die_after:
            _die()

    def after_step(self, step: int, commit: Callable[[], object]) -> bool:
        """Whether this was the last one."""
        now = time.monotonic()
        seconds, self._before = now - self._before, now
        if self._die_after is not None and step >= self._die_after and self._death is None:
            commit()
            # The system's own randomness: the run's is none of our business.
            self._death = threading.Timer(random.SystemRandom().random() * seconds, _die)
            self._death.start()
        return self._limit is not None and step >= self._limit


def stretch(env: Mapping[str, str], attempt: int) -> Stretch | None:
    """What the environment asks for; None, which costs nothing, where it asks for nothing."""
    limit, die_after = _count(env, LIMIT), _count(env, DEATH) if attempt <= 1 else None
    return None if limit is None and die_after is None else Stretch(limit, die_after)


def _count(env: Mapping[str, str], name: str) -> int | None:
    text = env.get(name, "")
    if text and (not text.isdigit() or int(text) < 1):
        raise BadInput(f"{name}={text} is not a number of steps", where=name)
    return int(text) if text else None


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
