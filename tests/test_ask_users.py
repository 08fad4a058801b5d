"""Answers of ``ask users`` and ``ask busy-link``, compared with queueing theory."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Program

from bentpipe import Answer, Plan, ask
from bentpipe.answers.catalog import class_of, parameters_of
from bentpipe.answers.remedies import Goal
from bentpipe.answers.runs import Experiment, Measurements
from bentpipe.answers.subscribers import Demand
from bentpipe.answers.traffic import users_of
from bentpipe.answers.users import ATTENTION_NS, Users
from bentpipe.errors import UsageError
from bentpipe.units import format_rate

S = 1_000_000_000
# Pages of one object of 1.25 MB, which 10 Mbit/s carry in about a second, on a short link.
PAGE_BYTES, RATE_BPS, THINK_S = 1_250_000, 10_000_000, 5
SERVICE_S = 8 * PAGE_BYTES * 1500 / 1448 / RATE_BPS
# Each user gets the same share, as at a processor-sharing server.
SHORT_LINK = [
    f"link.forward.rate={RATE_BPS}bps",
    "link.*.delay=5ms",
    "link.forward.queue={discipline: fq_codel, limit: 2000 packets}",
    f"traffic.reader.think.exponential={THINK_S}s",
]
ONE_OBJECT = [
    "traffic.reader.objects=0",
    f"traffic.reader.document={PAGE_BYTES}B",
    "traffic.reader.tls=none",
    "traffic.reader.dns=false",
    "traffic.video.rate=10kbit/s",
]


def response_s(count: int, service_s: float, think_s: float) -> float:
    """Return the mean response time of users who think, and share a server.

    Exact mean value analysis (Lazowska et al., Quantitative System Performance, 1984, chapter 6).
    It holds for any distribution of the work, since the server is shared.
    """
    queue = found_s = 0.0
    for users in range(1, count + 1):
        found_s = service_s * (1 + queue)
        queue = users / (think_s + found_s) * found_s
    return found_s


# --- the time that a page may take ----------------------------------------------------------------


def run_on_paper(_: Experiment, cases: Mapping[Any, Plan], measure: Any) -> dict[Any, Measurements]:
    """Return what queueing theory says of cases, instead of running them.

    Users share the link; round trips and losses, which cost a round trip each, only delay. Page
    times are exponential.
    """
    found = {}
    for name, plan in cases.items():
        forward, users = plan.data["directions"][0], users_of(plan.data)
        count = sum(flow["name"].startswith("reader") for flow in plan.data["flows"])
        rtt_s = 2 * forward["delay_ns"]["value"] / S
        rate_bps = forward["rate_bps"]["value"]
        lost = 8 * users.page_bytes * forward["channel"].get("bit_error_rate", 0)
        lost += rate_bps * rtt_s / 8 / forward["queue"]["limit"]["value"]
        delay_s = (6 + lost) * rtt_s
        sending_s = 8 * users.page_bytes / rate_bps
        mean_s = delay_s + response_s(count, sending_s, users.think_s + delay_s)
        figures = {
            "page_mean_ns": mean_s * S,
            "page_p50_ns": math.log(2) * mean_s * S,
            "page_p95_ns": math.log(20) * mean_s * S,
            "slow_share": math.exp(-measure.__self__.limit_ns / (mean_s * S)),
            "mos_p5": 4.0,
            "unplayed_percent": 0.0,
            "stall_ratio_percent": 0.0,
            "utilization": count / (users.think_s + mean_s) * sending_s,
        }
        found[name] = Measurements({each: np.array([value]) for each, value in figures.items()})
    return found


@pytest.fixture
def on_paper(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answer without runs."""
    monkeypatch.setattr(Experiment, "run", run_on_paper)


WORSE = {
    "rate": ("link.forward.rate=16Mbit/s", "link.forward.rate=6Mbit/s"),
    "delay": ("link.*.delay=50ms", "link.*.delay=400ms"),
    "loss": ("link.forward.bit_error_rate=1e-8", "link.forward.bit_error_rate=1e-6"),
    "queue": ("link.forward.queue.limit=1MB", "link.forward.queue.limit=20kB"),
}


@pytest.mark.usefixtures("on_paper")
@pytest.mark.parametrize("part", WORSE)
def test_a_worse_link_is_not_allowed_slower_pages_and_more_users(part: str) -> None:
    """Given less rate, more delay, losses or a short queue, expect the limit and fewer users.

    A limit of twice the page time on that link grew with delay and losses, and the users with it.
    """
    better, worse = (ask("users", "geo", settings=[each], seeds=1) for each in WORSE[part])
    assert worse.figures["page_time_ns"] == better.figures["page_time_ns"]
    assert worse.figures["users"] <= better.figures["users"]


