"""Scenarios for tc(8), `bentpipe gateway` and ns-3, as texts; `test_export_runs` runs them."""

from __future__ import annotations

import copy
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from conftest import EXAMPLES, ROOT, Program
from hypothesis import given, strategies as st
from properties import examples

from bentpipe import Plan
from bentpipe.export import ns3_script, sat_toml, tc_script
from bentpipe.export.common import comment
from bentpipe.scenario import FRAMINGS, frame_bits, plan_framing

GEO_PEP = ROOT / "scenarios" / "geo-pep.yaml"
TUNNEL = ROOT / "scenarios" / "coded-tunnel.yaml"
LINK: dict[str, Any] = {
    "forward": {"rate": "16 Mbit/s", "delay": "250 ms", "queue": {"limit": "100 packets"}},
    "return": {"rate": "2 Mbit/s", "delay": "30 ms", "queue": {"limit": "60 kB"}},
}
SCENARIO: dict[str, Any] = {
    "link": LINK,
    "traffic": [{"name": "get", "kind": "bulk", "direction": "forward", "size": "1 MB"}],
    "duration": "60 s",
}
FORMATS = {
    "tc": tc_script,
    "sat.toml": lambda plan: sat_toml(plan, "hub"),
    "ns-3": ns3_script,
}


def changed(path: str = "", value: Any = None, **fields: Any) -> Plan:
    """Return the plan of the scenario with other fields, and one by its path."""
    data: dict[str, Any] = copy.deepcopy(SCENARIO) | fields
    *parents, last = path.split(".") if path else [""]
    inner = data
    for name in parents:
        inner = inner.setdefault(name, {})
    if path:
        inner[last] = value
    return Plan.resolve(data)


def commands(plan: Plan) -> list[str]:
    """Return the commands of the script of tc for both directions."""
    text = tc_script(plan)
    return [line for line in text.splitlines() if line.startswith("tc qdisc add")]


# --- tc -----------------------------------------------------------------------------------------


def test_tc_has_the_delay_the_rate_and_the_queue_of_both_directions() -> None:
    """Given no framing, expect sizes without the Ethernet header, which Linux counts."""
    assert commands(changed()) == [
        'tc qdisc add dev "$island" root handle 1: stab overhead -14 netem limit 1000000 '
        "delay 250ms",
        'tc qdisc add dev "$island" parent 1:1 handle 2: tbf rate 16000000bit '
        "burst 3514 limit 150000",
        'tc qdisc add dev "$island" parent 2:1 handle 3: pfifo limit 100',
        'tc qdisc add dev "$world" root handle 1: stab overhead -14 netem limit 1000000 delay 30ms',
        'tc qdisc add dev "$world" parent 1:1 handle 2: tbf rate 2000000bit burst 1764 limit 60000',
    ]


