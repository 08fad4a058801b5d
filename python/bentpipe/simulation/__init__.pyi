from .memory import memory_message as memory_message, memory_warning as memory_warning
from .run import (
    Job as Job,
    Outcome as Outcome,
    cores as cores,
    run_many as run_many,
    run_simulation as run_simulation,
    simulate as simulate,
)
