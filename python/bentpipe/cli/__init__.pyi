from .app import main as main
from .bar import ProgressBar as ProgressBar
from .cache import use_writable_cache as use_writable_cache
from .lab_watch import watch_lab as watch_lab, watch_lines as watch_lines