def size_by_kernel(line: str, ip_bytes: int) -> int:
    """Return the size of a packet with the size table that tc(8) makes.

    Sources: `tc_calc_size_table` of iproute2, and `__qdisc_calculate_pkt_len` of Linux.
    """
    fields = dict(re.findall(r"(overhead|mpu|linklayer|mtu|tsize) (\S+)", line))
    size, slots = ip_bytes + 14 + int(fields["overhead"]), int(fields.get("tsize", 0))
    if not slots:
        return size
    log = 0
    while int(fields["mtu"]) >> log > slots - 1:
        log += 1
    # The last size of its slot.
    size = max((((size - 1) >> log) + 1) << log, int(fields.get("mpu", 0)))
    return -(-size // 48) * 53 if fields.get("linklayer") == "atm" else size


@pytest.mark.parametrize("name", FRAMINGS)
def test_tc_takes_the_time_of_the_framing_for_a_packet(name: str) -> None:
    """Given each framing, expect the transmission time of 1,500 bytes, and of others within 1 %.

    Of cells that tc does not have, packets of other sizes are said to differ.
    """
    plan = changed("link.forward.framing", name)
    # The size table is that of the root.
    line = " ".join(each for each in commands(plan) if "island" in each)
    rate_bps = int(re.findall(r"rate (\d+)bit", line)[0])
    cells = plan_framing(name, {})["cells"]
    is_exact = cells is None or cells["cell_bytes"] == 53
    for ip_bytes in (40, 48, 188, 576, 1_500) if is_exact else (1_500,):
        expected_s = frame_bits(plan_framing(name, {}), ip_bytes) / 16e6
        # A byte of 64, and the fraction of a bit per second.
        assert 8 * size_by_kernel(line, ip_bytes) / rate_bps == pytest.approx(expected_s, rel=0.01)
    assert is_exact == ("tc has no cells" not in tc_script(plan))


@pytest.mark.parametrize("ip_bytes", [20, 47, 575, 1_499])
def test_tc_has_the_size_of_odd_packets(ip_bytes: int) -> None:
    """Given frames of Ethernet, which have a size table, expect no byte more than on the link."""
    line = commands(changed("link.forward.framing", "ethernet"))[0]
    assert 8 * size_by_kernel(line, ip_bytes) == frame_bits(plan_framing("ethernet", {}), ip_bytes)


@pytest.mark.parametrize(
    "framing",
    [
        {"kind": "none"},
        {"kind": "aal5-sonet"},
        {"kind": "mpe"},
        {"kind": "mpe", "packing": False},
        {"kind": "ppp", "payload": "ones"},
    ],
    ids=lambda each: "-".join(map(str, each.values())),
)
def test_a_limit_of_the_link_holds_as_many_packets(framing: dict[str, Any]) -> None:
    """Given 1 BDP, 560,000 bytes on the link, expect the largest packets that it holds there."""
    forward = LINK["forward"] | {"framing": framing, "queue": {"limit": "1 bdp"}}
    shaper, line = commands(changed("link.forward", forward))[:2]
    limit = int(line.rpartition("limit ")[2])
    kind, options = framing["kind"], {name: framing[name] for name in framing if name != "kind"}
    held = 8 * 560_000 / frame_bits(plan_framing(kind, options), 1_500)
    # The limit is rounded to a byte.
    assert limit / size_by_kernel(shaper, 1_500) == pytest.approx(held, abs=0.001)


def test_the_slowest_rate_has_a_bucket() -> None:
    """Given 1 bit/s and a framing, which leave none, expect the least that tc takes, and a word."""
    plan = changed("link.forward", {"rate": "1 bit/s", "delay": "250 ms", "framing": "gse"})
    assert "tbf rate 99bit burst 1514 " in commands(plan)[1]
    assert "# - link.forward.rate: tbf has 100 bit/s at least" in tc_script(plan)
    assert '{ { 0.0, "1bps" }, }' in ns3_script(plan)


@pytest.mark.parametrize(
    ("queue", "shaper", "inside"),
    [
        ({"limit": "30 kB"}, "limit 30000", ""),
        ({"limit": "50 ms"}, "limit 100000", ""),
        ({"limit": "200 cells"}, "limit 10600", ""),
        ({"limit": "1 bdp"}, "limit 560000", ""),
        ({"limit": "unlimited"}, "limit 1000000000", ""),
        (
            {"discipline": "codel", "limit": "300 kB", "interval": "600 ms", "target": "30 ms"},
            "limit 300000",
            "codel limit 200 target 30ms interval 600ms noecn",
        ),
        (
            {"discipline": "fq_codel", "limit": "1000 packets", "queues": 64},
            "limit 1500000",
            "fq_codel limit 1000 target 5ms interval 100ms flows 64 quantum 1514 ecn",
        ),
        (
            {"discipline": "early_packet_discard", "limit": "100 packets", "threshold": 0.8},
            "limit 120000",
            "pfifo limit 80",
        ),
        ({"discipline": "selective_drop", "limit": "60 kB"}, "limit 60000", ""),
        # The kernel has no prio of one band (TCQ_MIN_PRIO_BANDS).
        (
            {"discipline": "strict_priority", "classes": 1, "limit": "50 packets"},
            "limit 75000",
            "pfifo limit 50",
        ),
        ({"discipline": "strict_priority", "classes": 1, "limit": "60 kB"}, "limit 60000", ""),
        (
            {"discipline": "shared_rate", "classes": [{}], "limit": "50 packets"},
            "limit 75000",
            "pfifo limit 50",
        ),
    ],
    ids=lambda each: str(each)[:40],
)
def test_tc_has_the_queue(queue: dict[str, Any], shaper: str, inside: str) -> None:
    island = [each for each in commands(changed("link.forward.queue", queue)) if "island" in each]
    assert island[1].endswith(f" {shaper}")
    assert [each.partition("handle 3: ")[2] for each in island[2:]] == [inside] * bool(inside)


def red_fields(framing: str, **queue: Any) -> dict[str, float]:
    """Return the options of RED, which tc counts in the bytes of the size table."""
    queue = {"discipline": "red", "gentle": False} | queue
    forward = LINK["forward"] | {"framing": framing, "queue": queue}
    plan = changed("link.forward", forward)
    text, in_bytes = tc_script(plan), "min_threshold" in queue
    # Bytes without framing are the same there.
    is_exact = in_bytes and framing == "none"
    assert ("# - link.forward.queue.min_threshold: " in text) == (not is_exact)
    assert ("# - link.forward.queue.max_probability: " in text) == in_bytes
    options = re.findall(r"(\w+) ([\d.]+)", commands(plan)[2].partition("red ")[2])
    return {name: float(value) for name, value in options}


@pytest.mark.parametrize(("framing", "packet_bytes"), [("none", 1_500), ("aal5", 1_696)])
def test_red_of_tc_has_its_thresholds_in_packets_of_the_largest_size(
    framing: str, packet_bytes: int
) -> None:
    """Given 5 and 15 of 100 packets, and the same in bytes, expect their shares of the limit."""
    in_bytes = {"limit": "150 kB", "min_threshold": "7500 B", "max_threshold": "22500 B"}
    for queue in ({"limit": "100 packets"}, in_bytes):
        fields = red_fields(framing, **queue)
        assert [fields[name] / packet_bytes for name in ("min", "max", "limit")] == [5, 15, 100]
    # In bytes a packet is dropped in proportion to its size, 1 for a packet of 1000 bytes.
    assert fields["probability"] == 0.15


@pytest.mark.parametrize("framing", ["none", "aal5"])
def test_red_of_tc_has_the_nearest_weight(framing: str) -> None:
    """Given a weight of 0.002, expect the burst from which tc computes 1/512 (tc_red_eval_ewma)."""
    fields = red_fields(framing, limit="100 packets")
    burst = fields["burst"]
    excess = burst + 1 - fields["min"] / fields["avpkt"]
    assert excess >= 1

    def fits(weight: float) -> bool:
        return bool(excess <= (1 - (1 - weight) ** burst) / weight)

    assert fits(2**-9)
    assert not fits(2**-8)


def test_strict_priority_has_a_band_for_each_class() -> None:
    queue = {"discipline": "strict_priority", "classes": 3, "limit": "50 packets"}
    island = [each for each in commands(changed("link.forward.queue", queue)) if "island" in each]
    assert island[2].endswith(f"prio bands 3 priomap{' 2' * 16}")
    assert [each.rpartition("parent ")[2] for each in island[3:]] == [
        f"3:{band} pfifo limit 50" for band in (1, 2, 3)
    ]


FEATURES = (
    "generic-receive-offload: on\\ntx-checksumming: on\\ntcp-segmentation-offload: off [fixed]"
)
PROGRAMS = {
    "ethtool": f"""[ "$1" = -K ] || printf '{FEATURES}\\n'""",
    "tc": """case "$*" in
*show*) echo 'qdisc noqueue 0: root'; echo 'qdisc fq 8001: root' ;;
*"$LACKS"*) echo 'Error: Specified qdisc kind is unknown.' >&2; exit 2 ;;
esac""",
}


@pytest.mark.system
def test_the_script_says_how_to_take_the_link_off_and_what_the_kernel_lacks(tmp_path: Path) -> None:
    """Given interfaces with GRO, no TSO and fq, expect these back; without tbf, expect its name."""
    for name, text in PROGRAMS.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "tc.sh").write_text(tc_script(changed()))

    def run(lacks: str) -> subprocess.CompletedProcess[str]:
        env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "LACKS": lacks}
        words = ["sh", str(tmp_path / "tc.sh"), "sat0", "lan0"]
        return subprocess.run(words, env=env, capture_output=True, text=True, check=False)

    ran = run("none")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.splitlines() == [
        line
        for device in ("sat0", "lan0")
        for line in (
            f"tc qdisc del dev {device} root; ethtool -K {device} gro on tso off",
            f"# {device} had: qdisc fq 8001: root",
        )
    ]
    ran = run("tbf")
    assert ran.returncode == 1
    assert ": no tbf by: tc qdisc add dev lan0 parent 1:1 handle 2: tbf rate" in ran.stderr
    assert "modprobe sch_tbf" in ran.stderr


