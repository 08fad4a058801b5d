"""What Dask imports in each worker of a local cluster before it starts (a preload script)."""

from __future__ import annotations

import signal
from importlib import import_module

# Ctrl-C reaches all processes of a terminal. The process that started the cluster ends it.
signal.signal(signal.SIGINT, signal.SIG_IGN)
# The first run need not wait for what this imports.
import_module("bentpipe.sweeps.cluster").silence()
