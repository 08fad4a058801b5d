from .document import STDIN as STDIN, Document as Document, read_file as read_file
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
    CoDel as CoDel,
    DelayStep as DelayStep,
    DeliveryTrace as DeliveryTrace,
    Direction as Direction,
    DropTail as DropTail,
    EarlyPacketDiscard as EarlyPacketDiscard,
    FqCoDel as FqCoDel,
    GilbertElliott as GilbertElliott,
    Link as Link,
    LossBursts as LossBursts,
    Outage as Outage,
    OutageAt as OutageAt,
    PerFlowDropTail as PerFlowDropTail,
    RateStep as RateStep,
    Red as Red,
    RepeatingDelays as RepeatingDelays,
    RepeatingRates as RepeatingRates,
    SelectiveDrop as SelectiveDrop,
    StrictPriority as StrictPriority,
    TimeSeries as TimeSeries,
)
from .metric_ref import PROGRAM_TABLES as PROGRAM_TABLES, read_threshold as read_threshold
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
    CountDraw as CountDraw,
    Fetch as Fetch,
    LognormalCount as LognormalCount,
    LognormalSize as LognormalSize,
    LognormalTime as LognormalTime,
    ParetoCount as ParetoCount,
    ParetoSize as ParetoSize,
    ParetoTime as ParetoTime,
    RequestResponse as RequestResponse,
    SizeDraw as SizeDraw,
    TimeDraw as TimeDraw,
    Video as Video,
    Voice as Voice,
    WebPage as WebPage,
)
