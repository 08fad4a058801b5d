from .capacity import measure_capacity as measure_capacity
from .daemon import LabConfig as LabConfig
from .lab import Lab as Lab
from .launch import start_daemon as start_daemon
from .local import LocalLab as LocalLab
