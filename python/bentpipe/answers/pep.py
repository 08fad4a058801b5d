"""Whether a split-TCP PEP helps, and whom.

The answer has the gains of a PEP at the hub for the total, for large and for short flows.
Channels, each one download after another without a pause, keep the forward direction busy. What
a PEP cannot split is QUIC, or TCP inside a VPN.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Final, NamedTuple

import numpy as np

from bentpipe.answers.answer import Answer, Chart, columns
from bentpipe.answers.catalog import Option
from bentpipe.answers.question import LinkQuestion
from bentpipe.answers.runs import WORTH_PERCENT, Change, Measurements
from bentpipe.answers.traffic import TIMESTAMPS_BYTES
from bentpipe.results.measures import finished_times_ns
from bentpipe.results.result import Result
from bentpipe.results.views import View

DURATION_S: Final = 120
SHORT_BYTES: Final = 100_000
# What is measured beside the channels, each in runs of its own, so that they do not disturb each
# other: short downloads, and one large download after another, over TCP or what stands for QUIC.
SHORT, LARGE, LARGE_QUIC = PROBES = ("short", "large", "large-quic")
QUIC: Final = "-quic"

# The channels are adjusted until the load is this near to the one asked for.
_TOLERANCE: Final = 0.02
_FIRST_CHANNELS: Final = 10
# A large download is this long at the link rate, within bounds.
_LARGE_S: Final = 5
_LARGE_BYTES: Final = (1_000_000, 100_000_000)
_SERVER: Final = "internet"
# The probes start when the channels have.
_WARM_UP_S: Final = 10
# The link is full from this load on.
FULL: Final = 0.9
_AS_ASKED: Final = "as asked"

# By what is measured, whether with the PEP, and the assumption.
Case = tuple[str, bool, str]
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
class Pep(LinkQuestion):
    """The gains of a PEP; settings of ``gateways.hub.pep`` apply to the runs with it."""

    load: Annotated[
        float,
        Option(
            "How busy users keep the forward direction without a PEP, 0% to 95%.",
            "PERCENT",
            min=0,
            max=0.95,
        ),
    ] = 0.5
    quic_share: Annotated[
        float,
        Option(
            "The users, of all, whose traffic a PEP cannot split: QUIC, VPNs.",
            "PERCENT",
            min=0,
            max=1,
        ),
    ] = 0.4
    terrestrial_ns: Annotated[
        int, Option("The round trip between the hub and the servers.", "TIME", flag="--terrestrial")
    ] = 80_000_000
    duration: str = field(default=f"{DURATION_S} s", init=False)

    examples = (
        "--link geo --load 50% --quic-share 40%",
        "--link geo --load 90% --terrestrial 20ms --report pep.html",
    )
    constants = ("rate_bps",)
    searched = 20
    differs: ClassVar = {"pep": ()}
    entries = (*PROBES, f"{SHORT}{QUIC}", "channels", f"channels{QUIC}")

    @property
    def large_bytes(self) -> int:
        """The size of a large download."""
        return int(np.clip(round(self.link_rate_bps * _LARGE_S / 8, -6), *_LARGE_BYTES))

    def _traffic(self, probe: str = SHORT, channels: int = 1) -> list[dict[str, Any]]:
        quic = round(channels * self.quic_share)
        shares = {"channels": channels - quic, f"channels{QUIC}": quic}
        fetch: dict[str, Any] = {
            "kind": "fetch",
            "direction": "forward",
            "start": f"{_WARM_UP_S} s",
        }
        fetch |= {"world_host": _SERVER, "size": f"{self.large_bytes} B", "think": "0 s"}
        if probe == SHORT:
            fetch |= {"size": f"{SHORT_BYTES} B", "think": {"exponential": "1 s"}}
        probes = [SHORT, f"{SHORT}{QUIC}"] if probe == SHORT else [probe]
        entries = [{"name": name, **fetch} for name in probes]
        entries += [
            {
                "name": name,
                "kind": "channels",
                "channels": count,
                "servers": [{"name": f"{_SERVER}-{name}", "delay": self._server_delay}],
            }
            for name, count in shares.items()
            if count
        ]
        return [{**entry, "splittable": not entry["name"].endswith(QUIC)} for entry in entries]

    @property
    def _server_delay(self) -> str:
        return f"{self.terrestrial_ns // 2} ns"

    def _amend(self, data: dict[str, Any]) -> None:
        server = {"name": _SERVER, "delay": self._server_delay}
        data.setdefault("hosts", {}).setdefault("world", []).append(server)

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
        for name in (each for each in (LARGE, LARGE_QUIC) if each in names):
            bits = float(delivered[names.index(name)]) * 8
            figures[f"{name}_bps"] = bits / (DURATION_S - _WARM_UP_S)
        for name in (each for each in (SHORT, f"{SHORT}{QUIC}") if each in names):
            times_ns = finished_times_ns(result, "exchanges", [names.index(name)])
            figures[f"{name}_ns"] = float(np.mean(times_ns)) if times_ns.size else math.nan
        return figures

    def _find(self, _cases: object) -> Cases:
        """Run the probes beside as many channels as keep the plain link as busy as asked for."""
        self._channels = 0
        if self.load:
            self._channels, _ = self.adjusted_count(
                "channels",
                lambda count: self.run_case(traffic=self._traffic(SHORT, count)),
                first=_FIRST_CHANNELS,
                figure="busy",
                wanted=self.load,
                tolerance=_TOLERANCE,
            )
        found = self.run_probes(PROBES, self._channels)
        for name, changed in self._others().items():
            found |= changed.run_probes((LARGE, SHORT), self._channels, name)
        return found

    def run_probes(
        self, probes: Sequence[str], channels: int, assumption: str = _AS_ASKED
    ) -> dict[Case, Measurements]:
        """Run the probes beside so many channels, without and with the PEP."""
        plans = {
            (probe, pep, assumption): self.plan(
                traffic=self._traffic(probe, channels),
                functions={"hub": {"pep": {}} if pep else {}},
            )
            for probe in probes
            for pep in (False, True)
        }
        return self.run(plans)

    def _others(self) -> dict[str, Pep]:
        """Return what the answer takes for granted, and may be otherwise."""
        found = {
            f"a terrestrial round trip of {ms} ms": replace(self, terrestrial_ns=ms * 1_000_000)
            for ms in (0, 200)
            if ms * 1_000_000 != self.terrestrial_ns
        }
        settings = [*self.settings, "traffic.*.tcp.initial_window=30"]
        name = "an initial window of 30 segments at the servers"
        return {**found, name: replace(self, settings=settings)}

    @property
    def rounds(self) -> int:
        """The rounds of slow start of a short download: the window doubles in each."""
        tcp = self.base.data["flows"][0]["workload"]["server"]
        segments = math.ceil(SHORT_BYTES / (tcp["mss_bytes"] - TIMESTAMPS_BYTES))
        return math.ceil(math.log2(1 + segments / tcp["initial_window_segments"]))

    def _judge(self, found: Cases) -> Answer:
        channels, plain = self._channels, found[SHORT, False, _AS_ASKED]
        changes = {name: _change(found, name) for name in _MEASURES if channels or name != "total"}
        gains = {name: change.gain for name, change in changes.items()}
        helped = [
            name for name in gains if gains[name].mean >= WORTH_PERCENT and gains[name].low > 0
        ]
        varied = {
            name: {each: _change(found, each, name).gain for each in _VARIED}
            for name in dict.fromkeys(case[2] for case in found)
        }
        others = {name: each for name, each in varied.items() if name != _AS_ASKED}
        base = varied[_AS_ASKED]["large"]
        most = max(others, key=lambda name: abs(others[name]["large"].mean - base.mean))
        rows = [(_MEASURES[name].title, *each.texts, each.gain) for name, each in changes.items()]
        return Answer(
            facts={"compared": changes, "base": base, "most": most},
            figures={
                "channels": channels,
                "busy": plain.of("busy"),
                "splittable_share": plain.of("splittable_share") if channels else None,
                "helps": helped,
                "large_bytes": self.large_bytes,
                "short_bytes": SHORT_BYTES,
                "saved_on_paper_ns": (self.rounds - 1) * min(self.terrestrial_ns, self.rtt_ns),
                "changes": {
                    name: {"plain": each.before, "pep": each.after, "percent": each.percent}
                    for name, each in changes.items()
                },
                "assumptions": others,
            },
            tables=[
                View(f"Beside {channels} users", columns("pep"), rows),
                View(
                    "One assumption changed at a time",
                    columns("pep assumptions"),
                    [(name, *each.values()) for name, each in varied.items()],
                ),
            ],
            charts=[
                Chart.bars(
                    "Gain of a PEP at the hub: more goodput, or less time",
                    "Gain [%]",
                    {_MEASURES[name].title: gain for name, gain in gains.items()},
                )
            ],
        )


def _change(cases: Cases, name: str, assumption: str = _AS_ASKED) -> Change:
    probe, figure, _ = _MEASURES[name]
    plain, split = (cases[probe, pep, assumption] for pep in (False, True))
    return Change.of(figure, plain, split)
