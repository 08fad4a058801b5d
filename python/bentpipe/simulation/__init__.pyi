from .executor import (
    Executor as Executor,
    Finished as Finished,
    Threads as Threads,
    run_many as run_many,
)
from .memory import memory_message as memory_message, memory_warning as memory_warning
from .no_drop import (
    Loss as Loss,
    NoDropRate as NoDropRate,
    NoDropSearch as NoDropSearch,
    Trial as Trial,
)
from .run import (
    Job as Job,
    cores as cores,
    run_simulation as run_simulation,
    simulate as simulate,
)
from .search import (
    CountTrial as CountTrial,
    MaxCount as MaxCount,
    max_count as max_count,
    no_drop_rate as no_drop_rate,
)
