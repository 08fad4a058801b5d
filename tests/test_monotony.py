"""What a link is good for never rises when the link gets worse, whatever the question."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pytest
from fresh_seeds import Range, asked, size_of
from hypothesis import given, note, strategies as st
from properties import examples

from bentpipe import Answer
from bentpipe.answers import Estimate
from bentpipe.answers.runs import WORTH_PERCENT

S = 1_000_000_000
SETTINGS = {
    "rate": "link.forward.rate",
    "delay": "link.*.delay",
    "loss": "link.forward.bit_error_rate",
    "queue": "link.forward.queue.limit",
}


def more(estimate: Estimate) -> Range:
    """Return the interval of a figure of which more is better."""
    return Range(estimate.low, estimate.high)


def less(estimate: Estimate) -> Range:
    """Return the interval of a figure of which less is better, so that more is better."""
    return Range(-estimate.high, -estimate.low)


def _best_goodput(answer: Answer) -> dict[str, Range]:
    changes = answer.facts["changes"].values()
    goodputs = [answer.figures["goodput_bps"], *(change.after for change in changes)]
    return {"goodput of the best setting": more(max(goodputs, key=lambda each: each.mean))}


def _at_the_knee(answer: Answer) -> dict[str, Range]:
    return {"goodput at the knee": more(answer.facts["base"].of("goodput_bps"))}


def _busy(answer: Answer) -> dict[str, Range]:
    return {"page": less(answer.figures["page_p50_ns"])}


def _ranges(*figures: str) -> Callable[[Answer], dict[str, Range]]:
    return lambda answer: {name: Range(*answer.figures[f"{name}_range"]) for name in figures}


def _services(answer: Answer) -> dict[str, Range]:
    figures = answer.figures
    names = ("lecture_start_up_ns", "lecture_stall_percent", "image_p95_ns")
    return {"call": more(figures["r_factor"]), **{name: less(figures[name]) for name in names}}


def _hours(answer: Answer) -> dict[str, Range]:
    ways = answer.figures["ways"]
    return {way["way"]: Range(*(-hours for hours in way["hours_range"][::-1])) for way in ways}


class Quality(NamedTuple):
    """The figures of an answer that a worse link cannot raise, and the parts for which that holds.

    A shorter queue is better for what waits in it, and worse for what it drops.
    """

    figures: Callable[[Answer], Mapping[str, Range]]
    parts: tuple[str, ...] = ("rate", "delay", "loss")
    parameters: Mapping[str, Any] = {}
    settings: tuple[str, ...] = ("duration=20s",)


PAGES = ("traffic.reader.response.lognormal.median=20kB",)
QUALITIES: Mapping[str, Quality] = {
    "tcp": Quality(_best_goodput),
    "buffer": Quality(_at_the_knee),
    "busy-link": Quality(_busy, settings=("duration=60s", *PAGES)),
    "users": Quality(
        _ranges("users"),
        (*SETTINGS,),
        {"page_time_ns": 2 * S},
        ("duration=30s", "traffic.reader.objects=2"),
    ),
    "small-packets": Quality(
        _ranges("calls", "calls_aggregated"),
        (*SETTINGS,),
        {"packets_per_second": 300},
        # Longer than the longest delay: a processor is loaded by both directions at the same time.
        ("traffic.call.duration=2s", "duration=4s"),
    ),
    # TCP that a worse link slows down fills a common queue less: the call has one of its own.
    "usable": Quality(
        _services,
        parameters={"downloads": 0, "video": "300kbit/s", "image": "100kB"},
        settings=("duration=20s", "link.forward.queue={discipline: fq_codel, limit: 900 packets}"),
    ),
    "update": Quality(_hours, parameters={"size": "1MB"}, settings=("duration=30s", *PAGES)),
}


def links(part: str, rate_kbps: int, delay_ms: int, factor: int) -> tuple[list[str], list[str]]:
    """Return the settings of a link, and of one that is worse in a part by a factor."""
    # A bandwidth-delay product at least, and some packets.
    queue_kb = max(rate_kbps * delay_ms // 4_000, 30)
    values = {
        "rate": (f"{rate_kbps}kbit/s", f"{rate_kbps // factor}kbit/s"),
        "delay": (f"{delay_ms}ms", f"{factor * delay_ms}ms"),
        "loss": ("1e-9", f"{factor}e-6"),
        # At least two packets.
        "queue": (f"{queue_kb}kB", f"{max(queue_kb // (4 * factor), 3)}kB"),
    }
    better = [f"{SETTINGS[name]}={values[name][0]}" for name in SETTINGS]
    return better, [*better, f"{SETTINGS[part]}={values[part][1]}"]


def check(name: str, part: str, seed: int, better: list[str], worse: list[str]) -> None:
    """Ask about both links, from this seed on; expect no figure to rise beyond its intervals."""
    quality = QUALITIES[name]
    note(f"ask {name} from seed {seed} on, {part}: {better}, and {worse}")
    found = []
    for link in (better, worse):
        parameters = {**quality.parameters, "settings": [*link, *quality.settings]}
        size = size_of(asked(name, 1, **parameters))
        question = asked(name, size, seed, **parameters)
        found.append(quality.figures(question.judge(question.measured())))
    for figure, before in found[0].items():
        rise = found[1][figure].low - before.high
        assert rise <= WORTH_PERCENT / 100 * abs(before.high), (figure, before, found[1][figure])


LINKS = {
    "rate_kbps": st.integers(1_000, 4_000),
    "delay_ms": st.integers(20, 150),
    "factor": st.integers(2, 4),
    "seed": st.integers(1, 10_000),
}


def property_of(name: str, data: st.DataObject, **link: int) -> None:
    seed = link.pop("seed")
    part = data.draw(st.sampled_from(QUALITIES[name].parts))
    check(name, part, seed, *links(part, **link))


# Those of which two links take few seconds.
QUICK = ["busy-link", "users", "usable"]


@pytest.mark.system
@pytest.mark.parametrize("name", QUICK)
@given(data=st.data(), **LINKS)
@examples(2, are_slow=True)
def test_a_worse_link_is_good_for_no_more(name: str, data: st.DataObject, **link: int) -> None:
    """Given any link and one of its properties made worse, expect no figure to rise."""
    property_of(name, data, **link)


@pytest.mark.thorough
@pytest.mark.system
@pytest.mark.parametrize("name", QUALITIES)
@given(data=st.data(), **LINKS)
@examples(20, are_slow=True)
def test_a_worse_link_is_good_for_no_more_in_many_cases(
    name: str, data: st.DataObject, **link: int
) -> None:
    """Given twenty links, expect that, too."""
    property_of(name, data, **link)
