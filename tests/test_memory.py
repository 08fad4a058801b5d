"""The memory limit of runs: partial results, what is said, exit codes, and the default."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bentpipe import Plan, Result, simulate
from bentpipe.cli.app import main
from bentpipe.errors import MemoryLimitError, UsageError
from bentpipe.scenario.tables import PRESETS
from bentpipe.simulation import Job, memory as _memory, run_many
from bentpipe.simulation.memory import memory_warning
from bentpipe.simulation.run import run_simulation
from bentpipe.units import parse_size

SCENARIOS = Path(__file__).parent.parent / "scenarios"
LIMIT = parse_size("20 MB")
SLOW = {"rate": "10 Mbit/s", "delay": "250 ms"}


def scenario(forward: dict[str, Any], flow: dict[str, Any], **other: Any) -> dict[str, Any]:
    """A run of ten hours that hardly samples."""
    return {
        "duration": "10 h",
        "sample_interval": "10 min",
        "link": {"forward": {**SLOW, **forward}, "return": SLOW},
        "traffic": [{"direction": "forward", **flow}],
        **other,
    }


def datagrams(rate: str) -> dict[str, Any]:
    return {"kind": "constant_rate", "rate": rate, "payload": "972 B"}


OVERLOAD = scenario({"queue": {"limit": "unlimited"}}, datagrams("20 Mbit/s"))
FAR = scenario({"rate": "1 Gbit/s", "delay": "240 h"}, datagrams("900 Mbit/s"))
EVENTS = scenario({}, datagrams("1 Mbit/s"), packet_events=True)
REQUESTS = scenario(
    {"delay": "0 ms"}, {"kind": "request_response", "request": "10 B", "response": "10 B"}
)
REQUESTS["link"]["return"] = {"rate": "10 Mbit/s", "delay": "0 ms"}

CASES = {
    "unlimited queue": (OVERLOAD, "limit the queue"),
    "ten days of delay": (FAR, "limit the queue"),
    "packet events": (EVENTS, "set packet_events: false"),
    "exchanges": (REQUESTS, "have fewer of them"),
}


@pytest.mark.system
@pytest.mark.parametrize("name", CASES)
def test_a_run_at_its_limit_ends_with_what_was_recorded(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Given 20 MB, expect a warning before, exit code 4, the reason, and a result that says so."""
    content, how = CASES[name]
    file, out = tmp_path / "scenario.json", tmp_path / "out"
    file.write_text(json.dumps(content), encoding="utf-8")
    code = main(["run", str(file), "--memory-limit", "20MB", "--out", str(out), "--json"])
    printed = capfd.readouterr()
    assert code == 4
    *_, last = lines = printed.err.splitlines()
    expected = "bentpipe: warning: the run may take up to "
    (warning,) = (line for line in lines if line.startswith(expected))
    assert "its limit is 20 MB" in warning
    assert how in warning
    assert "because the memory limit of 20 MB was reached" in last
    assert how in last
    assert str(out) in last
    summary = json.loads(printed.out)
    assert (summary["state"], summary["traffic_ended"]) == ("memory_limit_reached", False)
    kept = Result.load(out)
    assert kept.memory_limit_reached
    assert kept.stop_reason is not None
    assert kept.execution["memory"]["limit_bytes"] == LIMIT
    assert kept.manifest["memory"]["counted_bytes_max"] > LIMIT
    assert 0 < kept.manifest["end_ns"] < 36_000e9
    assert kept.tables["flows"]["sent_segments"][0] > 0
    assert kept.stop_reason in (out / "report.html").read_text(encoding="utf-8")


def test_the_same_limit_ends_at_the_same_bytes() -> None:
    made = Plan.resolve(EVENTS)
    first, again = (run_simulation(made, memory_limit=LIMIT) for _ in range(2))
    assert first.manifest["end_ns"] == again.manifest["end_ns"]
    assert all(first.tables[name].equals(again.tables[name]) for name in first.tables)
    later = run_simulation(made, memory_limit=2 * LIMIT)
    assert later.manifest["end_ns"] > first.manifest["end_ns"]


