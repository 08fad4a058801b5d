"""Every table and column of a result, with unit and meaning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Column:
    """A column: its type (u8, u32, u64, f64), its unit, and what it means.

    A nullable column is null where the thing did not happen.
    """

    name: str
    dtype: str
    unit: str
    meaning: str
    nullable: bool = False


@dataclass(frozen=True)
class Table:
    """A table: what one row of it is, and its columns in order."""

    row: str
    columns: tuple[Column, ...]


# Why a direction drops a packet. A processor has one cause, ``processor_overload``, and its own
# table.
DROP_CAUSES: Final[Mapping[str, str]] = {
    "queue_full": "the queue was full",
    "bit_error": "bit error on the channel",
    "red": "random early detection",
    "codel": "CoDel, at the head of the queue",
    "early_packet_discard": "early packet discard",
    "selective_drop": "selective drop",
}
_UNITS: Final = {"packets": "packets", "bytes": "IP bytes"}
_HANDLED: Final = {
    "received": "Came in",
    "forwarded": "Sent on of what came in",
    "dropped": "Dropped, the buffer being full, of what came in",
}
_SIDES: Final = {"lan": "from the local network", "link": "from the link"}

TABLES: Final[Mapping[str, Table]] = {
    "flows": Table(
        "one flow over the whole run",
        (
            Column("flow", "u32", "index", "The flow, as an index into the plan's flows."),
            Column(
                "terminal", "u32", "index", "The terminal at its one end, in the plan's returns."
            ),
            Column("start_ns", "u64", "ns", "When the flow started."),
            Column(
                "established_ns", "u64", "ns", "When the handshake was done, at the sender.", True
            ),
            Column(
                "last_ack_ns",
                "u64",
                "ns",
                "Arrival of the last acknowledgement that covered new data.",
                True,
            ),
            Column(
                "finished_ns",
                "u64",
                "ns",
                "Bulk: all bytes acknowledged. Datagrams: last one sent. Exchanges: last one over.",
                True,
            ),
            Column("sent_bytes", "u64", "application bytes", "Sent, each byte counted once."),
            Column("acked_bytes", "u64", "application bytes", "Acknowledged to the sender."),
            Column(
                "delivered_bytes",
                "u64",
                "application bytes",
                "Delivered in order to the receiver; in a conference to this participant.",
            ),
            Column("first_delivery_ns", "u64", "ns", "First delivery to the receiver.", True),
            Column("last_delivery_ns", "u64", "ns", "Last delivery to the receiver.", True),
            Column(
                "sent_segments",
                "u64",
                "segments",
                "Data segments or datagrams sent, retransmissions included.",
            ),
            Column("retransmitted_segments", "u64", "segments", "Retransmitted data segments."),
            Column("timeouts", "u64", "events", "Retransmission timeouts."),
            Column("fast_recoveries", "u64", "events", "Entries into fast recovery."),
            Column("tail_loss_probes", "u64", "segments", "Tail loss probes sent (RFC 8985)."),
            Column(
                "spurious_timeouts",
                "u64",
                "events",
                "Of the timeouts, those found spurious and undone.",
            ),
            Column(
                "spurious_recoveries",
                "u64",
                "events",
                "Of the fast recoveries, those found spurious and undone.",
            ),
            Column("acks_sent", "u64", "segments", "Acknowledgements sent by the receiver."),
            Column(
                "received_segments",
                "u64",
                "segments",
                "Data segments or datagrams that reached the receiver.",
            ),
            Column(
                "rtt_ns_min", "u64", "ns", "Smallest round-trip time that the sender took.", True
            ),
            Column("rtt_ns_mean", "f64", "ns", "Mean of the sender's round-trip samples.", True),
            Column(
                "one_way_delay_ns_mean",
                "f64",
                "ns",
                "Mean time of a data packet from sender to receiver.",
                True,
            ),
            Column(
                "one_way_delay_ns_max",
                "u64",
                "ns",
                "Largest time of a data packet from sender to receiver.",
                True,
            ),
            Column(
                "exchanges", "u64", "exchanges", "Requests answered in full; 0 for other kinds."
            ),
        ),
    ),
    "flow_samples": Table(
        "one flow at one moment",
        (
            Column("time_ns", "u64", "ns", "The moment, from the start of the run."),
            Column("flow", "u32", "index", "The flow, as an index into the plan's flows."),
            Column("cwnd_bytes", "u64", "application bytes", "Congestion window."),
            Column(
                "ssthresh_bytes",
                "u64",
                "application bytes",
                "Slow-start threshold; null before the first loss.",
                True,
            ),
            Column("srtt_ns", "u64", "ns", "Smoothed round-trip time (RFC 6298).", True),
            Column(
                "in_flight_bytes", "u64", "application bytes", "Sent and not known to have arrived."
            ),
            Column("acked_bytes", "u64", "application bytes", "Acknowledged so far."),
            Column("delivered_bytes", "u64", "application bytes", "Delivered in order so far."),
        ),
    ),
    "direction_samples": Table(
        "one direction of the link at one moment",
        (
            Column("time_ns", "u64", "ns", "The moment, from the start of the run."),
            Column("direction", "u32", "name", "The direction, as an index into names.directions."),
            Column("queue_bytes", "u64", "IP bytes", "Waiting in the queue."),
            Column("queue_packets", "u64", "packets", "Waiting in the queue."),
            Column("in_flight_bytes", "u64", "IP bytes", "Sent and still propagating."),
            Column("sent_bytes", "u64", "link bytes", "Sent so far, framing included."),
            Column("sent_packets", "u64", "packets", "Sent so far."),
            Column("delivered_bytes", "u64", "IP bytes", "Delivered at the far end so far."),
            Column("marked_packets", "u64", "packets", "Marked by the queue so far (ECN)."),
            *(
                Column(f"dropped_packets_{cause}", "u64", "packets", f"Dropped so far: {why}.")
                for cause, why in DROP_CAUSES.items()
            ),
        ),
    ),
    "directions": Table(
        "one direction of the link over the whole run",
        (
            Column("direction", "u32", "name", "The direction, as an index into names.directions."),
            Column("received_packets", "u64", "packets", "Came in from the hosts."),
            Column("received_bytes", "u64", "IP bytes", "Came in from the hosts."),
            Column("sent_packets", "u64", "packets", "Left the transmitter."),
            Column("sent_bytes", "u64", "link bytes", "Left the transmitter, framing included."),
            Column("delivered_packets", "u64", "packets", "Delivered at the far end."),
            Column("delivered_bytes", "u64", "IP bytes", "Delivered at the far end."),
            Column("marked_packets", "u64", "packets", "Marked by the queue (ECN)."),
            Column("marked_bytes", "u64", "IP bytes", "Marked by the queue (ECN)."),
            *(
                Column(f"dropped_{unit}_{cause}", "u64", counted, f"Dropped: {why}.")
                for cause, why in DROP_CAUSES.items()
                for unit, counted in _UNITS.items()
            ),
            Column("held_packets", "u64", "packets", "Queued, being sent or in flight at the end."),
            Column("held_bytes", "u64", "IP bytes", "Queued, being sent or in flight at the end."),
            Column("busy_ns", "u64", "ns", "Time that the transmitter was sending."),
            Column("queue_bytes_max", "u64", "IP bytes", "The most that waited in the queue."),
        ),
    ),
    "processors": Table(
        "one packet processor of a gateway over the whole run",
        (
            Column("processor", "u32", "number", "0: the hub's; 1 + t: that of terminal t."),
            *(
                Column(f"{what}_{unit}_{side}", "u64", counted, f"{meaning} {came_in}.")
                for what, meaning in _HANDLED.items()
                for side, came_in in _SIDES.items()
                for unit, counted in _UNITS.items()
            ),
            Column("held_packets", "u64", "packets", "Waiting or being handled at the end."),
            Column("held_bytes", "u64", "IP bytes", "Waiting or being handled at the end."),
            Column("busy_ns", "u64", "ns", "Time that the processor was handling packets."),
        ),
    ),
    "function_statistics": Table(
        "one count of one gateway function over the whole run",
        (
            Column("place", "u32", "name", "The function, as an index into names.places."),
            Column("statistic", "u32", "name", "What was counted, in names.statistics."),
            Column("value", "u64", "see name", "The count; its unit ends the statistic's name."),
        ),
    ),
    "exchanges": Table(
        "one request and its response, in the order of their starts",
        (
            Column("flow", "u32", "index", "The flow, as an index into the plan's flows."),
            Column("exchange", "u64", "number", "Counts the exchanges of the flow from 0."),
            Column("start_ns", "u64", "ns", "When the client opened or asked."),
            Column(
                "established_ns",
                "u64",
                "ns",
                "When the connection that it opened was there, at the client; null on a kept one.",
                True,
            ),
            Column(
                "first_byte_ns", "u64", "ns", "First byte of the response, at the client.", True
            ),
            Column("finished_ns", "u64", "ns", "Last byte of the response, at the client.", True),
            Column("request_bytes", "u64", "application bytes", "The request."),
            Column("response_bytes", "u64", "application bytes", "The response."),
        ),
    ),
    "events": Table(
        "one step of one packet; only when the scenario asks for packet events",
        (
            Column("time_ns", "u64", "ns", "When it happened."),
            Column("place", "u32", "name", "Where, as an index into names.places."),
            Column("kind", "u8", "name", "What happened, as an index into names.event_kinds."),
            Column("cause", "u8", "name", "Why it was dropped, in names.drop_causes.", True),
            Column("flow", "u32", "index", "The flow, as an index into the plan's flows."),
            Column("packet", "u64", "number", "The packet's number within the run."),
            Column("bytes", "u64", "IP bytes", "The packet's size."),
        ),
    ),
}
