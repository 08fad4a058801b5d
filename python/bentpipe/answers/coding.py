"""Whether network coding pays, and what it costs.

A coded tunnel between the gateways sends repair: 10 % at once, 10 % while the queue has room
(titrated), or titrated and as much as the loss takes (adaptive), over a plain link and over a
PEP. It is compared with BBR and larger buffers at the hosts, too. The answer has gains and losses
with intervals, costs in link bytes and delay, and the reason.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Final

import numpy as np

from bentpipe.answers.answer import Answer, Chart, table
from bentpipe.answers.catalog import Option
from bentpipe.answers.question import MAX_COUNT, LinkQuestion
from bentpipe.answers.runs import MANY_SEEDS, Measurements, Verdict, decisive
from bentpipe.answers.traffic import median_and_p95, times_ns
from bentpipe.answers.variants import HOSTS, PEP_CONTROLS, PLAIN as PLAIN_LINK, Variant, advice, pep
from bentpipe.errors import UnitError, UsageError
from bentpipe.plan.plan import Plan
from bentpipe.results.result import Result
from bentpipe.text import counted
from bentpipe.units import NS_PER_S, format_size, queue_limit

# A run has these bits at the link rate, 60 s at 16 Mbit/s, within bounds.
_RUN_BITS: Final = 960_000_000
_DURATION_S: Final = (30, 60)
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
# More take minutes, and are not suggested.
MAX_RUNS: Final = 100
# Losses of which this share has one cause have that cause.
MOSTLY: Final = 0.9
# Recovery below this share of the losses leaves senders most of them.
FEW: Final = 0.5
# Losses that grow by this factor are said to.
GROWN: Final = 1.2
# Figures that are compared, and what a change of them is called; the first one counts first.
MEASURES: Final[Mapping[str, str]] = {
    "total_bps": "total goodput",
    "transfer_bps": "goodput of the long transfer",
    "small_p50_ns": "median time of small downloads",
    "small_p95_ns": "95 % time of small downloads",
}


_AT_ONCE: Final = {"redundancy": "10 %", "titration": "immediate"}
_TITRATED: Final = {"redundancy": "10 %", "titration": "titrated"}
_ADAPTIVE: Final = {"redundancy": "adaptive", "titration": "titrated"}
# Without order there is no time to hold packets for it.
_UNORDERED: Final = {**_ADAPTIVE, "order": False, "order_hold_time": None}
_PEP: Final = pep(PEP_CONTROLS[0])
VARIANTS: Final = {
    "plain": PLAIN_LINK,
    "hosts": HOSTS,
    "pep": _PEP,
    "at_once": Variant("at once 10 %", "coding sent at once", tunnel=_AT_ONCE),
    "titrated": Variant("titrated 10 %", "titrated coding", tunnel=_TITRATED),
    "adaptive": Variant("adaptive", "adaptive coding", tunnel=_ADAPTIVE),
    "unordered": Variant("unordered", "adaptive coding without order", tunnel=_UNORDERED),
    "pep_adaptive": _PEP._replace(
        title="PEP, adaptive", name="adaptive coding over a PEP", tunnel=_ADAPTIVE
    ),
}
PLAIN, WITH_HOSTS, PEP, AT_ONCE, TITRATED, ADAPTIVE, UNORDERED, PEP_ADAPTIVE = VARIANTS
# Those that are compared with the plain link, and with the hosts' TCP.
CODED: Final = (AT_ONCE, TITRATED, ADAPTIVE, UNORDERED)
# Those from which a headline chooses.
_PAIRS: Final = (
    (WITH_HOSTS, PLAIN),
    *((each, before) for each in CODED for before in (PLAIN, WITH_HOSTS)),
)

# By number of channels and name of a variant.
Case = tuple[int, str]
Cases = Mapping[Case, Measurements]


@dataclass(kw_only=True, eq=False)
class Coding(LinkQuestion):
    """What coded tunnels change, beside a number of channels.

    Settings of ``gateways.*.tunnel`` and ``gateways.hub.pep`` apply to the runs with those
    functions.
    """

    loads: Annotated[
        Sequence[int],
        Option(
            "How many channels, each one download after another, share the link: one to four "
            "numbers.",
            "N[,N...]",
            flag="--load",
            min=0,
            max=MAX_COUNT,
        ),
    ] = (0, 20, 60)
    queue: Annotated[
        str | None,
        Option(
            "The limit of the forward queue, such as 120kB or 1bdp; by default the link's.", "LIMIT"
        ),
    ] = None
    duration: str = field(default="", init=False)

    examples = ("--link geo --queue 120kB", "--link geo --load 20 --set link.forward.loss=2%")
    seeds_max = MANY_SEEDS
    # `delay` is of a titration that none has.
    differs: ClassVar = {"pep": (), "tunnel": ("redundancy", "titration", "delay", "order")}
    entries = (_USERS,)

    def __post_init__(self) -> None:
        self.loads = sorted({*self.loads})
        if not 1 <= len(self.loads) <= _MAX_LOADS:
            raise UsageError(f"load: read {len(self.loads)} numbers; expected 1 to {_MAX_LOADS}")
        super().__post_init__()
        self.duration = f"{self._seconds} s"
        if self.queue is not None:
            try:
                queue_limit(self.queue)
            except UnitError as error:
                raise UsageError(f"queue: {error}") from None
            self.settings = [*self.settings, f"{_QUEUE}={self.queue}"]

    @property
    def _seconds(self) -> int:
        return self.seconds_of(_RUN_BITS, *_DURATION_S)

    def _traffic(self, load: int = 0) -> list[dict[str, Any]]:
        transfer = {"kind": "bulk", "duration": f"{self._seconds - WARM_UP_S} s"}
        small = {
            "kind": "fetch",
            "count": int(np.clip(self.link_rate_bps // _CLIENT_BPS, *_CLIENTS)),
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

    def _cases(self) -> Mapping[Case, Plan]:
        return {
            (load, name): self.plan(
                *variant.settings, traffic=self._traffic(load), functions=variant.functions
            )
            for load in self.loads
            for name, variant in VARIANTS.items()
        }

    def _measure(self, result: Result) -> Mapping[str, float]:
        names = result.flows["name"].to_list()
        delivered = result.flows["delivered_bytes"].to_numpy().astype(np.float64)
        transfer = result.flows.row(names.index(_TRANSFER), named=True)
        seconds = result.plan["stop_ns"] / NS_PER_S
        small_p50_ns, small_p95_ns = median_and_p95(_small_times_ns(result, names))
        link = result.directions.row(0, named=True)
        # All other causes are drops of queue disciplines.
        errors = link["dropped_bit_error_packets"]
        return {
            "total_bps": float(delivered.sum()) * 8 / seconds,
            "transfer_bps": transfer["delivered_bytes"] * 8 / (seconds - WARM_UP_S),
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

    def _judge(self, found: Cases) -> Answer:
        verdicts = [compared(found, load, each) for load in self.loads for each in CODED]
        best = decisive(verdicts)
        hosts = compared(found, best.load, WITH_HOSTS)
        beside = compared(found, best.load, best.variant, WITH_HOSTS)
        advised = advice(best, hosts, beside)
        chosen, claimed = (hosts, [hosts]) if advised == "hosts" else (best, verdicts)
        orders = [compared(found, load, UNORDERED, ADAPTIVE) for load in self.loads]
        with_plain = [
            compared(found, load, each) for load in self.loads for each in VARIANTS if each != PLAIN
        ]
        tables = {
            "coding": f"Means, small downloads of {format_size(SMALL_BYTES)}, loss after decoding",
            "coding changes": "Changes from the plain link",
            "coding costs": "Loss and costs",
        }
        rows = [_cells(found, *case) for case in found]
        summary, *others = (
            table(name, title, rows, key=2, group=1) for name, title in tables.items()
        )
        return Answer(
            facts={
                "compared": {
                    (load, *pair): compared(found, load, *pair)
                    for load in self.loads
                    for pair in _PAIRS
                },
                "claims": [
                    *((each.load, each.variant, PLAIN) for each in claimed),
                    (best.load, best.variant, WITH_HOSTS),
                ],
                "without_queue": self._without_queue(),
                "found": {load: found[load, PLAIN] for load in self.loads},
                "coded": found[best.load, best.variant],
                "verdicts": verdicts,
                "best": best,
                "hosts": hosts,
                "beside": beside,
                "chosen": chosen,
                "pep": compared(found, best.load, PEP),
                "over_pep": compared(found, best.load, PEP_ADAPTIVE, PEP),
                "beside_pep": compared(found, best.load, best.variant, PEP),
                "order": max(orders, key=lambda each: abs(each.total.percent.mean)),
                "totals": sorted(
                    (each for each in verdicts if each.variant == best.variant),
                    key=lambda each: each.total.percent.mean,
                ),
            },
            figures={
                "advice": advised,
                "decisive": {"load": best.load, "variant": best.variant, "verdict": best.kind},
                "loads": [_load_figures(found, load) for load in self.loads],
            },
            summary=summary,
            tables=others,
            charts=[_chart(measure, with_plain) for measure in ("total_bps", "small_p50_ns")],
        )

    def _without_queue(self) -> Coding | None:
        """Return the same question with the link's own queue, if another one was asked for."""
        settings = [each for each in self.settings if not each.startswith(_QUEUE)]
        if len(settings) == len(self.settings):
            return None
        return replace(self, settings=settings, queue=None)


