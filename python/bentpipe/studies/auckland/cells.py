"""The cells of the study, the variants of its assumptions, and the runs of a cell."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bentpipe.plan.resolver import from_dict, load, resolve
from bentpipe.scenario.schema import Scenario
from bentpipe.simulation.many import Job

CHANNELS: Final = (0, 2, 5, 10, 20, 40, 60, 80, 100, 200)
SMALL_KB, LARGE_KB = QUEUES_KB = (120, 1000)
# 16 Mbit/s x 500 ms: a limit in bdp counts Ethernet bytes.
_BDP_KB: Final = 1000

# Of entries of `traffic`.
BACKGROUND, TRANSFER, PING = "channels", "iperf3", "ping"

# A variant shows a direction: few runs, and few of the numbers of channels.
MAX_VARIANT_RUNS: Final = 3
VARIANT_CHANNELS: Final = (0, 5, 100)

Data = dict[str, Any]


def _unchanged(_data: Data) -> None:
    pass


@dataclass(frozen=True)
class Cell:
    """One cell: how many channels, which queue, and whether the hub has a PEP."""

    channels: int
    queue_kb: int
    pep: bool

    @property
    def path(self) -> str:
        """The name of its curve."""
        return "PEP" if self.pep else "plain"

    @property
    def labels(self) -> dict[str, str | int]:
        """What tells the cell from the others."""
        return {"queue_kB": self.queue_kb, "path": self.path, "channels": self.channels}

    @property
    def title(self) -> str:
        """The cell in words."""
        return f"{self.queue_kb:,} kB, {self.path}, {self.channels} channels"


@dataclass(frozen=True)
class Variant:
    """Another value for something that the source does not give, in all cells alike.

    ``change`` gets the scenario of a cell, with its PEP, and changes it in place.
    """

    name: str
    change: Callable[[Data], None] = _unchanged


def cells(channels: Sequence[int] = CHANNELS) -> tuple[Cell, ...]:
    """Return the cells with these numbers of channels."""
    return tuple(
        Cell(number, queue_kb, pep)
        for number in channels
        for queue_kb in QUEUES_KB
        for pep in (False, True)
    )


def base_scenario() -> Data:
    """Return the configuration of all cells as plain data."""
    return load(Path(__file__).parent / "scenario.yaml").to_dict()


def entry(data: Mapping[str, Any], name: str) -> Data | None:
    """Return the entry of ``traffic`` with this name."""
    return next((each for each in data["traffic"] if each["name"] == name), None)


def scenario_of(cell: Cell, base: Data, variant: Variant) -> Scenario:
    """Return the complete scenario of a cell; its runs differ in the seed only."""
    data = copy.deepcopy(base)
    data["name"] = f"Auckland: {cell.title}"
    for direction in ("forward", "return"):
        data["link"][direction]["queue"]["limit"] = f"{cell.queue_kb / _BDP_KB:g} bdp"
    if cell.pep:
        data["gateways"] = {"hub": {"pep": {"early_accept": True}}}
    background = entry(data, BACKGROUND)
    assert background is not None
    background["channels"] = max(cell.channels, 1)
    variant.change(data)
    if cell.channels == 0:
        data["traffic"] = [each for each in data["traffic"] if each["name"] != BACKGROUND]
    return from_dict(data)


def jobs_of(cell: Cell, base: Data, variant: Variant, seeds: range) -> list[Job]:
    """Return the runs of a cell. Cells with equal seeds have the same downloads, in their order."""
    plan = resolve(scenario_of(cell, base, variant))
    return [Job(plan=plan, seed=seed) for seed in seeds]


def trace_jobs(cell: Cell, base: Data, seed: int) -> list[Job]:
    """Return one run of a cell whose queue is sampled each second."""
    sampled = {**base, "sample_interval": "1 s"}
    return jobs_of(cell, sampled, Variant("traced"), range(seed, seed + 1))
