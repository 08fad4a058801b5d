"""Bad scenarios: each gives one clear message with its place, exit code 2, and no traceback.

Every case is the good scenario below with one thing wrong, run through the command line.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from conftest import Program

from bentpipe import Bulk, Direction, Link, Scenario, ScenarioError, Tcp
from bentpipe.scenario.record import Record

GOOD = """\
name: good
link:
  preset: geo
  forward: {rate: 16 Mbit/s, delay: 275 ms}
traffic:
  - kind: bulk
    direction: forward
    size: 1 MB
duration: 60 s
"""


@dataclass(frozen=True)
class Bad:
    """``old`` replaced by ``new`` in the good file; stderr names ``line`` and has ``words``."""

    kind: str
    old: str
    new: str
    line: int | None
    words: tuple[str, ...]


def changed(kind: str, old: str, new: str, line: int | None, *words: str) -> Bad:
    """Return a case."""
    return Bad(kind, old, new, line, words)


SIZE = "    size: 1 MB\n"
BULK = "kind: bulk\n    direction: forward\n"
FETCH = "kind: fetch\n    direction: forward\n"
CONFERENCE = "kind: conference\n    rate: 64 kbit/s\n    payload: 160 B\n"
FORWARD = "  forward: {rate: 16 Mbit/s, delay: 275 ms}\n"

CASES = [
    # Names.
    changed("unknown field", SIZE, SIZE + "    colour: red\n", 9, "traffic.0.colour: unknown", "fields here: "),
    changed("misspelt field", "delay: 275", "dealy: 275", 4, "link.forward.dealy", 'did you mean "delay"?'),
    changed("misspelt field at the top", "duration:", "durration:", 9, "durration", 'did you mean "duration"?'),
    changed("field of another kind", SIZE, SIZE + "    payload: 160 B\n", 9, "traffic.0.payload: unknown"),
    changed("missing field", "duration: 60 s\n", "", 1, "duration: missing"),
    changed("missing rate", "  preset: geo\n", "  return: {delay: 275 ms}\n", 3, "link.return.rate: missing", "16 Mbit/s", "preset"),
    changed("no kind", "kind: bulk\n    ", "", 6, "traffic.0.kind: missing", "constant_rate"),
    changed("unknown kind", "kind: bulk", "kind: bulky", 6, 'read "bulky"', 'did you mean "bulk"?'),
    changed("unknown preset", "preset: geo", "preset: gea", 3, 'read "gea"', "leo", 'did you mean "geo"?'),
    changed("unknown direction", ": forward", ": forwards", 7, 'read "forwards"', 'mean "forward"?'),
    changed("unknown profile", SIZE, SIZE + "    profile: linus\n", 9, 'read "linus"', 'mean "linux"?'),
    changed("unknown discipline", FORWARD, "  forward: {queue: {discipline: droptail}}\n", 4, 'read "droptail"', 'mean "drop_tail"?'),
    changed("unknown congestion control", SIZE, SIZE + "    tcp: {congestion_control: cubik}\n", 9, 'mean "cubic"?'),
    # Units.
    changed("no unit", "16 Mbit/s", "16", 4, "link.forward.rate", "read 16", '"16 Mbit/s"'),
    changed("half a unit", "16 Mbit/s", "16 M", 4, 'read "16 M"', '"16 Mbit/s" or "16 MB/s"'),
    changed("lower-case rate", "16 Mbit/s", "16 mbps", 4, 'read "16 mbps"', '"16 Mbit/s" or "16 MB/s"'),
    changed("b for bit or byte", "16 Mbit/s", "16 mb/s", 4, 'read "16 mb/s"', '"16 Mbit/s" or "16 MB/s"'),
    changed("KB", "1 MB", "120 KB", 8, 'read "120 KB"', '"120 kB" or "120 KiB"'),
    changed("unit of another quantity", "275 ms", "275 kB", 4, "link.forward.delay", "not a unit of time"),
    changed("not a quantity", "275 ms", "long", 4, 'read "long"', '"275 ms"'),
    changed("part of a byte", "1 MB", "0.5 B", 8, "traffic.0.size", "not an integer"),
    changed("thousands separator", "1 MB", '"1,000 kB"', 8, "without separators"),
    # Ranges.
    changed("negative rate", "16 Mbit/s", "-16 Mbit/s", 4, "link.forward.rate", "must not be negative"),
    changed("zero rate", "16 Mbit/s", "0 bit/s", 4, "link.forward.rate", "must be above zero"),
    changed("zero duration", "60 s", "0 s", 9, "duration", "must be above zero"),
    changed("zero size", "1 MB", "0 B", 8, "traffic.0.size", "must be above zero"),
    changed("negative start", SIZE, SIZE + "    start: -1 s\n", 9, "traffic.0.start", "must not be negative"),
    changed("start after the end", SIZE, SIZE + "    start: 61 s\n", 9, "traffic.0.start", "end of the run, 60 s"),
    changed("last of the flows after the end", SIZE, SIZE + "    count: 5\n    start_spacing: 15 s\n", 10, "start_spacing", "5 flows", "60 s"),
    changed("queue smaller than a packet", FORWARD, "  forward: {queue: {limit: 1 kB}}\n", 4, "link.forward.queue.limit", 'read "1 kB"', "1500 IP bytes"),
    changed("queue shorter than a packet", FORWARD, "  forward: {queue: {limit: 500 us}}\n", 4, 'read "500 us"', "750 us to send"),
    changed("queue of no packets", FORWARD, "  forward: {queue: {limit: 0 packets}}\n", 4, "smaller than one packet"),
    changed("bdp smaller than a packet", FORWARD, "  forward: {queue: {limit: 0.001 bdp}}\n", 4, "1084 link bytes here", "1500 link bytes"),
    changed("bit error rate above 1", FORWARD, "  forward: {bit_error_rate: 1.5}\n", 4, "read 1.5", "at most 1"),
    changed("bit error rate below 0", FORWARD, "  forward: {bit_error_rate: -1e-7}\n", 4, "read -1e-07", "at least 0"),
    changed("not a number", FORWARD, "  forward: {bit_error_rate: .nan}\n", 4, "read nan", "finite"),
    changed("MSS above a packet", SIZE, SIZE + "    tcp: {mss: 65496 B}\n", 9, "traffic.0.tcp.mss", "at most 65495 B"),
    changed("MSS below the headers", SIZE, SIZE + "    tcp: {mss: 87 B}\n", 9, 'read "87 B"', "from 88 to 65495"),
    changed("buffer below a segment", SIZE, SIZE + "    tcp: {send_buffer: 1 kB}\n", 9, "traffic.0.tcp.send_buffer", 'read "1 kB"', "from 1460"),
    changed("beyond 64 bits", "60 s", "1e12 s", 9, "duration", "beyond 64 bits"),
    changed("integer beyond 64 bits", GOOD, GOOD + "seed: 99999999999999999999\n", 10, "seed", "at most 18446744073709551615"),
    changed("too many flows", SIZE, SIZE + "    count: 10001\n", 9, "traffic.0.count", "at most 10000"),
    changed("too many samples", GOOD, GOOD + "sample_interval: 1 us\n", 10, "sample_interval", "at most 10000000"),
    changed("rate beyond the simulator", "16 Mbit/s", "1000 Tbit/s", 4, 'read "1000 Tbit/s"', "at most 100 Tbit/s"),
    # Things that exclude each other.
    changed("both size and duration", SIZE, SIZE + "    duration: 3 s\n", 6, "both size and duration"),
    changed("neither size nor duration", SIZE, "", 6, "neither size nor duration"),
    changed("no traffic", "  - kind: bulk\n    direction: forward\n" + SIZE, "  []\n", 5, "traffic: is empty"),
    changed("two flows of one name", "  - kind: bulk\n", "  - {name: a, kind: bulk, direction: forward, size: 1 MB}\n  - kind: bulk\n    name: a\n", 5, 'two flows are called "a"'),
    changed("late first step", "rate: 16 Mbit/s", "rate: [{at: 1 s, value: 1 Mbit/s}]", 4, "link.forward.rate", "start at 0"),
    changed("nothing but outage", "rate: 16 Mbit/s", "rate: [{at: 0 s, value: 0 bit/s}]", 4, "link.forward.rate", "0 bit/s in every step"),
    changed("endless outage", "rate: 16 Mbit/s", "rate: [{at: 0 s, value: 1 MB/s}, {at: 1 s, value: 0 bit/s}]", 4, "link.forward.rate", "end above zero"),
    # Types.
    changed("text for a number", FORWARD, "  forward: {bit_error_rate: low}\n", 4, 'read "low"', "expected a number"),
    changed("text for a truth", GOOD, GOOD + "packet_events: yes\n", 10, 'read "yes"', "true or false"),
    changed("fraction for a count", SIZE, SIZE + "    count: 1.5\n", 9, "read 1.5", "expected an integer"),
    changed("list for a mapping", FORWARD, "  forward: [16 Mbit/s]\n", 4, "link.forward: read a list", "a mapping"),
    changed("mapping for a list", "  - kind", "    kind", 5, "traffic: read a mapping", "a list"),
    changed("scalar for a flow", "  - kind: bulk\n    direction: forward\n" + SIZE, "  - bulk\n", 6, 'traffic.0: read "bulk"', "a mapping"),
    changed("nothing for a size", "size: 1 MB", "size:", 6, "neither size nor duration"),
    # Framing.
    changed("unknown framing", FORWARD, "  forward: {framing: ethernot}\n", 4, "link.forward.framing", 'read "ethernot"', 'did you mean "ethernet"?', "8 B"),
    changed("framing without a unit", FORWARD, "  forward: {framing: 8}\n", 4, "link.forward.framing", "unit is missing"),
    changed("framing of no kind", FORWARD, "  forward: {framing: {fcs: 32}}\n", 4, "link.forward.framing.kind: missing"),
    changed("framing of an unknown kind", FORWARD, "  forward: {framing: {kind: pppp}}\n", 4, "link.forward.framing", 'no framing "pppp"', 'did you mean "ppp"?'),
    changed("option of another framing", FORWARD, "  forward: {framing: {kind: aal5, fcs: 32}}\n", 4, "link.forward.framing", 'has no option "fcs"'),
    changed("framing option out of range", FORWARD, "  forward: {framing: {kind: ppp, fcs: 8}}\n", 4, "link.forward.framing", "read 8", "16, 32"),
    changed("framing in a list", FORWARD, "  forward: {framing: [ppp]}\n", 4, "link.forward.framing", "read list", '"120 kB"'),
    # Queues.
    changed("misspelt queue discipline", FORWARD, "  forward: {queue: {discipline: fqcodel}}\n", 4, "link.forward.queue.discipline", 'mean "fq_codel"?'),
    changed("option of another discipline", FORWARD, "  forward: {queue: {discipline: red, target: 5 ms}}\n", 4, "link.forward.queue.target: unknown field", "min_threshold"),
    changed("option without its discipline", FORWARD, "  forward: {queue: {target: 5 ms}}\n", 4, "link.forward.queue.target: unknown field"),
    changed("queue as text", FORWARD, "  forward: {queue: red}\n", 4, 'link.forward.queue: read "red"', "a mapping"),
    changed("discipline that is no text", FORWARD, "  forward: {queue: {discipline: 1}}\n", 4, "link.forward.queue.discipline: read 1", "drop_tail"),
    changed("CoDel with a limit in time", FORWARD, "  forward: {queue: {discipline: codel, limit: 50 ms}}\n", 4, "link.forward.queue.limit", 'read "50 ms"', "a limit of codel is one of", "packets"),
    changed("priorities with a limit in time", FORWARD, "  forward: {queue: {discipline: strict_priority, limit: 50 ms}}\n", 4, "link.forward.queue.limit", "a limit of strict_priority"),
    changed("selective drop without a limit", FORWARD, "  forward: {queue: {discipline: selective_drop, limit: unlimited}}\n", 4, "link.forward.queue.limit", 'read "unlimited"'),
    changed("a flow's share as a time", FORWARD, "  forward: {queue: {discipline: per_flow_drop_tail, per_flow_limit: 5 ms}}\n", 4, "link.forward.queue.per_flow_limit", 'read "5 ms"', "a limit of a flow's share is one of"),
    changed("a flow's share below a packet", FORWARD, "  forward: {queue: {discipline: per_flow_drop_tail, per_flow_limit: 1 kB}}\n", 4, "link.forward.queue.per_flow_limit", "1500 IP bytes"),
    changed("cells fewer than a packet's", FORWARD, "  forward: {framing: aal5, queue: {limit: 31 cells}}\n", 4, 'read "31 cells"', "1696 link bytes"),
    changed("part of a cell", FORWARD, "  forward: {queue: {limit: 0.3 cells}}\n", 4, 'read "0.3 cells"', "not an integer"),
    changed("RED thresholds the wrong way", FORWARD, "  forward: {queue: {discipline: red, max_threshold: 4 packets}}\n", 4, "link.forward.queue.max_threshold", 'read "4 packets"', 'above min_threshold, "5 packets"'),
    changed("RED mean packet size", FORWARD, "  forward: {queue: {discipline: red, mean_packet_size: 70 kB}}\n", 4, "link.forward.queue.mean_packet_size", 'read "70 kB"', "65535 B"),
    changed("RED thresholds in two units", FORWARD, "  forward: {queue: {discipline: red, max_threshold: 90 kB}}\n", 4, "link.forward.queue.max_threshold", "in the unit of min_threshold"),
    changed("RED threshold in time", FORWARD, "  forward: {queue: {discipline: red, min_threshold: 5 ms}}\n", 4, "link.forward.queue.min_threshold", "not a unit of threshold"),
    changed("RED that never drops", FORWARD, "  forward: {queue: {discipline: red, max_probability: 0}}\n", 4, "link.forward.queue.max_probability: read 0", "above 0"),
    changed("RED that keeps no average", FORWARD, "  forward: {queue: {discipline: red, weight: 1.5}}\n", 4, "link.forward.queue.weight: read 1.5", "at most 1"),
    changed("threshold above the limit", FORWARD, "  forward: {queue: {discipline: early_packet_discard, threshold: 1.1}}\n", 4, "link.forward.queue.threshold: read 1.1", "at most 1"),
    changed("load ratio of zero", FORWARD, "  forward: {queue: {discipline: selective_drop, load_ratio: 0}}\n", 4, "link.forward.queue.load_ratio: read 0", "above 0"),
    changed("no classes", FORWARD, "  forward: {queue: {discipline: strict_priority, classes: 0}}\n", 4, "link.forward.queue.classes: read 0", "at least 1"),
    changed("quantum of nothing", FORWARD, "  forward: {queue: {discipline: fq_codel, quantum: 0 B}}\n", 4, "link.forward.queue.quantum", "above zero"),
    changed("quantum beyond the simulator", FORWARD, "  forward: {queue: {discipline: fq_codel, quantum: 1 GB}}\n", 4, "link.forward.queue.quantum", 'read "1 GB"', "16777216"),
    changed("too many queues", FORWARD, "  forward: {queue: {discipline: fq_codel, queues: 65537}}\n", 4, "link.forward.queue.queues: read 65537", "at most 65536"),
    # Terminals and gateways.
    changed("no terminals", FORWARD, FORWARD + "  terminals: 0\n", 5, "link.terminals: read 0", "at least 1"),
    changed("too many terminals", FORWARD, FORWARD + "  terminals: 10001\n", 5, "link.terminals: read 10001", "at most 10000"),
    changed("terminal that is not there", SIZE, SIZE + "    terminal: 2\n", 9, "traffic.0.terminal: read 2", "link.terminals is 1"),
    changed("terminal zero", SIZE, SIZE + "    terminal: 0\n", 9, "traffic.0.terminal: read 0", '"all"'),
    changed("terminal by a word", SIZE, SIZE + "    terminal: each\n", 9, 'traffic.0.terminal: read "each"', '"all"'),
    changed("terminal that is a truth", SIZE, SIZE + "    terminal: true\n", 9, "traffic.0.terminal: read true", '"all"'),
    changed("too many copies", GOOD, GOOD.replace("  preset", "  terminals: 5000\n  preset").replace(SIZE, SIZE + "    terminal: all\n    count: 3\n"), 6, "traffic: has 15000 flows", "at most 10000"),
    changed("priority below zero", SIZE, SIZE + "    priority: -1\n", 9, "traffic.0.priority: read -1", "at least 0"),
    changed("priority beyond the classes", FORWARD + "traffic:\n  - kind: bulk\n", "  forward: {queue: {discipline: strict_priority, classes: 2}}\ntraffic:\n  - kind: bulk\n    priority: 2\n", 7, "traffic.0.priority: read 2", "classes"),
    changed("unknown end of the link", "traffic:\n", "gateways: {hubb: {}}\ntraffic:\n", 5, "gateways.hubb: unknown field", 'mean "hub"?'),
    changed("unknown mode of a processor", "traffic:\n", "gateways: {hub: {processor: {mode: routing}}}\ntraffic:\n", 5, "gateways.hub.processor.mode", "bridge, pass-thru, route"),
    changed("processor that does nothing", "traffic:\n", "gateways: {hub: {processor: {packets_per_second: 0}}}\ntraffic:\n", 5, "gateways.hub.processor.packets_per_second: read 0", "at least 1"),
    changed("processor buffer in bytes", "traffic:\n", "gateways: {terminal: {processor: {buffer: 64 kB}}}\ntraffic:\n", 5, "gateways.terminal.processor.buffer", '"kB" is not a unit of packet count'),
    changed("processor without a buffer", "traffic:\n", "gateways: {terminal: {processor: {buffer: 0 packets}}}\ntraffic:\n", 5, "gateways.terminal.processor.buffer", "above zero"),
    changed("processor slower than the simulator", "traffic:\n", "gateways: {hub: {processor: {per_byte: 2 s}}}\ntraffic:\n", 5, "gateways.hub.processor.per_byte", 'read "2 s"', "1000000000"),
    changed("bridge at one end", "traffic:\n", "gateways: {hub: {processor: {mode: bridge}}, terminal: {processor: {}}}\ntraffic:\n", 5, "gateways.terminal.processor", '"bridge"', '"route"'),
    # Exchanges and conferences.
    changed("both for a bulk flow", ": forward", ": both", 7, 'traffic.0.direction: read "both"', "forward, return"),
    changed("no size of a file", BULK + SIZE, "kind: fetch\n    direction: forward\n", 6, "traffic.0.size: missing"),
    changed("two distributions at once", BULK + SIZE, FETCH + "    size: {exponential: 1 kB, pareto: {min: 1 kB, shape: 1, max: 1 MB}}\n", 8, "traffic.0.size: read exponential and pareto", "exactly one"),
    changed("no distribution", BULK + SIZE, FETCH + "    size: {}\n", 8, "traffic.0.size: read no distribution", "exponential, pareto, lognormal"),
    changed("unknown distribution", BULK + SIZE, FETCH + "    size: {exponental: 1 kB}\n", 8, "traffic.0.size.exponental: unknown", 'mean "exponential"?'),
    changed("mean without a unit", BULK + SIZE, FETCH + "    size: {exponential: 1000}\n", 8, "traffic.0.size.exponential", "unit is missing"),
    changed("tail that ends before it begins", BULK + SIZE, FETCH + "    size: {pareto: {min: 4 kB, shape: 1.2, max: 1 kB}}\n", 8, "traffic.0.size.pareto.max", 'at least "4 kB"'),
    changed("median above the largest", BULK + SIZE, FETCH + "    size: 1 kB\n    think: {lognormal: {median: 9 s, sigma: 1, max: 3 s}}\n", 9, "traffic.0.think.lognormal.max", 'at least "9 s"'),
    changed("shape of zero", BULK + SIZE, FETCH + "    size: {pareto: {min: 4 kB, shape: 0, max: 1 MB}}\n", 8, "traffic.0.size.pareto.shape: read 0", "at least 0.01"),
    changed("distribution without its largest", BULK + SIZE, FETCH + "    size: {pareto: {min: 4 kB, shape: 1}}\n", 8, "traffic.0.size.pareto.max: missing"),
    changed("files and exchanges", BULK + SIZE, FETCH + "    size: 1 kB\n    exchanges: 3\n", 9, "traffic.0.exchanges: unknown field", "files"),
    changed("no files", BULK + SIZE, FETCH + "    size: 1 kB\n    files: 0\n", 9, "traffic.0.files: read 0", "at least 1"),
    changed("mean beyond the simulator", BULK + SIZE, FETCH + "    size: {exponential: 9000 TB}\n", 8, 'traffic.0.size.exponential: read "9000 TB"', "1125899906842624"),
    changed("TCP of a fetch", BULK + SIZE, FETCH + "    size: 1 kB\n    tcp: {rto_min: 300 s}\n", 9, 'traffic.0.tcp.rto_min: read "300 s"'),
    changed("response without a request", BULK + SIZE, "kind: request_response\n    direction: forward\n    response: 1 kB\n", 6, "traffic.0.request: missing"),
    changed("conference of one", BULK + SIZE, CONFERENCE + "    participants: 1\n", 9, "traffic.0.participants: read 1", "at least 2"),
    changed("conference without terminals", BULK + SIZE, CONFERENCE + "    participants: 8\n", 9, "traffic.0.participants: read 8", "link.terminals is 1"),
    changed("conference with a direction", BULK + SIZE, CONFERENCE + "    participants: 8\n    direction: return\n", 10, "traffic.0.direction: unknown field"),
    # YAML.
    changed("YAML syntax", "275 ms}", "275 ms", 5, "YAML syntax"),
    changed("tab for indentation", "  preset", "\tpreset", 3, "YAML syntax"),
    changed("duplicate key", "name: good\n", "name: good\nname: bad\n", 2, 'duplicate field "name"', "line 1"),
    changed("key that is not text", "name: good", "1: good", 1, 'key "1"'),
    changed("custom tag", "name: good", "name: !secret good", 1, '"!secret"'),
    changed("Python tag", "name: good", "name: !!python/name:os.system", 1, "not allowed"),
    changed("unknown alias", "name: good", "name: *nobody", 1, "nobody"),
    changed("alias that contains itself", "name: good", "name: &me [*me]", None, "contains itself"),
    changed("two documents", GOOD, GOOD + "---\n" + GOOD, 10, "single document"),
    changed("not a mapping", GOOD, "- link\n", 1, "read a list at the top"),
    changed("empty file", GOOD, "", None, "is empty"),
    changed("only a comment", GOOD, "# later\n", None, "is empty"),
    changed("binary file", GOOD, "\0\1\2", None, "not a text file"),
    changed("deep nesting", "name: good", "name: " + "[" * 1500, None, "nested too deeply"),
    changed("alias bomb", "name: good", "x0: &x0 [a, a, a, a, a, a, a, a, a, a]\n" + "".join(f"x{i}: &x{i} [{', '.join([f'*x{i - 1}'] * 10)}]\n" for i in range(1, 12)), None, "values"),
    changed("huge file", GOOD, GOOD + "# " + "x" * 300_000, None, "larger than"),
]  # fmt: skip


def test_the_unchanged_scenario_runs(bentpipe: Program, tmp_path: Path) -> None:
    """Otherwise a case could fail for another reason than its own."""
    file = tmp_path / "scenario.yaml"
    file.write_text(GOOD, encoding="utf-8")
    called = bentpipe("validate", file)
    assert (called.code, called.err) == (0, "")


def test_cases_have_distinct_names() -> None:
    kinds = {bad.kind for bad in CASES}
    assert len(kinds) == len(CASES)
    assert len(kinds) >= 130


@pytest.mark.parametrize("bad", CASES, ids=lambda bad: bad.kind)
def test_a_bad_file_is_refused_with_place_and_reason(
    bad: Bad, bentpipe: Program, tmp_path: Path
) -> None:
    assert GOOD.count(bad.old) == 1
    file = tmp_path / "scenario.yaml"
    file.write_text(GOOD.replace(bad.old, bad.new), encoding="utf-8")
    out = tmp_path / "out"
    called = bentpipe("run", file, "--out", out)
    assert called.code == 2
    place = str(file) if bad.line is None else f"{file}:{bad.line}"
    assert called.err.startswith(f"bentpipe: {place}: ")
    for words in bad.words:
        assert words in called.err
    assert called.err.count("\n") == 1, "one problem, one line"
    assert "Traceback" not in called.err
    assert called.out == ""
    assert not out.exists(), "nothing was run"


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("link.forwrad.delay=150ms", ["link.forwrad: unknown field", 'did you mean "forward"?']),
        ("link.forward.delay", ["path=value"]),
        ("=5", ["path=value"]),
        ("traffic.1.size=1 MB", ["traffic is a list with entries 0 to 0", 'read "1"']),
        ("traffic.first.size=1 MB", ['read "first"']),
        ("link.preset.name=geo", ["link.preset is the value", '"name"']),
        ("link.forward.delay=150", ["link.forward.delay", "unit is missing"]),
        ("link.forward.delay=[", ["YAML syntax"]),
        ("name=!secret x", ['"!secret"']),
    ],
)
def test_a_bad_setting_is_named(
    setting: str, words: list[str], bentpipe: Program, tmp_path: Path
) -> None:
    file = tmp_path / "scenario.yaml"
    file.write_text(GOOD, encoding="utf-8")
    called = bentpipe("run", file, "--set", setting)
    assert called.code == 2
    assert called.err.startswith(f"bentpipe: --set {setting}: ")
    for part in words:
        assert part in called.err
    assert "Traceback" not in called.err


def test_each_of_several_problems_has_a_line(bentpipe: Program, tmp_path: Path) -> None:
    file = tmp_path / "scenario.yaml"
    file.write_text(GOOD.replace("16 Mbit/s", "16").replace("1 MB", "10"), encoding="utf-8")
    called = bentpipe("run", file)
    assert called.code == 2
    assert [line.split(": ")[1:3] for line in called.err.splitlines()] == [
        [f"{file}:4", "link.forward.rate"],
        [f"{file}:8", "traffic.0.size"],
    ]


def test_a_missing_file_is_named(bentpipe: Program, tmp_path: Path) -> None:
    missing = bentpipe("run", tmp_path / "none.yaml")
    folder = bentpipe("run", tmp_path)
    assert (missing.code, folder.code) == (2, 2)
    assert "none.yaml: no such file" in missing.err
    assert "is a directory" in folder.err


def test_problems_are_printed_as_json(bentpipe: Program, tmp_path: Path) -> None:

    file = tmp_path / "scenario.yaml"
    file.write_text(GOOD.replace("275 ms", "275"), encoding="utf-8")
    called = bentpipe("validate", file, "--json")
    assert called.code == 2
    answer = json.loads(called.out)
    assert answer["valid"] is False
    assert [(p["source"], p["line"], p["field"]) for p in answer["files"][0]["problems"]] == [
        (str(file), 4, "link.forward.delay")
    ]


GOOD_DATA = {
    "link": {"preset": "geo", "forward": {"rate": "16 Mbit/s", "delay": "275 ms"}},
    "traffic": [{"kind": "bulk", "direction": "forward", "size": "1 MB"}],
    "duration": "60 s",
}


@pytest.mark.parametrize(
    ("changes", "part", "arguments"),
    [
        ({"link": {"forward": {"rate": "4 mbps"}}}, Direction, {"rate": "4 mbps"}),
        ({"link": {"forward": {"rate": "0 bit/s"}}}, Direction, {"rate": "0 bit/s"}),
        ({"link": {"forward": {"dealy": "1 s"}}}, Direction, {"dealy": "1 s"}),
        ({"link": {"return": {"framing": "aal6"}}}, Direction, {"framing": "aal6"}),
        ({"link": {"forward": {"queue": {"discipline": "rod"}}}}, None, {}),
        ({"link": {"preset": "gea"}}, Link, {"preset": "gea"}),
        ({"link": {"terminals": 1.5}}, Link, {"terminals": 1.5}),
        ({"traffic": [{"kind": "bulky"}]}, None, {}),
        ({"traffic": [{"kind": "bulk", "size": "1 MB"}]}, Bulk, {"size": "1 MB"}),
        (
            {"traffic": [{"kind": "bulk", "direction": "forward", "tcp": {"mss": "1 packet"}}]},
            Tcp,
            {"mss": "1 packet"},
        ),
        ({"traffic": [{"kind": "bulk", "direction": "forward"}]}, Bulk, {"direction": "forward"}),
        ({"gateways": {"hub": {"functions": ["aggregator"]}}}, None, {}),
        ({"duration": "1 fortnight"}, None, {}),
        ({"seed": -1}, None, {}),
        ({"traffic": []}, None, {}),
    ],
)
def test_construction_in_python_raises_the_errors_of_files(
    changes: dict[str, Any], part: type[Record] | None, arguments: dict[str, Any]
) -> None:
    """Given a mistake, expect one problem from plain data, the scenario's class and its part."""
    data = {**GOOD_DATA, **changes}
    with pytest.raises(ScenarioError) as from_data:
        Scenario.from_dict(data)
    with pytest.raises(ScenarioError) as from_class:
        Scenario(**data)
    found = [(each.field, each.message) for each in from_data.value.problems]
    assert [(each.field, each.message) for each in from_class.value.problems] == found
    assert {each.source for each in from_class.value.problems} == {"Scenario"}
    if part is not None:
        with pytest.raises(ScenarioError) as from_part:
            part(**arguments)
        (problem,) = from_part.value.problems
        ((whole, message),) = [each for each in found if each[0].endswith(problem.field)]
        assert message == problem.message
        assert problem.source == part.__name__
        assert whole != problem.field


def test_python_names_the_fields_of_files() -> None:
    written: dict[str, Any] = {"return_": {"rate": "16"}}
    with pytest.raises(ScenarioError, match=r"^Link: return\.rate: read "):
        Link(**written)
