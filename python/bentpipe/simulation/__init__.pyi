from .executor import (
    Executor as Executor,
    Finished as Finished,
    Threads as Threads,
    run_jobs as run_jobs,
    run_many as run_many,
)
from .limits import Limit as Limit, Search as Search
from .memory import memory_message as memory_message, memory_warning as memory_warning
from .run import (
    Job as Job,
    Outcome as Outcome,
    cores as cores,
    run_simulation as run_simulation,
    simulate as simulate,
)
from .search import (
    max_trials as max_trials,
    search_no_drop as search_no_drop,
)
