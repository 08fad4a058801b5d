from .answer import Answer as Answer, Chart as Chart, Estimate as Estimate
from .buffer import buffer as buffer
from .busy_link import busy_link as busy_link
from .coding import coding as coding
from .page import page as page, write_page as write_page
from .pep import pep as pep
from .preset import ORBITS as ORBITS, preset as preset
from .question import Experiment as Experiment
from .small_packets import small_packets as small_packets
from .tcp import tcp as tcp
from .usable import usable as usable
from .users import users as users
