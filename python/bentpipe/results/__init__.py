"""What a run produced: manifest, tables, metrics, result folders and captures."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
