from . import (
    plots as plots,
)
from .answers import (
    Answer as Answer,
    ask as ask,
)
from .comparison import (
    Comparison as Comparison,
    Difference as Difference,
    compare as compare,
)
from .errors import (
    BentpipeError as BentpipeError,
    InternalError as InternalError,
    InvalidRunError as InvalidRunError,
    MachineError as MachineError,
    MemoryLimitError as MemoryLimitError,
    RunsInterrupted as RunsInterrupted,
    ScenarioError as ScenarioError,
    ScenarioWarning as ScenarioWarning,
    ThresholdError as ThresholdError,
    UnitError as UnitError,
    UsageError as UsageError,
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
    ThresholdCheck as ThresholdCheck,
    check_thresholds as check_thresholds,
    mean_intervals as mean_intervals,
)
from .scenario import (
    PRESETS as PRESETS,
    Bulk as Bulk,
    Channels as Channels,
    ChannelState as ChannelState,
    CoDel as CoDel,
    Conference as Conference,
    ConstantRate as ConstantRate,
    CountDraw as CountDraw,
    DelayStep as DelayStep,
    DeliveryTrace as DeliveryTrace,
    Direction as Direction,
    DropTail as DropTail,
    EarlyPacketDiscard as EarlyPacketDiscard,
    Fetch as Fetch,
    FqCoDel as FqCoDel,
    FramingOptions as FramingOptions,
    Gateway as Gateway,
    Gateways as Gateways,
    GilbertElliott as GilbertElliott,
    Link as Link,
    LognormalCount as LognormalCount,
    LognormalSize as LognormalSize,
    LognormalTime as LognormalTime,
    Outage as Outage,
    OutageAt as OutageAt,
    ParetoCount as ParetoCount,
    ParetoSize as ParetoSize,
    ParetoTime as ParetoTime,
    PerFlowDropTail as PerFlowDropTail,
    Preset as Preset,
    Processor as Processor,
    RateStep as RateStep,
    Red as Red,
    RepeatingDelays as RepeatingDelays,
    RepeatingRates as RepeatingRates,
    RequestResponse as RequestResponse,
    Scenario as Scenario,
    SelectiveDrop as SelectiveDrop,
    SizeDraw as SizeDraw,
    StrictPriority as StrictPriority,
    Tcp as Tcp,
    TimeDraw as TimeDraw,
    TimeSeries as TimeSeries,
    Video as Video,
    Voice as Voice,
    WebPage as WebPage,
    json_schema as json_schema,
)
from .simulation import (
    Job as Job,
    run_many as run_many,
    simulate as simulate,
)
from .simulation.search import (
    Limit as Limit,
    Search as Search,
    search as search,
    search_no_drop as search_no_drop,
)
from .sweeps import (
    Sweep as Sweep,
    sweep as sweep,
)

__version__: str
