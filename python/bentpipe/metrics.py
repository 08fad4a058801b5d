"""The metrics of a run: the columns of its tables that are shown, and those that Python derives.

This is the only list of them. Thresholds, `Result.flows` and the like, entries of ``traffic``,
means of sweeps, comparisons, tables and menus read it: a new metric is one entry here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal, TypeAlias

from bentpipe import _core
from bentpipe.quantities import quantity, title

ShownIn: TypeAlias = Literal["run", "entry", "sweep", "compare", "dashboard"]

# Kinds of flow.
ALL: Final[tuple[str, ...]] = ()
TCP: Final = ("bulk", "request_response", "video", "web_page", "channel")
UDP: Final = ("constant_rate", "voice", "conference")
EXCHANGES: Final = ("request_response", "channel")
PAGES: Final = ("web_page",)
VIDEO: Final = ("video",)
CALLS: Final = ("voice",)
# The tables with rows of flows of some kinds.
KINDS_OF_ROWS: Final[Mapping[str, tuple[str, ...]]] = {
    "exchanges": ("request_response", "video", "channel"),
    "pages": PAGES,
}
# Kinds of gateway function.
AGGREGATORS: Final = ("aggregator",)
TUNNELS: Final = ("tunnel",)
PEPS: Final = ("pep",)


@dataclass(frozen=True)
class Metric:
    """A column of a table, with what a person reads about it.

    ``name`` ends in the unit. ``title`` and ``note`` are the two lines of a heading: the note is
    the layer of the unit, or of what a share is. ``shown`` has the places that show the metric:

    - ``run``: the tables of a run, and ``optional`` ones only if a row has a value other than 0;
    - ``entry``: percentiles over the flows of an entry of ``traffic``;
    - ``sweep``: the means of the cells of a sweep, of directions those of forward;
    - ``compare``: what `bentpipe.compare` compares by default;
    - ``dashboard``: the first ones of a menu that has all.

    ``better`` says which values are better, if that is clear. ``kinds`` are the kinds of flow, or
    of gateway function, in whose tables it is shown; `ALL` for any.

    A metric that is no column of the simulator is derived: by ``formula``, an SQL expression of
    columns of its row; or as a statistic ``of`` the rows that its flow has in another table, such
    as ``exchanges.time_ns.p95``; or in code (`bentpipe.results.tables`). A formula may use further
    columns: ``run_ns``, the time of the run; in ``flows`` also ``size_bytes``, the size of a
    transfer that has one; in ``functions`` ``offered_bytes``, the IP bytes that the direction away
    from the function received. ``decimals`` are those of a number without a unit, in tables.
    """

    table: str
    name: str
    title: str
    note: str = ""
    shown: str = ""
    better: Literal["", "higher", "lower"] = ""
    kinds: tuple[str, ...] = ALL
    formula: str = ""
    of: str = ""
    definition: str = ""
    optional: bool = False
    decimals: int | None = None

    @property
    def is_derived(self) -> bool:
        """Whether Python computes it."""
        columns = COLUMNS.get(self.table)
        return bool(self.formula) if columns is None else self.name not in columns

    @property
    def label(self) -> str:
        """Title and note in a line, such as "goodput, application bits"."""
        unit = quantity(self.name).units[-1][0]
        return self.title if self.note in {"", unit} else f"{self.title}, {self.note}"


# The columns of the simulator's tables.
COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    table: tuple(column[0] for column in columns) for table, _, columns in _core.table_schema()
}
_LOST: Final = [name for name in COLUMNS["flows"] if re.fullmatch("lost_.*_packets", name)]
_LIMITED: Final = [name for name in COLUMNS["flows"] if name.endswith("_limited_ns")]
_DROPPED: Final = [f"dropped_{cause}_packets" for cause in _core.drop_causes()]
# Dropped for a usual cause: shown also if there were none.
_USUAL: Final = ("dropped_queue_full_packets", "dropped_bit_error_packets")
# The parts of the time of a TCP flow, in the order of tables and bars.
CAPACITY_PARTS: Final[Mapping[str, str]] = {
    part: {"headers": "headers, framing", "in_flight": "not yet delivered"}.get(part, title(part))
    for part in (
        *("goodput", "headers", "handshake", "slow_start", "congestion_avoidance", "window_limit"),
        *("loss_recovery", "other_traffic", "application_idle", "packet_processor", "access_line"),
        *("outage", "in_flight", "last_delay"),
    )
}


def _cause(name: str) -> str:
    """Return the title of a count of packets by cause: "lost: queue full"."""
    kind, _, cause = name.removesuffix("_packets").partition("_")
    return f"{kind}: {cause.replace('_', ' ')}"


def _percent(part: str, whole: str) -> str:
    """Return the formula of ``part`` in percent of ``whole``, null where that is 0."""
    return f"100 * ({part}) / nullif({whole}, 0)"


_lost, _dropped, _limited = " + ".join(_LOST), " + ".join(_DROPPED), " + ".join(_LIMITED)
_flow: Final = partial(Metric, "flows")
_direction: Final = partial(Metric, "directions")
_processor: Final = partial(Metric, "processors")
_function: Final = partial(Metric, "functions")
_leg: Final = partial(Metric, "legs")
_EVERYWHERE: Final = "run entry sweep compare dashboard"

# fmt: off
METRICS: tuple[Metric, ...] = (
    _flow("goodput_bps", "goodput", "application bits", _EVERYWHERE, "higher",
          definition="Application data delivered in order, over the time of the flow."),
    _flow("delivered_bytes", "delivered", "application bytes", "run", "higher", TCP),
    _flow("sent_segments", "sent", "segments", "run", "", TCP),
    _flow("expected_segments", "expected", "datagrams", "run", "", UDP),
    _flow("received_segments", "received", "datagrams", "run", "higher", UDP),
    _flow("lost_packets", "lost", "packets", "run", "lower", UDP, _lost,
          definition="Lost on the way to the receiver, for any cause; null if one is unknown."),
    _flow("loss_percent", "loss", "of expected", _EVERYWHERE, "lower", UDP,
          _percent(_lost, "expected_segments"),
          definition="Lost datagrams of those sent to the receiver."),
    _flow("retransmitted_segments", "retransmitted", "segments", "run", "lower", TCP),
    _flow("retransmitted_percent", "retransmitted", "of sent", "entry sweep compare dashboard",
          "lower", TCP, f"CASE WHEN kind IN {TCP} "
          f"THEN {_percent('retransmitted_segments', 'sent_segments')} END",
          definition="Retransmitted data segments of those sent."),
    _flow("timeouts", "timeouts", "events", "run", "lower", TCP),
    _flow("fast_recoveries", "fast recoveries", "events", "run", "lower", TCP),
    _flow("rtt_min_ns", "RTT min", "at the sender", "run", "lower", TCP),
    _flow("rtt_mean_ns", "RTT mean", "at the sender", "run", "lower", TCP),
    _flow("jitter_ns", "jitter at the end", "RFC 3550", "run entry", "lower", UDP),
    _flow("jitter_mean_ns", "jitter mean", "RFC 3611", "run entry compare", "lower", UDP),
    _flow("one_way_delay_mean_ns", "delay mean", "one way", "run entry", "lower"),
    _flow("one_way_delay_p50_ns", "delay p50", "one way", "run compare", "lower", UDP),
    _flow("one_way_delay_p95_ns", "delay p95", "one way", _EVERYWHERE, "lower", UDP),
    _flow("one_way_delay_p99_ns", "delay p99", "one way", "run entry compare", "lower", UDP),
    _flow("one_way_delay_max_ns", "delay max", "one way", "run", "lower", TCP),
    _flow("completion_time_ns", "completion time", "of a transfer", "sweep compare dashboard",
          "lower", TCP, "CASE WHEN size_bytes IS NOT NULL THEN finished_ns - start_ns END",
          definition="From start to end of a transfer of a given size."),
    _flow("finished_ns", "finished", "time of the run", "run", "lower", TCP),
    *(_flow(name, _cause(name), "packets", "run", "lower", optional=True) for name in _LOST),
    _flow("idle_percent", "idle", "of time", "entry", "", TCP,
          _percent("application_limited_ns", _limited),
          definition="Time for which TCP had nothing to send, of the time of its connections."),
    _flow("start_up_time_ns", "start-up", "to the first frame", _EVERYWHERE, "lower", VIDEO),
    _flow("stalls", "stalls", "events", "run entry", "lower", VIDEO),
    _flow("stalled_ns", "stalled", "time", "run entry", "lower", VIDEO),
    _flow("stall_ratio_percent", "stall ratio", "of stalled and played", _EVERYWHERE,
          "lower", VIDEO, "CASE WHEN start_up_time_ns IS NULL AND played_ns IS NOT NULL "
          f"THEN 100.0 ELSE {_percent('stalled_ns', 'stalled_ns + played_ns')} END",
          definition="Stalls in the time after the first frame; 100 % of a video without one."),
    _flow("played_ns", "played", "media", "run", "higher", VIDEO),
    _flow("exchanges", "finished", "exchanges", "run", "higher", EXCHANGES),
    _flow("exchange_time_median_ns", "exchange time p50", "at the client", "run compare",
          "lower", EXCHANGES, of="exchanges.time_ns.p50",
          definition="Median time of the finished exchanges."),
    _flow("exchange_time_p95_ns", "exchange time p95", "at the client", "run compare",
          "lower", EXCHANGES, of="exchanges.time_ns.p95",
          definition="95th percentile of the times of the finished exchanges."),
    _flow("page_load_time_p50_ns", "load time p50", "from the click", "run compare",
          "lower", PAGES, of="pages.load_time_ns.p50",
          definition="Median load time of the finished pages."),
    _flow("page_load_time_p95_ns", "load time p95", "from the click", "run sweep compare",
          "lower", PAGES, of="pages.load_time_ns.p95",
          definition="95th percentile of the load times of the finished pages."),
    _flow("page_load_time_p99_ns", "load time p99", "from the click", "run",
          "lower", PAGES, of="pages.load_time_ns.p99",
          definition="99th percentile of the load times of the finished pages."),
    _flow("mos", "MOS", "1 to 4.5", _EVERYWHERE, "higher", CALLS, decimals=2,
          definition="Mean opinion score of a call by ITU-T G.107, without echo."),
    _flow("r_factor", "R", "0 to 93", "run entry", "higher", CALLS, decimals=1,
          definition="R, the rating of a call by ITU-T G.107."),
    _flow("delay_impairment", "Idd", "delay, of R", "run entry", "lower", CALLS, decimals=1,
          definition="Idd, the part of R that delay costs."),
    _flow("loss_impairment", "Ie,eff", "codec, loss, of R", "run entry", "lower", CALLS,
          decimals=1, definition="Ie,eff, the part of R that codec and loss cost."),
    _flow("mouth_to_ear_ns", "mouth to ear", "delay", "run entry", "lower", CALLS,
          definition="Play-out delay and the delay of the codec."),
    _flow("unplayed_percent", "not played", "of expected", "run entry", "lower", CALLS,
          definition="Datagrams lost, or late for the jitter buffer, of those sent."),
    _flow("late_packets", "late", "datagrams", "run", "lower", CALLS),
    Metric("exchanges", "time_ns", "time", "at the client", "entry", "lower",
           formula="finished_ns - start_ns",
           definition="From start to end; null if the run ended earlier."),
    Metric("pages", "load_time_ns", "load time", "from the click", "entry", "lower",
           formula="finished_ns - start_ns",
           definition="From the click to the last byte; null if the run ended earlier."),
    _direction("utilization", "utilization", "busy time / run", "run sweep compare dashboard",
               formula="busy_ns / run_ns", definition="Busy time over that of the run, 0 to 1."),
    _direction("dropped_packets", "dropped", "packets", "", "lower", formula=_dropped,
               definition="Dropped for any cause."),
    _direction("loss_percent", "loss", "of received packets", "run compare dashboard", "lower",
               formula=_percent(_dropped, "received_packets"),
               definition="Dropped packets of those received from the gateway."),
    *(_direction(name, _cause(name), "packets", "run", "lower", optional=name not in _USUAL)
      for name in _DROPPED),
    _direction("sent_bytes", "sent", "link bytes", "run"),
    _direction("sent_packets", "sent", "packets", "run"),
    _direction("delivered_packets", "delivered", "packets", "run", "higher"),
    _direction("delivered_bytes", "delivered", "IP bytes", "run", "higher"),
    _direction("held_packets", "held at the end", "packets", "run"),
    _direction("queue_max_bytes", "largest queue", "IP bytes", "run compare dashboard", "lower"),
    *(_direction(f"queue_delay_{p}_ns", f"queue delay {p}", "of packets", "run compare", "lower")
      for p in ("p50", "p95", "p99")),
    *(_direction(f"queue_{state}_percent", f"queue {state}", "of time", "run",
                 formula=_percent(f"queue_{state}_ns", "run_ns"), definition=definition)
      for state, definition in (
          ("empty", "Time for which no packet waited, of that of the run."),
          ("full", "Time for which a packet would have found no room, of that of the run."))),
    _processor("utilization", "utilization", "busy time / run", "run",
               formula="busy_ns / run_ns", definition="Busy time over that of the run, 0 to 1."),
    _processor("received_lan_packets", "received from its network", "packets", "run"),
    _processor("dropped_lan_packets", "dropped from its network", "packets", "run", "lower"),
    _processor("received_link_packets", "received from the link", "packets", "run"),
    _processor("dropped_link_packets", "dropped from the link", "packets", "run", "lower"),
    _processor("held_packets", "held at the end", "packets", "run"),
    *(Metric("attribution", f"{part}_percent", title, "of capacity", "run", optional=True)
      for part, title in CAPACITY_PARTS.items()),
    _function("sent_frames", "sent", "frames", "run", "", AGGREGATORS),
    _function("packed_packets", "in frames", "packets", "run", "", AGGREGATORS),
    _function("single_packets", "sent alone", "packets", "run", "", AGGREGATORS),
    _function("hold_time_mean_ns", "hold time mean", "of packets that waited", "run", "lower",
              AGGREGATORS, "hold_time_sum_ns / nullif(packed_packets + single_packets, 0)",
              definition="Mean hold time of the packets that waited."),
    _function("hold_time_max_ns", "hold time max", "of packets that waited", "run", "lower",
              AGGREGATORS),
    _function("sources_sent_packets", "sent: coded", "packets", "run", "", TUNNELS),
    _function("uncoded_packets", "sent: uncoded", "packets", "run", "", TUNNELS),
    _function("repairs_sent_packets", "sent: repair", "packets", "run", "", TUNNELS),
    _function("repair_share_percent", "sent: repair", "of IP bytes", "run", "", TUNNELS,
              _percent("repairs_sent_bytes", "offered_bytes"),
              definition="Repair of the bytes that were offered to the direction."),
    _function("loss_before_percent", "received: loss", "of coded packets", "run", "", TUNNELS,
              _percent("sources_lost_packets", "sources_received_packets + sources_lost_packets"),
              definition="Coded packets of the other end that did not arrive."),
    _function("loss_after_percent", "after decoding", "of coded packets", "run", "lower", TUNNELS,
              _percent("sources_lost_packets - recovered_packets",
                       "sources_received_packets + sources_lost_packets"),
              definition="Coded packets of the other end that were not recovered either."),
    _function("redundancy_percent", "redundancy", "of coded packets", "", "", TUNNELS,
              _percent("repairs_sent_packets", "sources_sent_packets"),
              definition="Repair packets over coded packets."),
    _function("recovered_packets", "recovered", "packets", "run", "higher", TUNNELS),
    _function("order_wait_mean_ns", "order wait mean", "of packets that waited", "run", "lower",
              TUNNELS, "order_wait_sum_ns / nullif(order_waited_packets, 0)",
              definition="Mean time that packets waited for those before them."),
    _function("order_wait_max_ns", "order wait max", "of packets that waited", "run", "lower",
              TUNNELS),
    _function("split_connections", "split", "connections", "run", "", PEPS),
    _function("unsplit_connections", "passed unsplit", "connections", "run", "", PEPS),
    _function("refused_connections", "refused", "connections", "run", "lower", PEPS),
    _function("reset_connections", "reset", "connections", "run", "lower", PEPS),
    _function("max_open_connections", "open at most", "connections", "run", "", PEPS),
    _function("max_buffered_bytes", "relay held at most", "application bytes", "run", "", PEPS),
    _leg("delivered_bytes", "delivered", "application bytes", "run", "higher"),
    _leg("sent_segments", "sent", "data segments", "run"),
    _leg("retransmitted_segments", "retransmitted", "data segments", "run", "lower"),
    _leg("rtt_min_ns", "RTT min", "at its sender", "run", "lower"),
    _leg("rtt_mean_ns", "RTT mean", "at its sender", "run", "lower"),
    # Shown nowhere: for thresholds, JSON and the end of the menu.
    *(Metric(table, name, title(name)) for table, names in {
        "flows": "start_ns established_ns last_ack_ns sent_bytes acked_bytes first_delivery_ns "
        "last_delivery_ns retransmitted_bytes tail_loss_probes spurious_timeouts "
        f"spurious_recoveries acks_sent play_out_delay_ns loss_bursts {' '.join(_LIMITED)}",
        "exchanges": "start_ns established_ns first_byte_ns finished_ns request_bytes "
        "response_bytes",
        "pages": "start_ns resolved_ns established_ns first_byte_ns document_ns finished_ns "
        "objects connections response_bytes",
        "directions": "received_packets received_bytes marked_packets marked_bytes held_bytes "
        "busy_ns queue_empty_ns queue_full_ns "
        + " ".join(name.replace("_packets", "_bytes") for name in _DROPPED),
        "processors": "received_lan_bytes received_link_bytes forwarded_lan_packets "
        "forwarded_lan_bytes forwarded_link_packets forwarded_link_bytes dropped_lan_bytes "
        "dropped_link_bytes held_bytes busy_ns",
    }.items() for name in names.split()),
)
# fmt: on

# The columns that name or number a row, in the tables that metrics of runs are read from.
KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "flows": ("flow", "terminal"),
    "exchanges": ("flow", "exchange", "host"),
    "pages": ("flow", "page"),
    "directions": ("direction",),
    "processors": ("processor",),
}


def metrics_of(table: str) -> dict[str, Metric]:
    """Return the metrics of a table by name."""
    return {metric.name: metric for metric in METRICS if metric.table == table}


def label_of(column: str) -> str:
    """Return the label of a column of some table; its name in words if it is no metric."""
    return next((each.label for each in METRICS if each.name == column), title(column))


def metrics_shown(place: ShownIn, table: str, *kinds: tuple[str, ...]) -> list[Metric]:
    """Return the metrics of a table that a place shows; with ``kinds`` those that have one of them.

    ``metrics_shown("run", "flows", ALL, TCP)`` are the columns of the table of TCP flows.
    """
    return [
        metric
        for metric in METRICS
        if metric.table == table
        and place in metric.shown.split()
        and (not kinds or metric.kinds in kinds)
    ]
