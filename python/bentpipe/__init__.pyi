from . import (
    errors as errors,
    plots as plots,
    scenario as scenario,
)
from .answers import (
    Answer as Answer,
    ask as ask,
)
from .comparison import (
    Comparison as Comparison,
    compare as compare,
)
from .live import (
    Lab as Lab,
    emulate as emulate,
)
from .plan import (
    Plan as Plan,
)
from .results import (
    Result as Result,
    check_thresholds as check_thresholds,
)
from .scenario import (
    Scenario as Scenario,
)
from .simulation import (
    simulate as simulate,
)
from .simulation.limits import (
    Search as Search,
)
from .simulation.search import (
    search as search,
    search_no_drop as search_no_drop,
)
from .sweeps import (
    Sweep as Sweep,
    sweep as sweep,
)

__version__: str
