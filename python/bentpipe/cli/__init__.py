"""The command line."""

from bentpipe.cli.app import main

__all__ = ["main"]
