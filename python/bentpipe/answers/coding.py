"""``ask coding``: what network coding and titration give on a link, at some loads."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final

import numpy as np

from bentpipe.answers.answer import Answer, Chart, columns, signed_percent
from bentpipe.answers.coding_verdict import (
    ADAPTIVE,
    MEASURES,
    OF_VARIANTS,
    PEP,
    PEP_ADAPTIVE,
    PLAIN,
    UNORDERED,
    VARIANTS,
    Case,
    Variant,
    Verdict,
    compare,
    decisive,
    headline,
    named,
    reason,
    verdicts,
)
from bentpipe.answers.question import (
    MAX_COUNT,
    WORTH_PERCENT,
    Functions,
    Measurements,
    Option,
    Question,
    asking,
)
from bentpipe.answers.traffic import median_and_p95, times_ns
from bentpipe.errors import UnitError, UsageError
from bentpipe.plan.plan import Plan
from bentpipe.results.result import Result
from bentpipe.results.views import View, from_mappings
from bentpipe.text import counted
from bentpipe.units import NS_PER_S, format_duration, format_size, queue_limit

DURATION_S: Final = 60
# The long transfer and the small downloads start when the channels have.
WARM_UP_S: Final = 10
# 35 segments, 37 with the smaller segments of the tunnel: three rounds of slow start with both.
# Near the end of a round, such as 100 kB, a tunnel would cost a round trip by its headers alone.
SMALL_BYTES: Final = 50_000
# Small downloads that begin later are left out, so that the end of the run cuts off none that
# takes less than this.
_LAST_S: Final = 10
# At most these clients take small downloads, one for each 4 Mbit/s: a few percent of the link.
_CLIENTS: Final = (1, 4)
_CLIENT_BPS: Final = 4_000_000
_SMALL, _TRANSFER, _USERS = "small", "transfer", "users"
_MAX_LOADS: Final = 4
_QUEUE: Final = "link.forward.queue.limit"
# Of 100 intervals at 95 %, those that exclude zero by chance.
_BY_CHANCE: Final = 0.05


@dataclass(kw_only=True, eq=False)
class Coding(Question):
    """Whether network coding pays, and what it costs.

    A coded tunnel between the gateways sends repair: 10 % at once, 10 % while the queue has room
    (titrated), or titrated and as much as the loss takes (adaptive), over a plain link and over a
    PEP. The answer has gains and losses with 95 % intervals, costs in link bytes and delay, and the
    reason.

    The load is of channels beside a long transfer and small downloads. Settings of
    ``gateways.*.tunnel`` and ``gateways.hub.pep`` apply to the runs with those functions. After
    Ctrl-C the answer is that of the seeds that were complete. See `Question` for the other
    parameters and the errors; a UsageError is also that a load is out of range, that ``queue`` is
    no limit, or that a setting is one in which the cases differ.
    """

    loads: Annotated[
        Sequence[int],
        Option(
            "How many channels, each one download after another, share the link: one to four "
            "numbers.",
            "N[,N...]",
            flag="--load",
        ),
    ] = (0, 20, 60)
    queue: Annotated[
        str | None,
        Option(
            "The limit of the forward queue, such as 120kB or 1bdp; by default the link's.", "LIMIT"
        ),
    ] = None
    duration: str = field(default=f"{DURATION_S} s", init=False)

    name = "coding"
    examples = ("--link geo --queue 120kB", "--link geo --load 20 --set link.forward.loss=2%")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.loads = sorted({*self.loads})
        if not 1 <= len(self.loads) <= _MAX_LOADS:
            raise UsageError(f"load: read {len(self.loads)} numbers; expected 1 to {_MAX_LOADS}")
        for load in self.loads:
            if not 0 <= load <= MAX_COUNT:
                raise UsageError(f"load: read {load}; expected 0 to {MAX_COUNT:,} channels")
        if self.queue is not None:
            try:
                queue_limit(self.queue)
            except UnitError as error:
                raise UsageError(f"queue: {error}") from None
            self.settings = [*self.settings, f"{_QUEUE}={self.queue}"]
        for setting in self.settings:
            path = _path(setting)
            if _is_of_tunnel(path) and path[-1] in OF_VARIANTS:
                raise UsageError(
                    f"--set {setting}: the cases differ in {path[-1]}; leave it out, or compare "
                    "two runs with bentpipe compare"
                )

    def _traffic(self, load: int = 0) -> list[dict[str, Any]]:
        transfer = {"kind": "bulk", "duration": f"{DURATION_S - WARM_UP_S} s"}
        small = {
            "kind": "fetch",
            "count": int(np.clip(self.link_rate_bps() // _CLIENT_BPS, *_CLIENTS)),
            "size": f"{SMALL_BYTES} B",
            "think": {"exponential": "1 s"},
            "start_jitter": "1 s",
        }
        start = {"direction": "forward", "start": f"{WARM_UP_S} s"}
        channels = {"name": _USERS, "kind": "channels", "channels": load}
        return [
            {"name": _TRANSFER, **start, **transfer},
            {"name": _SMALL, **start, **small},
            *([channels] if load else []),
        ]

    def _case_of(self, load: int, variant: Variant) -> Plan:
        """Return the scenario of a case; a setting may be one of what it does not have."""
        pep = {"pep": dict} if variant.pep else {}
        tunnel = {"tunnel": variant.tunnel_settings} if variant.tunnel is not None else {}
        settings = [each for each in self.settings if _applies(each, load, variant)]
        functions: Functions = {"hub": {**pep, **tunnel}, "terminal": tunnel}
        return self.case_with(self._traffic(load), settings, functions, {"pep", "tunnel"})

    def _measure(self, result: Result) -> Mapping[str, float]:
        names = result.flows["name"].to_list()
        delivered = result.flows["delivered_bytes"].to_numpy().astype(np.float64)
        transfer = result.flows.row(names.index(_TRANSFER), named=True)
        small_p50_ns, small_p95_ns = median_and_p95(_small_times_ns(result, names))
        link = result.directions.row(0, named=True)
        # All other causes are drops of queue disciplines.
        errors = link["dropped_bit_error_packets"]
        return {
            "total_bps": float(delivered.sum()) * 8 / DURATION_S,
            "transfer_bps": transfer["delivered_bytes"] * 8 / (DURATION_S - WARM_UP_S),
            "small_p50_ns": small_p50_ns,
            "small_p95_ns": small_p95_ns,
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

    def _answer(self) -> Answer:
        """Run all cases, seed by seed, so that Ctrl-C keeps the seeds that are complete."""
        cases = {
            Case(load, name): self._case_of(load, variant)
            for load in self.loads
            for name, variant in VARIANTS.items()
        }
        plan = next(iter(cases.values())).data
        self.runs.choose_seeds(plan, len(cases))
        self._found, interrupted = self.runs.run_by_seed(cases, self._measure)
        self._verdicts = verdicts(self._found, self.loads)
        self._best = decisive(self._verdicts)
        plain, coded = self._found[Case(self._best.case.load, PLAIN)], self._found[self._best.case]
        others = [each for each in self.settings if not each.startswith(_QUEUE)]
        other = replace(self, settings=others, queue=None)
        queue = "1bdp" if len(others) < len(self.settings) else "120kB"
        return Answer(
            question=f"What would network coding give over {self.subject}?",
            lines=[
                headline(self._verdicts),
                *(
                    f"{counted(load, 'channel')}, link "
                    f"{self._found[Case(load, PLAIN)].mean('busy_percent'):.0f} % busy: "
                    + "; ".join(str(each) for each in self._verdicts if each.case.load == load)
                    for load in self.loads
                ),
                self._pep_line(),
                self._costs_line(plain, coded),
            ],
            reason=reason(plain, coded, self._best),
            uncertainty=self._uncertainty(),
            assumption=self._matters_most(),
            commands=[
                other.ask_command(self.name, f"--queue {queue}"),
                other.ask_command("buffer"),
            ],
            figures=self._figures(),
            summary=self._table(
                f"Means, small downloads of {format_size(SMALL_BYTES)}, loss after decoding",
                "coding",
            ),
            tables=[
                self._table("Changes from the plain link", "coding changes"),
                self._table("Loss and costs", "coding costs"),
            ],
            charts=[self._chart(measure) for measure in ("total_bps", "small_p50_ns")],
            sources=[
                "RFC 8681, sliding-window random linear codes: the code of the tunnel",
                "docs/model/tunnel-policies.md: redundancy, titration, order",
            ],
            interrupted=interrupted,
        )

    def _compared(self, load: int, before: str, after: str) -> Verdict:
        case = Case(load, after)
        return compare(self._found[Case(load, before)], self._found[case], case)

    def _compared_with_plain(self, load: int) -> list[Verdict]:
        return [self._compared(load, PLAIN, each) for each in VARIANTS if each != PLAIN]

    def _pep_line(self) -> str:
        load = self._best.case.load
        alone = self._compared(load, PLAIN, PEP)
        over = self._compared(load, PEP, PEP_ADAPTIVE)
        beside = self._compared(load, PEP, self._best.case.variant).changes[0]
        return (
            f"At {counted(load, 'channel')} a PEP without coding {alone.finding}; "
            f"{self._best.name} has {named(beside)} compared with it. Adaptive coding over the PEP "
            f"{over.finding}"
        )

    def _costs_line(self, plain: Measurements, coded: Measurements) -> str:
        wait_ns, longest_ns = (coded.mean(f"order_wait_{name}_ns") for name in ("mean", "max"))
        waits = "packets do not wait for their order"
        if wait_ns > 0:
            mean, longest = map(format_duration, (wait_ns, longest_ns))
            waits = f"packets wait {mean} for their order on average, up to {longest}"
        return (
            f"Costs of {self._best.name} at {counted(self._best.case.load, 'channel')}: repair is "
            f"{coded.mean('repair_share_percent'):.1f} % of the bytes, "
            f"{coded.mean('link_bytes_per_byte'):.2f} link bytes per byte delivered instead of "
            f"{plain.mean('link_bytes_per_byte'):.2f}; {waits}. Loss "
            f"{coded.mean('loss_before_percent'):.2f} % before and "
            f"{coded.mean('loss_after_percent'):.2f} % after decoding"
        )

    def _uncertainty(self) -> str:
        count = len(self._verdicts) * len(MEASURES)
        return (
            f"{self._best.changes[0].percent.runs_text} of {DURATION_S} s for each case, with "
            f"common seeds; intervals are of 95 %, and a gain or loss is one of {WORTH_PERCENT:g} "
            f"% or more whose interval excludes zero. Of {count} such intervals about "
            f"{_BY_CHANCE * count:.0f} exclude it by chance. Not modelled: the time that gateways "
            "take to code, traffic that bypasses the gateways in the same queue, users who pause, "
            "and QUIC."
        )

    def _matters_most(self) -> str:
        """Return what changes the total goodput most: the load, or that flows keep their order."""
        orders = [self._compared(load, ADAPTIVE, UNORDERED) for load in self.loads]
        order = max(orders, key=lambda each: abs(each.changes[0].percent.mean))
        variant = self._best.case.variant
        totals = {
            each.case.load: each.changes[0].percent
            for each in self._verdicts
            if each.case.variant == variant
        }
        low, high = (pick(totals, key=lambda load: totals[load].mean) for pick in (min, max))
        of_order = order.changes[0].percent
        spread = totals[high].mean - totals[low].mean
        if order.changes[0].is_shown and abs(of_order.mean) > spread:
            return (
                "whether the tunnel restores the order of flows: at "
                f"{counted(order.case.load, 'channel')} adaptive coding without it has a total "
                f"goodput of {signed_percent(of_order)} compared with that in order."
            )
        if low == high:
            return (
                "not shown by these runs: the load was not varied, and order has no clear effect."
            )
        return (
            f"the load: {self._best.name} changes the total goodput by "
            f"{signed_percent(totals[low])} at {counted(low, 'channel')}, and by "
            f"{signed_percent(totals[high])} at {counted(high, 'channel')}."
        )

    def _figures(self) -> dict[str, object]:
        return {
            "decisive": {**self._best.case._asdict(), "verdict": self._best.kind},
            "loads": [
                {
                    "channels": load,
                    "cases": {
                        variant: self._found[Case(load, variant)].known() for variant in VARIANTS
                    },
                    "changes_percent": {
                        each.case.variant: {"verdict": each.kind, **each.percents}
                        for each in self._compared_with_plain(load)
                    },
                    "pep_adaptive_over_pep_percent": self._compared(
                        load, PEP, PEP_ADAPTIVE
                    ).percents,
                }
                for load in self.loads
            ],
        }

    def _table(self, title: str, table: str) -> View:
        rows = [self._cells(load, variant) for load in self.loads for variant in VARIANTS]
        return from_mappings(title, columns(table), rows, key=2, group=1)

    def _cells(self, load: int, variant: str) -> dict[str, Any]:
        cells: dict[str, Any] = {**self._found[Case(load, variant)].means()}
        has_tunnel = VARIANTS[variant].tunnel is not None
        if not has_tunnel:
            cells["loss_before_percent"] = cells["link_loss_percent"]
        cells["loss_percent"] = cells["loss_after_percent" if has_tunnel else "link_loss_percent"]
        if variant != PLAIN:
            percents = self._compared(load, PLAIN, variant).percents
            cells |= {f"{measure}_change_percent": each for measure, each in percents.items()}
        return {"channels": load, "case": VARIANTS[variant].title, **cells}

    def _chart(self, measure: str) -> Chart:
        changes = {
            f"{counted(load, 'channel')}, {VARIANTS[each.case.variant].title}": each.percents[
                measure
            ]
            for load in self.loads
            for each in self._compared_with_plain(load)
        }
        title = f"Change of the {MEASURES[measure]} from the plain link"
        return Chart.bars(title, "Change [%]", changes)


coding = asking(Coding)


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


def _small_times_ns(result: Result, names: Sequence[str]) -> np.ndarray[Any, Any]:
    """Return the times of small downloads; one that has not ended has the time that it took."""
    small = [i for i, name in enumerate(names) if name.split("-")[0] == _SMALL]
    table = result.tables["exchanges"]
    begun = table.filter(
        table["flow"].is_in(small) & (table["start_ns"] < (DURATION_S - _LAST_S) * NS_PER_S)
    )
    return times_ns(begun, DURATION_S * NS_PER_S)


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
    at_terminals = [each for each in tunnels if each["function"].startswith("terminal")]
    waits = [each["order_wait_max_ns"] for each in at_terminals]
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
