"""No messages of Dask on the terminal: what concerns the runs is reported by bentpipe."""

from __future__ import annotations

import logging
import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

# These have levels or handlers of their own (`distributed.config`).
_LOGGERS: Final = (
    "asyncio",
    "distributed",
    "distributed.client",
    "distributed.gc",
    "tornado",
    "tornado.application",
)
_NONE: Final = logging.CRITICAL + 1


@contextmanager
def deferring_interrupts() -> Iterator[None]:
    """Raise Ctrl-C at the end of this block, which must not take long."""
    before = signal.getsignal(signal.SIGINT)
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or before in {None, signal.SIG_IGN}:
        yield
        return
    came = False

    def remember(_number: int, _frame: object) -> None:
        nonlocal came
        came = True

    signal.signal(signal.SIGINT, remember)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        raise KeyboardInterrupt


def silence() -> None:
    """Silence the loggers of Dask for the rest of this process."""
    for name in _LOGGERS:
        logging.getLogger(name).setLevel(_NONE)


@contextmanager
def silenced() -> Iterator[None]:
    """Silence the loggers and the warnings of Dask in this block."""
    with ExitStack() as stack:
        for name in _LOGGERS:
            logger = logging.getLogger(name)
            stack.callback(logger.setLevel, logger.level)
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", module=r"(distributed|dask|tornado)\b")
        silence()
        yield
