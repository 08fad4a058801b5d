from .app import main as main
from .cache import use_writable_cache as use_writable_cache
from .screen import ProgressBar as ProgressBar, watch_lines as watch_lines
from .thresholds import junit_text as junit_text, require_thresholds as require_thresholds
