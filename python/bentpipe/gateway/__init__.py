"""Functions of a gateway on a real router: the daemon, its configuration, its state."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
