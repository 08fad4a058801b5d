"""The runs of ``ask pep``: users' downloads and probes, without and with a PEP at the hub."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np

from bentpipe.answers.answer import Estimate
from bentpipe.answers.cases import Experiment, Figures, link_scenario, peak_bps, resolved
from bentpipe.answers.wording import Link
from bentpipe.errors import UsageError
from bentpipe.plan.plan import Plan
from bentpipe.results.result import Result

DURATION_S: Final = 120
SHORT_BYTES: Final = 100_000
# What is measured beside the channels, each in runs of its own, so that they do not disturb each
# other: short downloads, and one large download after another, over TCP or what stands for QUIC.
SHORT, LARGE, LARGE_QUIC = PROBES = ("short", "large", "large-quic")
QUIC: Final = "-quic"

_MAX_CHANNELS: Final = 2_000
# The channels are adjusted until the load is this near to the one asked for.
_TOLERANCE: Final = 0.02
_ADJUSTMENTS: Final = 4
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


class Asked(NamedTuple):
    """A question: the link, its settings, the load and what of it cannot be split."""

    link: Link
    load: float
    quic_share: float
    terrestrial_ns: int
    tcp: Mapping[str, Any] = MappingProxyType({})
    """The TCP of all downloads, where it is not that of a Linux host."""


class Case(NamedTuple):
    """What is measured, and whether with the PEP."""

    probe: str
    pep: bool


class Change(NamedTuple):
    """A gain of the PEP: a figure without and with it, and the change in percent."""

    plain: Estimate
    pep: Estimate
    percent: Estimate


class Runs:
    """The runs of a question."""

    def __init__(self, asked: Asked, experiment: Experiment) -> None:
        self._asked = asked
        self._experiment = experiment
        self.base = self._case(Case(SHORT, pep=False), 1)
        if self.base.data["directions"][0]["rate_bps"]["kind"] != "constant":
            raise UsageError("ask pep: the rate of this link varies with time; set a constant")
        experiment.expect(self.base.data, _CASES)

    def channels(self) -> int:
        """Return how many channels keep the plain link as busy as asked for."""
        if self._asked.load == 0:
            return 0
        channels = _FIRST_CHANNELS
        for _ in range(_ADJUSTMENTS):
            case = Case(SHORT, pep=False)
            figures = self._experiment.run({case: self._case(case, channels)}, _figures)
            busy = float(np.mean(figures[case]["busy"]))
            better = max(round(channels * self._asked.load / busy), 1)
            if abs(busy - self._asked.load) <= _TOLERANCE or better == channels:
                break
            if better > _MAX_CHANNELS:
                raise UsageError(
                    f"ask pep: this load takes {better:,} channels, more than {_MAX_CHANNELS:,}; "
                    "ask with a lower rate, such as --set link.forward.rate=100Mbit/s"
                )
            channels = better
        return channels

    def run(self, channels: int, probes: Sequence[str]) -> dict[Case, Figures]:
        """Run the probes beside so many channels, without and with the PEP."""
        cases = [Case(probe, pep) for probe in probes for pep in (False, True)]
        return self._experiment.run({case: self._case(case, channels) for case in cases}, _figures)

    def _case(self, case: Case, channels: int) -> Plan:
        asked = self._asked
        traffic = _traffic(case.probe, self.large_bytes(), channels, asked)
        for download in traffic:
            download["tcp"] = dict(asked.tcp)
        document = link_scenario(asked.link.name, traffic, f"{DURATION_S} s")
        data = copy.deepcopy(document.data)
        hosts = data.setdefault("hosts", {}).setdefault("world", [])
        hosts.append({"name": _SERVER, "delay": f"{asked.terrestrial_ns // 2} ns"})
        data["gateways"] = _with_pep(data.get("gateways", {}), case.pep)
        names = [download["name"] for download in traffic]
        settings = [each for each in asked.link.settings if _applies(each, names, case)]
        return resolved(replace(document, data=data), settings)

    def large_bytes(self) -> int:
        """Return the size of the large download: some seconds of the link's rate."""
        settings = [each for each in self._asked.link.settings if each.startswith("link.")]
        probe = {"kind": "bulk", "direction": "forward", "size": "1 B"}
        plan = resolved(link_scenario(self._asked.link.name, [probe], "1 s"), settings).data
        rate_bps = peak_bps(plan["directions"][0]["rate_bps"])
        return int(np.clip(round(rate_bps * _LARGE_S / 8, -6), *_LARGE_BYTES))


