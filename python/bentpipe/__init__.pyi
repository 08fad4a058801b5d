from .emulation import (
    emulate as emulate,
)
from .errors import (
    BentpipeError as BentpipeError,
)
from .errors import (
    InternalError as InternalError,
)
from .errors import (
    InvalidRunError as InvalidRunError,
)
from .errors import (
    MachineError as MachineError,
)
from .errors import (
    MemoryLimitError as MemoryLimitError,
)
from .errors import (
    ScenarioError as ScenarioError,
)
from .errors import (
    ThresholdError as ThresholdError,
)
from .errors import (
    UnitError as UnitError,
)
from .errors import (
    UsageError as UsageError,
)
from .lab import (
    Lab as Lab,
)
from .plan import (
    from_dict as from_dict,
)
from .plan import (
    load as load,
)
from .plan import (
    resolve as resolve,
)
from .report import (
    plots as plots,
)
from .results import (
    Result as Result,
)
from .scenario import (
    PRESETS as PRESETS,
)
from .scenario import (
    Bulk as Bulk,
)
from .scenario import (
    ChannelState as ChannelState,
)
from .scenario import (
    CoDel as CoDel,
)
from .scenario import (
    Conference as Conference,
)
from .scenario import (
    ConstantRate as ConstantRate,
)
from .scenario import (
    DelayStep as DelayStep,
)
from .scenario import (
    DeliveryTrace as DeliveryTrace,
)
from .scenario import (
    Direction as Direction,
)
from .scenario import (
    DropTail as DropTail,
)
from .scenario import (
    EarlyPacketDiscard as EarlyPacketDiscard,
)
from .scenario import (
    Fetch as Fetch,
)
from .scenario import (
    FqCoDel as FqCoDel,
)
from .scenario import (
    FramingOptions as FramingOptions,
)
from .scenario import (
    Gateway as Gateway,
)
from .scenario import (
    Gateways as Gateways,
)
from .scenario import (
    GilbertElliott as GilbertElliott,
)
from .scenario import (
    Link as Link,
)
from .scenario import (
    LognormalSize as LognormalSize,
)
from .scenario import (
    LognormalTime as LognormalTime,
)
from .scenario import (
    ParetoSize as ParetoSize,
)
from .scenario import (
    ParetoTime as ParetoTime,
)
from .scenario import (
    PerFlowDropTail as PerFlowDropTail,
)
from .scenario import (
    Preset as Preset,
)
from .scenario import (
    Processor as Processor,
)
from .scenario import (
    RateStep as RateStep,
)
from .scenario import (
    Red as Red,
)
from .scenario import (
    RequestResponse as RequestResponse,
)
from .scenario import (
    Scenario as Scenario,
)
from .scenario import (
    SelectiveDrop as SelectiveDrop,
)
from .scenario import (
    SizeDraw as SizeDraw,
)
from .scenario import (
    StrictPriority as StrictPriority,
)
from .scenario import (
    Tcp as Tcp,
)
from .scenario import (
    TimeDraw as TimeDraw,
)
from .scenario import (
    TimeSeries as TimeSeries,
)
from .scenario import (
    json_schema as json_schema,
)
from .simulation import (
    Job as Job,
)
from .simulation import (
    Loss as Loss,
)
from .simulation import (
    NoDropRate as NoDropRate,
)
from .simulation import (
    NoDropSearch as NoDropSearch,
)
from .simulation import (
    Outcome as Outcome,
)
from .simulation import (
    Sweep as Sweep,
)
from .simulation import (
    Trial as Trial,
)
from .simulation import (
    no_drop_rate as no_drop_rate,
)
from .simulation import (
    run_many as run_many,
)
from .simulation import (
    simulate as simulate,
)
from .simulation import (
    simulate_many as simulate_many,
)

__version__: str
