"""Whether a split-TCP PEP helps, and whom.

The answer has what a PEP at the hub gains and loses for the total, for large and for short flows,
and whether BBR with larger buffers at the hosts does the same without a box. Channels, each one
download after another without a pause, keep the forward direction busy. What a PEP cannot split is
QUIC, or TCP inside a VPN.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any, ClassVar, Final

import numpy as np

from bentpipe.answers.answer import Answer, Chart, columns, table
from bentpipe.answers.catalog import Option
from bentpipe.answers.question import LinkQuestion
from bentpipe.answers.runs import MANY_SEEDS, Change, Estimate, Measurements, Verdict
from bentpipe.answers.traffic import TIMESTAMPS_BYTES
from bentpipe.answers.variants import HOSTS, PEP_CONTROLS, PLAIN, Variant, advice, pep
from bentpipe.errors import UsageError
from bentpipe.results.measures import finished_times_ns
from bentpipe.results.result import Result
from bentpipe.results.views import View
from bentpipe.units import NS_PER_S

# A run has these bits at the link rate, 120 s at 16 Mbit/s, within bounds.
_RUN_BITS: Final = 1_920_000_000
_DURATION_S: Final = (40, 120)
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
# More take minutes, and are not suggested.
MAX_RUNS: Final = 100
_AS_ASKED: Final = "as asked"

_PLAIN, _HOSTS = "plain", "hosts"

# By variant and assumption.
Case = tuple[str, str]
Cases = Mapping[Case, Measurements]
# A variant, and the one that it is compared with.
Pair = tuple[str, str]


# Figures that are compared, and what a change of them is called; the first one counts first.
TITLES: Final = {
    "channels_bps": "goodput of all users",
    f"{LARGE}_bps": "goodput of a large download",
    f"{SHORT}_ns": "time of a short download",
    f"{LARGE_QUIC}_bps": "goodput of a large one not split",
    f"{SHORT}{QUIC}_ns": "time of a short one not split",
}
# Runs with other assumptions have large downloads alone.
_VARIED: Final = f"{LARGE}_bps"


@dataclass(kw_only=True, eq=False)
class Pep(LinkQuestion):
    """What a PEP changes; settings of ``gateways.hub.pep`` apply to the runs with it."""

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
    duration: str = field(default="", init=False)
    channels: int = field(default=0, init=False)

    examples = (
        "--link geo --load 50% --quic-share 40%",
        "--link geo --load 90% --terrestrial 20ms --report pep.html",
    )
    constants = ("rate_bps",)
    searched = 22
    seeds_max = MANY_SEEDS
    differs: ClassVar = {"pep": ()}
    entries = (*PROBES, f"{SHORT}{QUIC}", "channels", f"channels{QUIC}")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.duration = f"{self.seconds_of(_RUN_BITS, *_DURATION_S)} s"

    @cached_property
    def variants(self) -> dict[str, Variant]:
        """What is compared, by name: one PEP if its congestion control over the link is set."""
        found = {_PLAIN: PLAIN, _HOSTS: HOSTS}
        for control in PEP_CONTROLS:
            plan = self.plan(functions=pep(control).functions)
            hub = plan.data["gateways"][0]["functions"]
            controls = [
                each["link_tcp"]["congestion_control"] for each in hub if each["kind"] == "pep"
            ]
            if not controls:
                raise UsageError(
                    f"ask {self.name}: the settings leave no PEP at the hub to compare; leave "
                    "gateways.hub out"
                )
            found[f"pep_{controls[0]}"] = pep(controls[0])
        return found

    @property
    def peps(self) -> list[str]:
        """The variants with a PEP."""
        return [name for name, each in self.variants.items() if each.pep]

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
        seconds = result.plan["stop_ns"] / NS_PER_S
        figures = {
            "busy": float(result.directions["utilization"][0]),
            "channels_bps": of_channels * 8 / seconds,
            "splittable_share": splittable / max(of_channels, 1.0),
        }
        for name in (each for each in (LARGE, LARGE_QUIC) if each in names):
            bits = float(delivered[names.index(name)]) * 8
            figures[f"{name}_bps"] = bits / (seconds - _WARM_UP_S)
        for name in (each for each in (SHORT, f"{SHORT}{QUIC}") if each in names):
            times_ns = finished_times_ns(result, "exchanges", [names.index(name)])
            figures[f"{name}_ns"] = float(np.mean(times_ns)) if times_ns.size else math.nan
        return figures

    def _find(self, _cases: object) -> Cases:
        """Run the probes beside as many channels as keep the plain link as busy as asked for."""
        variants = [*self.variants]
        if self.load:
            self.channels, _ = self.adjusted_count(
                "channels",
                lambda count: self.run_case(traffic=self._traffic(SHORT, count)),
                first=_FIRST_CHANNELS,
                figure="busy",
                wanted=self.load,
                tolerance=_TOLERANCE,
            )
        found = self.run_probes(variants, PROBES, self.channels)
        best = self._best_pep(self._compared(found))
        for name, changed in self._others().items():
            found |= changed.run_probes([_PLAIN, best], (LARGE,), self.channels, name)
        return found

    def run_probes(
        self,
        variants: Sequence[str],
        probes: Sequence[str],
        channels: int,
        assumption: str = _AS_ASKED,
    ) -> dict[Case, Measurements]:
        """Run the probes beside so many channels; return the figures of each variant."""
        plans = {
            (name, probe): self.plan(
                *self.variants[name].settings,
                traffic=self._traffic(probe, channels),
                functions=self.variants[name].functions,
            )
            for name in variants
            for probe in probes
        }
        runs = self.run(plans)
        found: dict[Case, Measurements] = {}
        for name in variants:
            found[name, assumption] = Measurements()
            # Figures that all runs have are those beside short downloads, the first probe.
            for probe in sorted(probes, key=PROBES.index, reverse=True):
                found[name, assumption].update(runs[name, probe])
        return found

    def _compared(self, found: Cases) -> dict[Pair, Verdict]:
        """Return all comparisons that a headline chooses from; their intervals hold together."""
        figures = [name for name in TITLES if self.channels or name != "channels_bps"]
        pairs = [(name, _PLAIN) for name in self.variants if name != _PLAIN]
        pairs += [(name, _HOSTS) for name in self.peps]
        return {
            (after, before): Verdict.of(
                self.channels,
                after,
                found[before, _AS_ASKED],
                found[after, _AS_ASKED],
                figures,
                len(figures) * len(pairs),
            )
            for after, before in pairs
        }

    def _best_pep(self, compared: Mapping[Pair, Verdict]) -> str:
        """Return the PEP with the largest gain, on average over what is compared."""

        def mean_gain(name: str) -> float:
            return float(np.mean([each.gain.mean for each in compared[name, _PLAIN].changes]))

        return max(self.peps, key=mean_gain)

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

    @property
    def options(self) -> str:
        """The options of the command but for the load."""
        share, ms = f"{100 * self.quic_share:g}%", f"{self.terrestrial_ns / 10**6:g}ms"
        return f"--quic-share {share} --terrestrial {ms}"

    def _judge(self, found: Cases) -> Answer:
        compared = self._compared(found)
        best = self._best_pep(compared)
        split, hosts, beside = (
            compared[pair] for pair in ((best, _PLAIN), (_HOSTS, _PLAIN), (best, _HOSTS))
        )
        advised = advice(split, hosts, beside)
        chosen = hosts if advised == "hosts" else split
        varied = self._varied(found)
        others = {name: each for name, each in varied.items() if name != _AS_ASKED}
        base = varied[_AS_ASKED]
        plain = found[_PLAIN, _AS_ASKED]
        users = f"beside {self.channels} users" if self.channels else "without users"
        gains = {
            self.variants[after].title: {each.figure: each.gain for each in verdict.changes}
            for (after, before), verdict in compared.items()
            if before == _PLAIN
        }
        rows = [{"case": case, **each} for case, each in gains.items()]
        return Answer(
            facts={
                "compared": compared,
                "claims": [(chosen.variant, _PLAIN), (best, _HOSTS)],
                "plain": plain,
                "chosen": chosen,
                "split": split,
                "beside": beside,
                "base": base,
                "most": max(others, key=lambda name: abs(others[name].mean - base.mean)),
                "varied": self.variants[self._varied_pep(found)].name,
            },
            figures={
                "advice": advised,
                "best_pep": best,
                "channels": self.channels,
                "busy": plain.of("busy"),
                "splittable_share": plain.of("splittable_share") if self.channels else None,
                "large_bytes": self.large_bytes,
                "short_bytes": SHORT_BYTES,
                "saved_on_paper_ns": (self.rounds - 1) * min(self.terrestrial_ns, self.rtt_ns),
                "changes": [
                    {"case": after, "compared_with": before, **each.figures}
                    for (after, before), each in compared.items()
                ],
                "assumptions": others,
            },
            summary=table("pep", f"Gain [%] {users}: more goodput, or less time", rows),
            tables=[
                View(
                    "One assumption changed at a time",
                    columns("pep assumptions"),
                    [*varied.items()],
                )
            ],
            charts=[
                Chart.bars(
                    "Gain over the plain link: more goodput, or less time",
                    "Gain [%]",
                    {
                        f"{case}: {TITLES[figure]}": gain
                        for case, each in gains.items()
                        for figure, gain in each.items()
                    },
                )
            ],
        )

    def _varied_pep(self, found: Cases) -> str:
        """Return the PEP that ran with other assumptions."""
        return next(name for name, each in found if each != _AS_ASKED and name != _PLAIN)

    def _varied(self, found: Cases) -> dict[str, Estimate]:
        """Return the gain of that PEP for large downloads, by assumption."""
        split = self._varied_pep(found)
        return {
            each: Change.of(_VARIED, found[_PLAIN, each], found[split, each]).gain
            for each in dict.fromkeys(each for _, each in found)
        }
