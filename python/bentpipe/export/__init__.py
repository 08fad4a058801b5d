"""Scenarios as inputs of other programs: tc(8), ns-3, and the daemon of gateways."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
