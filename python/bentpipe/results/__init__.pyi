from .confidence import mean_intervals as mean_intervals
from .files import REPORT as REPORT
from .folder import (
    json_text as json_text,
    write_folder as write_folder,
)
from .output import OutputFolder as OutputFolder
from .result import Result as Result
from .tables import TABLES as TABLES
from .thresholds import (
    ThresholdCheck as ThresholdCheck,
    check_thresholds as check_thresholds,
)
