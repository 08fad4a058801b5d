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
from wording import Wording

from bentpipe import Plan, Scenario
from bentpipe.errors import ScenarioError
from bentpipe.scenario import Bulk, Direction, Link, Tcp
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
    """``old`` replaced by ``new`` in the good file; the message names ``line`` and ``field``."""

    kind: str
    old: str
    new: str
    line: int | None
    field: str

    def write(self, folder: Path) -> Path:
        assert GOOD.count(self.old) == 1, self.kind
        file = folder / "scenario.yaml"
        file.write_text(GOOD.replace(self.old, self.new), encoding="utf-8")
        return file


SIZE = "    size: 1 MB\n"
BULK = "kind: bulk\n    direction: forward\n"
FETCH = "kind: fetch\n    direction: forward\n"
CONFERENCE = "kind: conference\n    rate: 64 kbit/s\n    payload: 160 B\n"
FORWARD = "  forward: {rate: 16 Mbit/s, delay: 275 ms}\n"

CASES = [
    # Names.
    Bad("unknown field", SIZE, SIZE + "    colour: red\n", 9, "traffic.0.colour"),
    Bad("misspelt field", "delay: 275", "dealy: 275", 4, "link.forward.dealy"),
    Bad("misspelt field at the top", "duration:", "durration:", 9, "durration"),
    Bad("field of another kind", SIZE, SIZE + "    payload: 160 B\n", 9, "traffic.0.payload"),
    Bad("missing field", "duration: 60 s\n", "", 1, "duration"),
    Bad("missing rate", "  preset: geo\n", "  return: {delay: 275 ms}\n", 3, "link.return.rate"),
    Bad("no kind", "kind: bulk\n    ", "", 6, "traffic.0.kind"),
    Bad("unknown kind", "kind: bulk", "kind: bulky", 6, "traffic.0.kind"),
    Bad("unknown preset", "preset: geo", "preset: gea", 3, "link.preset"),
    Bad("unknown direction", ": forward", ": forwards", 7, "traffic.0.direction"),
    Bad("unknown profile", SIZE, SIZE + "    profile: linus\n", 9, "traffic.0.profile"),
    Bad("unknown discipline", FORWARD, "  forward: {queue: {discipline: droptail}}\n", 4, "link.forward.queue.discipline"),
    Bad("unknown congestion control", SIZE, SIZE + "    tcp: {congestion_control: cubik}\n", 9, "traffic.0.tcp.congestion_control"),
    # Units.
    Bad("no unit", "16 Mbit/s", "16", 4, "link.forward.rate"),
    Bad("half a unit", "16 Mbit/s", "16 M", 4, "link.forward.rate"),
    Bad("lower-case rate", "16 Mbit/s", "16 mbps", 4, "link.forward.rate"),
    Bad("b for bit or byte", "16 Mbit/s", "16 mb/s", 4, "link.forward.rate"),
    Bad("KB", "1 MB", "120 KB", 8, "traffic.0.size"),
    Bad("unit of another quantity", "275 ms", "275 kB", 4, "link.forward.delay"),
    Bad("not a quantity", "275 ms", "long", 4, "link.forward.delay"),
    Bad("part of a byte", "1 MB", "0.5 B", 8, "traffic.0.size"),
    Bad("thousands separator", "1 MB", '"1,000 kB"', 8, "traffic.0.size"),
    # Ranges.
    Bad("negative rate", "16 Mbit/s", "-16 Mbit/s", 4, "link.forward.rate"),
    Bad("zero rate", "16 Mbit/s", "0 bit/s", 4, "link.forward.rate"),
    Bad("zero duration", "60 s", "0 s", 9, "duration"),
    Bad("zero size", "1 MB", "0 B", 8, "traffic.0.size"),
    Bad("negative start", SIZE, SIZE + "    start: -1 s\n", 9, "traffic.0.start"),
    Bad("start after the end", SIZE, SIZE + "    start: 61 s\n", 9, "traffic.0.start"),
    Bad("last of the flows after the end", SIZE, SIZE + "    count: 5\n    start_spacing: 15 s\n", 10, "traffic.0.start_spacing"),
    Bad("queue smaller than a packet", FORWARD, "  forward: {queue: {limit: 1 kB}}\n", 4, "link.forward.queue.limit"),
    Bad("queue shorter than a packet", FORWARD, "  forward: {queue: {limit: 500 us}}\n", 4, "link.forward.queue.limit"),
    Bad("queue of no packets", FORWARD, "  forward: {queue: {limit: 0 packets}}\n", 4, "link.forward.queue.limit"),
    Bad("bdp smaller than a packet", FORWARD, "  forward: {queue: {limit: 0.001 bdp}}\n", 4, "link.forward.queue.limit"),
    Bad("bit error rate above 1", FORWARD, "  forward: {bit_error_rate: 1.5}\n", 4, "link.forward.bit_error_rate"),
    Bad("bit error rate below 0", FORWARD, "  forward: {bit_error_rate: -1e-7}\n", 4, "link.forward.bit_error_rate"),
    Bad("not a number", FORWARD, "  forward: {bit_error_rate: .nan}\n", 4, "link.forward.bit_error_rate"),
    Bad("MSS above a packet", SIZE, SIZE + "    tcp: {mss: 65496 B}\n", 9, "traffic.0.tcp.mss"),
    Bad("MSS below the headers", SIZE, SIZE + "    tcp: {mss: 87 B}\n", 9, "traffic.0.tcp.mss"),
    Bad("buffer below a segment", SIZE, SIZE + "    tcp: {send_buffer: 1 kB}\n", 9, "traffic.0.tcp.send_buffer"),
    Bad("beyond 64 bits", "60 s", "1e12 s", 9, "duration"),
    Bad("integer beyond 64 bits", GOOD, GOOD + "seed: 99999999999999999999\n", 10, "seed"),
    Bad("too many flows", SIZE, SIZE + "    count: 10001\n", 9, "traffic.0.count"),
    Bad("too many objects", BULK + SIZE, f"kind: web_page\n    direction: forward\n    objects: {2**70}\n", 8, "traffic.0.objects"),
    Bad("too many samples", GOOD, GOOD + "sample_interval: 1 us\n", 10, "sample_interval"),
    Bad("rate beyond the simulator", "16 Mbit/s", "1000 Tbit/s", 4, "link.forward.rate"),
    # Things that exclude each other.
    Bad("both size and duration", SIZE, SIZE + "    duration: 3 s\n", 6, "traffic.0"),
    Bad("neither size nor duration", SIZE, "", 6, "traffic.0"),
    Bad("no traffic", "  - kind: bulk\n    direction: forward\n" + SIZE, "  []\n", 5, "traffic"),
    Bad("two flows of one name", "  - kind: bulk\n", "  - {name: a, kind: bulk, direction: forward, size: 1 MB}\n  - kind: bulk\n    name: a\n", 5, "traffic"),
    Bad("late first step", "rate: 16 Mbit/s", "rate: [{at: 1 s, value: 1 Mbit/s}]", 4, "link.forward.rate"),
    Bad("nothing but outage", "rate: 16 Mbit/s", "rate: [{at: 0 s, value: 0 bit/s}]", 4, "link.forward.rate"),
    Bad("endless outage", "rate: 16 Mbit/s", "rate: [{at: 0 s, value: 1 MB/s}, {at: 1 s, value: 0 bit/s}]", 4, "link.forward.rate"),
    # Types.
    Bad("text for a number", FORWARD, "  forward: {bit_error_rate: low}\n", 4, "link.forward.bit_error_rate"),
    Bad("text for a truth", GOOD, GOOD + "packet_events: yes\n", 10, "packet_events"),
    Bad("fraction for a count", SIZE, SIZE + "    count: 1.5\n", 9, "traffic.0.count"),
    Bad("list for a mapping", FORWARD, "  forward: [16 Mbit/s]\n", 4, "link.forward"),
    Bad("mapping for a list", "  - kind", "    kind", 5, "traffic"),
    Bad("scalar for a flow", "  - kind: bulk\n    direction: forward\n" + SIZE, "  - bulk\n", 6, "traffic.0"),
    Bad("nothing for a size", "size: 1 MB", "size:", 8, "traffic.0.size"),
    # Framing.
    Bad("unknown framing", FORWARD, "  forward: {framing: ethernot}\n", 4, "link.forward.framing"),
    Bad("framing without a unit", FORWARD, "  forward: {framing: 8}\n", 4, "link.forward.framing"),
    Bad("framing of no kind", FORWARD, "  forward: {framing: {fcs: 32}}\n", 4, "link.forward.framing.kind"),
    Bad("framing of an unknown kind", FORWARD, "  forward: {framing: {kind: pppp}}\n", 4, "link.forward.framing"),
    Bad("option of another framing", FORWARD, "  forward: {framing: {kind: aal5, fcs: 32}}\n", 4, "link.forward.framing"),
    Bad("framing option out of range", FORWARD, "  forward: {framing: {kind: ppp, fcs: 8}}\n", 4, "link.forward.framing"),
    Bad("framing in a list", FORWARD, "  forward: {framing: [ppp]}\n", 4, "link.forward.framing"),
    # Queues.
    Bad("misspelt queue discipline", FORWARD, "  forward: {queue: {discipline: fqcodel}}\n", 4, "link.forward.queue.discipline"),
    Bad("option of another discipline", FORWARD, "  forward: {queue: {discipline: red, target: 5 ms}}\n", 4, "link.forward.queue.target"),
    Bad("option without its discipline", FORWARD, "  forward: {queue: {target: 5 ms}}\n", 4, "link.forward.queue.target"),
    Bad("queue as text", FORWARD, "  forward: {queue: red}\n", 4, "link.forward.queue"),
    Bad("discipline that is no text", FORWARD, "  forward: {queue: {discipline: 1}}\n", 4, "link.forward.queue.discipline"),
    Bad("CoDel with a limit in time", FORWARD, "  forward: {queue: {discipline: codel, limit: 50 ms}}\n", 4, "link.forward.queue.limit"),
    Bad("priorities with a limit in time", FORWARD, "  forward: {queue: {discipline: strict_priority, limit: 50 ms}}\n", 4, "link.forward.queue.limit"),
    Bad("selective drop without a limit", FORWARD, "  forward: {queue: {discipline: selective_drop, limit: unlimited}}\n", 4, "link.forward.queue.limit"),
    Bad("a flow's share as a time", FORWARD, "  forward: {queue: {discipline: per_flow_drop_tail, per_flow_limit: 5 ms}}\n", 4, "link.forward.queue.per_flow_limit"),
    Bad("a flow's share below a packet", FORWARD, "  forward: {queue: {discipline: per_flow_drop_tail, per_flow_limit: 1 kB}}\n", 4, "link.forward.queue.per_flow_limit"),
    Bad("cells fewer than a packet's", FORWARD, "  forward: {framing: aal5, queue: {limit: 31 cells}}\n", 4, "link.forward.queue.limit"),
    Bad("part of a cell", FORWARD, "  forward: {queue: {limit: 0.3 cells}}\n", 4, "link.forward.queue.limit"),
    Bad("RED thresholds the wrong way", FORWARD, "  forward: {queue: {discipline: red, max_threshold: 4 packets}}\n", 4, "link.forward.queue.max_threshold"),
    Bad("RED mean packet size", FORWARD, "  forward: {queue: {discipline: red, mean_packet_size: 70 kB}}\n", 4, "link.forward.queue.mean_packet_size"),
    Bad("RED thresholds in two units", FORWARD, "  forward: {queue: {discipline: red, max_threshold: 90 kB}}\n", 4, "link.forward.queue.max_threshold"),
    Bad("RED threshold in time", FORWARD, "  forward: {queue: {discipline: red, min_threshold: 5 ms}}\n", 4, "link.forward.queue.min_threshold"),
    Bad("RED that never drops", FORWARD, "  forward: {queue: {discipline: red, max_probability: 0}}\n", 4, "link.forward.queue.max_probability"),
    Bad("RED that keeps no average", FORWARD, "  forward: {queue: {discipline: red, weight: 1.5}}\n", 4, "link.forward.queue.weight"),
    Bad("threshold above the limit", FORWARD, "  forward: {queue: {discipline: early_packet_discard, threshold: 1.1}}\n", 4, "link.forward.queue.threshold"),
    Bad("load ratio of zero", FORWARD, "  forward: {queue: {discipline: selective_drop, load_ratio: 0}}\n", 4, "link.forward.queue.load_ratio"),
    Bad("no classes", FORWARD, "  forward: {queue: {discipline: strict_priority, classes: 0}}\n", 4, "link.forward.queue.classes"),
    Bad("shared rate without classes", FORWARD, "  forward: {queue: {discipline: shared_rate}}\n", 4, "link.forward.queue.classes"),
    Bad("shared rate of no class", FORWARD, "  forward: {queue: {discipline: shared_rate, classes: []}}\n", 4, "link.forward.queue.classes"),
    Bad("class without a weight", FORWARD, "  forward: {queue: {discipline: shared_rate, classes: [{weight: 0}]}}\n", 4, "link.forward.queue.classes.0.weight"),
    Bad("reserved rate without a unit", FORWARD, "  forward: {queue: {discipline: shared_rate, classes: [{reserved: 512}]}}\n", 4, "link.forward.queue.classes.0.reserved"),
    Bad("reserved rate of nothing", FORWARD, "  forward: {queue: {discipline: shared_rate, classes: [{reserved: 0 bit/s}]}}\n", 4, "link.forward.queue.classes.0.reserved"),
    Bad("more reserved than the link has", FORWARD, "  forward: {rate: 1 Mbit/s, delay: 1 ms, queue: {discipline: shared_rate, classes: [{reserved: 600 kbit/s}, {}, {reserved: 401 kbit/s}]}}\n", 4, "link.forward.queue.classes.2.reserved"),
    Bad("ceiling below what is reserved", FORWARD, "  forward: {rate: 1 Mbit/s, delay: 1 ms, queue: {discipline: shared_rate, classes: [{reserved: 600 kbit/s, ceiling: 500 kbit/s}]}}\n", 4, "link.forward.queue.classes.0.ceiling"),
    Bad("class with RED", FORWARD, "  forward: {queue: {discipline: shared_rate, classes: [{queue: {discipline: red}}]}}\n", 4, "link.forward.queue.classes.0.queue.discipline"),
    Bad("class with a limit in time", FORWARD, "  forward: {queue: {discipline: shared_rate, classes: [{queue: {limit: 50 ms}}]}}\n", 4, "link.forward.queue.classes.0.queue.limit"),
    Bad("quantum of nothing", FORWARD, "  forward: {queue: {discipline: fq_codel, quantum: 0 B}}\n", 4, "link.forward.queue.quantum"),
    Bad("quantum beyond the simulator", FORWARD, "  forward: {queue: {discipline: fq_codel, quantum: 1 GB}}\n", 4, "link.forward.queue.quantum"),
    Bad("too many queues", FORWARD, "  forward: {queue: {discipline: fq_codel, queues: 65537}}\n", 4, "link.forward.queue.queues"),
    # Terminals and gateways.
    Bad("no terminals", FORWARD, FORWARD + "  terminals: 0\n", 5, "link.terminals"),
    Bad("too many terminals", FORWARD, FORWARD + "  terminals: 10001\n", 5, "link.terminals"),
    Bad("terminal that is not there", SIZE, SIZE + "    terminal: 2\n", 9, "traffic.0.terminal"),
    Bad("terminal zero", SIZE, SIZE + "    terminal: 0\n", 9, "traffic.0.terminal"),
    Bad("terminal by a word", SIZE, SIZE + "    terminal: each\n", 9, "traffic.0.terminal"),
    Bad("terminal that is a truth", SIZE, SIZE + "    terminal: true\n", 9, "traffic.0.terminal"),
    Bad("too many copies", GOOD, GOOD.replace("  preset", "  terminals: 5000\n  preset").replace(SIZE, SIZE + "    terminal: all\n    count: 3\n"), 6, "traffic"),
    Bad("priority below zero", SIZE, SIZE + "    priority: -1\n", 9, "traffic.0.priority"),
    Bad("priority beyond the classes", FORWARD + "traffic:\n  - kind: bulk\n", "  forward: {queue: {discipline: strict_priority, classes: 2}}\ntraffic:\n  - kind: bulk\n    priority: 2\n", 7, "traffic.0.priority"),
    Bad("unknown end of the link", "traffic:\n", "gateways: {hubb: {}}\ntraffic:\n", 5, "gateways.hubb"),
    Bad("unknown mode of a processor", "traffic:\n", "gateways: {hub: {processor: {mode: routing}}}\ntraffic:\n", 5, "gateways.hub.processor.mode"),
    Bad("processor that does nothing", "traffic:\n", "gateways: {hub: {processor: {packets_per_second: 0}}}\ntraffic:\n", 5, "gateways.hub.processor.packets_per_second"),
    Bad("processor buffer in bytes", "traffic:\n", "gateways: {terminal: {processor: {buffer: 64 kB}}}\ntraffic:\n", 5, "gateways.terminal.processor.buffer"),
    Bad("processor without a buffer", "traffic:\n", "gateways: {terminal: {processor: {buffer: 0 packets}}}\ntraffic:\n", 5, "gateways.terminal.processor.buffer"),
    Bad("processor slower than the simulator", "traffic:\n", "gateways: {hub: {processor: {per_byte: 2 s}}}\ntraffic:\n", 5, "gateways.hub.processor.per_byte"),
    Bad("bridge at one end", "traffic:\n", "gateways: {hub: {processor: {mode: bridge}}, terminal: {processor: {}}}\ntraffic:\n", 5, "gateways.terminal.processor.mode"),
    # Exchanges and conferences.
    Bad("both for a bulk flow", ": forward", ": both", 7, "traffic.0.direction"),
    Bad("no size of a file", BULK + SIZE, "kind: fetch\n    direction: forward\n", 6, "traffic.0.size"),
    Bad("two distributions at once", BULK + SIZE, FETCH + "    size: {exponential: 1 kB, pareto: {min: 1 kB, shape: 1, max: 1 MB}}\n", 8, "traffic.0.size"),
    Bad("no distribution", BULK + SIZE, FETCH + "    size: {}\n", 8, "traffic.0.size"),
    Bad("unknown distribution", BULK + SIZE, FETCH + "    size: {exponental: 1 kB}\n", 8, "traffic.0.size.exponental"),
    Bad("mean without a unit", BULK + SIZE, FETCH + "    size: {exponential: 1000}\n", 8, "traffic.0.size.exponential"),
    Bad("tail that ends before it begins", BULK + SIZE, FETCH + "    size: {pareto: {min: 4 kB, shape: 1.2, max: 1 kB}}\n", 8, "traffic.0.size.pareto.max"),
    Bad("median above the largest", BULK + SIZE, FETCH + "    size: 1 kB\n    think: {lognormal: {median: 9 s, sigma: 1, max: 3 s}}\n", 9, "traffic.0.think.lognormal.max"),
    Bad("shape of zero", BULK + SIZE, FETCH + "    size: {pareto: {min: 4 kB, shape: 0, max: 1 MB}}\n", 8, "traffic.0.size.pareto.shape"),
    Bad("distribution without its largest", BULK + SIZE, FETCH + "    size: {pareto: {min: 4 kB, shape: 1}}\n", 8, "traffic.0.size.pareto.max"),
    Bad("files and exchanges", BULK + SIZE, FETCH + "    size: 1 kB\n    exchanges: 3\n", 9, "traffic.0.exchanges"),
    Bad("no files", BULK + SIZE, FETCH + "    size: 1 kB\n    files: 0\n", 9, "traffic.0.files"),
    Bad("mean beyond the simulator", BULK + SIZE, FETCH + "    size: {exponential: 9000 TB}\n", 8, "traffic.0.size.exponential"),
    Bad("TCP of a fetch", BULK + SIZE, FETCH + "    size: 1 kB\n    tcp: {rto_min: 300 s}\n", 9, "traffic.0.tcp.rto_min"),
    Bad("response without a request", BULK + SIZE, "kind: request_response\n    direction: forward\n    response: 1 kB\n", 6, "traffic.0.request"),
    Bad("conference of one", BULK + SIZE, CONFERENCE + "    participants: 1\n", 9, "traffic.0.participants"),
    Bad("conference without terminals", BULK + SIZE, CONFERENCE + "    participants: 8\n", 9, "traffic.0.participants"),
    Bad("conference with a direction", BULK + SIZE, CONFERENCE + "    participants: 8\n    direction: return\n", 10, "traffic.0.direction"),
    # YAML.
    Bad("YAML syntax", "275 ms}", "275 ms", 5, ""),
    Bad("tab for indentation", "  preset", "\tpreset", 3, ""),
    Bad("duplicate key", "name: good\n", "name: good\nname: bad\n", 2, ""),
    Bad("key that is not text", "name: good", "1: good", 1, ""),
    Bad("custom tag", "name: good", "name: !secret good", 1, "name"),
    Bad("Python tag", "name: good", "name: !!python/name:os.system", 1, "name"),
    Bad("unknown alias", "name: good", "name: *nobody", 1, ""),
    Bad("alias that contains itself", "name: good", "name: &me [*me]", None, ""),
    Bad("two documents", GOOD, GOOD + "---\n" + GOOD, 10, ""),
    Bad("not a mapping", GOOD, "- link\n", 1, ""),
    Bad("empty file", GOOD, "", None, ""),
    Bad("only a comment", GOOD, "# later\n", None, ""),
    Bad("binary file", GOOD, "\0\1\2", None, ""),
    Bad("deep nesting", "name: good", "name: " + "[" * 500, None, ""),
    Bad("alias bomb", "name: good", "x0: &x0 [a, a, a, a, a, a, a, a, a, a]\n" + "".join(f"x{i}: &x{i} [{', '.join([f'*x{i - 1}'] * 10)}]\n" for i in range(1, 12)), None, ""),
    Bad("aliases of a long text", "name: good", f"name: &a {'x' * 100_000}\nx: [{', '.join(['*a'] * 99)}]", None, ""),
    Bad("directive of YAML 1.1", GOOD, "# first\n%YAML 1.1\n---\n" + GOOD, 2, ""),
    Bad("directive behind a byte order mark", GOOD, "\ufeff%YAML 1.1\n---\n" + GOOD, 1, ""),
    Bad("directive with zeros", GOOD, "%YAML 01.01\n---\n" + GOOD, 1, ""),
    Bad("directive between carriage returns", GOOD, "# first\r%YAML 1.1\r---\r" + GOOD, 2, ""),
    Bad("huge file", GOOD, GOOD + "# " + "x" * 300_000, None, ""),
    # A template whose variable is unset would otherwise give the preset's rate.
    Bad("nothing for a rate", "rate: 16 Mbit/s", "rate: ", 4, "link.forward.rate"),
    Bad("nothing for a mapping", FORWARD, "  forward:\n  # none\n", 4, "link.forward"),
    Bad("nothing for an entry", GOOD, GOOD + "thresholds:\n  -\n", 11, "thresholds.0"),
]  # fmt: skip


