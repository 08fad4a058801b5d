"""`Lab`: programs behind a satellite link in real time, from Python."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

# By way of the packages: a lab of a preset starts without the classes of scenarios.
from bentpipe import live, plan
from bentpipe.errors import UsageError
from bentpipe.live import sockets
from bentpipe.live.daemon import LabDaemon
from bentpipe.live.local_lab import LocalLab
from bentpipe.live.programs import refuse_program
from bentpipe.units import check_seed

if TYPE_CHECKING:
    from bentpipe.scenario.schema import Scenario

_NAME: Final = "lab"


class Lab:
    """Hosts and a link between them in real time, for programs and Linux TCP.

    ``Lab("geo")`` sets a lab up; ``close``, the end of a ``with`` block or the end of this process
    ends it with all of its programs. Each link is the name of a preset, the path of a scenario
    file, a scenario, a mapping, or a plan (traffic is not used); several are links in series, the
    world's first. The hosts are ``world`` (with a web server, ``http://world/bytes/N``, and
    iperf3 if it is installed), ``island``, and those of the scenario. With ``gateways`` the
    gateways are hosts, too; with ``internet`` the lab has an uplink to the Internet (slirp4netns).

    A lab is kept by a process of its own, the lab daemon, so that it needs neither root nor a
    process with one thread: it works in a notebook as an ordinary user.

    Raises
    ------
    ScenarioError
        A scenario is wrong.
    UsageError
        A link is neither a preset nor a file, or cannot be run in real time.
    MachineError
        The machine lacks something, or does not allow it.

    Examples
    --------
    >>> with bentpipe.Lab("geo") as lab:  # doctest: +SKIP
    ...     ping = lab.run("island", ["ping", "-c", "3", "world"])
    ...     changed_ns = lab.set("link.forward.rate=4Mbit/s")
    ...     directions = lab.report()["directions"]
    >>> "3 received" in ping.stdout  # doctest: +SKIP
    True
    """

    def __init__(
        self,
        *links: Scenario | str | Path | Mapping[str, Any],
        seed: int = 1,
        gateways: bool = False,
        internet: bool = False,
    ) -> None:
        if not links:
            raise UsageError("links: none; name a preset, such as geo, or a scenario file")
        check_seed(seed)
        plans = [_plan_of(link) for link in links]
        # The name of its socket is private to this object.
        self._folder = Path(tempfile.mkdtemp(prefix="bentpipe-lab-"))
        daemon = LabDaemon(
            name=_NAME,
            folder=self._folder,
            links=[str(link) if isinstance(link, str | Path) else "scenario" for link in links],
            lab=LocalLab(plans=plans, seed=seed, gateways=gateways, internet=internet),
            ends_with_parent=True,
        )
        try:
            child, hosts = daemon.start()
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        self._close = weakref.finalize(self, child.close)
        self.hosts: Final = tuple(hosts)

    def __enter__(self) -> Self:
        """Return the lab, which is set up already."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the lab."""
        self.close()

    def close(self) -> None:
        """End the lab and all programs in it; a second call has no effect."""
        self._close()

    def run(
        self, host: str, arguments: Sequence[str], *, timeout_s: float | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a program on a host until it ends; return its exit status, stdout and stderr.

        The status of a program that signal N ended is 128 + N. The program has no input.

        Raises:
            UsageError: there is no such host or program, or the lab is closed.
            InvalidRunError: the link has failed.
            subprocess.TimeoutExpired: it was ended after ``timeout_s`` seconds.
        """
        with self.spawn(
            host,
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                stdout, stderr = process.communicate(timeout=timeout_s)
            except BaseException:
                process.kill()
                raise
        return subprocess.CompletedProcess(list(arguments), process.returncode, stdout, stderr)

    def spawn(self, host: str, arguments: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a program on a host; ``options`` are those of `subprocess.Popen`.

        The process that is returned starts the program, forwards signals to it and exits with its
        status; if it is killed, the program ends, too. Processes that the program started and
        left behind stay until the lab ends.

        Raises:
            UsageError: there is no such host or program, it does not work in a lab, or the lab is
                closed.
            InvalidRunError: the link has failed.
        """
        refuse_program(arguments)
        if not arguments or shutil.which(arguments[0]) is None:
            raise UsageError(f"program: {' '.join(arguments[:1]) or 'none'}: no such program")
        _, descriptors = self._exchange("enter", host=host)
        numbers = ",".join(map(str, descriptors))
        enter = [sys.executable, "-m", "bentpipe.live.programs", "enter", host, numbers]
        try:
            return subprocess.Popen([*enter, *arguments], pass_fds=descriptors, **options)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def set(self, *settings: str) -> int:
        """Change the running link, such as by ``link.forward.rate=4Mbit/s``; return when, in ns.

        Settings are those of ``bentpipe lab set``: ``.rate``, ``.delay``, ``.jitter``,
        ``.bit_error_rate``, ``.loss``, ``.outage`` (a time, ``on`` or ``off``), ``.queue.limit``
        and ``.queue.discipline`` with its options, of ``link.forward`` and ``link.return``, after
        ``hop.2.`` of the second of several links. All are applied at one moment, which is on the
        clock of `report`, or none.

        Raises:
            UsageError: a setting is wrong, or the lab is closed.
            MachineError: a rate is above the measured capacity of this machine.
            InvalidRunError: the link has failed.
        """
        return int(live.change_link(self._ask, settings)["at_ns"])

    def report(self) -> dict[str, Any]:
        """Return the statistics of the link since the lab was set up; they are at most 0.1 s old.

        Among them are ``at_ns``, ``directions`` (counters of packets and bytes by name),
        ``lateness`` (a distribution in ns) and ``invalid``: why the run is invalid, or None.

        Raises:
            UsageError: the lab is closed.
            MachineError: the lab has ended, such as by a killed daemon.
        """
        report: dict[str, Any] = self._ask("status")["report"]
        return report

    def _ask(self, action: str, **arguments: Any) -> dict[str, Any]:
        return self._exchange(action, **arguments)[0]

    def _exchange(self, action: str, **arguments: Any) -> tuple[dict[str, Any], list[int]]:
        if not self._close.alive:
            raise UsageError("the lab is closed")
        try:
            connection = sockets.try_connect(_NAME, self._folder)
        except OSError:
            raise sockets.LabEndedError from None
        with connection:
            return sockets.ask(connection, {"do": action, **arguments})


def _plan_of(link: Scenario | str | Path | Mapping[str, Any]) -> Mapping[str, Any]:
    if isinstance(link, str | Path):
        return plan.link_plan(str(link))
    if isinstance(link, Mapping):
        return dict(link) if "directions" in link else plan.link_plan(link)
    return plan.Plan.resolve(link).data
