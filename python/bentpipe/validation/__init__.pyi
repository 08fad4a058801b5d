from .comparison import SEEDS as SEEDS, Comparison as Comparison
from .grids import grid as grid
from .measures import MEASURES as MEASURES
from .metrics import simulate_point as simulate_point
from .points import Point as Point
from .report import (
    largest_lines as largest_lines,
    markdown as markdown,
    missed_thresholds as missed_thresholds,
    report_of as report_of,
    summaries as summaries,
    summary_table as summary_table,
    tables_of as tables_of,
)
from .runs import PointRun as PointRun, run_points as run_points
