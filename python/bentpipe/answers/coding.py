"""Whether network coding pays, and what it costs.

A coded tunnel between the gateways sends repair: 10 % at once, 10 % while the queue has room
(titrated), or titrated and as much as the loss takes (adaptive), over a plain link and over a PEP.
First come other queues and BBR with larger buffers at the hosts, which need no tunnel. The answer
has gains and losses with intervals, costs in link bytes and delay, and the reason.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Final

import numpy as np

from bentpipe.answers.answer import Answer, table
from bentpipe.answers.catalog import Option
from bentpipe.answers.question import MAX_COUNT
from bentpipe.answers.traffic import median_and_p95, times_ns
from bentpipe.answers.variants import BESIDE, WARM_UP_S, Cases, VariantQuestion
from bentpipe.errors import UnitError, UsageError
from bentpipe.results.measures import rate_bps, tunnel_measures
from bentpipe.results.result import Result
from bentpipe.units import NS_PER_S, format_size, queue_limit

# 35 segments, 37 with the smaller segments of the tunnel: three rounds of slow start with both.
# Near the end of a round, such as 100 kB, a tunnel would cost a round trip by its headers alone.
SMALL_BYTES: Final = 50_000
# Small downloads that begin later are left out, so that the end of the run cuts off none that
# takes less than this.
_LAST_NS: Final = 10 * NS_PER_S
# At most these clients take small downloads, one for each 4 Mbit/s: a few percent of the link.
_CLIENTS: Final = (1, 4)
_CLIENT_BPS: Final = 4_000_000
_MAX_LOADS: Final = 4
_QUEUE: Final = "link.forward.queue.limit"

_TABLES: Final = {
    "coding": f"Means, small downloads of {format_size(SMALL_BYTES)}, loss after decoding",
    "coding changes": "Changes from the plain link",
    "coding costs": "Loss and costs",
}


@dataclass(kw_only=True, eq=False)
class Coding(VariantQuestion):
    """What coded tunnels change, beside a number of channels.

    Settings of ``gateways.*.tunnel`` and ``gateways.hub.pep`` apply to the runs with those
    functions.
    """

    loads: Annotated[
        Sequence[int],
        Option(
            "How many channels share the link: 1 to 4 numbers.", "N[,N...]", "--load", 0, MAX_COUNT
        ),
    ] = (0, 20, 60)
    queue: Annotated[
        str | None, Option("A limit of the forward queue, such as 120kB or 1bdp.", "LIMIT")
    ] = None

    examples = ("--link geo --queue 120kB", "--link geo --load 20 --set link.forward.loss=2%")
    # `delay` is of a titration that none has.
    differs: ClassVar = {"pep": (), "tunnel": ("redundancy", "titration", "delay", "order")}
    entries = ("users",)
    run_length = (960_000_000, 30, 60)  # 60 s at 16 Mbit/s
    seeds_max = 14  # an answer takes less than 30 s on two cores
    charted = ("total_bps", "small_p50_ns")
    tried = ("total_bps", "small_p50_ns")
    tries_queues = True
    more_pairs = (("pep_adaptive", "pep"),)

    @property
    def boxes(self) -> list[str]:
        """The tunnels without a PEP."""
        return [name for name, each in self.variants.items() if each.tunnel and not each.pep]

    def __post_init__(self) -> None:
        self.loads = sorted({*self.loads})
        if not 1 <= len(self.loads) <= _MAX_LOADS:
            raise UsageError(f"load: read {len(self.loads)} numbers; expected 1 to {_MAX_LOADS}")
        super().__post_init__()
        if self.queue is not None:
            try:
                queue_limit(self.queue)
            except UnitError as error:
                raise UsageError(f"queue: {error}") from None
            # From here on it is a setting, also in the command that asks again.
            self.settings, self.queue = [*self.settings, f"{_QUEUE}={self.queue}"], None

    def _traffic(self, load: int = 0) -> list[dict[str, Any]]:
        clients = int(np.clip(self.link_rate_bps // _CLIENT_BPS, *_CLIENTS))
        small = {"kind": "fetch", "count": clients, "size": f"{SMALL_BYTES} B"}
        small |= {"think": {"exponential": "1 s"}, "start_jitter": "1 s"}
        transfer = {"kind": "bulk", "duration": f"{self.seconds - WARM_UP_S} s"}
        return [
            {"name": "transfer", **BESIDE, **transfer},
            {"name": "small", **BESIDE, **small},
            *([{"name": "users", "kind": "channels", "channels": load}] if load else []),
        ]

    def _measure_flows(self, result: Result) -> dict[str, float]:
        flows, stop_ns = result.flows, result.plan["stop_ns"]
        small = flows.filter(flows["entry"] == "small")["flow"]
        exchanges = result.tables["exchanges"]
        exchanges = exchanges.filter(exchanges["flow"].is_in(small.implode()))
        # A download that has not ended counts with its age at the end of the run.
        small_p50_ns, small_p95_ns = median_and_p95(times_ns(exchanges, stop_ns, _LAST_NS))
        return {
            "total_bps": float(flows["delivered_bytes"].sum()) * 8 * NS_PER_S / stop_ns,
            "small_p50_ns": small_p50_ns,
            "small_p95_ns": small_p95_ns,
        }

    def _measure(self, result: Result) -> Mapping[str, float]:
        flows, stop_ns = result.flows, result.plan["stop_ns"]
        transfer, start_ns = flows.row(0, named=True), result.plan["flows"][0]["start_ns"]
        link = result.directions.row(0, named=True)
        # All other causes are drops of queue disciplines.
        errors, loss = link["dropped_bit_error_packets"], link["loss_percent"] or 0.0
        delivered_bytes = max(float(flows["delivered_bytes"].sum()), 1.0)
        return {
            **self._measure_flows(result),
            "transfer_bps": rate_bps(transfer["delivered_bytes"], stop_ns - start_ns).item(),
            "rtt_mean_ns": transfer["rtt_mean_ns"] or math.nan,
            "one_way_delay_max_ns": transfer["one_way_delay_max_ns"] or math.nan,
            "busy_percent": 100 * link["utilization"],
            "queue_empty_percent": link["queue_empty_percent"],
            # Those before and after decoding are others with a tunnel alone.
            **{f"{name}_percent": loss for name in ("link_loss", "loss_before", "loss_after")},
            "queue_drops": float(link["dropped_packets"] - errors),
            "error_losses": float(errors),
            "link_bytes_per_byte": link["sent_bytes"] / delivered_bytes,
            **tunnel_measures(result),
        }

    def _judge(self, measurements: Cases) -> Answer:
        answer, rows = super()._judge(measurements), self.rows(measurements)
        orders = [self.verdict(measurements, load, "unordered", "adaptive") for load in self.loads]
        own = [setting for setting in self.settings if not setting.startswith(_QUEUE)]
        more = {
            "order": max(orders, key=lambda verdict: abs(verdict.total.percent.mean)),
            # The same question with the link's own queue, if another one was asked for.
            "without_queue": replace(self, settings=own) if len(own) < len(self.settings) else None,
        }
        views = [table(name, title, rows, key=2, group=1) for name, title in _TABLES.items()]
        return replace(answer, facts={**answer.facts, **more}, summary=views[0], tables=views[1:])
