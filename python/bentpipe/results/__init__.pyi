from .confidence import (
    CONFIDENCE as CONFIDENCE,
    MIN_BOOTSTRAP_VALUES as MIN_BOOTSTRAP_VALUES,
    Interval as Interval,
    mean_half_width as mean_half_width,
    mean_intervals as mean_intervals,
    resampled as resampled,
)
from .files import (
    REPORT as REPORT,
    csv_text as csv_text,
    json_text as json_text,
    utc_now as utc_now,
)
from .measures import (
    aggregate_goodput_bps as aggregate_goodput_bps,
    channel_utilization as channel_utilization,
    finished_times_ns as finished_times_ns,
    jain as jain,
    rate_bps as rate_bps,
)
from .metric_values import (
    ThresholdCheck as ThresholdCheck,
    check_thresholds as check_thresholds,
)
from .output import (
    Origin as Origin,
    OutputFolder as OutputFolder,
    write_folder as write_folder,
)
from .result import Result as Result
from .tables import TABLES as TABLES
from .views import Cell as Cell, Column as Column, View as View
