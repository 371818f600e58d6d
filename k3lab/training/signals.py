"""SIGINT and SIGTERM: remembered, acted upon between two optimizer steps; a second SIGINT aborts, a third kills."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any

WATCHED = (signal.SIGINT, signal.SIGTERM)


class Aborted(BaseException):
    """A second SIGINT. Not a KeyboardInterrupt: Lightning turns that one into an exit of its own."""


class Signals:
    """Handlers of both signals for the time of a ``with`` block; ``received`` is the first one that came."""

    def __init__(self) -> None:
        self.received: int | None = None
        self._interrupts = 0
        self._before: dict[int, Any] = {}

    @property
    def exit_code(self) -> int:
        """Return 128 + the signal's number, as a shell reports it."""
        assert self.received is not None
        return 128 + self.received

    def install(self) -> None:
        """Put the handlers in place, also over those that Lightning sets when a fit begins.

        Lightning's own SIGTERM handler stops after any micro-batch, in the middle of a global batch.
        """
        if threading.current_thread() is threading.main_thread():
            for number in WATCHED:
                signal.signal(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            self._interrupts += 1
        if self.received is None:
            self.received = number
        if self._interrupts == 2:
            raise Aborted
        if self._interrupts > 2:  # the way out is blocked as well
            os._exit(self.exit_code)

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.getsignal(number) for number in WATCHED}
        self.install()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}
