from .result import Result as Result
from .tables import TABLES as TABLES