def test_the_unchanged_scenario_runs(bentpipe: Program, tmp_path: Path) -> None:
    """Otherwise a case could fail for another reason than its own."""
    file = tmp_path / "scenario.yaml"
    file.write_text(GOOD, encoding="utf-8")
    called = bentpipe("check", file)
    assert (called.code, called.err) == (0, "")


@pytest.mark.parametrize("first", range(0, len(CASES), 15))
def test_a_bad_file_is_refused_with_place_and_reason(
    first: int, wording: Wording, tmp_path: Path
) -> None:
    found = {}
    for bad in CASES[first : first + 15]:
        file = bad.write(tmp_path)
        with pytest.raises(ScenarioError) as error:
            Plan.resolve(file)
        (problem,) = error.value.problems
        assert (problem.source, problem.line, problem.field) == (str(file), bad.line, bad.field)
        found[bad.kind] = f"{problem.field}: {problem.message}".removeprefix(": ")
    wording(f"bad scenarios from {first}", found)


def test_cases_have_distinct_names() -> None:
    assert len({bad.kind for bad in CASES}) == len(CASES) >= 130


@pytest.mark.parametrize("bad", CASES[:3], ids=lambda bad: bad.kind)
def test_a_bad_file_is_one_line_and_nothing_is_run(
    bad: Bad, bentpipe: Program, tmp_path: Path
) -> None:
    file, out = bad.write(tmp_path), tmp_path / "out"
    called = bentpipe("run", file, "--out", out)
    assert (called.code, called.out) == (2, "")
    assert called.err.startswith(f"bentpipe: {file}:{bad.line}: {bad.field}: ")
    assert called.err.count("\n") == 1, "one problem, one line"
    assert not out.exists()


