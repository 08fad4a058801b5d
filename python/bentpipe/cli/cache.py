"""A writable folder for the files that matplotlib keeps."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from pathlib import Path


def use_writable_cache() -> None:
    """Give matplotlib a temporary folder for its files if it cannot write to the home folder.

    Otherwise matplotlib makes one and prints two warnings (its `_get_config_or_cache_dir`).
    """
    if "matplotlib" in sys.modules or "MPLCONFIGDIR" in os.environ:
        return
    folders = {"XDG_CONFIG_HOME": ".config", "XDG_CACHE_HOME": ".cache"}
    # Unchanged for a user without a home.
    home = Path(os.path.expanduser("~"))  # noqa: PTH111 - `Path.home` raises an error
    chosen = [Path(os.environ.get(name) or home / default) for name, default in folders.items()]
    if all(_can_create(parent / "matplotlib") for parent in chosen):
        return
    folder = tempfile.mkdtemp(prefix="bentpipe-matplotlib-")
    os.environ["MPLCONFIGDIR"] = folder
    atexit.register(shutil.rmtree, folder, ignore_errors=True)


def _can_create(folder: Path) -> bool:
    """Return whether a folder is writable, or can be created with at most one more above it."""
    for path in (folder, folder.parent, folder.parent.parent):
        # `Path.exists` raises an error below a folder that may not be read.
        if os.path.exists(path):  # noqa: PTH110
            return path.is_dir() and os.access(path, os.W_OK | os.X_OK)
    return False
