"""What configurations of gateways share with scenarios: fields, defaults, limits and units.

The program has them in `crates/gate/src/config`, and this package in `bentpipe.scenario`, `units`,
`gateway.program` and `live`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, get_args

import pytest
from annotated_types import Ge, Le
from test_export import changed

from bentpipe.errors import UnitError
from bentpipe.export import sat_toml
from bentpipe.gateway import PEERS_MAX, PORT, placeholder_keys, read_plan
from bentpipe.live.kernel_tcp import KERNEL_TCP, congestion_control
from bentpipe.live.machine import DEVICE, MARK, ROUTE_TABLE
from bentpipe.plan import Plan
from bentpipe.scenario.gateways import Pep, Tunnel
from bentpipe.scenario.record import Record
from bentpipe.scenario.tcp import PROFILES, CongestionControl, Tcp
from bentpipe.units import DURATION, RATE, SIZE, Kind

pytestmark = pytest.mark.system

SIDES = 'name = "sat"\nlan.interfaces = ["lan0"]\nlink.interfaces = ["sat0"]\n'
WRONG_QUANTITIES = ("3e2 k", "1 parsec", "5", "5 KB", "7 mbps", "-1 s", "0.5 bit/s", "1e31 B")
# The fields with which a tunnel of a scenario becomes that of a gateway.
TUNNEL = """\
name = "sat"
functions = ["tunnel"]
[tunnel]
addresses = ["10.99.0.1/24"]
private_key = "key"
titration = "immediate"
"""


def tunnel(*lines: str, peers: int = 1) -> str:
    """Return a configuration with a tunnel to so many peers."""
    keys = enumerate(placeholder_keys([f"peer-{n}" for n in range(peers)]))
    tables = (
        f'[[tunnel.peers]]\nname = "peer-{n}"\npublic_key = "{key}"\nnetworks = ["10.3.0.{n}"]\n'
        for n, key in keys
    )
    return TUNNEL + "".join(f"{line}\n" for line in lines) + "".join(tables)


def read(text: str) -> Any:
    """Return the plan of a configuration."""
    found = read_plan("/dev/stdin", text)
    assert "problems" not in found, found["problems"]
    return found["plan"]


def problems(text: str) -> dict[str, str]:
    found = read_plan("/dev/stdin", text).get("problems", ())
    return {problem["field"]: problem["message"] for problem in found}


def fields_of(message: str) -> list[str]:
    """Return the fields that the message on an unknown one names."""
    return message.partition("(fields here: ")[2].removesuffix(")").split(", ")


def test_the_fields_are_those_of_a_scenario_in_their_order() -> None:
    """Given an unknown field in each table, expect the fields of the scenario's first."""
    legs = (f"[pep.{leg}]\nunknown = 1\n" for leg in ("lan_tcp", "link_tcp"))
    found = problems(SIDES + "[pep]\nunknown = 1\n" + "".join(legs))
    for leg in ("lan_tcp", "link_tcp"):
        assert fields_of(found[f"pep.{leg}.unknown"]) == list(Tcp.model_fields)
    pep = fields_of(found["pep.unknown"])
    assert pep[: len(Pep.model_fields)] == list(Pep.model_fields)
    coding = fields_of(problems(tunnel("unknown = 1"))["tunnel.unknown"])
    assert coding[: len(Tunnel.model_fields)] == list(Tunnel.model_fields)


def test_the_defaults_of_a_pep_are_those_of_a_scenario() -> None:
    pep, default = read(SIDES)["pep"], Pep()
    assert pep["buffer_bytes"] == SIZE.parse(default.buffer)
    assert pep["connections"] == default.connections
    assert pep["early_accept"] is default.early_accept
    assert default.notsent_lowat is pep["lan"]["tcp"]["not_sent_bytes"] is None


@pytest.mark.parametrize("end", ["hub", "terminal"])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"redundancy": "5 %"},
        {"titration": "immediate", "order": False, "congestion_signal": "ecn"},
        {"redundancy": "2 %", "overflow_repairs": 1.15, "order_pace": "20 Mbit/s"},
        {"overflow_repairs": 1, "overflow_window": 2_000, "queue": "1 MB", "rate": "3 Mbit/s"},
        {"window_max": 2_000, "hold_time": "80 ms", "feedback_interval": "none"}
        | {"redundancy": "0.5 %", "congestion_signal": "10 %", "packet_size": "0 B"},
    ],
    ids=str,
)
def test_the_defaults_of_the_coding_are_those_of_a_scenario(
    settings: dict[str, Any], end: Any
) -> None:
    """Given settings with defaults of all kinds, expect the coding of the simulator."""
    plan: Plan = changed(gateways={name: {"tunnel": settings} for name in ("hub", "terminal")})
    (function,) = plan.data["gateways"][end == "terminal"]["functions"]
    assert {"kind": "tunnel"} | read(sat_toml(plan, end))["tunnel"]["settings"] == function


def test_what_labs_choose_are_the_defaults_of_gateways() -> None:
    pep, coded = read(SIDES)["pep"], read(tunnel())["tunnel"]
    assert (pep["mark"], pep["route_table"]) == (MARK, ROUTE_TABLE)
    assert (coded["device"], coded["listen_port"]) == (DEVICE, PORT)


