"""What the property tests share: how many examples they try, and random scenarios.

``make test`` tries the same few examples each time. ``BENTPIPE_EXAMPLES=2000`` tries that many new
ones per test, and makes the tests thorough, so that ``make test-all`` runs them; a failure prints a
line ``@reproduce_failure(...)`` that replays it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, given, settings, strategies as st

_EXAMPLES = os.environ.get("BENTPIPE_EXAMPLES")


def use_same_examples() -> None:
    """Make all property tests try the same examples each time, as slowly as the machine is."""
    settings.register_profile(
        "same-examples",
        derandomize=_EXAMPLES is None,
        print_blob=True,
        database=None,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
    settings.load_profile("same-examples")


@cache
def load_tables() -> None:
    """Load hypothesis' tables of characters and of constants in the package.

    In a new clone they are computed, which takes longer than a unit test may.
    """
    given(st.text(min_size=1))(lambda _: None)()


def examples(
    count: int, *, are_slow: bool = False
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Try so many examples, or as many as the user asks for.

    Of those that take seconds each, no more are tried, and the first one that fails is shown: to
    look for a simpler one takes hundreds.
    """
    if are_slow:
        phases = [phase for phase in Phase if phase not in (Phase.shrink, Phase.explain)]
        return settings(max_examples=count, phases=phases)
    if _EXAMPLES is None:
        return settings(max_examples=count)
    asked = settings(max_examples=int(_EXAMPLES))
    return lambda test: pytest.mark.thorough(asked(test))


T = TypeVar("T")
E = TypeVar("E", bound=Exception)


def attempt(refusal: type[E], call: Callable[[], T]) -> T | E:
    """Return what a call returns, or the error by which it refuses its arguments."""
    try:
        return call()
    except refusal as error:
        return error


def _written(units: dict[str, tuple[int, int]]) -> st.SearchStrategy[str]:
    """Return quantities: each unit with a range of integers."""
    return st.one_of(
        [st.integers(low, high).map(f"{{}} {unit}".format) for unit, (low, high) in units.items()]
    )


RATES = _written({"kbit/s": (20, 900), "Mbit/s": (1, 8)})
DELAYS = _written({"us": (0, 900), "ms": (0, 300)})
TIMES = _written({"ms": (1, 900), "s": (1, 2)})
SIZES = _written({"B": (1, 900), "kB": (1, 60)})
LIMITS = _written({"packets": (10, 200), "kB": (20, 200)})
PROBABILITIES = st.sampled_from([0.0, 1e-9, 1e-6, 1e-5, 1e-4])


