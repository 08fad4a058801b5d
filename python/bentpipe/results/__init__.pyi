from .folder import (
    REPORT as REPORT,
    json_text as json_text,
    prepare_output_folder as prepare_output_folder,
    write_folder as write_folder,
)
from .result import Result as Result
from .tables import TABLES as TABLES
