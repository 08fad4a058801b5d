"""What the simulator refuses about a plan becomes an error of the scenario's field."""

from __future__ import annotations

import copy
import json

import pytest

from bentpipe import Plan, _core
from bentpipe.plan.plan import error_of

PLAN = Plan.resolve(
    {
        "link": {
            "preset": "geo",
            "terminals": 3,
            "forward": {"framing": {"kind": "ppp", "fcs": 32}, "bit_error_rate": 1e-7},
            "return": {"framing": "aal5", "queue": {"limit": "2000 cells"}},
        },
        "gateways": {"terminal": {"processor": {"buffer": "9 packets"}}},
        "traffic": [
            # Flows 0 to 5, 6 and 7, 8, 9, 10, 11, 12 to 14 of the plan.
            {
                "kind": "bulk",
                "direction": "forward",
                "duration": "9 s",
                "terminal": "all",
                "count": 2,
            },
            {
                "kind": "constant_rate",
                "direction": "both",
                "rate": "1 Mbit/s",
                "payload": "200 B",
                "duration": "5 s",
            },
            {"kind": "bulk", "direction": "forward", "size": "1 MB", "tcp": {"rto_min": "300 ms"}},
            {"kind": "bulk", "direction": "return", "size": "1 MB", "priority": 3},
            {
                "kind": "fetch",
                "direction": "forward",
                "size": {"pareto": {"min": "4 kB", "shape": 1.2, "max": "1 MB"}},
                "think": {"exponential": "2 s"},
                "files": 7,
            },
            {
                "kind": "request_response",
                "direction": "forward",
                "request": "70 B",
                "response": "3 kB",
                "exchanges": 8,
            },
            {"kind": "conference", "participants": 3, "rate": "90 kbit/s", "payload": "450 B"},
        ],
        "duration": "20 s",
    }
)


@pytest.mark.parametrize(
    ("field", "path", "read"),
    [
        ("stop_ns", "duration", "20 s"),
        ("directions.0.framing.cells.cell_bytes", "link.forward.framing", None),
        ("directions.3.framing.header_bytes", "link.return.framing", "aal5"),
        ("directions.3.queue.limit.value", "link.return.queue.limit", "2000 cells"),
        ("directions.1.rate_bps", "link.return.rate", None),
        ("directions.0.channel.bit_error_rate", "link.forward.bit_error_rate", None),
        ("directions.1.to", "link.return", None),
        ("gateways.2.functions.0.per_byte_ns", "gateways.terminal.processor.per_byte", None),
        (
            "gateways.2.functions.0.buffer_packets",
            "gateways.terminal.processor.buffer",
            "9 packets",
        ),
        ("gateways.0", "gateways.hub", None),
        ("flows", "traffic", None),
        ("flows.5.workload.amount", "traffic.0.duration", "9 s"),
        ("flows.6.workload.rate_bps", "traffic.1.rate", "1 Mbit/s"),
        ("flows.7.workload.payload_bytes", "traffic.1.payload", "200 B"),
        ("flows.7.workload.duration_ns", "traffic.1.duration", "5 s"),
        ("flows.8.workload.sender.rto_min_ns", "traffic.2.tcp.rto_min", "300 ms"),
        ("flows.8.workload.amount", "traffic.2.size", "1 MB"),
        ("flows.9.priority", "traffic.3.priority", None),
        ("flows.9.start_ns", "traffic.3.start", None),
        ("flows.10.workload.response_bytes.shape", "traffic.4.size.pareto.shape", None),
        ("flows.10.workload.response_bytes.max", "traffic.4.size.pareto.max", "1 MB"),
        ("flows.10.workload.think_ns.mean", "traffic.4.think.exponential", "2 s"),
        ("flows.10.workload.exchanges", "traffic.4.files", None),
        ("flows.10.workload.request_bytes", "traffic.4.request", None),
        ("flows.10.workload.client.mss_bytes", "traffic.4.tcp.mss", None),
        ("flows.11.workload.response_bytes.value", "traffic.5.response", "3 kB"),
        ("flows.11.workload.think_ns.value", "traffic.5.think", None),
        ("flows.11.workload.request_bytes", "traffic.5.request", "70 B"),
        ("flows.11.workload.exchanges", "traffic.5.exchanges", None),
        ("flows.14.workload.rate_bps", "traffic.6.rate", "90 kbit/s"),
        ("flows.14.workload.payload_bytes", "traffic.6.payload", "450 B"),
    ],
)
def test_a_field_of_the_plan_is_named_as_in_the_scenario(
    field: str, path: str, read: str | None
) -> None:
    refusal = error_of(PLAN, field.split("."), "must be another")
    assert ".".join(str(part) for part in refusal.path) == path
    assert refusal.message.endswith(f"must be another ({field.rsplit('.', maxsplit=1)[-1]})")
    if read is not None:
        assert refusal.message.startswith(f'read "{read}"; ')


def test_the_simulator_gives_path_and_reason_apart() -> None:
    plan = copy.deepcopy(PLAN.data)
    plan["directions"][0]["framing"]["expansion"] = [0, 1]
    with pytest.raises(_core.PlanError) as caught:
        _core.validate(json.dumps(plan))
    assert caught.value.path == ("directions", "0", "framing", "expansion")
    assert str(caught.value) == f"directions.0.framing.expansion: {caught.value.reason}"
    with pytest.raises(_core.PlanError) as caught:
        _core.validate("{")
    assert caught.value.path == ()
    assert caught.value.reason == str(caught.value)


def test_a_refusal_without_a_field_is_passed_on() -> None:
    refusal = error_of(PLAN, (), "expected value at line 1")
    assert refusal.path == ()
    assert refusal.message == "the plan is refused: expected value at line 1"
