"""The command line: the verbs, the exit codes, and the output of errors.

Data go to stdout, everything else to stderr. Exit codes: 0 pass, 1 internal error, 2 usage or bad
input, 3 the machine lacks something, 4 the run is invalid or reached its memory limit, 99 a
threshold failed, 130 interrupted.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any, Final

import typer

import bentpipe
from bentpipe.cli import lazy
from bentpipe.errors import BentpipeError, InternalError

# The verbs in the order of --help: the module, its function or group, and an example.
_VERBS: Final[dict[str, tuple[str, str, str]]] = {
    "run": ("run", "run", "scenarios/geo-bulk.yaml --set traffic.0.size=1MB --json"),
    "exec": ("exec", "exec_", "--link geo -- curl -o page http://world/bytes/1000000"),
    "shell": ("exec", "shell", "--link geo --set link.forward.rate=4Mbit/s"),
    "lab": ("lab", "lab_app", ""),
    "search": ("search", "search_app", ""),
    "study": ("study", "study_app", ""),
    "validate": ("validate", "validate", "scenarios/geo-bulk.yaml"),
    "validate-model": ("validate_model", "validate_model", "--grid small --out validation"),
    "presets": ("presets", "presets", "geo"),
    "framings": ("framings", "framings", "ppp"),
    "report": ("report", "report", "results/geo --out geo.html"),
    "doctor": ("doctor", "doctor", "--measure"),
    "schema": ("schema", "schema", "> scenario.schema.json"),
}


class _Verbs(lazy.LazyGroup):
    """The verbs, each imported when it is needed."""

    def list_commands(self, _context: Any) -> list[str]:
        return list(_VERBS)

    def get_command(self, _context: Any, name: str) -> Any:
        if name not in _VERBS:
            return None
        module, attribute, example = _VERBS[name]
        found = getattr(import_module(f"bentpipe.cli.{module}"), attribute)
        if isinstance(found, typer.Typer):
            return lazy.group(found)
        return lazy.command(name, found, f"Example: bentpipe {name} {example}")


app = typer.Typer(
    name="bentpipe",
    cls=_Verbs,
    help="Simulate and emulate traffic over a satellite link, packet by packet.",
    epilog="Example: bentpipe run scenarios/geo-bulk.yaml --set link.forward.delay=150ms",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line on ``arguments`` (None: those of the process); return the exit code."""
    try:
        lazy.parse_without_pydantic(typer.main.get_command(app)).main(
            args=None if arguments is None else list(arguments), prog_name="bentpipe"
        )
    except BentpipeError as error:
        for line in str(error).splitlines():
            print(f"bentpipe: {line}", file=sys.stderr)
        return error.exit_code
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else InternalError.exit_code
    except Exception:  # noqa: BLE001 - a bug must end with exit code 1
        traceback.print_exc()
        print("bentpipe: internal error; please report the lines above", file=sys.stderr)
        return InternalError.exit_code
    return 0


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
