"""The network of all runs, the cases that run on it, and the figures that they give."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from bentpipe.scenario import Scenario
from bentpipe.simulation import Outcome
from bentpipe.studies.base.inputs import read_scenario
from bentpipe.studies.base.work import Cell, Measured
from bentpipe.units import NS_PER_S

# The source's windows of 8 KB and 64 KB; without window scaling the most is 65,535 (RFC 7323, 2.2).
DEFAULT_WINDOW_BYTES: Final = 8 * 1024
TUNED_WINDOW_BYTES: Final = 65_535
# Calibrated, see inputs.csv; the other one is the most that Ethernet carries.
MSS_BYTES: Final = 512
LARGE_MSS_BYTES: Final = 1460
SITES: Final = 20
IMAGE_BYTES: Final = 512 * 512 * 2
# Of streams; assumed. Headers and framing add 6.6 % on the carrier.
STREAM_PAYLOAD_BYTES: Final = 1024


def hosts(window_bytes: int, mss_bytes: int) -> dict[str, Any]:
    """Return profile and TCP settings of hosts with this window and this MSS."""
    (fetch,) = read_scenario("hermes")["traffic"]
    tcp = {
        **fetch["tcp"],
        "mss": f"{mss_bytes} B",
        "window_scaling": window_bytes > TUNED_WINDOW_BYTES,
        "receive_buffer": f"{window_bytes} B",
    }
    return {"profile": fetch["profile"], "tcp": tcp}


def image(window_bytes: int, mss_bytes: int, **changes: Any) -> dict[str, Any]:
    """Return the fetch of the scenario file with these hosts and with changes."""
    (fetch,) = read_scenario("hermes")["traffic"]
    return {**fetch, **hosts(window_bytes, mss_bytes), **changes}


def bulk(window_bytes: int, mss_bytes: int, duration_s: float) -> dict[str, Any]:
    """Return a long transfer to the client with these hosts."""
    return {
        "name": "transfer",
        "kind": "bulk",
        "direction": "forward",
        "duration": f"{duration_s:g} s",
        **hosts(window_bytes, mss_bytes),
    }


def sessions(
    count: int, window_bytes: int, mss_bytes: int, duration_s: float
) -> list[dict[str, Any]]:
    """Return long transfers to the client that start one after the other; none if 0."""
    several = {"name": "session", "count": count, "start_spacing": "130 ms"}
    return [bulk(window_bytes, mss_bytes, duration_s) | several] if count else []


def scenario(
    traffic: Sequence[dict[str, Any]],
    *,
    duration_s: float,
    sample_s: float | None = None,
    **changes: Any,
) -> Scenario:
    """Return the network with other traffic and with changes."""
    return Scenario.from_dict(
        {
            **read_scenario("hermes"),
            "traffic": list(traffic),
            "duration": f"{duration_s:g} s",
            "sample_interval": None if sample_s is None else f"{sample_s:g} s",
            **changes,
        }
    )


@dataclass(frozen=True)
class Case(Cell):
    """What runs: settings are the fields of a derived class."""


Found = Measured[Case]


def stream(name: str, rate_kbps: int, payload_bytes: int, **more: Any) -> dict[str, Any]:
    """Return datagrams at a constant rate."""
    return {
        "name": name,
        "kind": "constant_rate",
        "direction": "forward",
        "rate": f"{rate_kbps} kbit/s",
        "payload": f"{payload_bytes} B",
        # Streams to several sites are copies of one.
        "start_jitter": "0 s",
        **more,
    }


def case_to_json(measured: Found, case: Case) -> dict[str, Any]:
    """Return a case, the means of its figures and, if stochastic, their 95 % intervals."""
    runs = list(measured[case].runs.values())
    figures = {name: measured[case][name] for name in (runs[0] if runs else ())}
    row = asdict(case) | {name: samples.mean for name, samples in figures.items()}
    if case.is_stochastic:
        ends = ((name, samples.interval) for name, samples in figures.items())
        row["intervals"] = {name: None if i is None else [i.low, i.high] for name, i in ends}
    return {**row, "runs": len(runs)}


def direction(outcome: Outcome, name: str, number: int) -> float:
    """Return one figure of a direction over the run: 0 is forward, 1 the client's ISDN line."""
    return float(outcome.column("directions", name)[number])


def loss_percent(sent: float, received: float) -> float:
    """Return the share of what was sent that did not arrive."""
    return 100 * (1 - received / sent) if sent else 0.0


def path_figures(outcome: Outcome, time_s: float) -> dict[str, float]:
    """Return utilization and loss of both directions, and the queue of the ISDN line."""
    samples = outcome.column("direction_samples", "direction") == 1
    queue = outcome.column("direction_samples", "queue_packets")[samples]
    figures = {"isdn_queue_packets_mean": float(queue.mean())}
    for number, name in enumerate(("forward", "isdn")):
        packets = direction(outcome, "received_packets", number)
        dropped = direction(outcome, "dropped_queue_full_packets", number)
        busy_ns = direction(outcome, "busy_ns", number)
        figures[f"{name}_busy_percent"] = 100 * busy_ns / NS_PER_S / time_s
        figures[f"{name}_loss_percent"] = loss_percent(packets, packets - dropped)
    return figures
