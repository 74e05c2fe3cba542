"""SIGINT, SIGTERM and SIGHUP as one exception, so that `with` and `finally` end what we started."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_NAMES = ("SIGINT", "SIGTERM", "SIGHUP")


class StopRequestError(KeyboardInterrupt):
    """One of the three arrived; `exit_code` is what a shell makes of it: 130, 143, 129."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


class _State:
    """How many blocks hold signals back now, and the last signal that came meanwhile."""

    depth = 0
    pending: int | None = None


def _handler(number: int, frame: FrameType | None) -> None:
    if _State.depth > 0:
        _State.pending = number
    else:
        raise StopRequestError(number)


@contextmanager
def stop_signals() -> Iterator[None]:
    """Inside, a stop signal raises StopRequestError in the main thread, which must be the caller's."""
    numbers = [signal.Signals[name] for name in _NAMES if name in signal.Signals.__members__]
    before = {number: signal.signal(number, _handler) for number in numbers}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


@contextmanager
def held_signals() -> Iterator[None]:
    """A stop signal inside the block is raised at its end, so that none falls between a start and its record.

    Not by a signal mask: a program that is started inside would inherit it. Works within `stop_signals` only.
    """
    _State.depth += 1
    try:
        yield
    finally:
        _State.depth -= 1
        if _State.depth == 0 and _State.pending is not None:
            number, _State.pending = _State.pending, None
            raise StopRequestError(number)
