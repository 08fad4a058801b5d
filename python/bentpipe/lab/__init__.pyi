from .capacity import measure_capacity as measure_capacity
from .changes import change_link as change_link, link_changes as link_changes
from .daemon import LabConfig as LabConfig, start_daemon as start_daemon
from .events import read_events as read_events
from .lab import Lab as Lab
from .link_state import with_changes as with_changes
from .local import LocalLab as LocalLab