def some(fields: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[dict[str, Any]]:
    """Return mappings with any of these fields."""
    return st.fixed_dictionaries({}, optional=fields)


def with_fields(
    fixed: dict[str, Any], needed: dict[str, st.SearchStrategy[Any]], **more: Any
) -> st.SearchStrategy[dict[str, Any]]:
    """Return mappings with all fixed and needed fields, and any of the others."""
    constant = {name: st.just(value) for name, value in fixed.items()}
    return st.fixed_dictionaries({**constant, **needed}, optional=more)


_QUEUES = st.one_of(
    some({"limit": LIMITS | st.just("unlimited") | DELAYS.filter(lambda text: text[0] != "0")}),
    with_fields({"discipline": "red"}, {"limit": LIMITS}, gentle=st.booleans(), ecn=st.booleans()),
    with_fields({"discipline": "codel"}, {"limit": LIMITS}, target=TIMES, ecn=st.booleans()),
    with_fields({"discipline": "fq_codel"}, {"limit": LIMITS}, queues=st.integers(1, 64)),
    with_fields({"discipline": "per_flow_drop_tail"}, {"limit": LIMITS}),
    with_fields({"discipline": "early_packet_discard"}, {"limit": LIMITS}),
    with_fields({"discipline": "selective_drop"}, {"limit": LIMITS}),
    with_fields({"discipline": "strict_priority"}, {"limit": LIMITS}, classes=st.just(3)),
    with_fields(
        {"discipline": "shared_rate"},
        {"limit": LIMITS},
        classes=st.just([{"reserved": "1 kbit/s"}, {"ceiling": "9 kbit/s"}, {"weight": 2}]),
    ),
)
_STATES = with_fields({}, {"mean_duration": TIMES}, bit_error_rate=PROBABILITIES)
_DIRECTIONS = with_fields(
    {},
    {"rate": RATES, "delay": DELAYS},
    queue=_QUEUES,
    framing=st.sampled_from(["none", "ethernet", "8 B"]),
    bit_error_rate=PROBABILITIES,
) | with_fields(
    {},
    {
        "rate": st.lists(RATES, min_size=1, max_size=3).map(
            lambda rates: [{"at": f"{n} s", "value": rate} for n, rate in enumerate(rates)]
        ),
        "delay": DELAYS,
        "errors": with_fields({"model": "gilbert_elliott"}, {"good": _STATES, "bad": _STATES}),
    },
)
_TCP = some(
    {
        "congestion_control": st.sampled_from(
            ["reno", "newreno", "cubic", "bbr", "hybla", "vegas", "westwood"]
        ),
        "mss": st.integers(88, 1460).map("{} B".format),
        "sack": st.booleans(),
        "timestamps": st.booleans(),
        "ecn": st.booleans(),
        "hystart": st.booleans(),
        "stack": st.sampled_from(["rfc", "linux"]),
        "delayed_ack_segments": st.integers(1, 4),
    }
)
_HEADINGS = st.sampled_from(["forward", "return"])
_SIZE_DRAWS = SIZES | st.fixed_dictionaries({"exponential": SIZES})
_TIME_DRAWS = TIMES | st.fixed_dictionaries({"exponential": TIMES})
_ANY_FLOW: dict[str, Any] = {
    "start": TIMES,
    "terminal": st.sampled_from(["all", "spread"]),
    "count": st.integers(1, 3),
}
_ANY_TCP: dict[str, Any] = {
    **_ANY_FLOW,
    "tcp": _TCP,
    "profile": st.sampled_from(["bsd-1997", "linux"]),
}
_FLOWS = st.one_of(
    with_fields({"kind": "bulk"}, {"direction": _HEADINGS, "size": SIZES}, **_ANY_TCP),
    with_fields({"kind": "bulk"}, {"direction": _HEADINGS, "duration": TIMES}, **_ANY_TCP),
    with_fields(
        {"kind": "constant_rate"},
        {
            "direction": _HEADINGS | st.just("both"),
            "rate": _written({"kbit/s": (8, 900)}),
            "payload": st.integers(20, 1400).map("{} B".format),
        },
        duration=TIMES,
        **_ANY_FLOW,
    ),
    with_fields(
        {"kind": "request_response"},
        {"direction": _HEADINGS, "request": SIZES, "response": _SIZE_DRAWS},
        think=_TIME_DRAWS,
        exchanges=st.integers(1, 5),
        **_ANY_TCP,
    ),
    with_fields(
        {"kind": "fetch"},
        {"direction": _HEADINGS, "size": _SIZE_DRAWS, "files": st.integers(1, 5)},
        think=_TIME_DRAWS,
        **_ANY_TCP,
    ),
    with_fields(
        {"kind": "video"},
        {
            "direction": _HEADINGS,
            "rate": _written({"kbit/s": (8, 900)}),
            "segment": st.sampled_from(["200 ms", "1 s"]),
            "start_up": st.sampled_from(["100 ms", "1 s"]),
            "buffer": st.sampled_from(["1 s", "3 s"]),
        },
        duration=TIMES,
        **_ANY_TCP,
    ),
)
_AGGREGATOR = some({"hold_time": DELAYS, "packet_size": st.integers(40, 1500).map("{} B".format)})
_PROCESSOR = some(
    {
        "mode": st.sampled_from(["route", "bridge", "pass-thru"]),
        "packets_per_second": st.integers(100, 9_000),
    }
)
_GATEWAYS = st.one_of(
    st.fixed_dictionaries(
        {
            "hub": st.fixed_dictionaries({"aggregator": _AGGREGATOR}),
            "terminal": st.fixed_dictionaries({"aggregator": _AGGREGATOR, "processor": _PROCESSOR}),
        }
    ),
    some({"hub": st.fixed_dictionaries({"processor": _PROCESSOR})}),
)

SCENARIOS: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "link": with_fields(
            {}, {"forward": _DIRECTIONS, "return": _DIRECTIONS}, terminals=st.integers(1, 3)
        ),
        "traffic": st.lists(_FLOWS, min_size=1, max_size=4),
        "duration": st.just("5 s"),
    },
    optional={
        "gateways": _GATEWAYS,
        "packet_events": st.booleans(),
        "sample_interval": _written({"ms": (50, 900)}) | st.none(),
        "seed": st.integers(0, 2**64 - 1),
        "name": st.text(max_size=20),
    },
)
"""Scenarios as plain data. A few do not fit together: a queue smaller than a packet, say."""
