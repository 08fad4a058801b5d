from .document import STDIN as STDIN, Document as Document, read_file as read_file
from .draws import (
    CountDraw as CountDraw,
    LognormalCount as LognormalCount,
    LognormalSize as LognormalSize,
    LognormalTime as LognormalTime,
    ParetoCount as ParetoCount,
    ParetoSize as ParetoSize,
    ParetoTime as ParetoTime,
    SizeDraw as SizeDraw,
    TimeDraw as TimeDraw,
)
from .framings import (
    FRAMINGS as FRAMINGS,
    FramingOptions as FramingOptions,
    FramingPreset as FramingPreset,
    frame_bits as frame_bits,
    plan_framing as plan_framing,
)
from .gateways import (
    PROCESSOR_PPS as PROCESSOR_PPS,
    Gateway as Gateway,
    Gateways as Gateways,
    Processor as Processor,
)
from .link import (
    ChannelState as ChannelState,
    DelayStep as DelayStep,
    DeliveryTrace as DeliveryTrace,
    Direction as Direction,
    GilbertElliott as GilbertElliott,
    Link as Link,
    Outage as Outage,
    OutageAt as OutageAt,
    RateStep as RateStep,
    RepeatingDelays as RepeatingDelays,
    RepeatingRates as RepeatingRates,
    TimeSeries as TimeSeries,
)
from .queues import (
    CoDel as CoDel,
    DropTail as DropTail,
    EarlyPacketDiscard as EarlyPacketDiscard,
    FqCoDel as FqCoDel,
    PerFlowDropTail as PerFlowDropTail,
    Red as Red,
    SelectiveDrop as SelectiveDrop,
    StrictPriority as StrictPriority,
)
from .schema import (
    Scenario as Scenario,
    json_schema as json_schema,
)
from .tables import CODECS as CODECS, PRESETS as PRESETS, Codec as Codec, Preset as Preset
from .tcp import PROFILES as PROFILES, Tcp as Tcp
from .traffic import (
    DEFAULT_SERVERS as DEFAULT_SERVERS,
    DEFAULT_SIZES as DEFAULT_SIZES,
    Bulk as Bulk,
    Channels as Channels,
    Conference as Conference,
    ConstantRate as ConstantRate,
    Fetch as Fetch,
    RequestResponse as RequestResponse,
    Video as Video,
    Voice as Voice,
    WebPage as WebPage,
)