def test_jitter_keeps_the_order_of_packets() -> None:
    """Netem draws around a mean, and reorders packets unless it has a rate."""
    line = commands(changed("link.forward.jitter", "14 ms"))[0]
    assert line.endswith("delay 257ms 7ms rate 100gbit")


@pytest.mark.parametrize(
    ("errors", "option"),
    [
        ({"loss": "0.5 %"}, "loss random 0.5%"),
        ({"bit_error_rate": 1.0}, "loss random 100%"),
        ({"bit_error_rate": 1e-6}, f"loss random {100 * (1 - (1 - 1e-6) ** 12_000):.10f}%"),
        (
            {
                "errors": {
                    "model": "gilbert_elliott",
                    "good": {"mean_duration": "10 s"},
                    "bad": {"mean_duration": "50 ms", "loss_rate": 0.3},
                }
            },
            # A packet of 1,500 bytes takes 0.75 ms.
            "loss gemodel 0.0075% 1.5% 30% 0%",
        ),
        (
            {
                "errors": {
                    "model": "gilbert_elliott",
                    "good": {"mean_duration": "75000 min"},
                    "bad": {"mean_duration": "50 ms", "loss_rate": 0.3},
                }
            },
            # netem has steps of 2^-32, some 0.00000002 %.
            "loss gemodel 0.0000000167% 1.5% 30% 0%",
        ),
    ],
)
def test_netem_has_the_losses(errors: dict[str, Any], option: str) -> None:
    forward = LINK["forward"] | errors
    line = commands(changed("link.forward", forward))[0]
    assert line.endswith(f"delay 250ms {option}")


