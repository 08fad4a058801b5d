from . import plots as plots
from .comparison import (
    comparison_tables as comparison_tables,
    write_comparison as write_comparison,
)
from .console import show as show
from .run import (
    run_report as run_report,
    save_run as save_run,
    write_run_report as write_run_report,
)
from .search import search_tables as search_tables, write_search as write_search
from .terminal import (
    run_tables as run_tables,
    sweep_tables as sweep_tables,
)
