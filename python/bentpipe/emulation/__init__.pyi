from .checks import check_plan as check_plan, prepare as prepare
from .pool import (
    EmulatedRun as EmulatedRun,
    EmulationJob as EmulationJob,
    emulate as emulate,
    emulate_as_completed as emulate_as_completed,
    emulate_many as emulate_many,
    processor_share as processor_share,
)
from .run import run_emulation as run_emulation