def test_the_path_of_the_first_terminal_is_that_of_the_script() -> None:
    """Given a terminal with a longer path and bit errors, expect both in its direction."""
    path = {"terminal": 1, "delay": "260 ms", "bit_error_rate": 1.0}
    plan = changed(link=LINK | {"terminals": 2, "terminal_paths": [path]})
    assert commands(plan)[0].endswith("delay 260ms loss random 100%")
    assert '"260000000ns"' in ns3_script(plan)


def test_a_direction_without_delay_and_loss_needs_no_netem() -> None:
    """Given no delay, expect the shaper to be the root, which alone may have a size table."""
    link = {name: {"rate": "4 Mbit/s", "delay": "0 ms"} for name in ("forward", "return")}
    lines = commands(changed(link=link))
    assert not any("netem" in line for line in lines)
    assert all("root handle 2: stab" in line for line in lines if "tbf" in line)


# --- what a format cannot express ---------------------------------------------------------------

PAIR: dict[str, Any] = {"hub": {"tunnel": {}, "pep": {}}, "terminal": {"tunnel": {}}}
FRAMES: dict[str, Any] = {
    "hub": {"aggregator": {}, "pep": {}},
    "terminal": {"aggregator": {}, "processor": {}},
}
BULK = SCENARIO["traffic"][0]
GAPS: list[tuple[str, dict[str, Any], dict[str, str]]] = [
    ("a PEP", {"gateways": PAIR}, {"tc": "gateways.hub.pep", "ns-3": "gateways.hub.pep"}),
    ("a tunnel", {"gateways": PAIR}, {"tc": "gateways.hub.tunnel", "ns-3": "gateways.hub.tunnel"}),
    (
        "an aggregator",
        {"gateways": FRAMES},
        dict.fromkeys(FORMATS, "gateways.hub.aggregator"),
    ),
    (
        "a processor",
        {"gateways": FRAMES},
        dict.fromkeys(("tc", "ns-3"), "gateways.terminal.processor"),
    ),
    (
        "terminals",
        {"link": LINK | {"terminals": 3}},
        dict.fromkeys(("tc", "ns-3"), "link.terminals"),
    ),
    (
        "a terminal's path",
        {"link": LINK | {"terminal_paths": [{"terminal": 1, "delay": "260 ms"}]}},
        dict.fromkeys(("tc", "ns-3"), "link.terminal_paths"),
    ),
    ("hosts", {"hosts": {"world": [{"name": "s", "delay": "9 ms"}]}}, {"tc": "hosts"}),
    ("traffic", {}, {"tc": "traffic"}),
    (
        "steps of the rate",
        {"link": {"preset": "leo-handover"}},
        {"tc": "link.forward.rate: has", "ns-3": "link.forward.outage"},
    ),
    ("steps of the delay", {"link": {"preset": "leo-handover"}}, {"tc": "link.return.delay: has"}),
    ("jitter", {"link": {"preset": "leo-handover"}}, {"ns-3": "link.forward.jitter"}),
    (
        "losses",
        {"link": {"preset": "geo", "forward": {"loss": "1 %"}}},
        {"tc": "link.forward.loss"},
    ),
    (
        "web pages",
        {"traffic": [BULK, {"kind": "web_page", "direction": "forward"}]},
        {"ns-3": "traffic.1: web_page: left out"},
    ),
    (
        "random starts",
        {"traffic": [BULK | {"start_jitter": "1 s"}]},
        {"ns-3": "traffic.0.start_jitter"},
    ),
    ("recovery", {}, {"ns-3": "traffic.*.tcp.rack_tlp"}),
    (
        "shares of flows",
        {
            "link": {
                **LINK,
                "forward": LINK["forward"] | {"queue": {"discipline": "per_flow_drop_tail"}},
            }
        },
        {"tc": "link.forward.queue.per_flow_limit", "ns-3": "link.forward.queue.discipline"},
    ),
]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        # The program of gateways says what it refuses.
        pytest.param(
            fields, expected, marks=[pytest.mark.system] * ("sat.toml" in expected), id=title
        )
        for title, fields, expected in GAPS
    ],
)
def test_what_a_format_cannot_express_is_said_with_its_consequence(
    fields: dict[str, Any], expected: dict[str, str]
) -> None:
    """Given a part that a format lacks, expect its field in the header, and what follows."""
    with_pep: dict[str, Any] = {"gateways": {"hub": {"pep": {}}}}
    for name, field in expected.items():
        plan = changed(**(with_pep | fields if name == "sat.toml" else fields))
        lines = FORMATS[name](plan).splitlines()
        (line, *_) = (each for each in lines if re.match(rf"(#|//) - {re.escape(field)}", each))
        assert len(line.partition(field)[2]) > 20, line