def compared(found: Cases, load: int, variant: str, before: str = PLAIN) -> Verdict:
    """Return what changes from a variant to another at the same load.

    The intervals of all comparisons from which a headline chooses hold together.
    """
    count = len({load for load, _ in found}) * len(_PAIRS) * len(MEASURES)
    return Verdict.of(load, variant, found[load, before], found[load, variant], MEASURES, count)


def _load_figures(found: Cases, load: int) -> dict[str, Any]:
    """Return the cases at a load, and what changes between them."""
    others = [compared(found, load, name) for name in VARIANTS if name != PLAIN]
    over_hosts = [compared(found, load, name, WITH_HOSTS) for name in CODED]
    changes, over = (
        {each.variant: {"verdict": each.kind, **each.percents} for each in verdicts}
        for verdicts in (others, over_hosts)
    )
    return {
        "channels": load,
        "cases": {variant: found[load, variant].known() for variant in VARIANTS},
        "changes_percent": changes,
        "over_hosts_percent": over,
        "pep_adaptive_over_pep_percent": compared(found, load, PEP_ADAPTIVE, PEP).percents,
    }


def _cells(found: Cases, load: int, variant: str) -> dict[str, Any]:
    cells: dict[str, Any] = {**found[load, variant].means()}
    has_tunnel = VARIANTS[variant].tunnel is not None
    if not has_tunnel:
        cells["loss_before_percent"] = cells["link_loss_percent"]
    cells["loss_percent"] = cells["loss_after_percent" if has_tunnel else "link_loss_percent"]
    if variant != PLAIN:
        percents = compared(found, load, variant).percents
        cells |= {f"{measure}_change_percent": each for measure, each in percents.items()}
    return {"channels": load, "case": VARIANTS[variant].title, **cells}


def _chart(measure: str, verdicts: Sequence[Verdict]) -> Chart:
    changes = {
        f"{counted(each.load, 'channel')}, {VARIANTS[each.variant].title}": each.percents[measure]
        for each in verdicts
    }
    return Chart.bars(
        f"Change of the {MEASURES[measure]} from the plain link", "Change [%]", changes
    )


def _small_times_ns(result: Result, names: Sequence[str]) -> np.ndarray[Any, Any]:
    """Return the times of small downloads; one that has not ended has the time that it took."""
    small = [i for i, name in enumerate(names) if name.split("-")[0] == _SMALL]
    table = result.tables["exchanges"]
    stop_ns = result.plan["stop_ns"]
    begun = table.filter(
        table["flow"].is_in(small) & (table["start_ns"] < stop_ns - _LAST_S * NS_PER_S)
    )
    return times_ns(begun, stop_ns)


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
