from .app import main as main
from .bar import ProgressBar as ProgressBar
