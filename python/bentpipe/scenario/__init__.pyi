from .document import Document as Document
from .document import read_file as read_file
from .document import with_settings as with_settings
from .framings import FRAMINGS as FRAMINGS
from .presets import PRESETS as PRESETS
from .presets import Preset as Preset
from .schema import (
    Bulk as Bulk,
)
from .schema import (
    ChannelState as ChannelState,
)
from .schema import (
    CoDel as CoDel,
)
from .schema import (
    Conference as Conference,
)
from .schema import (
    ConstantRate as ConstantRate,
)
from .schema import (
    DelayStep as DelayStep,
)
from .schema import (
    DeliveryTrace as DeliveryTrace,
)
from .schema import (
    Direction as Direction,
)
from .schema import (
    DropTail as DropTail,
)
from .schema import (
    EarlyPacketDiscard as EarlyPacketDiscard,
)
from .schema import (
    Fetch as Fetch,
)
from .schema import (
    FqCoDel as FqCoDel,
)
from .schema import (
    FramingOptions as FramingOptions,
)
from .schema import (
    Gateway as Gateway,
)
from .schema import (
    Gateways as Gateways,
)
from .schema import (
    GilbertElliott as GilbertElliott,
)
from .schema import (
    Link as Link,
)
from .schema import (
    LognormalSize as LognormalSize,
)
from .schema import (
    LognormalTime as LognormalTime,
)
from .schema import (
    ParetoSize as ParetoSize,
)
from .schema import (
    ParetoTime as ParetoTime,
)
from .schema import (
    PerFlowDropTail as PerFlowDropTail,
)
from .schema import (
    Processor as Processor,
)
from .schema import (
    RateStep as RateStep,
)
from .schema import (
    Red as Red,
)
from .schema import (
    RequestResponse as RequestResponse,
)
from .schema import (
    Scenario as Scenario,
)
from .schema import (
    SelectiveDrop as SelectiveDrop,
)
from .schema import (
    SizeDraw as SizeDraw,
)
from .schema import (
    StrictPriority as StrictPriority,
)
from .schema import (
    Tcp as Tcp,
)
from .schema import (
    TimeDraw as TimeDraw,
)
from .schema import (
    TimeSeries as TimeSeries,
)
from .schema import (
    from_dict as from_dict,
)
from .schema import (
    json_schema as json_schema,
)
from .schema import (
    load as load,
)
