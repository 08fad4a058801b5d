from .capacity import measure_capacity as measure_capacity
from .daemon import LabConfig as LabConfig, start_daemon as start_daemon
from .events import read_events as read_events
from .lab import Lab as Lab
from .local import LocalLab as LocalLab