@pytest.mark.usefixtures("on_paper")
def test_the_answer_says_where_the_limit_comes_from() -> None:
    """Given 16 Mbit/s and 271 ms each way, expect twice the page time of one user, and a warning.

    A page takes 7 round trips and is 21.7 Mbit: 5.15 s, of which ln 20 are 15.4 s for 95 %.
    """
    settings = ["link.forward.rate=4Mbit/s"]
    answer = ask("users", "geo", settings=settings, seeds=1)
    alone_ns, limit_ns = answer.figures["alone_page_p95_ns"], answer.figures["page_time_ns"]
    assert alone_ns == pytest.approx(math.log(20) * (7 * 0.542 + 21.7 / 16) * S, rel=0.01)
    assert limit_ns == math.ceil(2 * alone_ns / S) * S
    text = "\n".join(answer.lines)
    assert "twice what 95 % of the pages of one user alone take on geo without --set" in text
    assert f"if 95 % of pages may take {limit_ns // S} s" in answer.lines[0]
    assert "Warning: after 10 s" in text
    assert answer.commands[0].endswith(f"--set {settings[0]} --page-time 10s")
    # A short link: 10 s, without a warning.
    short = ask("users", "leo", settings=["link.forward.rate=16Mbit/s"], seeds=1)
    assert short.figures["page_time_ns"] == ATTENTION_NS
    assert "The limit is 10 s, since one user alone takes" in short.lines[1]
    asked = ask("users", "geo", page_time_ns=10 * S, seeds=1)
    assert asked.lines[1] == "The limit is that of --page-time"
    assert asked.figures["alone_page_p95_ns"] is None
    assert "Warning" not in "".join([*short.lines, *asked.lines])


@pytest.mark.usefixtures("on_paper")
def test_pages_that_users_load_change_what_is_allowed() -> None:
    """Given pages without objects, expect a shorter limit: that setting is not of the link."""
    usual, small = (
        ask("users", "geo", settings=settings, seeds=1)
        for settings in ([], ["traffic.reader.objects=0"])
    )
    assert small.figures["page_time_ns"] < usual.figures["page_time_ns"]


# --- the steady state ---------------------------------------------------------------------------


@pytest.mark.parametrize(("settings", "start_s"), [([], 60), (["duration=20s"], 4)])
def test_calls_and_videos_start_when_users_are_in_a_steady_state(
    settings: list[str], start_s: int
) -> None:
    flows = Users(settings=settings).base.data["flows"]
    starts = {flow["name"]: flow["start_ns"] for flow in flows}
    assert starts.pop("reader") == 0
    assert {*starts.values()} == {start_s * S}


@pytest.mark.parametrize(("rate_bps", "run_s"), [(16e6, 300), (1e9, 120), (1e6, 60 + 20 * 21.6)])
def test_runs_of_users_are_longer_than_their_start(rate_bps: int, run_s: float) -> None:
    """Given a slow link, expect 20 pages of 2.7 MB after the first minute, of 21.6 s each."""
    setting = f"link.forward.rate={rate_bps:.0f}bps"
    assert Users(settings=[setting]).base.data["stop_ns"] == pytest.approx(run_s * S, abs=S)


@pytest.mark.thorough
@pytest.mark.system
def test_users_are_those_of_the_steady_state() -> None:
    """Given the users that fit on a fast link, expect as few slow pages of runs twice as long.

    Of pages that start in the first 15 s, when all users start, far more are slow.
    """
    settings = ["link.forward.rate=8Mbit/s", "traffic.reader.objects=20"]
    answer = ask("users", "leo", settings=settings, page_time_ns=5 * S, seeds=4)
    count = answer.figures["users"]
    asked = Users(
        link="leo",
        settings=[*settings, "duration=600s"],
        page_time_ns=5 * S,
        experiment=Experiment(seeds=4, first_seed=101),
    )
    longer = {n: asked.run_case(f"traffic.reader.count={n}") for n in (count, round(1.3 * count))}
    assert longer[count].mean("slow_share") < 0.1
    assert longer[round(1.3 * count)].mean("slow_share") > 0.05


# --- users on paper -------------------------------------------------------------------------------


