from .answer import Answer as Answer, Chart as Chart, Estimate as Estimate
from .cases import Experiment as Experiment
from .page import page as page, write_page as write_page
from .tcp import tcp as tcp
