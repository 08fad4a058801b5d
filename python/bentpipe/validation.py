"""The model against the kernel: the same points in both engines, and how far apart they are.

A point is a link, a congestion control and a number of bulk flows. The kernel runs it in real time,
the simulator with many seeds. Goodput, mean queue and retransmissions of both are compared.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from bentpipe.errors import UsageError
from bentpipe.sweep import Job, run_many

if TYPE_CHECKING:
    from bentpipe.results import Result

CONTROLS: Final = ("reno", "cubic", "bbr")
FLOWS: Final = (1, 2, 8)
# The ends of each range and the geometric mean between them.
_SMALL: Final[dict[str, tuple[float, ...]]] = {
    "rate_mbps": (1, 7, 50),
    "rtt_ms": (20, 110, 600),
    "queue_bdp": (0.1, 0.45, 2),
    "loss": (0, 0.001, 0.01),
}
# Five levels each, as far apart as they can be evenly (of loss: decades).
_FULL: Final[dict[str, tuple[float, ...]]] = {
    "rate_mbps": (1, 2.7, 7, 19, 50),
    "rtt_ms": (20, 47, 110, 260, 600),
    "queue_bdp": (0.1, 0.21, 0.45, 0.95, 2),
    "loss": (0, 0.0001, 0.0003, 0.001, 0.01),
}
# A queue that does not hold one initial window is no device's.
LEAST_QUEUE_BYTES: Final = 15_000
PACKET_BYTES: Final = 1_500
# Above rate x RTT and the queue of any point, so that no buffer is what limits a flow.
_BUFFER: Final = "64 MiB"
# Flows that start at the same instant would move in step.
_SPACING_MS: Final = 100
SEEDS: Final = 20
_BITS_PER_BYTE: Final = 8


@dataclass(frozen=True, kw_only=True)
class Point:
    """One point of the grid. ``loss`` is the chance that a full packet is lost on the way there.

    ``queue_bdp`` is in units of rate x RTT, of which it is at least `LEAST_QUEUE_BYTES`.
    """

    number: int
    control: str
    rate_mbps: float
    rtt_ms: float
    queue_bdp: float
    loss: float
    flows: int

    @property
    def queue_bytes(self) -> int:
        """The limit of the queue, in bytes at the IP layer."""
        product_bytes = self.rate_mbps * 1e3 * self.rtt_ms / _BITS_PER_BYTE
        return max(LEAST_QUEUE_BYTES, round(self.queue_bdp * product_bytes))

    def scenario(self, seconds: float) -> dict[str, Any]:
        """Return the point as a scenario that runs for so long."""
        bits = PACKET_BYTES * _BITS_PER_BYTE
        errors = -math.expm1(math.log1p(-self.loss) / bits) if self.loss else 0.0
        way = {"rate": f"{self.rate_mbps:g} Mbit/s", "delay": f"{self.rtt_ms / 2:g} ms"}
        tcp = {
            "send_buffer": _BUFFER,
            "receive_buffer": _BUFFER,
            "receive_buffer_initial": "64 KiB",
            "receive_buffer_counts": "window",
        }
        return {
            "name": f"validation point {self.number}",
            "link": {
                "forward": {
                    **way,
                    "framing": "0 B",
                    "queue": {"limit": f"{self.queue_bytes} B"},
                    "bit_error_rate": errors,
                },
                "return": {**way, "framing": "0 B", "queue": {"limit": "1 MB"}},
            },
            "traffic": [
                {
                    "kind": "bulk",
                    "direction": "forward",
                    "duration": f"{seconds * 1e3:g} ms",
                    "count": self.flows,
                    "start_spacing": f"{_SPACING_MS} ms",
                    "tcp": {"congestion_control": self.control, **tcp},
                }
            ],
            "duration": f"{seconds * 1e3:g} ms",
        }


def grid(name: str) -> list[Point]:
    """Return the points of a grid: ``small``, 27, or ``full``, 225.

    Both are orthogonal arrays (Rao 1947), fixed here: any two levels of any two quantities meet
    equally often. ``small`` has three levels of each of six quantities, by six linear forms over
    the integers modulo 3, no two of which are proportional; ``full`` five levels of four, by forms
    modulo 5, for each congestion control and number of flows.

    Raises:
        UsageError: there is no such grid.
    """
    if name == "small":
        rows = [
            (a, b, c, (a + b + c) % 3, (a + 2 * b) % 3, (b + 2 * c) % 3)
            for a, b, c in itertools.product(range(3), repeat=3)
        ]
        return [
            _point(number, _SMALL, levels, CONTROLS[control], FLOWS[flows])
            for number, (*levels, flows, control) in enumerate(rows, start=1)
        ]
    if name == "full":
        plane = [
            (a, b, (a + b) % 5, (a + 2 * b) % 5) for a, b in itertools.product(range(5), repeat=2)
        ]
        whole = itertools.product(CONTROLS, FLOWS, plane)
        return [
            _point(number, _FULL, levels, control, flows)
            for number, (control, flows, levels) in enumerate(whole, start=1)
        ]
    raise UsageError(f'grid: read "{name}"; allowed are "small" and "full"')


def _point(
    number: int,
    ranges: dict[str, tuple[float, ...]],
    levels: Iterable[int],
    control: str,
    flows: int,
) -> Point:
    values = {
        name: choices[level] for (name, choices), level in zip(ranges.items(), levels, strict=True)
    }
    return Point(number=number, control=control, flows=flows, **values)


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What one run with a seed gave.

    ``goodput_bps`` is of all flows together, from the first SYN to the end of the run, slow start
    included. ``queue_ms`` is the mean time that what waited forward took to be sent.
    """

    seed: int
    goodput_bps: float
    queue_ms: float
    retransmitted_segments: int
    sent_segments: int


