from .checks import check_scenario as check_scenario, prepare as prepare
from .pool import (
    EmulatedRun as EmulatedRun,
    EmulationJob as EmulationJob,
    emulate as emulate,
    emulate_as_completed as emulate_as_completed,
    emulate_many as emulate_many,
)
from .run import emulate_partly as emulate_partly