@pytest.mark.parametrize("name", ["hosts", "traffic"])
def test_an_expressed_part_is_no_gap(name: str) -> None:
    """Given hosts and a bulk flow, which ns-3 has, expect no word on them."""
    hosts = {"world": [{"name": "s", "delay": "9 ms"}]}
    text = ns3_script(changed(hosts=hosts, traffic=[BULK | {"world_host": "s"}]))
    assert f"// - {name}:" not in text
    assert '"9000000ns"' in text


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_becomes_a_script(path: Path) -> None:
    plan = Plan.resolve(path)
    for text in (tc_script(plan), ns3_script(plan)):
        assert not {"nan", "none"} & set(re.findall(r"\w+", text.lower()))
    assert_is_balanced(ns3_script(plan))


def assert_is_balanced(text: str) -> None:
    """Check the brackets of a program in C++, without comments and literals."""
    bare = re.sub(r'//[^\n]*|"(?:\\.|[^"\\])*"|\'.\'', "", text)
    for opening, closing in ("{}", "()", "[]"):
        assert bare.count(opening) == bare.count(closing), opening


@examples(200)
@given(text=st.text() | st.text(alphabet="\\\n\r\u2028 ?/*a"))
def test_any_text_is_one_line_of_a_comment(text: str) -> None:
    """Given any text, expect one line that a compiler does not continue."""
    line = comment(text)
    assert len(f"// {line}".splitlines()) == 1
    assert not line.endswith("\\")


