from .cluster import Cluster as Cluster, LocalCluster as LocalCluster
from .definition import (
    Cell as Cell,
    Definition as Definition,
    SweepFile as SweepFile,
    UntilCi as UntilCi,
    parse_sweep_file as parse_sweep_file,
)
from .emulated import Emulated as Emulated
from .folder import SweepFolder as SweepFolder, error_of as error_of, file_hash as file_hash
from .points import Axis as Axis, Points as Points, vary_option as vary_option
from .reader import Sweep as Sweep
from .run import (
    RUNS_MAX as RUNS_MAX,
    SweepRun as SweepRun,
    runs_message as runs_message,
    sweep as sweep,
)
