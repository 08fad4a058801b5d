from .cluster import Cluster as Cluster, LocalCluster as LocalCluster
from .executor import Executor as Executor, Finished as Finished, RunFailure as RunFailure
from .threads import Threads as Threads
