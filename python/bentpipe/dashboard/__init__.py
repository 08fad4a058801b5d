"""A local page that lists results, draws and compares them, and follows sweeps and labs."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
