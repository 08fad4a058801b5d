from .api import emulate as emulate
from .checks import check_scenario as check_scenario
from .checks import prepare as prepare
from .pool import EmulatedRun as EmulatedRun
from .pool import EmulationJob as EmulationJob
from .pool import emulate_as_completed as emulate_as_completed
from .pool import emulate_many as emulate_many
from .run import emulate_partly as emulate_partly