NAMES = [
    "a\nreboot",
    "$(reboot)`reboot`",
    "b \\",
    '"; abort(); "',
    "}%{{ 1 }}",
    "\u2028*/",
    "\u00e9",
]


@pytest.mark.system
@pytest.mark.parametrize("name", NAMES)
def test_a_name_ends_no_comment_and_no_literal(name: str) -> None:
    """Given a name of a scenario and a flow, expect the same commands and statements as without."""
    plan = changed(name=name, traffic=[BULK | {"name": name}], gateways={"hub": {"pep": {}}})
    plain = changed(name="a", traffic=[BULK | {"name": "a"}], gateways={"hub": {"pep": {}}})
    for script in (tc_script, sat_toml):
        made, expected = script(plan).splitlines(), script(plain).splitlines()
        assert [line for line in made if line[:1] != "#"] == [
            line for line in expected if line[:1] != "#"
        ]
    made, expected = (ns3_script(each).splitlines() for each in (plan, plain))
    differing = [each for each in zip(made, expected, strict=True) if each[0] != each[1]]
    (title, _), (flow, plain_flow) = differing
    assert title.startswith("// ")
    assert not title.endswith("\\")
    literal = flow.removeprefix("    { ").removesuffix(plain_flow.partition('"a"')[2])
    assert re.fullmatch(r'"(?:\\.|[^"\\])*"', literal)
    assert literal.isascii()


# --- ns-3 ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("framing", ["none", "aal5"])
@pytest.mark.parametrize("errors", [1e-6, 1e-3, 1.0])
def test_ns3_loses_as_many_packets_to_bit_errors(framing: str, errors: float) -> None:
    """Given a bit error rate, expect the loss of 1,500 bytes; ns-3 adds 2 bytes of PPP to them."""
    forward = LINK["forward"] | {"framing": framing, "bit_error_rate": errors}
    text = ns3_script(changed("link.forward", forward))
    (rate,) = re.findall(r"([\d.e-]+),\s+RateErrorModel::ERROR_UNIT_BIT", text)
    bits = frame_bits(plan_framing(framing, {}), 1_500)
    # RateErrorModel::DoCorruptBit of ns-3.
    lost = 1 - (1 - float(rate)) ** (8 * 1_502)
    assert lost == pytest.approx(1 - (1 - errors) ** bits, rel=1e-6)
    assert "// - link.forward.bit_error_rate: exact for packets of 1500 B" in text


