from .memory import memory_message as memory_message, memory_warning as memory_warning
from .no_drop import Loss as Loss, LossCheck as LossCheck
from .run import (
    Job as Job,
    cores as cores,
    run_many as run_many,
    run_simulation as run_simulation,
    simulate as simulate,
)
from .search import (
    Limit as Limit,
    Search as Search,
    Trial as Trial,
    search as search,
    search_no_drop as search_no_drop,
)
