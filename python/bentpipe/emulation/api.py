"""`emulate`: a scenario in real time, as `bentpipe.simulate` runs it in virtual time."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from bentpipe.emulation.checks import check_plan
from bentpipe.emulation.worker import Worker
from bentpipe.errors import InvalidRunError
from bentpipe.plan.plan import Plan
from bentpipe.results.result import Result
from bentpipe.scenario.schema import Scenario
from bentpipe.scenario.seeds import check_seed
from bentpipe.units import NS_PER_S

_POLL_S: Final = 0.05


def emulate(
    scenario: Scenario | str | Path | Mapping[str, Any],
    *,
    seed: int | None = None,
    capture: str | Path | None = None,
) -> Result:
    """Run a scenario in real time: iperf3 and Linux TCP over the link of the simulator.

    ``scenario`` is a `Scenario`, the path of a scenario file, or a mapping. ``seed`` (0 to 2^64-1)
    replaces the scenario's and gives the random losses of the link. ``capture`` names a file to
    capture packets into (pcapng, for Wireshark); an existing one is replaced. The run takes as long
    as the scenario and is a process of its own: it needs neither root nor a process with one
    thread. Ctrl-C ends it and raises KeyboardInterrupt. The tables of the result are those of
    `simulate`; its manifest has the kernel's settings, warnings and the lateness of packets.

    Raises:
        ScenarioError: the scenario is wrong, or cannot be run in real time; nothing was run.
        UsageError: the seed is out of range, or the capture cannot be written.
        MachineError: the machine lacks something, such as iperf3 or user namespaces.
        InvalidRunError: packets were late beyond the limits; its ``result`` is what was measured.
    """
    plan = Plan.resolve(scenario)
    check_seed(seed)
    check_plan(plan)
    with tempfile.TemporaryDirectory(prefix="bentpipe-") as folder:
        worker = Worker(
            scenario=plan.scenario.to_dict(),
            seed=plan.scenario.seed if seed is None else seed,
            out=Path(folder) / "result",
            max_s=plan.data["stop_ns"] / NS_PER_S,
            capture=None if capture is None else Path(capture),
        )
        try:
            worker.start()
            while not worker.has_finished():
                time.sleep(_POLL_S)
        finally:
            worker.kill()
        result = Result.load(worker.out)
    if result.invalid is not None:
        raise InvalidRunError(result.invalid, result=result)
    return result
