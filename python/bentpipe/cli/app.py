"""The command line: parse, call one function, print. Data go to stdout, everything else to stderr.

Exit codes: 0 pass, 1 internal error, 2 usage or bad input, 3 the machine lacks something, 4 the run
is invalid or reached its memory limit, 99 a threshold failed, 130 interrupted.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from bentpipe.cli import lazy as _cli_lazy
from bentpipe.errors import (
    BentpipeError,
    InvalidRunError,
    MachineError,
    MemoryLimitError,
    ScenarioError,
    UsageError,
)

if TYPE_CHECKING:
    from bentpipe.results.result import Result
    from bentpipe.scenario.schema import Scenario

EXIT_INTERNAL: Final = 1
EXIT_INTERRUPTED: Final = 130
ENGINES: Final = ("simulate", "emulate")

# The verbs in the order of --help: the module and the function or group of each, and an example.
_VERBS: Final[dict[str, tuple[str, str, str]]] = {
    "validate-model": ("validate_model", "validate_model", "--grid small --out validation"),
    "run": ("app", "run", "scenarios/geo-bulk.yaml --set traffic.0.size=1MB --json"),
    "exec": ("exec", "exec_", "--link geo -- curl -o page http://world/bytes/1000000"),
    "shell": ("exec", "shell", "--link geo --set link.forward.rate=4Mbit/s"),
    "validate": ("app", "validate", "scenarios/geo-bulk.yaml"),
    "presets": ("app", "presets", "geo"),
    "framings": ("app", "framings", "ppp"),
    "report": ("app", "report", "results/geo --out geo.html"),
    "doctor": ("app", "doctor", "--measure"),
    "schema": ("app", "schema", "> scenario.schema.json"),
    "study": ("study", "study_app", ""),
    "search": ("search", "search_app", ""),
    "lab": ("lab", "lab_app", ""),
}


class _Verbs(_cli_lazy.LazyGroup):
    """The verbs, each imported when it is asked for."""

    def list_commands(self, _context: Any) -> list[str]:
        return list(_VERBS)

    def get_command(self, _context: Any, name: str) -> Any:
        if name not in _VERBS:
            return None
        home, attribute, example = _VERBS[name]
        found = getattr(import_module(f"bentpipe.cli.{home}"), attribute)
        if isinstance(found, typer.Typer):
            return _cli_lazy.group(found)
        return _cli_lazy.command(name, found, f"Example: bentpipe {name} {example}")


app = typer.Typer(
    name="bentpipe",
    cls=_Verbs,
    help="Simulate traffic over a satellite link, packet by packet.",
    epilog="Example: bentpipe run scenarios/geo-bulk.yaml --set link.forward.delay=150ms",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

ScenarioFile = Annotated[Path, typer.Argument(help="A scenario file (YAML).", show_default=False)]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PATH=VALUE",
        help="Lay a value over the scenario, such as traffic.0.size=1MB; repeatable.",
        show_default=False,
    ),
]
MemoryLimit = Annotated[
    str | None,
    typer.Option(
        "--memory-limit",
        metavar="SIZE",
        help="End a simulation that takes more, such as 4GB; by default half of what is available.",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line on ``arguments`` (None: those of the process); return the exit code."""
    try:
        _cli_lazy.read_plainly(typer.main.get_command(app)).main(
            args=None if arguments is None else list(arguments), prog_name="bentpipe"
        )
    except BentpipeError as error:
        for line in str(error).splitlines():
            print(f"bentpipe: {line}", file=sys.stderr)
        return error.exit_code
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else EXIT_INTERNAL
    except Exception:  # noqa: BLE001 - the last resort: a bug must end with exit code 1
        traceback.print_exc()
        print("bentpipe: internal error; please report the lines above", file=sys.stderr)
        return EXIT_INTERNAL
    return 0


def _print_version(wanted: bool) -> None:
    if wanted:
        from bentpipe import _core

        print(f"bentpipe {_core.version()}")
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


