"""The command line: the verbs, and the output of their errors.

Data go to stdout, everything else to stderr. `streams` has the exit codes.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final

import typer
from typer.core import TyperCommand

import bentpipe
from bentpipe.cli import lazy
from bentpipe.cli.streams import EXIT_INTERRUPTED, ClosedPipeError, report_error


class _Verb:
    """A verb, and what --help has of it; its function is in the module of its name."""

    def __init__(self, summary: str, *examples: str, module: str = "") -> None:
        # The first sentence of its own help: --help imports no module of a verb.
        self.summary = summary
        self.examples = [f"bentpipe {example}" for example in examples]
        self.module = module


_EXEC: Final = "exec --link geo -- curl -o page http://world/bytes/1000000"
# The verbs in the order of --help, by headings.
_VERBS: Final[dict[str, dict[str, _Verb]]] = {
    "Write and run scenarios": {
        "run": _Verb(
            "Run a scenario and print per-flow statistics.",
            "run scenarios/geo-bulk.yaml --out results/geo",
            "run scenarios/geo-bulk.yaml --set traffic.0.size=1MB --json",
        ),
        "report": _Verb(
            "Write the HTML report of a result folder.",
            "report results/geo --report geo.html",
            "report results/geo --tables tables",
            module="results",
        ),
        "serve": _Verb(
            "Show results in a browser.",
            "serve results",
            "serve results --port 8000 --open",
            module="results",
        ),
        "show": _Verb(
            "Show links, metrics, studies or the schema, or export a scenario.",
            "show presets geo",
            "show scenario scenarios/geo-pep.yaml --as tc",
        ),
    },
    "Answer a question": {
        "ask": _Verb(
            "Answer a common question about a link, with the reason.",
            "ask tcp --link geo",
            "ask buffer --link geo --report buffer.html",
        ),
        "sweep": _Verb(
            "Run a scenario with varied values and seeds.",
            "sweep scenarios/geo-bulk.yaml --vary traffic.0.size=1MB,9MB",
            "sweep scenarios/geo-bulk.yaml --seeds 5 --out results/seeds",
        ),
        "compare": _Verb(
            "Compare settings: differences with 95 % intervals.",
            "compare scenarios/lossy-cubic.yaml scenarios/lossy-bbr.yaml",
            module="results",
        ),
        "search": _Verb(
            "Find the largest or smallest value that meets thresholds.",
            "search scenarios/voice.yaml --threshold 'flows.mos.p5>3'",
            "search scenarios/snip-duplex.yaml --no-drop --sizes 58,200,1400",
        ),
    },
    "Run programs in a lab, behind a link in real time": {
        "exec": _Verb(
            "Run a program, or a shell, behind a link in real time.",
            _EXEC,
            "exec --link geo",
            "exec --link leo --set link.forward.rate=4Mbit/s -- ping -c 3 world",
        ),
        "lab": _Verb(
            "Keep a link, and change it while programs run.",
            "lab up sat --link geo",
            "lab exec sat -- ping -c 3 world",
            "lab down sat",
        ),
    },
    "Put functions on a real gateway": {
        "gateway": _Verb("Run the functions of a gateway on a real router."),
    },
    "Reproduce a study": {
        "study": _Verb(
            "Reproduce a published experiment, or compare with Linux TCP.",
            "study jpl --seeds 30 --out results/jpl",
            "study linux --cells small:14 --seconds 5",
        ),
    },
    "Check": {
        "check": _Verb(
            "Check scenario files without running them, or this machine.",
            "check scenarios/geo-bulk.yaml",
            "check",
            "check --measure",
        ),
    },
}


class _Verbs(lazy.LazyGroup):
    """The verbs, each imported when it is needed."""

    renamed: ClassVar[Mapping[str, str]] = {
        "presets": "bentpipe show presets",
        "framings": "bentpipe show framings",
        "schema": "bentpipe show schema",
        "validate": "bentpipe check SCENARIO",
        "validate-model": "bentpipe study linux",
        "doctor": "bentpipe check",
        "shell": "bentpipe exec --link LINK",
    }

    def list_commands(self, _context: Any) -> list[str]:
        return [name for verbs in _VERBS.values() for name in verbs]

    def get_command(self, _context: Any, name: str) -> Any:
        verb = next(verbs[name] for verbs in _VERBS.values() if name in verbs)
        if name != "exec":
            # Most verbs may load matplotlib.
            _use_writable_cache()
        module = import_module(f"bentpipe.cli.{verb.module or name}")
        if group := getattr(module, f"{name}_app", None):
            return lazy.group(group, verb.summary, *verb.examples)
        function = getattr(module, "exec_" if name == "exec" else name)
        cls = getattr(module, "CommandClass", TyperCommand)
        return lazy.command(name, function, *verb.examples, cls=cls)

    def format_commands(self, _context: Any, formatter: Any) -> None:
        width = max(len(name) for name in self.list_commands(_context))
        for heading, verbs in _VERBS.items():
            with formatter.section(heading):
                formatter.write_dl([(f"{name:{width}}", verbs[name].summary) for name in verbs])


app = typer.Typer(
    name="bentpipe",
    cls=_Verbs,
    help="Simulate and emulate traffic over a satellite link, packet by packet.",
    epilog=lazy.examples_text(
        "bentpipe run scenarios/geo-bulk.yaml --set link.forward.delay=150ms", f"bentpipe {_EXEC}"
    ),
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line on ``arguments`` (None: those of the process); return the exit code.

    Raises:
        ClosedPipeError: the reader of stdout has closed the pipe.
    """
    try:
        code = lazy.parse_without_pydantic(typer.main.get_command(app)).main(
            args=arguments, prog_name="bentpipe", standalone_mode=False
        )
    except ClosedPipeError:
        raise
    except SystemExit as leaving:
        # The completion of typer exits itself.
        return leaving.code if isinstance(leaving.code, int) else 1
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except Exception as error:  # noqa: BLE001 - a bug must end with exit code 1
        return report_error(error)
    return code if isinstance(code, int) else 0


def _use_writable_cache() -> None:
    """Give matplotlib a temporary folder for its files if it cannot write to the home folder.

    Otherwise matplotlib makes one and prints two warnings (its `_get_config_or_cache_dir`).
    """
    if "matplotlib" in sys.modules or "MPLCONFIGDIR" in os.environ:
        return
    folders = {"XDG_CONFIG_HOME": ".config", "XDG_CACHE_HOME": ".cache"}
    # Unchanged for a user without a home.
    home = Path(os.path.expanduser("~"))  # noqa: PTH111 - `Path.home` raises an error
    chosen = [Path(os.environ.get(name) or home / default) for name, default in folders.items()]
    if all(_can_create(parent / "matplotlib") for parent in chosen):
        return
    folder = tempfile.mkdtemp(prefix="bentpipe-matplotlib-")
    os.environ["MPLCONFIGDIR"] = folder
    atexit.register(shutil.rmtree, folder, ignore_errors=True)


def _can_create(folder: Path) -> bool:
    """Return whether a folder is writable, or can be created with at most one more above it."""
    for path in (folder, folder.parent, folder.parent.parent):
        # `Path.exists` raises an error below a folder that may not be read.
        if os.path.exists(path):  # noqa: PTH110
            return path.is_dir() and os.access(path, os.W_OK | os.X_OK)
    return False


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"bentpipe {bentpipe.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", is_eager=True, callback=_print_version
        ),
    ] = False,
) -> None:
    pass