def _traffic(probe: str, large_bytes: int, channels: int, asked: Asked) -> list[dict[str, Any]]:
    """Return the probe, and the channels: some of them cannot be split."""
    quic = round(channels * asked.quic_share)
    delay = f"{asked.terrestrial_ns // 2} ns"
    shares = (("channels", channels - quic), (f"channels{QUIC}", quic))
    large = {"size": f"{large_bytes} B", "think": "0 s"}
    short = {"size": f"{SHORT_BYTES} B", "think": {"exponential": "1 s"}}
    probes = [SHORT, f"{SHORT}{QUIC}"] if probe == SHORT else [probe]
    return [
        *(
            {
                "name": name,
                "kind": "fetch",
                "direction": "forward",
                "start": f"{_WARM_UP_S} s",
                "world_host": _SERVER,
                "splittable": not name.endswith(QUIC),
                **(short if probe == SHORT else large),
            }
            for name in probes
        ),
        *(
            {
                "name": name,
                "kind": "channels",
                "channels": count,
                "servers": [{"name": f"{_SERVER}-{name}", "delay": delay}],
                "splittable": not name.endswith(QUIC),
            }
            for name, count in shares
            if count
        ),
    ]


def _with_pep(gateways: Mapping[str, Any], pep: bool) -> dict[str, Any]:
    """Return gateways without PEPs, or with one at the hub, with the settings of the one there."""
    found = {end: dict(functions) for end, functions in gateways.items()}
    settings = found.get("hub", {}).get("pep") or {}
    for functions in found.values():
        functions.pop("pep", None)
        if functions.get("functions") is not None:
            functions["functions"] = [each for each in functions["functions"] if each != "pep"]
    if pep:
        hub = found.setdefault("hub", {})
        hub["pep"] = settings
        if hub.get("functions") is not None:
            hub["functions"] = ["pep", *hub["functions"]]
    return found


def _figures(result: Result) -> dict[str, float]:
    """Return the figures of a run; a probe that it does not have has none."""
    names = result.flows["name"].to_list()
    delivered = result.flows["delivered_bytes"].to_numpy().astype(np.float64)
    can_split = np.array([flow["splittable"] for flow in result.plan["flows"]])
    is_channel = np.array([name.startswith("channels") for name in names])
    of_channels = float(delivered[is_channel].sum())
    figures = {
        "busy": float(result.directions["utilization"][0]),
        "channels_bps": of_channels * 8 / DURATION_S,
        "splittable_share": float(delivered[is_channel & can_split].sum()) / max(of_channels, 1.0),
    }
    exchanges = result.tables["exchanges"]
    for name in (LARGE, LARGE_QUIC):
        if name in names:
            bits = float(delivered[names.index(name)]) * 8
            figures[f"{name}_bps"] = bits / (DURATION_S - _WARM_UP_S)
    for name in (SHORT, f"{SHORT}{QUIC}"):
        if name in names:
            mine = exchanges.filter(exchanges["flow"] == names.index(name))
            times_ns = (mine["finished_ns"] - mine["start_ns"]).drop_nulls().to_numpy()
            figures[f"{name}_ns"] = float(np.mean(times_ns)) if times_ns.size else math.nan
    return figures


def _applies(setting: str, names: Sequence[str], case: Case) -> bool:
    """Return whether a setting is for this case: one of a PEP, or of an entry, may not be."""
    if setting.startswith(_OF_PEPS):
        return case.pep
    entry = setting.removeprefix("traffic.").split(".")[0]
    others = {*_NAMES} - {*names}
    return not (setting.startswith("traffic.") and entry in others)
