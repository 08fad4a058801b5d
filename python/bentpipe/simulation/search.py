"""The largest rate at which nothing is lost, for each payload size, by bisection.

A trial is one run of the scenario with the searched flows at one rate. It passes when no packet of
any flow is dropped anywhere, for whatever cause, until the run ends. The rate is doubled from a few
packets a run until a trial fails or the link's own rate passes, and then bisected.

What a search cannot see: a rate above what lasts for ever passes when the buffers take what is too
much until the run ends. With buffers of ``b`` packets, a limit of ``c`` packets a second and ``t``
seconds, that is up to a share of ``b / (c t)`` above the limit; make the run long enough for that
to be below the resolution. With bit errors, chance decides which trial passes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from bentpipe.errors import UsageError
from bentpipe.plan.resolver import from_dict, resolve
from bentpipe.plan.traffic import flows_of_entry
from bentpipe.results.tables import DROP_CAUSES
from bentpipe.scenario.schema import LARGEST_SEED, Scenario
from bentpipe.scenario.traffic import LARGEST_PAYLOAD, ConstantRate
from bentpipe.simulation.many import Job, Outcome, run_many
from bentpipe.text import choice
from bentpipe.units import parse_size

DEFAULT_RESOLUTION: Final = 0.005
# Below, the buffers of any run of sensible length hide more; above, doubling alone would do.
FINEST_RESOLUTION: Final = 1e-4
COARSEST_RESOLUTION: Final = 0.5

# What the first trial sends; fewer would say nothing of a rate.
_FIRST_PACKETS: Final = 10
_OVERLOAD: Final = "processor_overload"
_LIMITS: Final[Mapping[str, str]] = {
    _OVERLOAD: "packet rate",
    "queue_full": "channel",
    "bit_error": "bit errors",
}
_NS_PER_S: Final = 10**9


@dataclass(frozen=True, kw_only=True)
class Loss:
    """Packets that one place dropped for one cause."""

    place: str
    cause: str
    packets: int

    @property
    def limit(self) -> str:
        """What binds where packets are lost for this cause: ``packet rate``, ``channel``, ..."""
        return _LIMITS.get(self.cause, DROP_CAUSES.get(self.cause, self.cause))


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One run: the rate of each searched flow, and what was lost, the largest loss first."""

    rate_bps: int
    losses: tuple[Loss, ...]

    @property
    def lost_packets(self) -> int:
        """Packets lost anywhere, of any flow."""
        return sum(loss.packets for loss in self.losses)


@dataclass(frozen=True, kw_only=True)
class NoDropRate:
    """What was found for one size.

    ``rate_bps`` is the largest rate of each of the ``flows`` flows that passed, in payload bits per
    second as ``iperf -b`` counts; None when none did. ``fails_bps`` is the smallest that failed;
    None when the link's own rate passed. ``settled`` says that the two are as close as was asked.
    """

    payload_bytes: int
    rate_bps: int | None
    fails_bps: int | None
    flows: int
    settled: bool
    trials: tuple[Trial, ...]

    @property
    def packets_per_second(self) -> float | None:
        """The same rate in packets per second of each flow."""
        return None if self.rate_bps is None else self.rate_bps / (8 * self.payload_bytes)

    @property
    def joint_packets_per_second(self) -> float | None:
        """Packets per second of all searched flows together."""
        each = self.packets_per_second
        return None if each is None else self.flows * each

    @property
    def first_loss(self) -> Loss | None:
        """The largest loss at the smallest rate that failed; None when none failed."""
        failed = [trial for trial in self.trials if trial.rate_bps == self.fails_bps]
        return failed[0].losses[0] if failed else None

    def to_json(self) -> dict[str, Any]:
        """Return the figures as plain data."""
        loss = self.first_loss
        return {
            "payload_bytes": self.payload_bytes,
            "rate_bps": self.rate_bps,
            "fails_bps": self.fails_bps,
            "packets_per_second": self.packets_per_second,
            "joint_packets_per_second": self.joint_packets_per_second,
            "limit": None if loss is None else loss.limit,
            "first_loss": None if loss is None else {"place": loss.place, "cause": loss.cause},
            "settled": self.settled,
            "trials": [
                {"rate_bps": trial.rate_bps, "lost_packets": trial.lost_packets}
                for trial in self.trials
            ],
        }


@dataclass(frozen=True, kw_only=True)
class NoDropSearch:
    """A search over sizes, with what it was asked.

    ``flows`` are the names of the searched flows, ``link_rate_bps`` the rate of the fastest
    direction that they use, ``sending_s`` how long the shortest-lived of them sends.
    """

    scenario: str
    flows: tuple[str, ...]
    link_rate_bps: int
    sending_s: float
    resolution: float
    seed: int
    rates: tuple[NoDropRate, ...]
    interrupted: bool

    def rate(self, payload_bytes: int) -> NoDropRate:
        """Return what was found for one of the sizes."""
        return next(each for each in self.rates if each.payload_bytes == payload_bytes)

    def to_json(self) -> dict[str, Any]:
        """Return the figures as plain data."""
        return {
            "search": "no-drop",
            "scenario": self.scenario,
            "interrupted": self.interrupted,
            "flows": list(self.flows),
            "link_rate_bps": self.link_rate_bps,
            "sending_s": self.sending_s,
            "resolution": self.resolution,
            "seed": self.seed,
            "sizes": [each.to_json() for each in self.rates],
        }


