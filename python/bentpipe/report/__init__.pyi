from . import plots as plots
from .run import write_run_report as write_run_report