@pytest.mark.parametrize(("payload", "written"), [("4 B", 12), ("12 B", 12), ("200 B", 200)])
def test_datagrams_of_ns3_have_room_for_their_header(payload: str, written: int) -> None:
    """Given datagrams smaller than the header of ns3::UdpClient, expect 12 bytes, and a word."""
    call = {"name": "call", "kind": "constant_rate", "rate": "8 kbit/s", "payload": payload}
    text = ns3_script(changed(traffic=[call | {"direction": "forward", "duration": "9 s"}]))
    assert re.findall(r'{ "call", true, 0.0, 9.0, 0, (\d+),', text) == [str(written)]
    assert ("// - traffic.0.payload: " in text) == (payload == "4 B")


# --- the command --------------------------------------------------------------------------------


@pytest.mark.system
def test_the_command_prints_each_format(bentpipe: Program) -> None:
    for name, scenario, start in (
        ("tc", GEO_PEP, "#!/bin/sh\n# Download over GEO with a PEP\n"),
        ("sat.toml", GEO_PEP, "# Download over GEO with a PEP\n"),
        ("ns-3", TUNNEL, "// Sixty channels and a transfer through a coded tunnel\n"),
    ):
        called = bentpipe("show", "scenario", scenario, "--as", name)
        assert (called.code, called.err) == (0, ""), name
        assert called.out.startswith(start)
    rate = ("--set", "link.forward.rate=5 Mbit/s")
    assert "rate 5000000bit" in bentpipe("show", "scenario", GEO_PEP, "--as", "tc", *rate).out


def test_a_link_alone_is_enough_for_a_router(bentpipe: Program, tmp_path: Path) -> None:
    """Given a preset, and a file without traffic and duration, expect the scripts."""
    called = bentpipe("show", "scenario", "geo", "--as", "tc")
    assert (called.code, called.err) == (0, "")
    assert called.out.startswith("#!/bin/sh\n# Geostationary")
    (tmp_path / "link.yaml").write_text("link: {preset: geo, forward: {rate: 5 Mbit/s}}\n")
    called = bentpipe("show", "scenario", tmp_path / "link.yaml", "--as", "tc")
    assert (called.code, called.err) == (0, "")
    assert "rate 5000000bit" in called.out
    called = bentpipe("show", "scenario", tmp_path / "link.yaml", "--as", "ns-3")
    assert "traffic: missing" in called.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("scenario", "geo", "--as", "ns-3"), "--as ns-3: a preset has no traffic to simulate;"),
        (("scenario", GEO_PEP, "--as", "sattoml"), '--as: read "sattoml"; allowed: tc, sat.toml'),
        (("scenario", GEO_PEP, "--as", "tc", "--end", "hub"), "--end: only for --as sat.toml"),
        (
            ("scenario", GEO_PEP, "--as", "sat.toml", "--end", "terminal"),
            "--end: read terminal, whose gateway has neither PEP nor tunnel; write --end hub",
        ),
        (("scenario", TUNNEL, "--as", "sat.toml"), "both gateways have functions; write --end hub"),
        (
            ("scenario", ROOT / "scenarios/geo-bulk.yaml", "--as", "sat.toml"),
            "no gateway of the scenario has a PEP or a tunnel",
        ),
        (("geo.yaml", "--as", "tc"), "write: bentpipe show scenario geo.yaml --as tc"),
        (("geo", "--as=tc"), "write: bentpipe show scenario geo --as=tc"),
        (("senario", "geo", "--as", "tc"), 'did you mean "scenario"?'),
    ],
)
def test_what_cannot_be_exported_is_one_message(
    arguments: tuple[str | Path, ...], message: str, bentpipe: Program
) -> None:
    called = bentpipe("show", *arguments)
    assert (called.code, called.out) == (2, "")
    assert message in called.err