SETTINGS = {
    "link.forwrad.delay=150ms": "link.forwrad",
    "link.forward.delay": "",
    "=5": "",
    "traffic.1.size=1 MB": "traffic.1.size",
    "traffic.first.size=1 MB": "traffic.first.size",
    "link.preset.name=geo": "link.preset.name",
    "link.forward.delay=150": "link.forward.delay",
    "link.forward.delay=": "",
    "link.forward.delay= # 5 ms": "",
    "link.forward={delay: , rate: 5 Mbit/s}": "delay",
    "link.forward.delay=[": "",
    "name=!secret x": "",
}


def test_a_bad_setting_is_named(wording: Wording, tmp_path: Path) -> None:
    file = tmp_path / "scenario.yaml"
    file.write_text(GOOD, encoding="utf-8")
    found = {}
    for setting in SETTINGS:
        with pytest.raises(ScenarioError) as error:
            Plan.resolve(Scenario.load(file, [setting]))
        (problem,) = error.value.problems
        assert problem.source == f"--set {setting}"
        found[setting] = f"{problem.field}: {problem.message}".removeprefix(": ")
    wording("bad settings", found)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("run", "FILE", "--out", ""), "--out"),
        (("run", "FILE", "--set", ""), "--set"),
        (("run", "FILE", "--set", "link.forward.rate="), "--set link.forward.rate="),
        (("run", ""), "SCENARIO"),
        (("search", "FILE", "--max", ""), "--max"),
        (("search", "FILE", "--set", "link.forward.rate="), "--set link.forward.rate="),
        (("ask", "tcp", "--link", ""), "--link"),
        (("ask", "tcp", "--set", "link.forward.rate="), "--set link.forward.rate="),
    ],
)
def test_an_empty_variable_of_a_shell_is_an_error_in_each_verb(
    arguments: tuple[str, ...],
    named: str,
    bentpipe: Program,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Given an empty folder as working directory, expect no result in it."""
    file = tmp_path / "scenario.yaml"
    file.write_text(GOOD, encoding="utf-8")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    called = bentpipe(*(str(file) if each == "FILE" else each for each in arguments))
    assert (called.code, called.out) == (2, "")
    assert called.err.startswith(f"bentpipe: {named}: has no value; ")
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize(("verb", "code"), [(("exec",), 125), (("lab", "up", "sat"), 2)])
def test_an_empty_setting_of_a_lab_is_an_error(
    verb: tuple[str, ...], code: int, bentpipe: Program
) -> None:
    """Given an unset loss, expect no lab without one."""
    called = bentpipe(*verb, "--link", "geo", "--set", "link.forward.loss=")
    assert called.code == code
    assert called.err.startswith("bentpipe: --set link.forward.loss=: has no value; ")


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
    called = bentpipe("check", file, "--json")
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
