"""Options that several verbs share, and how they print."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from bentpipe import results, simulation, sweeps
from bentpipe.cli.streams import fit
from bentpipe.errors import UsageError
from bentpipe.plan.presets import preset_plans

if TYPE_CHECKING:
    from bentpipe.results.output import OutputFolder
    from bentpipe.scenario.schema import Scenario
    from bentpipe.simulation.executor import Executor
    from bentpipe.sweeps.folder import SweepFolder


def complete_scenarios(incomplete: str) -> Iterable[str]:
    """Return the scenario files and folders that a text may become."""
    folder, slash, begin = incomplete.rpartition("/")
    for path in sorted(Path(folder + slash or ".").iterdir()):
        if not path.name.startswith(begin) or (path.name.startswith(".") and not begin):
            continue
        if path.is_dir():
            yield f"{folder}{slash}{path.name}/"
        elif path.suffix in {".yaml", ".yml"}:
            yield f"{folder}{slash}{path.name}"


def complete_links(incomplete: str) -> Iterable[str]:
    """Return presets and scenario files."""
    yield from preset_plans()
    yield from complete_scenarios(incomplete)


def option(metavar: str, text: str, *flags: str, **more: Any) -> Any:
    """Return an option; ``text`` is what --help says, followed by the default unless it is None.

    Its flag has the name of the parameter, unless ``flags`` name another one.
    """
    return typer.Option(*flags, metavar=metavar, help=text, **more)


def flag(name: str, text: str) -> Any:
    """Return an option without a value; ``text`` is what --help says."""
    return typer.Option(name, help=text)


def argument(metavar: str, text: str, complete: Callable[..., Iterable[str]] | None = None) -> Any:
    """Return an argument; ``text`` is what --help says."""
    return typer.Argument(metavar=metavar, help=text, autocompletion=complete)


Engine = Literal["simulate", "emulate"]

ScenarioFile = Annotated[Path, argument("SCENARIO", "A scenario file (YAML).", complete_scenarios)]
ScenarioInput = Annotated[
    Path,
    argument("SCENARIO", "A scenario file (YAML), or - for standard input.", complete_scenarios),
]
Settings = Annotated[
    list[str] | None,
    option(
        "PATH=VALUE",
        "Override a value of the scenario, such as traffic.web.size=1MB or "
        "'traffic.*.tcp.congestion_control=bbr'; repeatable.",
        "--set",
    ),
]
AsJson = Annotated[bool, flag("--json", "Print JSON on stdout.")]
ScenarioSeed = Annotated[int | None, option("N", "Replace the scenario's seed.", min=0)]
Out = Annotated[
    Path | None,
    option(
        "FOLDER",
        "Write report.html and the data to this folder; replaces an earlier result of the same.",
    ),
]
Replace = Annotated[
    bool, flag("--replace", "Let --out replace the result of another scenario or study, too.")
]
Capture = Annotated[
    Path | None,
    option("FILE", "Capture every packet at every point to this file (pcapng, for Wireshark)."),
]
MemoryLimit = Annotated[
    str | None,
    option(
        "SIZE",
        "End simulations that take more memory, counted over all concurrent runs, such as "
        "4GB; by default half of the available memory.",
    ),
]
Threads = Annotated[int | None, option("N", "Threads; by default one for each core.", min=1)]
Dask = Annotated[
    bool,
    flag("--dask", "Run in processes, on a Dask cluster of this machine; --threads counts them."),
]
Scheduler = Annotated[
    str | None, option("tcp://HOST:PORT", "Run on the workers of this Dask scheduler.")
]
Thresholds = Annotated[
    list[str] | None,
    option(
        "TEXT",
        "Exit with 99 unless this holds, such as 'flows.goodput_bps.p5 >= 2 Mbit/s'; repeatable.",
    ),
]
JUnit = Annotated[
    Path | None, option("FILE", "Write the thresholds to this file as JUnit XML, a test case each.")
]
# Options of labs.
Links = Annotated[
    list[str],
    option(
        "|".join([*preset_plans(), "FILE"]),
        "A preset or a scenario file; repeat for links in series, the world's first.",
        autocompletion=complete_links,
    ),
]
LinkSettings = Annotated[
    list[str] | None,
    option(
        "PATH=VALUE",
        "Override a value of each link, such as link.forward.rate=4Mbit/s; repeatable.",
        "--set",
    ),
]
LinkSeed = Annotated[int, option("N", "The random seed of the link.", min=0)]
Host = Annotated[
    str,
    option(
        "NAME",
        "The host that runs the program: island, world, island-2 of several terminals, a host "
        "of the scenario or, with --gateways, a gateway.",
    ),
]
Gateways = Annotated[
    bool, flag("--gateways", "Make the gateways hosts of their own, for programs such as a PEP.")
]
Internet = Annotated[
    bool, flag("--internet", "Give the lab access to the Internet, over the link (slirp4netns).")
]


def print_json(data: Any) -> None:
    """Print data on stdout."""
    print(json.dumps(data, indent=2))


def note(text: str, *, fitted: bool = False) -> None:
    """Print a line for the user on stderr; ``fitted`` breaks it where a terminal is narrower."""
    line = f"bentpipe: {text}"
    print(fit(line, sys.stderr) if fitted else line, file=sys.stderr)


def require_folder(file: Path | None) -> None:
    """Refuse a file that cannot be written, before anything is run.

    Raises:
        UsageError: it is a folder, or its folder does not exist.
    """
    if file is None:
        return
    if file.is_dir():
        raise UsageError(f"{file}: is a folder; name a file")
    if not file.parent.is_dir():
        raise UsageError(f"{file}: cannot be written: there is no folder {file.parent}")


def output_folder(out: Path | None, kind: str) -> OutputFolder | nullcontext[None]:
    """Return the context in which the result of a verb is written to ``out``; of None without it.

    It is entered before the verb runs anything: it refuses a folder that cannot be used, and
    another program cannot write to it meanwhile.
    """
    return nullcontext() if out is None else results.OutputFolder(out, kind=kind)


def claim(output: OutputFolder | SweepFolder | None, of: Scenario | str, *, replace: bool) -> None:
    """Refuse to replace the result of another scenario or study, unless it is wanted.

    Raises:
        UsageError: the folder has one.
    """
    if output is None:
        return
    if isinstance(of, str):
        origin = results.Origin(of)
    else:
        source = of.document.source
        origin = results.Origin(of.name, os.path.realpath(source) if Path(source).is_file() else "")
    output.claim(origin, replace=replace)


def note_written(output: OutputFolder) -> None:
    """Print what a folder has, and what it had before."""
    if output.replaced is not None:
        note(f"replaced {output.replaced}")
    note(f"wrote {output.path} (report.html shows it)")


@dataclass(frozen=True)
class ExecutorOptions:
    """The options that choose what runs the jobs of a sweep or a study."""

    threads: int | None
    dask: bool
    scheduler: str | None
    memory_limit: int | None

    def executor(self, engine: str) -> Executor:
        """Return the executor; ``threads`` counts processes or loaded processors, too.

        Raises:
            UsageError: options exclude each other, or the extra ``cluster`` is not installed.
            MachineError: the scheduler does not answer, or a worker has another version.
        """
        if engine == "emulate":
            self.refuse_with_labs()
            return sweeps.Emulated(self.threads)
        if self.scheduler is not None:
            if self.dask:
                raise UsageError("--scheduler: runs on an existing cluster; leave out --dask")
            if self.threads is not None:
                raise UsageError("--scheduler: its workers have their threads; leave out --threads")
            return sweeps.Cluster(self.scheduler, memory_limit=self.memory_limit)
        if self.dask:
            return sweeps.LocalCluster(self.threads, memory_limit=self.memory_limit)
        return simulation.Threads(self.threads, memory_limit=self.memory_limit)

    def refuse_with_labs(self) -> None:
        """Refuse the options that labs do not have.

        Raises:
            UsageError: naming the option.
        """
        given = {
            "--dask": self.dask,
            "--scheduler": self.scheduler is not None,
            "--memory-limit": self.memory_limit is not None,
        }
        for option, is_given in given.items():
            if is_given:
                raise UsageError(f"{option}: only for simulated runs; labs are on this machine")
