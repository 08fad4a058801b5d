"""The verb ``exec``: a program, or a shell, behind a link in real time."""

from __future__ import annotations

import os
import shlex
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bentpipe import _core, cli, live, scenario
from bentpipe.cli import options
from bentpipe.cli.link_status import LinkStatus, summary_lines
from bentpipe.cli.options import argument, flag, note, option, print_json, require_folder
from bentpipe.cli.streams import EXIT_FAILED, ProgramCommand
from bentpipe.cli.watch import EVERY_S, Watch
from bentpipe.errors import InvalidRunError, UsageError
from bentpipe.live.capacity import gain_privileges
from bentpipe.live.local_lab import LocalLab
from bentpipe.live.programs import FORWARDED_SIGNALS, exit_status, refuse_program, wait_for_program
from bentpipe.plan.presets import link_plan
from bentpipe.results.files import capture_file, incomplete_message, json_text, write_file, writing

if TYPE_CHECKING:
    from bentpipe.scenario.metric_ref import Threshold

World = Annotated[
    list[str] | None,
    option("COMMAND", "Run a shell command in the world at the same time; repeatable."),
]
Statistics = Annotated[Path | None, option("FILE", "Write the statistics to this file, as JSON.")]
Watching = Annotated[
    bool, flag("--watch", "Show queues, rates, losses and lateness below the output of programs.")
]
SuperPackets = Annotated[
    bool,
    flag(
        "--super-packets",
        "Let kernels pass segments of up to 64 KiB, split before the link: for links above "
        "1 Gbit/s.",
    ),
]
Strict = Annotated[
    bool,
    flag(
        "--strict",
        "Exit with 125 if the run is invalid because packets were late, unless the program failed "
        "itself.",
    ),
]
ProgramThresholds = Annotated[
    list[str] | None,
    option(
        "TEXT",
        "Exit with 99 unless this holds, such as 'time <= 10 s' or "
        "'directions.forward.loss_percent <= 1 %'; repeatable.",
    ),
]
JsonOfProgram = Annotated[
    bool, flag("--json", "Print the statistics as JSON on stdout; that of programs goes to stderr.")
]


CommandClass = ProgramCommand


def exec_(  # noqa: PLR0913, PLR0917 - a command line's options are its arguments
    link: options.Links,
    command: Annotated[
        list[str] | None,
        argument("COMMAND", "The program and its arguments; by default a shell ($SHELL)."),
    ] = None,
    settings: options.LinkSettings = None,
    host: options.Host = "island",
    seed: options.LinkSeed = 1,
    world: World = None,
    statistics: Statistics = None,
    capture: options.Capture = None,
    watch: Watching = False,
    super_packets: SuperPackets = False,
    strict: Strict = False,
    gateways: options.Gateways = False,
    internet: options.Internet = False,
    threshold: ProgramThresholds = None,
    junit: options.JUnit = None,
    as_json: JsonOfProgram = False,
) -> None:
    """Run a program, or a shell, behind a link in real time.

    Every program that is started in the shell is behind the link, too. The island reaches the host
    `world` over the link. The world has a web server that gives N bytes at http://world/bytes/N (so
    do hosts.world) and, if it is installed, an iperf3 server. The machine's network stays as it is.

    It exits with the program's code, or with 128 + N if signal N ended it; with 99 if that is 0 and
    a threshold is missed. If bentpipe itself fails, the code is 125; if the program cannot be
    executed 126; if it is not found 127.
    """
    for words in (command or [], *(["sh", "-c", line] for line in world or ())):
        refuse_program(words)
    lab = LocalLab(
        plans=[link_plan(name, settings or []) for name in link],
        seed=seed,
        super_packets=super_packets,
        gateways=gateways,
        internet=internet,
    )
    for file in (statistics, junit):
        require_folder(file)
    run = ProgramRun(
        lab=lab,
        command=command or [os.environ.get("SHELL", "/bin/sh")],
        host=host,
        world=world or (),
        thresholds=[
            scenario.read_threshold(text, scenario.PROGRAM_TABLES) for text in threshold or ()
        ],
        stdout_is_json=as_json,
    )
    failures = _execute(run, capture, watch=watch), _write_files(run, statistics, junit)
    failure = next(filter(None, failures), None)
    _print_summary(run.measured, capture)
    if as_json:
        print_json(run.measured)
    if run.code == 0:
        _require_valid(run, strict=strict)
        if failure is not None:
            raise failure
        cli.require_thresholds(run.measured.get("thresholds", ()))
    elif failure is not None:
        note(str(failure))
    raise typer.Exit(exit_status(run.code))