@pytest.mark.system
def test_pages_take_as_long_as_at_a_shared_server() -> None:
    """Given fair shares of the link and counts up to 12, expect the times of MVA within 6 %.

    Two round trips of 10 ms for the handshake and the request are in addition. A call takes 0.9 %.
    """
    answer = ask("users", "geo", settings=SHORT_LINK + ONE_OBJECT, page_time_ns=10 * S, seeds=3)
    counts = answer.figures["counts"]
    assert len(counts) >= 4
    for each in counts:
        service_s = SERVICE_S * (1 + 86_400 / RATE_BPS)
        paper_s = 0.02 + response_s(each["users"], service_s, THINK_S)
        assert each["page_mean_ns"].mean / S == pytest.approx(paper_s, rel=0.06), each["users"]


@pytest.mark.thorough
@pytest.mark.system
def test_users_of_several_terminals_have_a_return_each(tmp_path: Path) -> None:
    """Given a return of 100 kbit/s, expect eight of them to carry more users than one.

    A page has 71 requests of 400 B and some 930 acknowledgements, 5 s of one return. The forward
    direction carries it in less than 3 s.
    """
    answers = {}
    for terminals in (1, 8):
        file = tmp_path / f"{terminals}.json"
        back = {"rate": "100 kbit/s", "queue": {"limit": "100 kB"}}
        link = {"preset": "leo", "terminals": terminals, "return": back}
        file.write_text(json.dumps({"link": link}))
        settings = ["link.forward.rate=8Mbit/s", "traffic.call.direction=forward"]
        settings += ["traffic.video.rate=10kbit/s"]
        answers[terminals] = ask(
            "users", str(file), settings=settings, page_time_ns=60 * S, seeds=1
        )
    one, eight = answers[1], answers[8]
    assert eight.figures["users"] >= 1.3 * one.figures["users"] > 0
    assert not any("terminals" in line for line in one.lines)
    assert (
        "The users are spread over 8 terminals, each with its own return of 100 kbit/s: "
        "800 kbit/s together" in eight.lines
    )


def test_readers_take_turns_at_the_terminals_of_the_link(tmp_path: Path) -> None:
    """Given a file with three terminals, expect five readers at 1, 2, 3, 1, 2."""
    file = tmp_path / "three.json"
    file.write_text(json.dumps({"link": {"preset": "geo", "terminals": 3}}))
    plan = Users(link=str(file)).plan("traffic.reader.count=5")
    readers = [flow for flow in plan.data["flows"] if flow["name"].startswith("reader")]
    assert [flow["terminal"] for flow in readers] == [0, 1, 2, 0, 1]


# --- subscribers ----------------------------------------------------------------------------------


# The data of a month at 10 kbit/s in the busy hour: over 1.72 of a mean rate.
TEN_KBPS = round(10_000 / 1.72 / 8 * 365.25 / 12 * 86_400)


@pytest.mark.parametrize(
    ("activity", "users", "subscribers"),
    [(0.01, 1, 35), (0.01, 10, 618), (0.01, 1000, 94978), (0.45, 12, 19), (1.0, 5, 5), (3.0, 5, 5)],
)
def test_subscribers_are_a_binomial_number_of_active_users(
    activity: float, users: int, subscribers: int
) -> None:
    """Given 10 kbit/s, and an active user with less or more, expect that share active.

    The sums of binomial probabilities are those of exact fractions. No more than all are active.
    """
    demand = Demand(TEN_KBPS, 1e4 / activity)
    assert demand.busy_hour_bps == pytest.approx(10_000)
    assert demand.activity == pytest.approx(min(activity, 1))
    assert demand.fitting(users) == subscribers
    assert demand.fits(subscribers, users)
    assert not demand.fits(subscribers + 1, users)
    assert (demand.fitting(0), demand.fits(1, 0)) == (0, False)


@pytest.mark.usefixtures("on_paper")
def test_more_data_than_a_reader_takes_is_refused_with_the_most() -> None:
    """Given 16 Mbit/s and pages of 22 Mbit, expect at most 1.34 Mbit/s: a page each 16.4 s.

    Over 1.72 of a month that is 257 GB.
    """
    with pytest.raises(
        UsageError, match=r"one downloads up to 1\.3\d+ Mbit/s, 25\d\.\d GB a month"
    ):
        ask("users", "geo", monthly_bytes=10**12, seeds=1)


