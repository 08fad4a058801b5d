from . import plots as plots
from .comparison import (
    comparison_tables as comparison_tables,
    write_comparison as write_comparison,
)
from .html import (
    Exports as Exports,
    environment as environment,
    write_page_tables as write_page_tables,
    write_tables as write_tables,
)
from .run import (
    run_report as run_report,
    run_views as run_views,
    save_run as save_run,
    write_run_report as write_run_report,
)
from .search import search_tables as search_tables, write_search as write_search
from .style import (
    INK as INK,
    MUTED as MUTED,
    PALETTE as PALETTE,
    STYLE as STYLE,
    add_legend as add_legend,
    from_zero as from_zero,
    log_axis as log_axis,
    new_figure as new_figure,
)
from .sweep import sweep_views as sweep_views, write_sweep_report as write_sweep_report
from .terminal import (
    run_tables as run_tables,
    sweep_tables as sweep_tables,
)
