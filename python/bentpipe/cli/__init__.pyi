from .app import main as main
from .bar import ProgressBar as ProgressBar
from .cache import use_writable_cache as use_writable_cache
from .screen import watch_lines as watch_lines
