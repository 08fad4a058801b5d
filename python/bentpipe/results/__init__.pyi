from .folder import REPORT as REPORT
from .folder import json_text as json_text
from .folder import prepare_output_folder as prepare_output_folder
from .folder import write_folder as write_folder
from .result import Result as Result
from .tables import TABLES as TABLES
