"""No messages of Dask on the terminal: what concerns the runs is reported by bentpipe."""

from __future__ import annotations

import logging
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