def test_in_python_the_error_has_the_result() -> None:

    with pytest.raises(MemoryLimitError, match="set packet_events: false") as caught:
        simulate(EVENTS, memory_limit=LIMIT)
    assert caught.value.exit_code == 4
    assert caught.value.result is not None
    assert caught.value.result.events.height > 0


def test_concurrent_runs_share_the_limit() -> None:
    """Given 40 MB for two runs at a time, each ends where one with 20 MB does."""
    plan = Plan.resolve(EVENTS)
    alone = run_simulation(plan, seed=1, memory_limit=LIMIT)
    with pytest.raises(MemoryLimitError, match="its part of what 2 runs share") as caught:
        run_many([Job(plan=plan, seed=s) for s in (1, 2, 3)], threads=2, memory_limit=2 * LIMIT)
    results = caught.value.results
    assert [result.manifest["seed"] for result in results] == [1, 2, 3]
    assert all(result.execution["memory"]["limit_bytes"] == LIMIT for result in results)
    assert results[0].manifest == alone.manifest


def test_hosts_that_do_not_fit_are_refused_before_the_run(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Given 1,000 flows of some 6 kB each and 1 MB, nothing is run: exit code 2."""
    file = str(SCENARIOS / "geo-bulk.yaml")
    arguments = ["run", file, "--set", "traffic.0.count=1000", "--memory-limit", "1MB"]
    assert main(arguments) == 2
    told = capfd.readouterr().err
    assert "for its hosts and links alone; the limit is 1 MB" in told
    assert "have fewer terminals or flows" in told


@pytest.mark.parametrize(
    ("text", "problem"), [("0 MB", "above zero"), ("4", "read"), ("many", "read")]
)
def test_a_limit_is_a_size(text: str, problem: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(SCENARIOS / "geo-bulk.yaml"), "--memory-limit", text]) == 2
    assert problem in capfd.readouterr().err


def test_studies_and_searches_have_the_option(capfd: pytest.CaptureFixture[str]) -> None:
    file = str(SCENARIOS / "snip-duplex.yaml")
    sized = ["--memory-limit", "1kB"]
    assert main(["search", file, "--no-drop", "--sizes", "1400", *sized]) == 2
    assert main(["study", "jpl", "--seeds", "1", *sized]) == 2
    assert capfd.readouterr().err.count("for its hosts and links alone") == 2


def test_a_limit_is_not_too_small() -> None:
    with pytest.raises(UsageError, match="must be at least 1 byte"):
        run_simulation(Plan.resolve(EVENTS), memory_limit=0)


def test_examples_and_presets_give_no_memory_warning() -> None:
    """The example scenarios and the presets are expected to fit in 1 GB."""
    for file in sorted(SCENARIOS.glob("*.yaml")):
        assert memory_warning(Plan.resolve(file), 10**9) is None, file
    for name in PRESETS:
        flow = {"kind": "bulk", "direction": "forward", "size": "10 MB"}
        made = {"link": {"preset": name}, "traffic": [flow], "duration": "1 min"}
        assert memory_warning(Plan.resolve(made), 10**9) is None, name


def test_the_default_is_half_of_the_smallest_available_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given 8 GB in the machine and a control group that leaves 1 GB and 0.5 GB of cached files."""
    group = tmp_path / "group"
    group.mkdir()
    (group / "memory.max").write_text("3000000000\n", encoding="ascii")
    (group / "memory.current").write_text("2000000000\n", encoding="ascii")
    (group / "memory.stat").write_text("anon 1\ninactive_file 500000000\n", encoding="ascii")
    assert _memory._left(group, "memory.max", "memory.current") == 1_500_000_000  # noqa: SLF001
    (group / "memory.max").write_text("max\n", encoding="ascii")
    assert _memory._left(group, "memory.max", "memory.current") is None  # noqa: SLF001
    monkeypatch.setattr(_memory, "_of_machine", lambda: 8_000_000_000)
    monkeypatch.setattr(_memory, "_of_groups", lambda: iter([1_500_000_000]))
    assert _memory.default_limit() == 750_000_000
    assert _memory.limit_for(3) == 250_000_000
    with _memory.limiting(900):
        assert _memory.limit_for(3) == 300
    monkeypatch.setattr(_memory, "_of_groups", lambda: iter(()))
    assert _memory.default_limit() == 4_000_000_000