def run(  # noqa: PLR0913, PLR0917 - a command line's options are its arguments
    scenario: ScenarioFile,
    settings: Settings = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Replace the scenario's seed.", show_default=False)
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Write the result and report.html into this folder.", show_default=False),
    ] = None,
    capture: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Capture every packet at every point into this file (pcapng, for Wireshark).",
            show_default=False,
        ),
    ] = None,
    engine: Annotated[
        str,
        typer.Option(help="simulate, or emulate: in real time, with iperf3 and the kernel's TCP."),
    ] = "simulate",
    memory_limit: MemoryLimit = None,
    as_json: AsJson = False,
) -> None:
    """Simulate a scenario and print how each flow and direction fared.

    With --engine emulate the scenario runs in real time: iperf3 in network namespaces, the kernel's
    TCP, the same link. A run that was late beyond its limits, and a simulation that reached its
    memory limit, end with exit code 4; their results are kept.
    """
    from bentpipe.cli.progress import keeping_results
    from bentpipe.plan.resolver import load
    from bentpipe.simulation.memory import read_limit
    from bentpipe.text import choice

    if engine not in ENGINES:
        raise UsageError(f"engine: {choice(engine, ENGINES)}")
    loaded = load(scenario, settings=tuple(settings or ()))
    limit = read_limit(memory_limit)
    result = _run(loaded, seed=seed, out=out, engine=engine, capture=capture, limit=limit)
    with keeping_results():
        from bentpipe.results.folder import REPORT

        if capture is not None:
            _note(f"wrote {capture}")
        if out is not None:
            result.save(out)
            _write_report(result, out / REPORT)
            _note(f"wrote {out} ({REPORT} shows it)")
        if as_json:
            _print_json(result.summary())
        else:
            from bentpipe.report.terminal import run_tables, show

            show(*run_tables(result))
    if result.interrupted:
        written = " and ".join(str(path) for path in (out, capture) if path is not None)
        kept = f"; what was recorded is in {written}" if written else ""
        _note(f"interrupted{kept}")
        raise typer.Exit(EXIT_INTERRUPTED)
    if result.memory_limit_reached:
        from bentpipe.simulation.run import memory_message

        kept = f"; the results up to then are in {out}" if out is not None else ""
        raise MemoryLimitError(f"{memory_message(result)}{kept}", result=result)
    invalid = result.invalid
    if invalid is not None:
        raise InvalidRunError(f"INVALID: {invalid}; the figures do not count")


def _run(
    loaded: Scenario,
    *,
    seed: int | None,
    out: Path | None,
    engine: str,
    capture: Path | None,
    limit: int | None,
) -> Result:
    """Run a scenario by one of the engines, once it is certain that the result can be written."""
    from bentpipe.cli.progress import Progress

    if engine == "emulate":
        from bentpipe.emulation.run import prepare

        # Before the modules that start threads: a process that has several cannot become root of a
        # user namespace.
        prepare(loaded)
    from bentpipe.results.folder import prepare_output_folder

    if out is not None:
        prepare_output_folder(out)
    if engine == "emulate":
        from bentpipe.cli.figures import Figures
        from bentpipe.emulation.run import emulate_partly

        figures = Figures()
        with Progress("emulating") as progress:
            return emulate_partly(
                loaded,
                seed=seed,
                progress=progress.fraction,
                note=_note,
                look=lambda report: progress.tell(figures.brief(report)),
                capture=capture,
            )
    from bentpipe.simulation.run import memory_warning, simulate_partly

    warning = memory_warning(loaded, limit)
    if warning is not None:
        _note(f"warning: the run {warning}")
    with Progress("simulating") as progress:
        return simulate_partly(
            loaded, seed=seed, progress=progress.fraction, capture=capture, memory_limit=limit
        )


def validate(scenario: ScenarioFile, settings: Settings = None, as_json: AsJson = False) -> None:
    """Check a scenario file without running it; --json prints its complete plan."""
    from bentpipe.plan.resolver import load, resolve

    try:
        plan = resolve(load(scenario, settings=tuple(settings or ())))
    except ScenarioError as error:
        if as_json:
            problems = [asdict(problem) for problem in error.problems]
            _print_json({"valid": False, "problems": problems})
        raise
    if as_json:
        _print_json({"valid": True, "plan": plan})
    else:
        flows = len(plan["flows"])
        print(f"{scenario}: valid, {flows:,} flow{'' if flows == 1 else 's'}")


