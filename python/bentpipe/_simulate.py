"""From a scenario to a result: the one door of the package that most people need."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bentpipe import _core
from bentpipe._capture import capture_file
from bentpipe.errors import UsageError
from bentpipe.results import RESULT_FORMAT_VERSION, Result
from bentpipe.scenario import LARGEST_SEED, Scenario, from_dict, load
from bentpipe.sweep import Job, run_one


def simulate(
    scenario: Scenario | str | Path | Mapping[str, Any],
    *,
    seed: int | None = None,
    capture: str | Path | None = None,
) -> Result:
    """Simulate a scenario, the path of a scenario file, or plain data, packet by packet.

    ``seed`` (0 to 2^64-1) replaces the scenario's. Same plan, seed and version: the same tables, to
    the byte. ``capture`` names a file that packets are captured into (pcapng, for Wireshark); one
    that is there is replaced. Ctrl-C stops the run and raises KeyboardInterrupt.

    Raises:
        ScenarioError: the scenario is wrong; nothing was run.
        UsageError: the seed is out of range, and nothing was run; or the capture cannot be written.
        InternalError: the run broke a promise of the simulator.
    """
    if isinstance(scenario, str | Path):
        scenario = load(scenario)
    elif not isinstance(scenario, Scenario):
        scenario = from_dict(scenario)
    result = simulate_partly(
        scenario, seed=seed, capture=None if capture is None else Path(capture)
    )
    if result.interrupted:
        raise KeyboardInterrupt
    return result


def simulate_partly(
    scenario: Scenario,
    *,
    seed: int | None = None,
    progress: Callable[[float], None] | None = None,
    capture: Path | None = None,
) -> Result:
    """Simulate like `simulate`; after Ctrl-C return what was recorded, marked interrupted."""
    if seed is not None and not 0 <= seed <= LARGEST_SEED:
        raise UsageError(f"seed: read {seed}; must be 0 to {LARGEST_SEED}")
    plan = scenario.plan()
    job = Job(plan=plan, seed=scenario.seed if seed is None else seed)
    started = _now()
    with capture_file(capture) as file:
        outcome = run_one(job, progress=progress, capture=file)
    manifest = {
        "format_version": RESULT_FORMAT_VERSION,
        "bentpipe_version": _core.version(),
        "scenario": scenario.to_dict(),
        "plan": plan,
        "seed": job.seed,
        "names": {**_core.names(), **outcome.raw["names"]},
        "host": {"python": platform.python_version(), "platform": platform.platform()},
        "started": started,
        "ended": _now(),
        "completed": outcome.raw["completed"],
        "interrupted": outcome.raw["interrupted"],
        "end_ns": outcome.raw["end_ns"],
        "packet_hops": outcome.raw["packet_hops"],
        "engine_calls": outcome.raw["engine_calls"],
    }
    return Result(manifest, outcome.tables())


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