def no_drop_rate(
    scenario: Scenario,
    sizes: Sequence[int] | None = None,
    *,
    flow: str | None = None,
    resolution: float = DEFAULT_RESOLUTION,
    seed: int | None = None,
    threads: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> NoDropSearch:
    """Find the largest rate of the constant_rate flows at which no packet is lost.

    ``sizes`` are bytes of UDP payload (None: the payload that the scenario has). ``flow`` names one
    entry of the traffic (None: all that are constant_rate); its flows get equal rates, and all else
    stays as the scenario has it. The rate is known to a share of ``resolution``. Results do not
    depend on ``threads``; ``progress(done, total)`` counts trials. After Ctrl-C what was found
    comes back, marked interrupted.

    Raises:
        ScenarioError: a packet of one of the sizes fits into no queue.
        UsageError: nothing to search, or a size, the resolution or the seed out of range.
    """
    if not FINEST_RESOLUTION <= resolution <= COARSEST_RESOLUTION:
        raise UsageError(
            f"resolution: read {resolution:.6%}; must be {FINEST_RESOLUTION:.2%} to "
            f"{COARSEST_RESOLUTION:.0%}"
        )
    seed = scenario.seed if seed is None else seed
    if not 0 <= seed <= LARGEST_SEED:
        raise UsageError(f"seed: read {seed}; must be 0 to {LARGEST_SEED}")
    entries = _entries(scenario, flow)
    chosen = _own_sizes(scenario, entries) if sizes is None else _checked_sizes(sizes)
    brackets = [_bracket(scenario, entries, size, resolution) for size in chosen]
    interrupted = _narrow(brackets, seed, threads, progress)
    plan, searched = brackets[0].plan, brackets[0].searched
    return NoDropSearch(
        scenario=scenario.name,
        flows=tuple(plan["flows"][i]["name"] for i in searched),
        link_rate_bps=brackets[0].most_bps,
        sending_s=_sending_ns(plan, searched) / _NS_PER_S,
        resolution=resolution,
        seed=seed,
        rates=tuple(bracket.result() for bracket in brackets),
        interrupted=interrupted,
    )


def most_trials(scenario: Scenario, sizes: Sequence[int], resolution: float) -> int:
    """Return the number that ``progress`` of `no_drop_rate` counts up to, for all its flows."""
    entries = _entries(scenario, None)
    return sum(_bracket(scenario, entries, size, resolution).most_trials for size in sizes)


# --- what is searched ---------------------------------------------------------------------------


def _entries(scenario: Scenario, name: str | None) -> dict[int, range]:
    """Return the searched entries of the traffic, each with its flows as indices into the plan."""
    plan = resolve(scenario)
    found: list[tuple[str, int, range]] = []
    first = 0
    for i, entry in enumerate(scenario.traffic):
        flows = range(first, first + flows_of_entry(entry, scenario.link.terminals))
        first = flows.stop
        if isinstance(entry, ConstantRate):
            # An entry without a name is called as its first flow is.
            found.append((entry.name or plan["flows"][flows.start]["name"], i, flows))
    if not found:
        kinds = ", ".join(sorted({entry.kind for entry in scenario.traffic}))
        raise UsageError(f"traffic: no flow of kind constant_rate to search with (read: {kinds})")
    chosen = {i: flows for label, i, flows in found if name in {None, label}}
    if not chosen:
        raise UsageError(f"flow: {choice(name, tuple(label for label, _, _ in found))}")
    return chosen


def _own_sizes(scenario: Scenario, entries: Mapping[int, range]) -> list[int]:
    payloads = [getattr(scenario.traffic[i], "payload", "") for i in entries]
    sizes = sorted({parse_size(payload) for payload in payloads})
    if len(sizes) > 1:
        shown = ", ".join(f"{size} B" for size in sizes)
        raise UsageError(f"sizes: the flows differ in payload ({shown}); say which sizes to search")
    return sizes


def _checked_sizes(sizes: Sequence[int]) -> list[int]:
    if not sizes:
        raise UsageError("sizes: none; name at least one size in bytes of UDP payload")
    for size in sizes:
        if not 1 <= size <= LARGEST_PAYLOAD:
            raise UsageError(
                f"sizes: read {size}; must be 1 to {LARGEST_PAYLOAD} bytes of UDP payload"
            )
    return sorted(set(sizes))


# --- trials -------------------------------------------------------------------------------------


@dataclass
class _Bracket:
    """The rates of one size between which the limit is, and the trials so far."""

    plan: dict[str, Any]
    searched: tuple[int, ...]
    payload_bytes: int
    least_bps: int
    most_bps: int
    resolution: float
    passes_bps: int | None = None
    fails_bps: int | None = None
    trials: list[Trial] = field(default_factory=list)

    @property
    def most_trials(self) -> int:
        """How many trials it takes at the most."""
        doublings = math.ceil(math.log2(self.most_bps / self.least_bps))
        return 1 + doublings + math.ceil(math.log2(1 / self.resolution))

    def next_bps(self) -> int | None:
        """Return the rate to try; None when there is nothing left to learn."""
        if self.passes_bps is None:
            return self.least_bps if self.fails_bps is None else None
        if self.fails_bps is None:
            more = min(2 * self.passes_bps, self.most_bps)
            return more if more > self.passes_bps else None
        if self.fails_bps - self.passes_bps <= max(1, self.resolution * self.passes_bps):
            return None
        return (self.passes_bps + self.fails_bps) // 2

    def job(self, rate_bps: int, seed: int) -> Job:
        flows = list(self.plan["flows"])
        for i in self.searched:
            flows[i] = {**flows[i], "workload": {**flows[i]["workload"], "rate_bps": rate_bps}}
        return Job(plan={**self.plan, "flows": flows}, seed=seed)

    def learn(self, rate_bps: int, losses: tuple[Loss, ...]) -> None:
        self.trials.append(Trial(rate_bps=rate_bps, losses=losses))
        if losses:
            self.fails_bps = rate_bps
        else:
            self.passes_bps = rate_bps

    def result(self) -> NoDropRate:
        return NoDropRate(
            payload_bytes=self.payload_bytes,
            rate_bps=self.passes_bps,
            fails_bps=self.fails_bps,
            flows=len(self.searched),
            settled=self.next_bps() is None,
            trials=tuple(self.trials),
        )


def _bracket(
    scenario: Scenario, entries: Mapping[int, range], size: int, resolution: float
) -> _Bracket:
    data = scenario.to_dict()
    # Neither changes what is lost, and both cost time and memory.
    data |= {"sample_interval": None, "packet_events": False}
    for i in entries:
        data["traffic"][i] |= {"payload": f"{size} B"}
    plan = resolve(from_dict(data))
    searched = tuple(i for flows in entries.values() for i in flows)
    most_bps = max(_link_rate_bps(plan, plan["flows"][i]) for i in searched)
    first_bps = _FIRST_PACKETS * 8 * size * _NS_PER_S // _sending_ns(plan, searched)
    return _Bracket(
        plan=plan,
        searched=searched,
        payload_bytes=size,
        least_bps=min(max(1, first_bps), most_bps),
        most_bps=most_bps,
        resolution=resolution,
    )


def _link_rate_bps(plan: dict[str, Any], flow: dict[str, Any]) -> int:
    """Return the largest rate that the direction of a flow ever has."""
    number = 0 if flow["direction"] == "forward" else 1 + flow["terminal"]
    rate = plan["directions"][number]["rate_bps"]
    if rate["kind"] == "constant":
        return int(rate["value"])
    return max(int(value) for _, value in rate["steps"])


def _sending_ns(plan: dict[str, Any], searched: Sequence[int]) -> int:
    flows = [plan["flows"][i] for i in searched]
    spans_ns = (
        min(flow["workload"]["duration_ns"], plan["stop_ns"] - flow["start_ns"]) for flow in flows
    )
    return int(min(spans_ns))


def _narrow(
    brackets: Sequence[_Bracket],
    seed: int,
    threads: int | None,
    progress: Callable[[int, int], None] | None,
) -> bool:
    """Narrow all brackets, a trial of each at a time; return whether Ctrl-C came before the end."""
    total = sum(bracket.most_trials for bracket in brackets)
    try:
        while True:
            asked = [(bracket, bracket.next_bps()) for bracket in brackets]
            trials = [(bracket, rate_bps) for bracket, rate_bps in asked if rate_bps is not None]
            if not trials:
                return False
            jobs = [bracket.job(rate_bps, seed) for bracket, rate_bps in trials]
            outcomes = run_many(jobs, threads=threads)
            complete = [outcome for outcome in outcomes if not outcome.interrupted]
            for outcome in complete:
                bracket, rate_bps = trials[outcome.index]
                bracket.learn(rate_bps, _losses(outcome))
            if len(complete) < len(jobs):
                return True
            if progress is not None:
                done = sum(
                    bracket.most_trials if bracket.next_bps() is None else len(bracket.trials)
                    for bracket in brackets
                )
                progress(done, total)
    except KeyboardInterrupt:
        return True


def _losses(outcome: Outcome) -> tuple[Loss, ...]:
    """Return what a run lost, the largest loss first and else in the order of the places."""
    names = outcome.raw["names"]
    directions, places = names["directions"], names["places"]
    found = [
        Loss(place=directions[row], cause=cause, packets=int(dropped[row]))
        for cause in DROP_CAUSES
        for dropped in [outcome.column("directions", f"dropped_packets_{cause}")]
        for row in np.flatnonzero(dropped)
    ]
    overload = outcome.column("processors", "dropped_packets_lan") + outcome.column(
        "processors", "dropped_packets_link"
    )
    found += [
        Loss(place=places[len(directions) + row], cause=_OVERLOAD, packets=int(overload[row]))
        for row in np.flatnonzero(overload)
    ]
    return tuple(sorted(found, key=lambda loss: -loss.packets))
