from .capacity import measure_capacity as measure_capacity
from .daemon import LabConfig as LabConfig
from .events import read_events as read_events
from .lab import Lab as Lab
from .launch import start_daemon as start_daemon
from .local import LocalLab as LocalLab