def figures_of(result: Result, point: Point) -> Figures:
    """Return the figures of a run of a point, by either engine."""
    from bentpipe.metrics import joint_goodput_bps

    flows, samples = result.tables["flows"], result.tables["direction_samples"]
    waiting = samples.filter(samples["direction"] == 0)["queue_bytes"].to_numpy()
    return Figures(
        seed=int(result.manifest["seed"]),
        goodput_bps=joint_goodput_bps(result, range(point.flows)),
        queue_ms=_drain_ms(waiting, point),
        retransmitted_segments=int(flows["retransmitted_segments"].fill_null(0).sum()),
        sent_segments=int(flows["sent_segments"].sum()),
    )


def _drain_ms(waiting_bytes: Any, point: Point) -> float:
    mean_bytes = float(np.mean(waiting_bytes)) if len(waiting_bytes) else 0.0
    return mean_bytes * _BITS_PER_BYTE / (point.rate_mbps * 1e3)


def simulated(
    point: Point,
    seconds: float,
    seeds: Sequence[int],
    *,
    progress: Callable[[int, int], None] | None = None,
) -> list[Figures]:
    """Simulate a point with each of the seeds; after Ctrl-C fewer come back."""
    from bentpipe.scenario import from_dict

    plan = from_dict(point.scenario(seconds)).plan()
    found = []
    for outcome in run_many([Job(plan=plan, seed=seed) for seed in seeds], progress=progress):
        if outcome.interrupted:
            break
        direction, queue = (
            outcome.column("direction_samples", name) for name in ("direction", "queue_bytes")
        )
        flow = {
            name: outcome.column("flows", name)
            for name in (
                "start_ns",
                "delivered_bytes",
                "retransmitted_segments",
                "sent_segments",
            )
        }
        elapsed_ns = outcome.raw["end_ns"] - int(flow["start_ns"].min())
        bits = float(flow["delivered_bytes"].sum()) * _BITS_PER_BYTE
        found.append(
            Figures(
                seed=outcome.job.seed,
                goodput_bps=bits / elapsed_ns * 1e9,
                queue_ms=_drain_ms(queue[direction == 0], point),
                retransmitted_segments=int(flow["retransmitted_segments"].sum()),
                sent_segments=int(flow["sent_segments"].sum()),
            )
        )
    return found


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A point in both engines: runs in real time, and simulations with at least their seeds.

    ``invalid`` says why the last attempt did not count, if none did.
    """

    point: Point
    kernel: tuple[Figures, ...]
    model: tuple[Figures, ...]
    invalid: str | None = None

    @property
    def goodput_difference(self) -> float | None:
        """The model's goodput over the kernel's, less one, with the same seeds.

        The same seed loses the same packets by their number in both engines, so the luck of the
        link is no difference. None without a valid run.
        """
        seeds = {each.seed for each in self.kernel}
        return self._difference([each for each in self.model if each.seed in seeds])

    @property
    def mean_goodput_difference(self) -> float | None:
        """The model's mean goodput of all seeds over the kernel's, less one."""
        return self._difference(self.model)

    def _difference(self, model: Sequence[Figures]) -> float | None:
        kernel_bps = mean_of(self.kernel, "goodput_bps")
        model_bps = mean_of(model, "goodput_bps")
        return model_bps / kernel_bps - 1 if kernel_bps and model_bps is not None else None

    @property
    def goodput_spread(self) -> float:
        """The standard deviation of the model's goodput over seeds, relative to its mean."""
        values = [each.goodput_bps for each in self.model]
        mean = float(np.mean(values)) if values else 0.0
        return float(np.std(values, ddof=1)) / mean if len(values) > 1 and mean > 0 else 0.0

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "point": {**asdict(self.point), "queue_bytes": self.point.queue_bytes},
            "kernel": [asdict(each) for each in self.kernel],
            "model": [asdict(each) for each in self.model],
            "goodput_difference": self.goodput_difference,
            "mean_goodput_difference": self.mean_goodput_difference,
            "goodput_spread": self.goodput_spread,
            "invalid": self.invalid,
        }


def mean_of(runs: Sequence[Figures], name: str) -> float | None:
    """Return the mean of a figure over runs; None without any."""
    return float(np.mean([getattr(each, name) for each in runs])) if runs else None


def sizes(found: Iterable[float | None]) -> tuple[float, float] | None:
    """Return the median and the 90th percentile of the sizes of differences, without their sign.

    Between two of them a percentile is interpolated. None if there is none.
    """
    known = [abs(difference) for difference in found if difference is not None]
    if not known:
        return None
    median, high = np.quantile(known, (0.5, 0.9))
    return float(median), float(high)
