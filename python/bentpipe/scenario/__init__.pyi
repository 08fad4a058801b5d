from .document import Document as Document
from .document import read_file as read_file
from .document import with_settings as with_settings
from .framing import (
    FramingOptions as FramingOptions,
)
from .framings import FRAMINGS as FRAMINGS
from .framings import FramingPreset as FramingPreset
from .framings import frame_bits as frame_bits
from .framings import plan_framing as plan_framing
from .gateways import (
    Gateway as Gateway,
)
from .gateways import (
    Gateways as Gateways,
)
from .gateways import (
    Processor as Processor,
)
from .link import (
    ChannelState as ChannelState,
)
from .link import (
    DelayStep as DelayStep,
)
from .link import (
    DeliveryTrace as DeliveryTrace,
)
from .link import (
    Direction as Direction,
)
from .link import (
    GilbertElliott as GilbertElliott,
)
from .link import (
    Link as Link,
)
from .link import (
    RateStep as RateStep,
)
from .link import (
    TimeSeries as TimeSeries,
)
from .presets import PRESETS as PRESETS
from .presets import Preset as Preset
from .queues import (
    CoDel as CoDel,
)
from .queues import (
    DropTail as DropTail,
)
from .queues import (
    EarlyPacketDiscard as EarlyPacketDiscard,
)
from .queues import (
    FqCoDel as FqCoDel,
)
from .queues import (
    PerFlowDropTail as PerFlowDropTail,
)
from .queues import (
    Red as Red,
)
from .queues import (
    SelectiveDrop as SelectiveDrop,
)
from .queues import (
    StrictPriority as StrictPriority,
)
from .schema import (
    Scenario as Scenario,
)
from .schema import (
    json_schema as json_schema,
)
from .schema import (
    parse as parse,
)
from .traffic import (
    Bulk as Bulk,
)
from .traffic import (
    Conference as Conference,
)
from .traffic import (
    ConstantRate as ConstantRate,
)
from .traffic import (
    Fetch as Fetch,
)
from .traffic import (
    LognormalSize as LognormalSize,
)
from .traffic import (
    LognormalTime as LognormalTime,
)
from .traffic import (
    ParetoSize as ParetoSize,
)
from .traffic import (
    ParetoTime as ParetoTime,
)
from .traffic import (
    RequestResponse as RequestResponse,
)
from .traffic import (
    SizeDraw as SizeDraw,
)
from .traffic import (
    Tcp as Tcp,
)
from .traffic import (
    TimeDraw as TimeDraw,
)
