from .capacity import measure_capacity as measure_capacity
from .changes import (
    change_link as change_link,
    link_changes as link_changes,
    read_events as read_events,
)
from .daemon import LabDaemon as LabDaemon
from .lab import Lab as Lab
from .link_state import with_changes as with_changes
from .local_lab import LocalLab as LocalLab
from .pool import (
    EmulatedRun as EmulatedRun,
    EmulationJob as EmulationJob,
    emulate as emulate,
    emulate_as_completed as emulate_as_completed,
    processor_share as processor_share,
    run_plan as run_plan,
)
from .refused_tcp import refused_tcp as refused_tcp
from .run import check_plan as check_plan
from .tables import check_program as check_program, derived_metrics as derived_metrics
