"""bentpipe: how traffic fares over a satellite link, simulated packet by packet.

>>> import bentpipe
>>> result = bentpipe.simulate("scenarios/geo-bulk.yaml")  # doctest: +SKIP
>>> result.flows["goodput_bps"]  # doctest: +SKIP

The public names are those of ``__init__.pyi``. Each is imported when it is first used, so that the
command line answers ``--version`` and ``--help`` without waiting for numpy, pydantic and polars.
"""

from importlib import import_module
from typing import Any

import lazy_loader

_public_name, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__all__ += ["__version__"]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("bentpipe._core").version()
    return _public_name(name)
