from .executor import Executor as Executor, Finished as Finished, RunFailure as RunFailure