def test_a_tunnel_has_as_many_peers_as_exports_write() -> None:
    assert len(read(tunnel(peers=PEERS_MAX))["tunnel"]["peers"]) == PEERS_MAX
    assert list(problems(tunnel(peers=PEERS_MAX + 1))) == ["tunnel.peers"]


def limits_of(record: type[Record], names: Iterable[str]) -> Iterator[tuple[str, int, int]]:
    """Yield the smallest and the largest value of integers."""
    for name in names:
        parts: list[Any] = [*record.model_fields[name].metadata]
        for alternative in get_args(record.model_fields[name].annotation):
            parts += getattr(alternative, "__metadata__", ())
        bounds: dict[type, Any] = {
            type(bound): bound for part in parts for bound in getattr(part, "metadata", [part])
        }
        yield name, bounds[Ge].ge, bounds[Le].le


@pytest.mark.parametrize(
    ("table", "record", "names"),
    [
        ("pep", Pep, ["connections"]),
        ("tunnel", Tunnel, ["window", "window_max", "overflow_window", "memory", "density"]),
    ],
)
def test_the_limits_are_those_of_a_scenario(
    table: str, record: type[Record], names: list[str]
) -> None:
    for name, least, most in limits_of(record, names):
        for value, is_right in ((least - 1, False), (least, True), (most, True), (most + 1, False)):
            line = f"{name} = {value}"
            text = SIDES + f"[pep]\n{line}\n" if table == "pep" else tunnel(line)
            assert (f"{table}.{name}" not in problems(text)) is is_right, line


def test_a_leg_has_the_congestion_controls_of_a_scenario() -> None:
    """Given each, expect the kernel's name that labs use; given another one, expect the list."""
    for name in get_args(CongestionControl):
        leg = read(SIDES + f'[pep.lan_tcp]\ncongestion_control = "{name}"\n')["pep"]["lan"]["tcp"]
        assert leg["congestion_control"] == congestion_control(name)
    found = problems(SIDES + '[pep.lan_tcp]\ncongestion_control = "none"\n')
    allowed = f"allowed: {', '.join(get_args(CongestionControl))}"
    assert allowed in found["pep.lan_tcp.congestion_control"]


def values_other_than(tcp: Tcp) -> Iterator[tuple[str, str]]:
    """Yield each setting with a value that differs, as TOML."""
    for name, value in tcp:
        if isinstance(value, bool):
            yield name, str(not value).lower()
        elif isinstance(value, int):
            yield name, str(value + 1)
        elif name in {"rto_min_bounds", "avoidance_counting", "stack", "receive_buffer_counts"}:
            choices = get_args(get_args(Tcp.model_fields[name].annotation)[0])
            yield name, f'"{next(word for word in choices if word != value)}"'


def test_a_router_refuses_what_a_lab_cannot_have_for_a_leg() -> None:
    """Given each switch, number and word other than the kernel's, expect the scope of labs."""
    written = dict(values_other_than(PROFILES["linux"]))
    # A leg on a router has a buffer of its own, by a socket option.
    of_sockets = {"receive_buffer_counts"}
    lines = "".join(f"{name} = {value}\n" for name, value in written.items())
    refused = problems(SIDES + f"[pep.lan_tcp]\n{lines}")
    scopes: Mapping[str, str] = {
        name: KERNEL_TCP[name].leg if name in KERNEL_TCP else "kernel" for name in written
    }
    assert len(written) > 12
    for name in written.keys() - of_sockets:
        is_refused = f"pep.lan_tcp.{name}" in refused
        one_for_all = "has one for all" in refused.get(f"pep.lan_tcp.{name}", "")
        assert is_refused, name
        assert one_for_all is (scopes[name] == "host"), (name, refused)


@pytest.mark.parametrize(
    ("kind", "field"),
    [(SIZE, "pep.buffer"), (DURATION, "pep.connect_limit"), (RATE, "tunnel.rate")],
    ids=["size", "duration", "rate"],
)
def test_the_units_are_those_of_a_scenario(kind: Kind, field: str) -> None:
    """Given each unit, expect the same value; given a wrong one, expect the same message."""
    for unit, (factor, _) in kind.units.items():
        text = f"2.5 {unit}" if factor % 2 == 0 else f"3 {unit}"
        line = f"{field.partition('.')[2]} = {text!r}"
        assert value_of(field, read(configured(field, line))) == kind.parse(text)
    for text in WRONG_QUANTITIES:
        with pytest.raises(UnitError) as raised:
            kind.parse(text)
        found = problems(configured(field, f"{field.partition('.')[2]} = {text!r}"))
        assert found[field] == str(raised.value)


def configured(field: str, line: str) -> str:
    return SIDES + f"[pep]\n{line}\n" if field.startswith("pep.") else tunnel(line)


def value_of(field: str, plan: Any) -> int:
    """Return the value that a field has in a plan, in its base unit."""
    table, name = field.split(".")
    part = plan[table]["settings"]["queue"] if table == "tunnel" else plan[table]
    names = {"buffer": "buffer_bytes", "connect_limit": "connect_limit_ns", "rate": "rate_bps"}
    value: int = part[names[name]]
    return value
