from .comparison import MEASURES as MEASURES, SEEDS as SEEDS, Comparison as Comparison
from .points import Point as Point, grid as grid
from .report import (
    largest_lines as largest_lines,
    markdown as markdown,
    missed_thresholds as missed_thresholds,
    report_of as report_of,
    summaries as summaries,
    summary_view as summary_view,
    views_of as views_of,
)
from .runs import (
    PointRun as PointRun,
    run_points as run_points,
    simulate_point as simulate_point,
)
