"""Answers of ``bentpipe ask``, compared with what follows on paper."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Sequence
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import polars as pl
import pytest
from conftest import Program
from hypothesis import given, strategies as st
from jinja2.meta import find_undeclared_variables

from bentpipe import Answer, answers, ask, simulate
from bentpipe.answers import QUESTIONS, Estimate, page
from bentpipe.answers.answer import MAX_LINES, Effect, plain, sections
from bentpipe.answers.busy_link import BusyLink
from bentpipe.answers.catalog import class_of
from bentpipe.answers.coding import Coding
from bentpipe.answers.counts import Fitting, largest, search
from bentpipe.answers.remedies import Goal
from bentpipe.answers.runs import Experiment, Measurements, Samples
from bentpipe.answers.traffic import mean_of, times_ns
from bentpipe.answers.usable import Usable
from bentpipe.errors import InternalError, UsageError
from bentpipe.results.measures import WINDOW_NS, longest_wait_ns, window_loads
from bentpipe.scenario.tables import PRESETS

STEPS = "link.forward.rate=[{at: 0 s, value: 1 Mbit/s}, {at: 9 s, value: 2 Mbit/s}]"


def short(seeds: int = 2, threads: int = 1) -> dict[str, Any]:
    return {"seeds": seeds, "threads": threads}


ASKED: dict[str, dict[str, Any]] = {
    "tcp": {"link": "geo", "duration": "5 s"},
    "buffer": {"link": "geo", "duration": "5 s"},
    "users": {"link": "geo", "settings": ["link.forward.rate=1Mbit/s"]},
    "preset": {"orbit": "leo"},
}


@functools.cache
def answer_to(question: str, threads: int = 1) -> Answer:
    return ask(question, **ASKED[question], **short(threads=threads))


def check_words(question: str, answer: Answer) -> None:
    """Expect words for all parts, and known names also in sentences that this answer lacks."""
    assert 1 <= len(answer.lines) <= MAX_LINES
    parts = (answer.question, answer.reason, answer.uncertainty, answer.matters_most)
    assert all((*parts, *answer.commands))
    template = Path(answers.__file__).parent / "templates" / f"{question}.txt.j2"
    environment = sections(question)["lines"].environment
    names = find_undeclared_variables(environment.parse(template.read_text(encoding="utf-8")))
    assert names <= {"WORTH_PERCENT", *class_of(question)().facts(answer)}


# --- busy link ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loads", "full", "empty", "longest_s"), [([1] * 60 + [0] * 40, 0.6, 0.4, 6), ([0.6], 0, 0, 0)]
)
def test_windows_of_an_average(
    loads: list[float], full: float, empty: float, longest_s: float
) -> None:
    """Given 60 %, in bursts at the link rate or evenly, expect full windows in bursts only."""
    found = window_loads([load * 8e6 * WINDOW_NS / 8e9 for load in loads * 3], 8e6)
    expected = {"average": 0.6, "full": full, "empty": empty, "longest_full_ns": longest_s * 1e9}
    assert found == pytest.approx(expected)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=50))
def test_full_windows_never_exceed_what_the_average_allows(loads: list[float]) -> None:
    """Given any loads, expect full * 0.95 <= average (Markov's inequality)."""
    found = window_loads([load * 8e6 * WINDOW_NS / 8e9 for load in loads], 8e6)
    assert found["full"] * 0.95 <= found["average"] + 1e-9
    assert found["full"] + found["empty"] <= 1 + 1e-9


@pytest.mark.thorough
@pytest.mark.system
def test_the_average_is_the_one_asked_for_and_users_feel_more() -> None:
    """Given 60 %, expect it within its interval, full windows, and pages slower than alone."""
    answer = ask("busy-link", "geo", **short(6))
    average = answer.figures["average"]
    assert abs(average.mean - 0.6) <= 0.02 + average.half_width
    assert answer.figures["full"].mean > 0.3
    assert answer.figures["empty"].mean > 0.05
    assert answer.figures["page_p95_ns"].mean > answer.figures["idle_page_p50_ns"]


# --- users ----------------------------------------------------------------------------------------


@pytest.mark.system
def test_users_keep_to_the_interactive_response_time_law() -> None:
    """Given pages of 12,500 B on 1 Mbit/s and 1 s to think, expect at most 30 users.

    The law: N <= rate (Z + R) / page, with the page time R = 2 s that is allowed: 1e6 * 3 / 1e5. A
    page is a handshake and a request, two round trips of 542 ms, and 0.1 s of sending alone.
    """
    answer = ask(
        "users",
        "geo",
        settings=[
            "traffic.reader.objects=0",
            "traffic.reader.document=12500B",
            "traffic.reader.tls=none",
            "traffic.reader.dns=false",
            "traffic.reader.think=1s",
            "link.forward.rate=1Mbit/s",
        ],
        page_time_ns=2_000_000_000,
        **short(1),
    )
    assert answer.figures["bound_users"] == pytest.approx(30)
    assert 8 <= answer.figures["users"] <= 30
    by_count = {each["users"]: each for each in answer.figures["counts"]}
    assert by_count[answer.figures["users"]]["slow_share"].mean <= 0.05
    for count, each in by_count.items():
        page_s = each["page_p50_ns"].mean / 1e9
        assert page_s >= 2 * 0.542 + 0.1
        # Utilization law: throughput N / (Z + R) times the service time of a page, the call of 80
        # kbit/s of IP packets, and the video of 100 kbit/s, whose buffer fills at the start.
        of_pages = count * 0.1 / (1 + page_s)
        assert 0.7 * of_pages <= each["utilization"].mean <= min(1.2 * of_pages + 0.25, 1.0)
    few, many = by_count[min(by_count)], by_count[max(by_count)]
    assert few["mos_p5"].mean >= many["mos_p5"].mean
    assert few["slow_share"].mean < many["slow_share"].mean


@pytest.mark.system
def test_one_page_on_paper_is_the_page_of_one_user() -> None:
    """Given 40,000 B of objects on a fast GEO link, expect six round trips.

    They are those of the DNS, TCP, TLS 1.3, the document, and two of the objects: 28 segments in
    rounds of 10 and 18. A call whose packets nothing delays is rated by the delay alone.
    """
    answer = ask(
        "users",
        "geo",
        settings=[
            "traffic.reader.objects=4",
            "traffic.reader.document=1000B",
            "traffic.reader.object=10kB",
            "link.forward.rate=100Mbit/s",
            "traffic.reader.think=1s",
            "duration=20s",
        ],
        page_time_ns=3_300_000_000,
        **short(1),
    )
    alone = min(answer.figures["counts"], key=lambda each: each["users"])
    assert alone["page_p50_ns"].mean == pytest.approx(6 * 542e6, rel=0.02)
    assert 2.5 < alone["mos_p5"].mean < 4


def test_pages_count_if_the_run_shows_whether_they_are_slow() -> None:
    """Given a run of 100 s and a limit of 10 s, expect pages from the 20th to the 90th second.

    A page that the end cut off counts with its age. A fast one of the last 10 s does not count: a
    slow one of that time would not.
    """
    pages = pl.DataFrame(
        {"start_ns": [5, 30, 89, 95, 96], "finished_ns": [17, 33, None, 97, None]},
        schema={"start_ns": pl.UInt64, "finished_ns": pl.UInt64},
    )
    assert times_ns(pages, 100, 10, 20).tolist() == [3, 11]
    assert times_ns(pages, 100).tolist() == [12, 3, 11, 2, 4]


def test_a_quantile_of_few_samples_is_that_of_all_runs_together() -> None:
    """Given ten runs of six samples, one of which is late in four runs, expect all 60 to count.

    The mean of the 95th percentiles of runs is 7.4 s, and 4 of 60 take 11 s.
    """
    runs = [np.array([5.0] * 5 + [11.0 if run < 4 else 5.0]) for run in range(10)]
    found = Measurements(
        p95=np.array([Samples(each, 0.95) for each in runs]),
        late=np.array([Samples(np.where(each > 10, 1.0, 0.0)) for each in runs]),
    )
    assert found.mean("p95") == 11
    assert found.mean("late") == pytest.approx(4 / 60)
    # Runs with more samples count for more.
    uneven = Measurements(mean=np.array([Samples(np.zeros(9)), Samples(np.ones(1))]))
    assert uneven.mean("mean") == pytest.approx(0.1)
    assert math.isnan(Measurements(mean=np.array([Samples(np.zeros(0))])).mean("mean"))


def test_a_median_that_a_run_does_not_reach_has_a_spread() -> None:
    """Given medians of 1, 1, 100 and 1 s, and a run whose pages never came, expect them as spread.

    The median of all pages is 1 s, and its interval is wider than that.
    """
    runs = [[1.0], [1.0], [100.0], [1.0], [math.inf, math.inf]]
    pages = np.array([Samples(np.array(times), 0.5) for times in runs])
    estimate = Measurements(page_s=pages).of("page_s")
    assert (estimate.mean, estimate.spread) == (1.0, (1.0, 1.0, math.inf))


@pytest.mark.system
def test_a_user_who_takes_no_page_is_bad_input() -> None:
    """Given runs of 1 s, of which users start within 15 s, or of a user who thinks for longer.

    Expect no answer but what to ask with.
    """
    one_page = [f"traffic.reader.{each}" for each in ("start_jitter=1s", "think.exponential=1h")]
    for seconds, settings in ((1, []), (60, one_page)):
        with pytest.raises(UsageError, match=rf"no page .* of {seconds} s; ask .* duration=300s"):
            ask("busy-link", settings=[f"duration={seconds}s", *settings], seeds=2)


@pytest.mark.system
def test_a_link_with_less_than_a_packet_on_the_way_is_asked_about_queues() -> None:
    """Given 250 kbit/s and 40 ms, 1,250 B, expect a limit of some packets for FQ-CoDel, too."""
    settings = ["link.forward.rate=250kbit/s", "link.*.delay=20ms", "link.*.queue.limit=30kB"]
    answer = ask("buffer", settings=[*settings, "duration=10s"], seeds=2)
    assert answer.facts["runs"].keys() >= {"now", "fq_codel"}


def test_an_effect_says_of_what() -> None:
    effect = Effect("with fq_codel", "its queue", Estimate(-93.2, None, 1), "the time of images")
    assert str(effect) == "with fq_codel instead of its queue: the time of images -93.2 %"


@pytest.mark.system
def test_a_wait_has_no_delay_of_the_link() -> None:
    """Given a delay that falls after the start, and jitter, expect waits that are not negative."""
    delay = "{every: 1s, values: [40ms, 10ms]}"
    settings = [f"link.{way}.delay={delay}" for way in ("forward", "return")]
    asked = BusyLink(settings=[*settings, "duration=10s"], experiment=Experiment(seeds=1))
    assert asked.run_case().mean("wait_p50_ns") >= 0
    call = [{"kind": "voice", "direction": "both"}]
    back = simulate(
        {
            "link": {
                "preset": "leo",
                "forward": {"jitter": "14 ms"},
                "return": {"jitter": "14 ms"},
            },
            "traffic": call,
            "duration": "2 s",
        }
    )
    assert longest_wait_ns(back) < 1e6


@pytest.mark.system
@given(st.floats(0.2, 3.0), st.floats(0.1, 2.0))
def test_means_of_draws_are_those_of_many_draws(shape: float, sigma: float) -> None:
    """Given quantiles at 50,000 equal steps of probability, expect their mean within 1 %."""
    steps = (np.arange(50_000) + 0.5) / 50_000
    low, high = 1_000, 100_000
    pareto = low * (1 - steps * (1 - (low / high) ** shape)) ** (-1 / shape)
    found = mean_of({"kind": "pareto", "min": low, "max": high, "shape": shape})
    assert found == pytest.approx(float(np.mean(pareto)), rel=0.01)
    normal = np.array([NormalDist().inv_cdf(step) for step in steps[5::10]])
    lognormal = np.minimum(low * np.exp(sigma * normal), high)
    found = mean_of({"kind": "lognormal", "median": low, "sigma": sigma, "max": high})
    assert found == pytest.approx(float(np.mean(lognormal)), rel=0.01)


@given(st.integers(0, 300), st.integers(1, 300))
def test_the_search_finds_the_largest_count_that_passes(most: int, guess: int) -> None:
    tried = []

    def passes(count: int) -> bool:
        tried.append(count)
        return count <= most

    assert largest(passes, guess=guess, limit=250) == min(most, 250)
    assert len(tried) == len(set(tried)) <= 18


def shares(**of_runs: Sequence[float]) -> dict[int, Measurements]:
    """Return the shares of slow pages with counts of users: ``n3`` has those of three."""
    return {int(name[1:]): Measurements(slow=np.array(values)) for name, values in of_runs.items()}


SLOW = [Goal("slow", 0.05)]


def test_the_largest_count_has_the_range_that_its_runs_leave_open() -> None:
    """Given 3 % on average with 0 to 9 %, expect that count, and those that are not shown."""
    found = shares(n2=[0, 0, 0], n4=[0, 0.09, 0], n5=[0, 0.2, 0.1], n8=[0.5, 0.6, 0.5])
    fitting = Fitting.of(found, SLOW)
    assert (fitting.count, fitting.range, fitting.text) == (4, [2, 7], " (2 to 7)")
    assert (fitting.at, fitting.above) == (found[4], found[5])
    one = Fitting.of({n: Measurements(slow=each["slow"][:1]) for n, each in found.items()}, SLOW)
    assert (one.count, one.range) == (5, [5, 7])
    none = Fitting.of(shares(n1=[0.5, 0.6, 0.5]), SLOW)
    assert (none.count, none.range, none.text, none.at) == (0, [0, 0], "", {})


@given(st.integers(0, 60), st.integers(0, 10), st.integers(1, 40))
def test_a_search_ends_with_counts_that_are_shown(most: int, doubt: int, guess: int) -> None:
    """Given counts in doubt on both sides of the largest, expect both ends outside of them."""

    def run(count: int) -> Measurements:
        # The mean is 0.02 or 0.08; the limit is inside of the interval in doubt.
        mean = 0.02 if count <= most else 0.08
        spread = 0.1 if abs(count - most - 0.5) <= doubt else 0.001
        return Measurements(slow=mean + spread * np.array([-1, 0, 1]))

    found = search(run, SLOW, guess=guess, limit=80)
    fitting = Fitting.of(found, SLOW)
    assert fitting.count == most
    assert fitting.low <= max(most - doubt, 0)
    assert fitting.high >= most + doubt
    assert fitting.low > 0 or min(found) == 1
    assert fitting.high < 80


# --- small packets --------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.system
def test_calls_through_a_packet_processor_are_its_rate_over_theirs() -> None:
    """Given 6,000 packets/s and calls of 50 each way, expect 60; aggregation carries more."""
    answer = ask("small-packets", "leo", **short(1))
    assert answer.figures["calls"] == 60
    assert answer.figures["bounds_calls"]["packet processors"] == 60
    # 1 of 61 calls is lost: 1.6 %, less what is in the buffers at the end.
    assert 1.0 < answer.figures["one_more"]["loss_percent"] <= 100 / 61
    assert answer.figures["calls_aggregated"] > 3 * 60


# --- usable ---------------------------------------------------------------------------------------


def test_an_image_takes_at_least_its_bits_over_the_rate() -> None:
    """Given 500 kB at 128 kbit/s, expect at least 31.25 s: not usable by the rule of HERMES."""
    answer = ask(
        "usable",
        "geo",
        settings=["link.forward.rate=128kbit/s"],
        video="16 kbit/s",
        downloads=0,
        **short(),
    )
    assert answer.figures["image_p50_ns"].mean > 500e3 * 8 / 128e3 * 1e9
    assert not answer.figures["usable"]["image"]


def test_an_idle_geo_link_costs_its_delay_alone() -> None:
    """Given no download and no other load, expect R = 93.2 - Idd(352 ms) and no late packets.

    One way 271 ms and 200 bytes at 2 Mbit/s, 0.8 ms, the speech of a packet, 20 ms, and a jitter
    buffer of 60 ms. Idd there is 20 (G.107, equation 7-27: x = log2(3.518)). A lecture starts with
    a segment of 25 kB, 18 packets: a handshake and rounds of 10 and 8 packets of 542 ms each. They
    take 14 ms at 16 Mbit/s, and others may be in front of them.
    """
    answer = ask("usable", "geo", downloads=0, image="10 kB", video="50 kbit/s", **short())
    x = math.log2(3.518)
    idd = 25 * ((1 + x**6) ** (1 / 6) - 3 * (1 + (x / 3) ** 6) ** (1 / 6) + 2)
    assert answer.figures["r_factor"].mean == pytest.approx(93.2 - idd, abs=0.5)
    assert answer.figures["lecture_start_up_ns"].mean / 1e9 == pytest.approx(3 * 0.542, abs=0.05)
    assert answer.figures["lecture_stall_percent"].mean == 0
    assert answer.figures["usable"] == {"call": True, "lecture": True, "image": True}


def test_a_lecture_on_a_slow_link_stalls() -> None:
    """Given 1 Mbit/s of media on 500 kbit/s, expect at most 60 s of it in 120 s.

    The first segment, 500 kB, takes two round trips and at least 8 s.
    """
    answer = ask("usable", "geo", settings=["link.forward.rate=500kbit/s"], downloads=0, **short())
    start_up_s = answer.figures["lecture_start_up_ns"].mean / 1e9
    assert start_up_s > 2 * 0.542 + 8
    assert answer.figures["lecture_stall_percent"].mean > 100 * (1 - 60 / (120 - 4 - start_up_s))
    assert not answer.figures["usable"]["lecture"]


# --- preset ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("orbit", "height_km"), [("geo", 35_786), ("meo", 8_062), ("leo", 600)])
def test_the_delay_of_a_preset_is_geometry(orbit: str, height_km: float) -> None:
    """Given 10 degrees of elevation, expect twice the slant range over the speed of light."""
    radius_km, sine = 6_371, math.sin(math.radians(10))
    slant_km = math.sqrt((radius_km * sine) ** 2 + height_km**2 + 2 * radius_km * height_km)
    delay_ms = 2 * (slant_km - radius_km * sine) / 299_792.458 * 1e3
    assert PRESETS[orbit].link["forward"]["delay"] == f"{round(delay_ms)} ms"
    facts = [
        f"{fact['low']} {fact['high']}" for fact in ask("preset", orbit=orbit).figures["facts"]
    ]
    assert any(f"{delay_ms:.1f} ms" in fact for fact in facts)


# --- all ------------------------------------------------------------------------------------------


@pytest.mark.system
@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("question", ASKED)
def test_answers_do_not_depend_on_threads_and_are_short_and_complete(question: str) -> None:
    one, two = (answer_to(question, threads) for threads in (1, 2))
    assert json.dumps(one.to_json()) == json.dumps(two.to_json())
    assert page(one) == page(two)
    check_words(question, one)


def test_another_question_is_asked_about_the_link_alone() -> None:
    """Given a setting of the link and one of the traffic, expect both only in the same question."""
    settings = ["link.forward.rate=1Mbit/s", "traffic.image.think=1s"]
    question = Usable(settings=settings)
    link = "--link geo --set link.forward.rate=1Mbit/s"
    assert question.ask_command("buffer") == f"bentpipe ask buffer {link}"
    assert question.ask_command("usable", "--seeds 2") == (
        f"bentpipe ask usable {link} --set traffic.image.think=1s --seeds 2"
    )
    asked = {"link": "geo", "set": settings, "video": "1Mbit/s", "image": "500kB", "downloads": 1}
    assert question.parameters == asked


@given(st.floats(0.05, 0.9), st.integers(1, 500))
def test_a_count_is_adjusted_until_the_load_is_as_asked_for(load: float, first: int) -> None:
    """Given a load that grows with the count, 1 % each, expect it within half a count."""

    def run(count: int) -> Measurements:
        return Measurements({"busy": np.array([count / 100])})

    adjust = functools.partial(
        Usable().adjusted_count, "users", run, figure="busy", wanted=load, tolerance=0.001
    )
    count, found = adjust(first=first)
    assert abs(found.mean("busy") - load) <= 0.005 + 1e-9
    assert found.mean("busy") == count / 100
    with pytest.raises(UsageError, match="2,001 users, more than 2,000"):
        adjust(first=2_001)


def test_an_answer_with_too_many_lines_is_a_bug() -> None:
    with pytest.raises(InternalError, match="an answer of 10 lines"):
        Answer(lines=["x"] * 10, figures={})


def test_figures_become_plain_data() -> None:
    figures = {"a": Estimate(1.0, None, 1), "b": [Estimate(2.0, 0.5, 3)]}
    assert plain(figures) == {
        "a": {"mean": 1.0, "half_width": None, "runs": 1},
        "b": [{"mean": 2.0, "half_width": 0.5, "runs": 3}],
    }


@pytest.mark.system
@pytest.mark.parametrize(
    "arguments",
    [
        ["tcp", "--seeds", "1"],
        ["busy-link", "--seeds", "1", "--set", "link.forward.rate=2Mbit/s"],
        ["small-packets", "--link", "geo", "--seeds", "1"],
        ["usable", "--seeds", "1"],
        ["pep", "--load", "0%", "--quic-share", "40%", "--seeds", "1"],
        ["coding", "--load", "0", "--queue", "120kB", "--seeds", "1"],
        ["users", "--seeds", "1", "--set", "link.forward.rate=1Mbit/s"],
        ["update", "--seeds", "2"],
        ["preset", "meo"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_verb_prints_text_in_80_columns_and_json_and_a_page(
    arguments: list[str], tmp_path: Path, bentpipe: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = arguments[0]
    given: list[Answer] = []

    def ask_once(*args: Any, **kwargs: Any) -> Answer:
        given.append(given[0] if given else ask(*args, **kwargs))
        return given[0]

    monkeypatch.setattr(answers, "ask", ask_once)
    report = tmp_path / "page.html"
    shown = bentpipe("ask", *arguments, "--report", str(report))
    assert shown.code == 0
    answer = json.loads(bentpipe("ask", *arguments, "--json").out)
    check_words(name, given[0])
    if name == "small-packets":
        # The return of GEO, 2 Mbit/s, over calls of 200 bytes every 20 ms.
        assert answer["figures"]["calls"] == 25
        assert "The rate of the return link is reached" in answer["reason"]
    if name == "coding":
        variants = Coding(queue="120kB").variants.values()
        assert all(f" {each.title} " in shown.out for each in variants)
    assert shown.out.startswith(answer["question"][:60])
    for line in shown.out.splitlines():
        assert len(line) <= 80 or line.startswith("Next: bentpipe ")
    html = report.read_text(encoding="utf-8")
    assert "<script" not in html
    assert "http://" not in html.replace("http://world", "")


def test_the_help_of_a_question_begins_with_its_summary(bentpipe: Program) -> None:
    rows = bentpipe("ask", "--help").out.split("Commands:\n")[1].split("\n\n")[0].splitlines()
    assert [row.split(maxsplit=1)[0] for row in rows] == [*QUESTIONS]
    for name, summary in (row.split(maxsplit=1) for row in rows):
        assert bentpipe("ask", name, "--help").out.split("\n\n", 2)[1].strip() == summary


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tcp", "--link", "nowhere"], "allowed: geo, meo, leo"),
        (["tcp", "--set", "link.forward.delay=5"], "--set link.forward.delay=5"),
        (["busy-link", "--average", "half"], '--average: read "half"; expected a percentage'),
        (["users", "--page-time", "5"], "--page-time"),
        (["usable", "--video", "fast"], "a rate is a number and a unit"),
        (["tcp", "--report", "/nowhere/x.html"], "there is no folder /nowhere"),
        (["buffer", "--set", STEPS], "vary with time"),
        (["coding", "--load", "many"], '--load: read "many"; expected integers separated by'),
        (["coding", "--load", "0,-3"], '--load: read "-3"'),
        (["coding", "--queue", "wide"], 'queue: read "wide"'),
    ],
)
def test_bad_input_is_one_message_and_exit_code_2(
    arguments: list[str], message: str, bentpipe: Program
) -> None:
    shown = bentpipe("ask", *arguments)
    assert (shown.code, shown.out) == (2, "")
    assert message in shown.err
    assert len(shown.err.splitlines()) <= 2


@pytest.mark.parametrize(
    ("question", "parameters", "message"),
    [
        ("tcpp", {}, 'question: read "tcpp"; allowed: tcp, .*; did you mean "tcp"?'),
        ("tcp", {"durations": "5 s"}, 'ask tcp: parameter: .*; did you mean "duration"?'),
        ("preset", {"link": "geo"}, 'ask preset: parameter: read "link"; allowed: orbit'),
        ("preset", {"orbit": "mars"}, 'orbit: read "mars"; allowed: geo, meo, leo'),
        ("small-packets", {"codec": "mp3"}, 'codec: read "mp3"; allowed: g711'),
        ("small-packets", {"packets_per_second": 0}, "pps: read 0; expected 1 or more"),
        ("small-packets", {"link": "leo-handover"}, "delay of this link must not vary with time"),
        ("tcp", {"seeds": 0}, "seeds: read 0; must be 1 to 10000"),
        ("buffer", {"flows": 501}, "flows: read 501; expected 1 to 500"),
        ("busy-link", {"average": 0.0}, "average: read 0%; expected 1% to 95%"),
        ("busy-link", {"average": math.nan}, "average: read nan%; expected 1% to 95%"),
        ("pep", {"load": 0.99}, "load: read 99%; expected 0% to 95%"),
        ("pep", {"quic_share": 1.4}, "quic-share: read 140%; expected 0% to 100%"),
        ("pep", {"settings": [STEPS]}, "ask pep: rate of this link must not vary with time"),
        ("pep", {"settings": ["gateways.hub={}"]}, "leave no PEP at the hub to compare"),
        ("coding", {"loads": [5000]}, "load: read 5,000; expected 0 to 2,000"),
        ("coding", {"loads": [1, 2, 3, 4, 5]}, "load: read 5 numbers; expected 1 to 4"),
        ("coding", {"link": "mars"}, "mars"),
        *(
            ("coding", {"settings": [f"gateways.*.tunnel.{each}"]}, "the cases differ in")
            for each in ("redundancy=20%", "titration=none", "order=false")
        ),
    ],
)
def test_a_question_that_cannot_be_is_refused(
    question: str, parameters: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        ask(question, **parameters)


def test_an_answer_has_the_warnings_about_its_link() -> None:
    """Given a queue of two packets, expect the warning in words, JSON and page; else none."""
    settings = ("link.forward.queue.limit=2 packets",)
    answer = ask("tcp", "geo", duration="2 s", settings=settings, **short())
    (warning,) = answer.to_json()["warnings"]
    assert warning.startswith("link.forward.queue: it has room for 2 packets of 1,500 bytes")
    assert f"Warning: {warning}." in answer.text()
    assert f"<b>Warning:</b> {warning}." in page(answer)
    assert "Warning" not in answer_to("tcp").text()
