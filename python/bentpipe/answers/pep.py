"""``ask pep``: what a split-TCP PEP at the hub gives at a load, and which traffic it can split."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final, NamedTuple

import numpy as np

from bentpipe.answers.answer import Answer, Chart, columns, percent_text, signed_percent
from bentpipe.answers.question import WORTH_PERCENT, Change, Measurements, Option, Question, asking
from bentpipe.errors import UsageError
from bentpipe.plan.plan import Plan
from bentpipe.quantities import quantity
from bentpipe.results.measures import finished_times_ns
from bentpipe.results.result import Result
from bentpipe.results.views import View
from bentpipe.units import format_duration, format_size

DURATION_S: Final = 120
SHORT_BYTES: Final = 100_000
# What is measured beside the channels, each in runs of its own, so that they do not disturb each
# other: short downloads, and one large download after another, over TCP or what stands for QUIC.
SHORT, LARGE, LARGE_QUIC = PROBES = ("short", "large", "large-quic")
QUIC: Final = "-quic"

# The channels are adjusted until the load is this near to the one asked for.
_TOLERANCE: Final = 0.02
_FIRST_CHANNELS: Final = 10
_CASES: Final = 20
# A large download is this long at the link rate, within bounds.
_LARGE_S: Final = 5
_LARGE_BYTES: Final = (1_000_000, 100_000_000)
_SERVER: Final = "internet"
# The probes start when the channels have.
_WARM_UP_S: Final = 10
_NAMES: Final = (*PROBES, f"{SHORT}{QUIC}", "channels", f"channels{QUIC}")
_OF_PEPS: Final = ("gateways.hub.pep", "gateways.terminal.pep")
_MAX_LOAD: Final = 0.95
# The link is full from this load on.
_FULL: Final = 0.9
# The timestamps option and its padding (RFC 7323, appendix A).
_TIMESTAMPS_BYTES: Final = 12


class Case(NamedTuple):
    """What is measured, and whether with the PEP."""

    probe: str
    pep: bool


Cases = Mapping[Case, Measurements]


class _Measure(NamedTuple):
    """A figure of the runs with a probe: goodput in bit/s, or a time in ns."""

    probe: str
    figure: str
    title: str


_MEASURES: Final = {
    "total": _Measure(SHORT, "channels_bps", "goodput of all users"),
    "large": _Measure(LARGE, f"{LARGE}_bps", "goodput of a large download"),
    "short": _Measure(SHORT, f"{SHORT}_ns", "time of a short download"),
    "large_quic": _Measure(LARGE_QUIC, f"{LARGE_QUIC}_bps", "goodput of a large one, not split"),
    "short_quic": _Measure(SHORT, f"{SHORT}{QUIC}_ns", "time of a short one, not split"),
}
# Those that are shown for other assumptions, too.
_VARIED: Final = ("large", "short")


@dataclass(kw_only=True, eq=False)
class Pep(Question):
    """Whether a split-TCP PEP helps, and whom.

    The answer has the gains of a PEP at the hub for the total, for large and for short flows.
    Channels, each one download after another without a pause, keep the forward direction busy. What
    a PEP cannot split is QUIC, or TCP inside a VPN.

    Settings of ``gateways.hub.pep`` apply to the runs with the PEP. See `Question` for the other
    parameters and the errors; a UsageError is also that the rate varies with time, the load (0 to
    0.95) or the share is out of range, or the load takes too many channels.
    """

    load: Annotated[
        float,
        Option("How busy users keep the forward direction without a PEP, 0% to 95%.", "PERCENT"),
    ] = 0.5
    quic_share: Annotated[
        float, Option("The users, of all, whose traffic a PEP cannot split: QUIC, VPNs.", "PERCENT")
    ] = 0.4
    terrestrial_ns: Annotated[
        int, Option("The round trip between the hub and the servers.", "TIME", flag="--terrestrial")
    ] = 80_000_000
    duration: str = field(default=f"{DURATION_S} s", init=False)

    name = "pep"
    examples = (
        "--link geo --load 50% --quic-share 40%",
        "--link geo --load 90% --terrestrial 20ms --report pep.html",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        shares = (("load", self.load, _MAX_LOAD), ("quic-share", self.quic_share, 1.0))
        for name, share, most in shares:
            if not 0 <= share <= most:
                raise UsageError(f"{name}: read {share:.0%}; expected 0% to {most:.0%}")
        size = round(self.link_rate_bps() * _LARGE_S / 8, -6)
        self.large_bytes = int(np.clip(size, *_LARGE_BYTES))

    def _traffic(self, probe: str = SHORT, channels: int = 1) -> list[dict[str, Any]]:
        quic = round(channels * self.quic_share)
        shares = (("channels", channels - quic), (f"channels{QUIC}", quic))
        sizes: dict[str, Any] = {"size": f"{self.large_bytes} B", "think": "0 s"}
        if probe == SHORT:
            sizes = {"size": f"{SHORT_BYTES} B", "think": {"exponential": "1 s"}}
        fetch = {"kind": "fetch", "direction": "forward", "start": f"{_WARM_UP_S} s"}
        entries: list[dict[str, Any]] = [
            {"name": name, **fetch, "world_host": _SERVER, **sizes}
            for name in ([SHORT, f"{SHORT}{QUIC}"] if probe == SHORT else [probe])
        ]
        entries += [
            {
                "name": name,
                "kind": "channels",
                "channels": count,
                "servers": [{"name": f"{_SERVER}-{name}", "delay": self._server_delay}],
            }
            for name, count in shares
            if count
        ]
        return [{**entry, "splittable": not entry["name"].endswith(QUIC)} for entry in entries]

    @property
    def _server_delay(self) -> str:
        return f"{self.terrestrial_ns // 2} ns"

    def _case_of(self, case: Case, channels: int) -> Plan:
        """Return the scenario of a case; a setting may be one of what it does not have."""
        traffic = self._traffic(case.probe, channels)
        others = {*_NAMES} - {entry["name"] for entry in traffic}
        settings = [
            each
            for each in self.settings
            if (case.pep or not each.startswith(_OF_PEPS))
            and not (each.startswith("traffic.") and each.split(".")[1] in others)
        ]
        server = {"name": _SERVER, "delay": self._server_delay}
        functions = {"hub": {"pep": dict}} if case.pep else {}
        return self.case_with(traffic, settings, functions, {"pep"}, [server])

    def case(self, *_changes: str) -> Plan:
        """Return the case without a PEP."""
        return self._case_of(Case(SHORT, pep=False), 1)

    def _measure(self, result: Result) -> Mapping[str, float]:
        names = result.flows["name"].to_list()
        delivered = result.flows["delivered_bytes"].to_numpy().astype(np.float64)
        can_split = np.array([flow["splittable"] for flow in result.plan["flows"]])
        is_channel = np.array([name.startswith("channels") for name in names])
        of_channels = float(delivered[is_channel].sum())
        splittable = float(delivered[is_channel & can_split].sum())
        figures = {
            "busy": float(result.directions["utilization"][0]),
            "channels_bps": of_channels * 8 / DURATION_S,
            "splittable_share": splittable / max(of_channels, 1.0),
        }
        for name in (LARGE, LARGE_QUIC):
            if name in names:
                bits = float(delivered[names.index(name)]) * 8
                figures[f"{name}_bps"] = bits / (DURATION_S - _WARM_UP_S)
        for name in (SHORT, f"{SHORT}{QUIC}"):
            if name in names:
                times_ns = finished_times_ns(result, "exchanges", [names.index(name)])
                figures[f"{name}_ns"] = float(np.mean(times_ns)) if times_ns.size else math.nan
        return figures

    def _assumptions(self) -> dict[str, Pep]:
        """Return what the answer takes for granted, and may be otherwise."""
        found: dict[str, dict[str, Any]] = {
            f"a terrestrial round trip of {ms} ms": {"terrestrial_ns": ms * 1_000_000}
            for ms in (0, 200)
            if ms * 1_000_000 != self.terrestrial_ns
        }
        settings = [*self.settings, "traffic.*.tcp.initial_window=30"]
        found["an initial window of 30 segments at the servers"] = {"settings": settings}
        return {
            name: replace(self, **changes, experiment=self.runs) for name, changes in found.items()
        }

    def run_probes(self, channels: int, probes: Sequence[str]) -> Cases:
        """Run the probes beside so many channels, without and with the PEP."""
        cases = [Case(probe, pep) for probe in probes for pep in (False, True)]
        return self.run({case: self._case_of(case, channels) for case in cases})

    def channels(self) -> int:
        """Return how many channels keep the plain link as busy as asked for."""
        if self.load == 0:
            return 0
        plain = Case(SHORT, pep=False)
        channels, _ = self.adjusted_count(
            "channels",
            lambda count: self.run({plain: self._case_of(plain, count)})[plain],
            first=_FIRST_CHANNELS,
            figure="busy",
            wanted=self.load,
            tolerance=_TOLERANCE,
        )
        return channels

    @property
    def rounds(self) -> int:
        """The rounds of slow start of a short download: the window doubles in each."""
        tcp = self.base.data["flows"][0]["workload"]["server"]
        segments = math.ceil(SHORT_BYTES / (tcp["mss_bytes"] - _TIMESTAMPS_BYTES))
        return math.ceil(math.log2(1 + segments / tcp["initial_window_segments"]))

    @property
    def saved_ns(self) -> int:
        """What a PEP saves of a short download on paper: see docs/model/pep.md."""
        return (self.rounds - 1) * min(self.terrestrial_ns, self.rtt_ns)

    def _answer(self) -> Answer:
        self.require_constant(self.directions[0], "rate_bps")
        self.choose_seeds(_CASES)
        channels = self.channels()
        found = self.run_probes(channels, PROBES)
        others = {
            name: changed.run_probes(channels, (LARGE, SHORT))
            for name, changed in self._assumptions().items()
        }
        changes = {name: _change(found, name) for name in _MEASURES if channels or name != "total"}
        gains = {name: change.gain for name, change in changes.items()}
        helped = [
            name for name in gains if gains[name].mean >= WORTH_PERCENT and gains[name].low > 0
        ]
        plain = found[Case(SHORT, pep=False)]
        return Answer(
            question=f"Does {self.subject} need a PEP, with the link busy for {self.load:.0%} and "
            f"{self.quic_share:.0%} of the traffic QUIC or in VPNs?",
            lines=self._lines(changes, helped, channels, plain),
            reason=self._reason(changes, plain.mean("busy")),
            uncertainty=f"{changes['short'].before.runs_text} of {DURATION_S} s; ± and brackets "
            "are 95 % intervals, those of changes by pairs of runs with the same downloads. The "
            "users are a model: downloads with a heavy tail, one after another without a pause.",
            assumption=_matters_most(found, others),
            commands=[
                self.ask_command(
                    self.name,
                    f"--load {'90%' if self.load < _FULL else '30%'}",
                    f"--quic-share {self.quic_share:.0%}",
                    f"--terrestrial {self.terrestrial_ns}ns",
                ),
                self.ask_command("buffer"),
            ],
            figures={
                "channels": channels,
                "busy": plain.of("busy"),
                "splittable_share": plain.of("splittable_share") if channels else None,
                "helps": helped,
                "large_bytes": self.large_bytes,
                "short_bytes": SHORT_BYTES,
                "saved_on_paper_ns": self.saved_ns,
                "changes": {
                    name: {"plain": each.before, "pep": each.after, "percent": each.percent}
                    for name, each in changes.items()
                },
                "assumptions": {
                    name: {each: _change(cases, each).gain for each in _VARIED}
                    for name, cases in others.items()
                },
            },
            tables=[_table(changes, channels), _assumptions_table({"as asked": found, **others})],
            charts=[
                Chart.bars(
                    "Gain of a PEP at the hub: more goodput, or less time",
                    "Gain [%]",
                    {_MEASURES[name].title: gain for name, gain in gains.items()},
                )
            ],
            sources=[
                "RFC 3135, performance enhancing proxies: types, implications, and QUIC's and "
                "IPsec's packets that none can split"
            ],
        )

    def _lines(
        self,
        changes: Mapping[str, Change],
        helped: Sequence[str],
        channels: int,
        plain: Measurements,
    ) -> list[str]:
        names = {"total": "the total", "large": "large downloads", "short": "short downloads"}
        worth = [names[name] for name in helped if name in names]
        titles = {
            "total": f"Total of {channels} users",
            "large": f"A large download ({format_size(self.large_bytes)})",
            "short": f"A short download ({format_size(SHORT_BYTES)})",
            "large_quic": "A large one that is not split",
            "short_quic": "A short one that is not split",
        }
        lines = [
            f"A PEP at the hub gains {WORTH_PERCENT:g} % or more for {' and '.join(worth)}"
            if worth
            else f"A PEP at the hub shows no gain of {WORTH_PERCENT:g} % or more",
            *(
                f"{titles[name]}: {each.before.text(quantity(each.figure).text)}, with the PEP "
                f"{signed_percent(each.percent)}"
                for name, each in changes.items()
            ),
        ]
        if channels:
            lines.append(
                f"Of the users' bytes {percent_text(plain.of('splittable_share'))} can be split; "
                "QUIC, and TCP inside a VPN, pass a PEP unchanged"
            )
        return lines

    def _reason(self, changes: Mapping[str, Change], busy: float) -> str:
        near, link, saved = map(format_duration, (self.terrestrial_ns, self.rtt_ns, self.saved_ns))
        whole = format_duration(self.terrestrial_ns + self.rtt_ns)
        rounds = (
            f"slow start doubles the window once a round trip. Without a PEP that is {whole}, from "
            f"the server to the user; with it {link}, the link's alone, while the round trips of "
            f"{near} to the server go on beside it. A short download has {self.rounds} rounds, so "
            f"on paper it saves {self.rounds - 1} x {near} = {saved}."
        )
        if self.terrestrial_ns == 0:
            rounds = (
                "servers at the hub leave a PEP nothing to shorten: slow start runs over the "
                f"link's round trip of {link} with or without it."
            )
        if busy >= _FULL:
            return (
                f"{rounds} But the link is busy for {100 * busy:.0f} % of the time: what one flow "
                "gains another one loses at the queue, and the total is that of the link."
            )
        if changes["large"].percent.mean >= WORTH_PERCENT:
            return (
                f"{rounds} A large download also regains its share after losses at the queue in "
                "shorter round trips, at the cost of flows with longer ones."
            )
        return f"{rounds} After slow start the link and its queue limit both alike."


pep = asking(Pep)


def _change(cases: Cases, name: str) -> Change:
    probe, figure, _ = _MEASURES[name]
    return Change.of(figure, cases[Case(probe, pep=False)], cases[Case(probe, pep=True)])


def _matters_most(found: Cases, others: Mapping[str, Cases]) -> str:
    base = _change(found, "large").gain
    gains = {name: _change(cases, "large").gain for name, cases in others.items()}
    name = max(gains, key=lambda name: abs(gains[name].mean - base.mean))
    return (
        f"{name}: with it a large download gains {signed_percent(gains[name])} instead of "
        f"{signed_percent(base)}."
    )


def _table(changes: Mapping[str, Change], channels: int) -> View:
    rows = [
        (
            _MEASURES[name].title,
            *(value.text(quantity(each.figure).text) for value in (each.before, each.after)),
            each.gain,
        )
        for name, each in changes.items()
    ]
    return View(f"Beside {channels} users", columns("pep"), rows)


def _assumptions_table(cases: Mapping[str, Cases]) -> View:
    rows = [
        (name, *(_change(found, each).gain for each in _VARIED)) for name, found in cases.items()
    ]
    return View("One assumption changed at a time", columns("pep assumptions"), rows)