@dataclass(kw_only=True)
class ProgramRun:
    """A program in a lab; ``world`` are shell commands of the world.

    ``code`` is the program's, or 125 if the link failed, and ``measured`` the statistics.
    ``congestion_control`` is that of connections whose program chooses none. With
    ``stdout_is_json`` programs write to stderr what they write to stdout.
    """

    lab: LocalLab
    command: Sequence[str]
    host: str
    world: Sequence[str]
    thresholds: Sequence[Threshold]
    stdout_is_json: bool
    code: int = 0
    congestion_control: str = ""
    measured: dict[str, Any] = field(default_factory=dict)

    def execute(self, *, watch: bool) -> None:
        """Run the program in the lab, and kill it if the link fails."""
        lab = self.lab
        lab.check()
        gain_privileges()
        # Threads started from here on inherit the mask, so that `wait_for_program` receives the
        # signals. SIGTTOU would stop a background process that writes to the terminal.
        blocked = FORWARDED_SIGNALS | {signal.SIGCHLD, signal.SIGTTOU}
        signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
        status = LinkStatus()
        with lab:
            lab.require_host(self.host)
            setting = "net.ipv4.tcp_congestion_control"
            self.congestion_control = lab.core.setting(self.host, setting).strip()
            lab.start_servers()
            if any(threshold.metric.table == "directions" for threshold in self.thresholds):
                # Their names are checked before the program runs.
                self._check(lab.last_report(), 0)
            commands = {self._spawn("world", ["/bin/sh", "-c", line]): line for line in self.world}
            with Watch() if watch else nullcontext() as shown:
                process: int | None = None

                def poll() -> None:
                    if lab.failure is not None and process is not None:
                        os.kill(process, signal.SIGKILL)
                    if shown is not None and shown.is_due():
                        shown.show(status.lines(lab.last_report()))

                poll()
                since_ns, started_ns = lab.core.now_ns(), time.monotonic_ns()
                process = self._spawn(self.host, self.command)
                code = wait_for_program(process, poll, EVERY_S)
                time_ns = time.monotonic_ns() - started_ns
            _note_failures(commands)
        # The program did not run over the requested link if that link has failed.
        self.finish(lab.last_report(since_ns), EXIT_FAILED if lab.failure else code, time_ns)

    def finish(self, report: dict[str, Any], code: int, time_ns: int) -> None:
        """Note the report of the lab, and the code and the time of the program."""
        self.code = code
        about = {"command": list(self.command), "time_ns": time_ns, "code": exit_status(code)}
        about["congestion_control"] = self.congestion_control
        self.measured = {**report, "program": about}
        if self.thresholds and report["invalid"] is None:
            self.measured["thresholds"] = self._check(report, time_ns)

    def add_metrics(self) -> None:
        """Add the derived metrics of directions, such as the loss, to the statistics."""
        derived = live.derived_metrics(self.measured)
        counters = self.measured["directions"]
        self.measured["directions"] = {
            name: {**derived[name], **values} for name, values in counters.items()
        }

    def _check(self, report: dict[str, Any], time_ns: int) -> list[dict[str, Any]]:
        return [check.to_json() for check in live.check_program(report, time_ns, self.thresholds)]

    def _spawn(self, host: str, command: Sequence[str]) -> int:
        with _stdout_as_stderr() if self.stdout_is_json else nullcontext():
            return self.lab.spawn(host, command)


@contextmanager
def _stdout_as_stderr() -> Iterator[None]:
    """Let programs that are started in this block write to stderr what they write to stdout."""
    stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)


def _execute(run: ProgramRun, capture: Path | None, *, watch: bool) -> UsageError | None:
    """Run the program; return the error if the capture alone cannot be written."""
    try:
        with capture_file(capture) as run.lab.capture:
            run.execute(watch=watch)
    except UsageError as error:
        # The statistics are valid without the capture.
        if not run.measured:
            raise
        return error
    return None


def _write_files(run: ProgramRun, statistics: Path | None, junit: Path | None) -> UsageError | None:
    """Write the files that are wanted; return the first error if one cannot be written."""
    if run.stdout_is_json or statistics is not None:
        run.add_metrics()
    failure: UsageError | None = None
    for file, write in ((statistics, _write_statistics), (junit, _write_junit)):
        if file is not None:
            try:
                write(file, run)
            except UsageError as error:
                failure = failure or error
    return failure


def _write_statistics(file: Path, run: ProgramRun) -> None:
    with writing(file):
        file.write_text(json_text(run.measured))


def _write_junit(file: Path, run: ProgramRun) -> None:
    """Write the thresholds; none holds if the run is invalid, or the program has failed."""
    missing = [
        {"threshold": threshold.text, "message": threshold.text} for threshold in run.thresholds
    ]
    error = run.measured["invalid"]
    if error is None and run.code != 0:
        error = f"the program failed with exit code {exit_status(run.code)}"
    checks = run.measured.get("thresholds", missing)
    about = {"bentpipe_version": _core.version()}
    write_file(file, cli.junit_text(shlex.join(run.command), about, checks, error))


def _require_valid(run: ProgramRun, *, strict: bool) -> None:
    """Refuse an invalid run if its figures are to be used.

    Raises:
        InvalidRunError: the run is invalid.
    """
    if run.measured["invalid"] is None or not (strict or run.thresholds):
        return
    option = "--strict" if strict else "--threshold"
    raise InvalidRunError(
        f"{option}: the run is invalid, and the exit code {EXIT_FAILED}; the program's was 0"
    )


def _note_failures(commands: Mapping[int, str]) -> None:
    """Print which commands of the world have failed; ``commands`` has them by process id."""
    for process, command in commands.items():
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended and status:
            code = exit_status(os.waitstatus_to_exitcode(status))
            note(f"--world {shlex.quote(command)}: failed with exit code {code}")


def _print_summary(measured: dict[str, Any], capture: Path | None) -> None:
    # The verdict is the last line.
    if capture is not None and capture.exists():
        note(f"wrote {capture}")
        if (missing := incomplete_message(capture, measured)) is not None:
            note(missing)
    # The hosts have the machine's default, which differs from machine to machine.
    control = measured["program"]["congestion_control"]
    note(f"TCP: {control}, as on this machine, unless a program sets another")
    for line in summary_lines(measured):
        note(line, fitted=True)