def presets(
    name: Annotated[
        str | None, typer.Argument(help="Show this preset and its source.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the named links, or show one with the source of its numbers."""
    from bentpipe.scenario.presets import PRESETS
    from bentpipe.text import choice

    if name is not None and name not in PRESETS:
        raise UsageError(f"preset: {choice(name, tuple(PRESETS))}")
    if as_json:
        chosen = PRESETS.values() if name is None else [PRESETS[name]]
        _print_json([asdict(preset) for preset in chosen])
        return
    from bentpipe.report.terminal import preset_text, presets_table, show

    if name is None:
        show(presets_table(PRESETS))
    else:
        print(preset_text(PRESETS[name]))


def framings(
    name: Annotated[
        str | None,
        typer.Argument(help="Show this framing, its options and its source.", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the named framings with the bytes that packets take, or show one with its options."""
    from bentpipe.scenario.framings import FRAMINGS
    from bentpipe.text import choice

    if name is not None and name not in FRAMINGS:
        raise UsageError(f"framing: {choice(name, tuple(FRAMINGS))}")
    from bentpipe.cli.framings import framing_facts, framing_text, framings_table

    if as_json:
        chosen = FRAMINGS.values() if name is None else [FRAMINGS[name]]
        _print_json([framing_facts(preset) for preset in chosen])
    elif name is None:
        from bentpipe.report.terminal import show

        show(framings_table(FRAMINGS))
    else:
        print(framing_text(FRAMINGS[name]))


def report(
    folder: Annotated[Path, typer.Argument(help="A result folder.", show_default=False)],
    out: Annotated[
        Path | None,
        typer.Option(
            help="The HTML file; report.html in the folder by default.", show_default=False
        ),
    ] = None,
) -> None:
    """Write the HTML report of a result folder; print its path."""
    from bentpipe.results.folder import REPORT
    from bentpipe.results.result import Result

    path = folder / REPORT if out is None else out
    _write_report(Result.load(folder), path)
    print(path)


def doctor(
    as_json: AsJson = False,
    measure: Annotated[
        bool,
        typer.Option("--measure", help="Measure what labs can carry here, and keep it (20 s)."),
    ] = False,
) -> None:
    """Look whether this machine has all that bentpipe needs."""
    from bentpipe.cli.doctor import examine, measured_lines
    from bentpipe.lab.lab import measure_ceiling

    checks = examine(Path.cwd())
    ceiling = measure_ceiling() if measure else None
    if as_json:
        ok = all(check.ok or not check.needed for check in checks)
        _print_json({"ok": ok, "checks": [asdict(c) for c in checks], "measured": ceiling})
    else:
        width = max(len(check.name) for check in checks)
        for check in checks:
            mark = "ok " if check.ok else "NO " if check.needed else "-  "
            advice = "" if check.ok or check.needed else f" (labs only; {check.fix})"
            print(f"{mark} {check.name:{width}}  {check.found}{advice}")
        if ceiling is not None:
            print("\n".join(measured_lines(ceiling)))
    missing = [check for check in checks if check.needed and not check.ok]
    if missing:
        lines = [f"{check.name}: {check.found}; to fix it: {check.fix}" for check in missing]
        raise MachineError("\n".join(lines))


def schema() -> None:
    """Print the JSON Schema of scenario files, for editors."""
    from bentpipe.scenario.schema import json_schema

    _print_json(json_schema())


def _write_report(result: Result, path: Path) -> None:
    from bentpipe.report.run import write_run_report

    try:
        write_run_report(result, path)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror or error}") from None


def _print_json(data: Any) -> None:
    print(json.dumps(data, indent=2))


def _note(text: str) -> None:
    print(f"bentpipe: {text}", file=sys.stderr)
