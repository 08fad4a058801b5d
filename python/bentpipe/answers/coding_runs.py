"""The runs of ``ask coding``: a plain link, a PEP, and coded tunnels with equal seeds."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np

from bentpipe.answers.cases import Experiment, Figures, link_scenario, peak_bps, resolved
from bentpipe.answers.wording import Link
from bentpipe.errors import UsageError
from bentpipe.plan.plan import Plan
from bentpipe.results.result import Result
from bentpipe.units import NS_PER_S

DURATION_S: Final = 60
# The long transfer and the small downloads start when the channels have.
WARM_UP_S: Final = 10
# 35 segments, 37 with the smaller segments of the tunnel: three rounds of slow start with both.
# Near the end of a round, such as 100 kB, a tunnel would cost a round trip by its headers alone.
SMALL_BYTES: Final = 50_000
MAX_CHANNELS: Final = 2_000
# Small downloads that begin later are left out, so that the end of the run cuts off none that
# takes less than this.
_LAST_S: Final = 10
# At most these clients take small downloads, one for each 4 Mbit/s: a few percent of the link.
_CLIENTS: Final = (1, 4)
_CLIENT_BPS: Final = 4_000_000
_SMALL, _TRANSFER, _USERS = "small", "transfer", "users"
_ENDS: Final = ("hub", "terminal")
# What the variants differ in; `delay` is of a titration that none has.
_OF_VARIANTS: Final = frozenset({"redundancy", "titration", "delay", "order"})
_ORDERED_ONLY: Final = "order_hold_time"


class Variant(NamedTuple):
    """What is at the gateways: a PEP at the hub, a tunnel with settings at both, or neither.

    ``title`` is for tables, ``name`` for sentences.
    """

    title: str
    name: str
    pep: bool = False
    tunnel: Mapping[str, Any] | None = None

    def can_have(self, name: str) -> bool:
        """Return whether a setting of a tunnel may be that of the file or of ``--set``."""
        is_ordered = self.tunnel is not None and self.tunnel.get("order", True)
        return name not in _OF_VARIANTS and (name != _ORDERED_ONLY or is_ordered)


PLAIN, PEP, AT_ONCE, TITRATED, ADAPTIVE, UNORDERED, PEP_ADAPTIVE = (
    "plain",
    "pep",
    "at_once",
    "titrated",
    "adaptive",
    "unordered",
    "pep_adaptive",
)
_ADAPTIVE: Final = MappingProxyType({"redundancy": "adaptive", "titration": "titrated"})
VARIANTS: Final[Mapping[str, Variant]] = {
    PLAIN: Variant("plain", "the plain link"),
    PEP: Variant("PEP", "a PEP", pep=True),
    AT_ONCE: Variant(
        "at once 10 %",
        "coding sent at once",
        tunnel={"redundancy": "10 %", "titration": "immediate"},
    ),
    TITRATED: Variant(
        "titrated 10 %",
        "titrated coding",
        tunnel={"redundancy": "10 %", "titration": "titrated"},
    ),
    ADAPTIVE: Variant("adaptive", "adaptive coding", tunnel=_ADAPTIVE),
    UNORDERED: Variant(
        "unordered", "adaptive coding without order", tunnel={**_ADAPTIVE, "order": False}
    ),
    PEP_ADAPTIVE: Variant(
        "PEP, adaptive", "adaptive coding over a PEP", pep=True, tunnel=_ADAPTIVE
    ),
}
# Those that are compared with the plain link.
CODED: Final = (AT_ONCE, TITRATED, ADAPTIVE, UNORDERED)


class Asked(NamedTuple):
    """A question: the link with its settings, and the numbers of channels."""

    link: Link
    loads: Sequence[int]


class Case(NamedTuple):
    """A number of channels, and the name of a variant."""

    load: int
    variant: str


class Found(NamedTuple):
    """The figures of all cases, an array over seeds each, and whether Ctrl-C ended the runs."""

    figures: Mapping[Case, Figures]
    interrupted: bool


def run(asked: Asked, experiment: Experiment) -> Found:
    """Run all cases, seed by seed, so that Ctrl-C keeps the seeds that are complete.

    Raises:
        UsageError: a setting is one in which the cases differ.
    """
    for setting in asked.link.settings:
        path = _path(setting)
        if _is_of_tunnel(path) and path[-1] in _OF_VARIANTS:
            raise UsageError(
                f"--set {setting}: the cases differ in {path[-1]}; leave it out, or compare two "
                "runs with bentpipe compare"
            )
    cases = {
        Case(load, variant): _case(asked, load, VARIANTS[variant])
        for load in asked.loads
        for variant in VARIANTS
    }
    experiment.expect(next(iter(cases.values())).data, len(cases))
    return Found(*experiment.run_by_seed(cases, figures_of))


def _case(asked: Asked, load: int, variant: Variant) -> Plan:
    """Return the scenario of a case; settings of a function apply to the cases that have it."""
    settings = [each for each in asked.link.settings if _applies(each, load, variant)]
    document = link_scenario(asked.link.name, _traffic(load, _clients(asked)), f"{DURATION_S} s")
    data = copy.deepcopy(document.data)
    data["gateways"] = _gateways(data.get("gateways", {}), variant)
    return resolved(replace(document, data=data), settings)


def _clients(asked: Asked) -> int:
    settings = [each for each in asked.link.settings if each.startswith("link.")]
    probe = {"kind": "bulk", "direction": "forward", "size": "1 B"}
    plan = resolved(link_scenario(asked.link.name, [probe], "1 s"), settings).data
    rate_bps = peak_bps(plan["directions"][0]["rate_bps"])
    return int(np.clip(rate_bps // _CLIENT_BPS, *_CLIENTS))


def _traffic(load: int, clients: int) -> list[dict[str, Any]]:
    """Return one long transfer, small downloads, and the channels."""
    transfer = {"kind": "bulk", "duration": f"{DURATION_S - WARM_UP_S} s"}
    small = {
        "kind": "fetch",
        "count": clients,
        "size": f"{SMALL_BYTES} B",
        "think": {"exponential": "1 s"},
        "start_jitter": "1 s",
    }
    start = {"direction": "forward", "start": f"{WARM_UP_S} s"}
    entries: list[dict[str, Any]] = [
        {"name": _TRANSFER, **start, **transfer},
        {"name": _SMALL, **start, **small},
    ]
    if load:
        entries.append({"name": _USERS, "kind": "channels", "channels": load})
    return entries


def _gateways(gateways: Mapping[str, Any], variant: Variant) -> dict[str, Any]:
    """Return gateways with the functions of a variant, and the settings of the ones there."""
    found = {end: dict(gateways.get(end) or {}) for end in _ENDS}
    peps = {end: found[end].pop("pep", None) for end in _ENDS}
    tunnels = {end: found[end].pop("tunnel", None) for end in _ENDS}
    for end, functions in found.items():
        names = []
        if variant.pep and end == "hub":
            functions["pep"] = peps[end] or {}
            names.append("pep")
        if variant.tunnel is not None:
            of_file = {
                name: value
                for name, value in (tunnels[end] or {}).items()
                if variant.can_have(name)
            }
            functions["tunnel"] = {**of_file, **variant.tunnel}
            names.append("tunnel")
        if functions.get("functions") is not None:
            others = [each for each in functions["functions"] if each not in {"pep", "tunnel"}]
            functions["functions"] = [*names, *others]
    return found


def _applies(setting: str, load: int, variant: Variant) -> bool:
    """Return whether a setting is for this case: it may be one of what the case does not have."""
    path = _path(setting)
    if path[0] == "gateways" and "pep" in path:
        return variant.pep
    if _is_of_tunnel(path):
        return variant.tunnel is not None and variant.can_have(path[-1])
    return load > 0 or path[:2] != ["traffic", _USERS]


def _path(setting: str) -> list[str]:
    return setting.split("=", maxsplit=1)[0].split(".")


def _is_of_tunnel(path: Sequence[str]) -> bool:
    return path[0] == "gateways" and "tunnel" in path


def figures_of(result: Result) -> dict[str, float]:
    """Return the figures of a run; those of a tunnel are NaN without one."""
    names = result.flows["name"].to_list()
    delivered = result.flows["delivered_bytes"].to_numpy().astype(np.float64)
    transfer = result.flows.row(names.index(_TRANSFER), named=True)
    times_ns = _small_times_ns(result, names)
    link = result.directions.row(0, named=True)
    # All other causes are drops of queue disciplines.
    errors = link["dropped_bit_error_packets"]
    return {
        "total_bps": float(delivered.sum()) * 8 / DURATION_S,
        "transfer_bps": transfer["delivered_bytes"] * 8 / (DURATION_S - WARM_UP_S),
        "small_p50_ns": float(np.median(times_ns)) if times_ns.size else math.nan,
        "small_p95_ns": float(np.quantile(times_ns, 0.95)) if times_ns.size else math.nan,
        "rtt_mean_ns": transfer["rtt_mean_ns"] or math.nan,
        "one_way_delay_max_ns": transfer["one_way_delay_max_ns"] or math.nan,
        "busy_percent": 100 * link["utilization"],
        "queue_empty_percent": link["queue_empty_percent"],
        "link_loss_percent": link["loss_percent"] or 0.0,
        "queue_drops": float(link["dropped_packets"] - errors),
        "error_losses": float(errors),
        "link_bytes_per_byte": link["sent_bytes"] / max(float(delivered.sum()), 1.0),
        **_tunnel_figures(result, link["received_bytes"]),
    }


def _small_times_ns(result: Result, names: Sequence[str]) -> np.ndarray[Any, Any]:
    """Return the times of small downloads; one that has not ended has the time that it took."""
    small = [i for i, name in enumerate(names) if name.split("-")[0] == _SMALL]
    table = result.tables["exchanges"]
    begun = table.filter(
        table["flow"].is_in(small) & (table["start_ns"] < (DURATION_S - _LAST_S) * NS_PER_S)
    )
    ended_ns = begun["finished_ns"].fill_null(DURATION_S * NS_PER_S)
    return (ended_ns - begun["start_ns"]).to_numpy().astype(np.float64)


def _tunnel_figures(result: Result, offered_bytes: int) -> dict[str, float]:
    """Return what the tunnel did to the forward direction, summed over all terminals."""
    tunnels = [each for each in result.functions if each["function"].endswith("-tunnel")]

    def total(name: str, end: str) -> float:
        return float(sum(each[name] for each in tunnels if each["function"].startswith(end)))

    lost = total("sources_lost_packets", "terminal")
    due = lost + total("sources_received_packets", "terminal")
    repairs = total("repairs_sent_packets", "hub")
    unsent = sum(
        total(f"titrator_{why}_packets", "hub")
        for why in ("expired", "obsolete", "overflowed", "outdated")
    )
    waits = [
        each["order_wait_max_ns"] for each in tunnels if each["function"].startswith("terminal")
    ]
    return {
        "loss_before_percent": _percent(lost, due),
        "loss_after_percent": _percent(lost - total("recovered_packets", "terminal"), due),
        "repair_share_percent": _percent(total("repairs_sent_bytes", "hub"), offered_bytes)
        if tunnels
        else math.nan,
        "repairs_received_percent": _percent(
            total("repairs_received_packets", "terminal"), repairs
        ),
        "repairs_unsent_percent": _percent(unsent, repairs + unsent),
        # Of all packets, those that did not wait too.
        "order_wait_mean_ns": total("order_wait_sum_ns", "terminal") / due if due else math.nan,
        "order_wait_max_ns": float(max(waits, default=math.nan)),
    }


def _percent(part: float, whole: float) -> float:
    return 100 * part / whole if whole else math.nan
