from .answer import Answer as Answer, Chart as Chart
from .catalog import (
    QUESTIONS as QUESTIONS,
    ask as ask,
    class_of as class_of,
    help_of as help_of,
    parameters_of as parameters_of,
)
from .page import (
    page as page,
    write_answer as write_answer,
    write_page as write_page,
)
from .runs import Estimate as Estimate
from .trial import try_in_real_time as try_in_real_time
