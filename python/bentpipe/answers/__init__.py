"""Answers to common questions: one function a question, each with its runs behind it."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
