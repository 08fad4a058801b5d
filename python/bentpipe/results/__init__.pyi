from .confidence import mean_intervals as mean_intervals
from .files import REPORT as REPORT, json_text as json_text
from .metric_values import (
    ThresholdCheck as ThresholdCheck,
    check_thresholds as check_thresholds,
)
from .output import OutputFolder as OutputFolder, write_folder as write_folder
from .result import Result as Result
from .tables import TABLES as TABLES
