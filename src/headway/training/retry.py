"""Retry of store operations with exponential back-off; logs when the store goes down and when it recovers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from headway.core.errors import NotThere, StoreError
from headway.training.control_channel import ControlChannel, say

Result = TypeVar("Result")
FIRST_S, LONGEST_S = 0.2, 30.0


class GiveUp(Exception):
    """Raised to stop retrying: newer work is waiting, or time is up."""


class RetryPolicy:
    """Retries after every StoreError, with growing pauses, until `give_up` raises GiveUp. NotThere is not retried."""

    def __init__(
        self, control: ControlChannel, give_up: Callable[[str], None], *, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._control, self._give_up, self._sleep = control, give_up, sleep

    def __call__(self, operation: Callable[[], Result]) -> Result:
        pause, since = FIRST_S, time.monotonic()
        failed = False
        while True:
            try:
                result = operation()
            except NotThere:
                raise
            except StoreError as error:
                if not failed:
                    failed = True
                    say(f"the store does not answer, training goes on and this is tried again: {error}")
                    self._control.event("store_down", error=str(error))
                self._give_up(str(error))
                self._sleep(pause)
                pause = min(LONGEST_S, pause * 2)
            else:
                if failed:
                    seconds = round(time.monotonic() - since, 1)
                    say(f"the store answers again after {seconds} s")
                    self._control.event("store_back", seconds=seconds)
                return result