@pytest.mark.usefixtures("on_paper")
def test_the_answer_says_whether_subscribers_fit_and_their_contention() -> None:
    """Given twice the subscribers that fit, expect a refusal with contention and activity."""
    fitting = _subscribed(None)
    most = fitting.figures["demand"]["fitting_subscribers"]
    assert f"At most {most:,} subscribers with 30 GB of downloads a month fit" in fitting.lines[-2]
    assert fitting.figures["demand"]["subscribers_fit"] is None
    # Little's law: the pages of all subscribers in the busy hour, times the time of a user's page.
    few, many = _subscribed(most), _subscribed(2 * most)
    shown = next(each for each in few.figures["counts"] if each["users"] == few.figures["users"])
    pages_s = most * few.figures["demand"]["busy_hour_bps"] / (8 * few.facts["readers"].page_bytes)
    active = pages_s * (15 + shown["page_mean_ns"].mean / S)
    assert few.figures["demand"]["active_users"] == pytest.approx(active)
    assert active < few.figures["users"]
    offered = format_rate(most * few.figures["demand"]["busy_hour_bps"])
    assert f"offer {offered} to 16 Mbit/s of the forward link" in few.lines[-1]
    assert f"contention {most:,}:1: fit, {active:.1f} active on average" in few.lines[-1]
    # At such a load the time of a page is not known, nor are those who are active.
    assert many.lines[-1].endswith(f"contention {2 * most:,}:1: do NOT fit")
    assert many.figures["demand"]["active_users"] is None
    assert any("Cisco VNI Usage Study" in source for source in many.sources)


@pytest.mark.usefixtures("on_paper")
def test_a_user_alone_about_at_the_limit_says_nothing_of_the_rate() -> None:
    """Given a limit 2 % above what the pages of one user take, expect that instead of a density."""
    alone_ns = ask("users", "geo", seeds=1).figures["alone_page_p95_ns"]
    near, far = (
        ask("users", "geo", page_time_ns=round(times * alone_ns), seeds=1) for times in (1.02, 2.0)
    )
    assert near.lines[0].endswith("one user alone is about at the limit")
    assert near.figures["users_per_mbps"] is None
    assert far.lines[0].endswith("per Mbit/s")


def _subscribed(subscribers: int | None) -> Answer:
    return ask("users", "geo", seeds=1, monthly_bytes=30_000_000_000, subscribers=subscribers)


@pytest.mark.usefixtures("on_paper")
def test_no_subscriber_fits_where_no_user_does() -> None:
    settings = ["link.forward.rate=200kbit/s"]
    answer = ask("users", "geo", settings=settings, monthly_bytes=10**10, page_time_ns=S, seeds=1)
    assert answer.figures["users"] == answer.figures["demand"]["fitting_subscribers"] == 0
    assert answer.reason.startswith("one user alone waits longer: a page takes")


def test_subscribers_without_their_data_are_refused(bentpipe: Program) -> None:
    called = bentpipe("ask", "users", "--subscribers", "400")
    assert (called.code, called.out) == (2, "")
    assert "--subscribers 400: how active they are is missing" in called.err
    bad = bentpipe("ask", "users", "--monthly-data", "30")
    assert (bad.code, "--monthly-data: " in bad.err) == (2, True)
    with pytest.raises(UsageError, match="the number of users is what the answer finds"):
        ask("users", "geo", settings=["traffic.reader.count=5"])
    with pytest.raises(UsageError, match="page-time: read 0s; expected 1ms or more"):
        ask("users", page_time_ns=0)


# --- a busy link on paper -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def busy() -> Answer:
    """A short link at 60 % with pages of one size."""
    settings = [*SHORT_LINK, f"traffic.reader.response={PAGE_BYTES}B"]
    return ask("busy-link", "geo", settings=settings, seeds=4)


@pytest.mark.system
def test_an_average_has_the_users_of_the_response_time_law(busy: Answer) -> None:
    """Given pages that take the link 1.04 s, expect the users that MVA puts at 60 %.

    They load N / (Z + R) pages a second, R by MVA; the law has the average of it, within 5 %. Pages
    count for 180 s.
    """
    users, average = busy.figures["users"], busy.figures["average"].mean
    pages_s = users / (THINK_S + response_s(users, SERVICE_S, THINK_S))
    assert average == pytest.approx(0.6, abs=0.03)
    assert average == pytest.approx(pages_s * SERVICE_S, rel=0.05)
    assert busy.figures["pages"].mean == pytest.approx(180 * pages_s, rel=0.06)


