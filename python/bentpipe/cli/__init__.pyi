from .app import main as main
from .screen import (
    ProgressBar as ProgressBar,
    print_views as print_views,
    watch_lines as watch_lines,
)
from .thresholds import junit_text as junit_text, require_thresholds as require_thresholds
