"""The network that all runs share, and what is measured the same way in several parts."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from bentpipe.plan.resolver import from_dict, load
from bentpipe.plan.types import Plan
from bentpipe.scenario.schema import Scenario

if TYPE_CHECKING:
    from bentpipe.simulation.many import Outcome

# The windows of the source; without the window scale option 65,535 bytes is the most there is.
DEFAULT_WINDOW_BYTES: Final = 8 * 1024
TUNED_WINDOW_BYTES: Final = 65_535
# See network.yaml: what a 4.4BSD host sends to another network, and the most that Ethernet carries.
MSS_BYTES: Final = 512
LARGE_MSS_BYTES: Final = 1460
SITES: Final = 20
IMAGE_BYTES: Final = 512 * 512 * 2
# The size of the streams' datagrams is ours; headers and framing add 6.6 % on the carrier.
STREAM_PAYLOAD_BYTES: Final = 1024
NS_PER_S: Final = 1_000_000_000


class Network:
    """The scenario file of the study, from which every run is made."""

    def __init__(self) -> None:
        self.data = load(Path(__file__).parent / "network.yaml").to_dict()

    def hosts(self, window_bytes: int, mss_bytes: int = MSS_BYTES) -> dict[str, Any]:
        """Return profile and TCP settings of hosts with such a window and such segments."""
        (image,) = self.data["traffic"]
        tcp = {
            **image["tcp"],
            "mss": f"{mss_bytes} B",
            "window_scaling": window_bytes > TUNED_WINDOW_BYTES,
            "receive_buffer": f"{window_bytes} B",
        }
        return {"profile": image["profile"], "tcp": tcp}

    def image(
        self, window_bytes: int, mss_bytes: int = MSS_BYTES, **changes: Any
    ) -> dict[str, Any]:
        """Return a fetch like the scenario file's, with such hosts and with changes."""
        (image,) = self.data["traffic"]
        return {**copy.deepcopy(image), **self.hosts(window_bytes, mss_bytes), **changes}

    def scenario(
        self, traffic: Sequence[dict[str, Any]], *, duration_s: float, sample_s: float | None = None
    ) -> Scenario:
        """Return the network with other traffic."""
        return from_dict(self.with_traffic(traffic, duration_s=duration_s, sample_s=sample_s))

    def with_traffic(
        self, traffic: Sequence[dict[str, Any]], *, duration_s: float, sample_s: float | None
    ) -> dict[str, Any]:
        """Return the same as plain data, to be changed further."""
        data = copy.deepcopy(self.data)
        data["traffic"] = list(traffic)
        data["duration"] = f"{duration_s:g} s"
        data["sample_interval"] = None if sample_s is None else f"{sample_s:g} s"
        return data


class Case(Protocol):
    """One thing to run: settings in its fields, and what is measured of a run."""

    @property
    def chance(self) -> bool:
        """Whether a run draws chance, so that several are needed."""

    def plan(self, network: Network, seed: int) -> Plan:
        """Return the complete plan; only what staggers the starts depends on the seed."""

    def measure(self, outcome: Outcome) -> dict[str, float]:
        """Return the figures of one run; their names end in the unit."""


class Found:
    """The figures of all runs that were done, by case."""

    def __init__(self) -> None:
        self._runs: dict[Case, list[dict[str, float]]] = {}

    def add(self, case: Case, figures: dict[str, float]) -> None:
        """Add what one run gave."""
        self._runs.setdefault(case, []).append(figures)

    def runs(self, case: Case) -> int:
        """Return how many runs of a case were done."""
        return len(self._runs.get(case, ()))

    def mean(self, case: Case, figure: str) -> float | None:
        """Return the mean over the runs of a case; None without a run."""
        values = [each[figure] for each in self._runs.get(case, ())]
        return float(np.mean(values)) if values else None

    def stdev(self, case: Case, figure: str) -> float | None:
        """Return the standard deviation of one run; None with fewer than two."""
        values = [each[figure] for each in self._runs.get(case, ())]
        return float(np.std(values, ddof=1)) if len(values) > 1 else None

    def row(self, case: Case) -> dict[str, Any]:
        """Return a case and its figures as plain data; deviations only where there is chance."""
        figures = self._runs.get(case, [{}])[0]
        row = {**asdict(case), **{name: self.mean(case, name) for name in figures}}  # type: ignore[call-overload]  # cases are dataclasses
        if case.chance:
            row["stdev"] = {name: self.stdev(case, name) for name in figures}
        return {**row, "runs": self.runs(case)}


def stagger(plan: Plan, prefix: str, within_ns: int, seed: int) -> Plan:
    """Let each flow whose name begins so start at a moment of its own, drawn from 0 to within."""
    draws = np.random.default_rng(seed)
    for flow in plan["flows"]:
        if flow["name"].startswith(prefix):
            flow["start_ns"] = int(draws.integers(within_ns))
    return plan


def steady_bps(outcome: Outcome, flows: Sequence[int], from_s: float, until_s: float) -> float:
    """Return what TCP flows delivered together between two samples, in application bit/s."""
    time_ns = outcome.column("flow_samples", "time_ns")
    flow = outcome.column("flow_samples", "flow")
    delivered = outcome.column("flow_samples", "delivered_bytes").astype(np.float64)
    ours = np.isin(flow, list(flows))

    def so_far(at_s: float) -> float:
        return float(delivered[ours & (time_ns == round(at_s * NS_PER_S))].sum())

    return (so_far(until_s) - so_far(from_s)) * 8 / (until_s - from_s)


def direction(outcome: Outcome, name: str, number: int) -> float:
    """Return one figure of a direction over the run: 0 is forward, 1 the client's ISDN line."""
    return float(outcome.column("directions", name)[number])


def lost_percent(sent: float, received: float) -> float:
    """Return the share of what was sent that did not arrive."""
    return 100 * (1 - received / sent) if sent else 0.0


def path_figures(outcome: Outcome, time_s: float) -> dict[str, float]:
    """Return how full both directions were over the run, and what became of the ACKs."""
    samples = outcome.column("direction_samples", "direction") == 1
    waiting = outcome.column("direction_samples", "queue_packets")[samples]
    acks = direction(outcome, "received_packets", 1)
    lost = direction(outcome, "dropped_queue_full_packets", 1)
    return {
        "forward_busy_percent": 100 * direction(outcome, "busy_ns", 0) / NS_PER_S / time_s,
        "isdn_busy_percent": 100 * direction(outcome, "busy_ns", 1) / NS_PER_S / time_s,
        "isdn_loss_percent": lost_percent(acks, acks - lost),
        "isdn_queue_packets_mean": float(waiting.mean()),
        "forward_loss_percent": lost_percent(
            direction(outcome, "received_packets", 0),
            direction(outcome, "received_packets", 0)
            - direction(outcome, "dropped_queue_full_packets", 0),
        ),
    }
