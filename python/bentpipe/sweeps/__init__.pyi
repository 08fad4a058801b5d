from .cells import Cell as Cell, cells_of as cells_of, plan_hash as plan_hash, seeds_of as seeds_of
from .cluster import Cluster as Cluster, LocalCluster as LocalCluster
from .emulated import Emulated as Emulated
from .file import (
    SweepFile as SweepFile,
    is_sweep_file as is_sweep_file,
    parse_sweep_file as parse_sweep_file,
)
from .folder import (
    Definition as Definition,
    SweepFolder as SweepFolder,
    error_of as error_of,
    file_hash as file_hash,
)
from .points import Axis as Axis, Points as Points, vary_option as vary_option
from .reader import Sweep as Sweep
from .run import SweepRun as SweepRun, UntilCi as UntilCi, sweep as sweep