@pytest.mark.system
def test_a_shared_link_is_full_for_its_average_and_else_empty(busy: Answer) -> None:
    """Given pages of a second, windows of 100 ms are full or empty but where a page starts or ends.

    A server that is shared is busy for its load, M/G/1: 60 % of the time, in busy periods. Of these
    there are at most as many as pages, N / (Z + R) a second, with two windows at their edges.
    """
    average, pages_s = busy.figures["average"].mean, busy.figures["pages"].mean / 180
    full, empty = busy.figures["full"].mean, busy.figures["empty"].mean
    edges = 2 * pages_s * (1 - average) * 0.1
    assert average - edges - 0.02 <= full <= average + 0.02
    assert 1 - average - edges - 0.02 <= empty <= 1 - average + 0.02


def test_a_time_that_was_longer_than_a_run_is_gained() -> None:
    """Given pages that never end in some runs, expect a gain of 100 % in these, and the reverse."""
    page = Goal("page_p95_ns")

    def pages(*times: float) -> Measurements:
        return Measurements(page_p95_ns=np.array(times))

    never, some, ended = pages(math.inf, math.inf), pages(math.inf, 8e9), pages(4e9, 4e9)
    assert (page.gain(never, ended).mean, page.gain(never, ended).low) == (100, 100)
    assert page.gain(some, ended).mean == pytest.approx((100 + 50) / 2)
    assert page.gain(ended, never).mean == -100
    assert page.gain(never, never).mean == 0


@pytest.mark.system
def test_where_losses_are_the_reason_their_remedies_are_suggested() -> None:
    """Given 1e-6 bit errors, expect BBR with FQ-CoDel, asked with the same time for a page.

    One packet in 83 is lost, and the window of CUBIC is some 1.17 / sqrt(p) = 11 packets: a page of
    1,900 takes 170 round trips over one connection, which is more than 23 s. BBR keeps its rate.
    """
    answer = ask("users", "geo", settings=["link.forward.bit_error_rate=1e-6"], seeds=3)
    assert answer.figures["users"] == 0
    assert answer.effects[0].assumption == "BBR at the hosts with fq_codel on the forward link"
    assert answer.effects[0].percent.high < -50
    limit = f" --page-time {answer.figures['page_time_ns'] // S}s"
    suggested = [command for command in answer.commands if "congestion_control=bbr" in command]
    assert suggested
    assert all(limit in command for command in suggested)


@pytest.mark.usefixtures("on_paper")
def test_users_of_an_idle_link_do_not_wait_for_each_other() -> None:
    """Given 4e-7 bit errors, expect losses and round trips as the reason: 9 of 22 Mbit's bits."""
    shared = ask("users", "geo", seeds=1)
    assert shared.reason.endswith("pages that are loaded at the same time share the link.")
    idle = ask("users", "geo", settings=["link.forward.bit_error_rate=4e-7"], seeds=1)
    assert "goes to round trips of handshakes and slow start, to losses" in idle.reason
    assert idle.command.startswith("bentpipe ask users --link geo --set link.forward.bit_error")
    assert idle.command.endswith("--seeds 1")


def test_the_page_of_an_answer_has_its_link_and_command(tmp_path: Path, bentpipe: Program) -> None:
    """Given --out, expect what the link is and what was typed, so that a page stands alone."""
    settings = ["--set", "link.forward.rate={every: 30 s, values: [2 Mbit/s, 4 Mbit/s]}"]
    run = bentpipe("ask", "tcp", *settings, "--seeds", "1", "--out", str(tmp_path / "a"), "--json")
    answer = json.loads(run.out)
    assert answer["command"].endswith("--seeds 1")
    page = (tmp_path / "a" / "report.html").read_text()
    assert "2 Mbit/s to 4 Mbit/s" in page
    assert "drop_tail, 271 kB" in page
    assert "What was asked" in page


@pytest.mark.parametrize(
    ("question", "options"),
    [
        ("users", {"monthly_bytes": 123_456_789_012}),
        ("users", {"monthly_bytes": 100 * 10**9, "subscribers": 300}),
        ("busy-link", {"average": 0.1234567}),
        ("pep", {"quic_share": 1e-7}),
        ("pep", {"load": 0.07, "quic_share": 33.3333333 / 100, "terrestrial_ns": 80_000_001}),
    ],
)
def test_the_command_of_an_answer_asks_the_same(question: str, options: dict[str, Any]) -> None:
    """Given values with many digits, expect a command whose options are read as these values."""
    asked = class_of(question).of(options)
    words = shlex.split(asked.command)
    given = dict(zip(words[3::2], words[4::2], strict=True))
    for option in parameters_of(class_of(question)):
        if option.name in options:
            text = given[option.flag]
            read = option.read(text) if option.form else int(text)
            assert read == options[option.name], text
