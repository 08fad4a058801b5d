"""Sweeps: many runs of one scenario with varied values, on threads, a Dask cluster or in labs."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
