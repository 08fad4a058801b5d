"""Answers on TCP transfers and their queue, compared with what follows on paper.

`Made` gives an answer the figures of its cases: what an answer says is tested without runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from conftest import measures, needs
from late import until_on_time
from test_ask import answer_to, short
from test_emulate_api import emulate

from bentpipe import Answer, ask
from bentpipe.answers import Estimate
from bentpipe.answers.answer import Effect
from bentpipe.answers.buffer import BUFFERS_BDP, NOW, Buffer
from bentpipe.answers.page import draw
from bentpipe.answers.question import Assumption
from bentpipe.answers.queues import fq_codel
from bentpipe.answers.runs import Experiment, Figures, Measurements
from bentpipe.answers.tcp import Tcp
from bentpipe.metrics import CAPACITY_PARTS, COLUMNS
from bentpipe.plan.plan import Plan
from bentpipe.results.result import Result

MSS_SHARE = 1448 / 1500
BBR = "traffic.transfer.tcp.congestion_control=bbr"
# What five runs differ by, in percent; its mean is 0.
NOISE = np.array([-1.0, 0.5, 0.0, 1.5, -1.0])


class Made(Experiment):
    """An experiment with the figures of its cases, by name; others have those of the base."""

    def __init__(self, base: Measurements, **cases: Measurements) -> None:
        super().__init__(seeds=next(iter(base.values())).size)
        self.base, self.made = base, cases
        self.plans: dict[Any, Plan] = {}

    def run(
        self,
        cases: Mapping[Any, Plan],
        measure: Callable[[Result], Figures],
    ) -> dict[Any, Measurements]:
        """Return the figures of cases; keep their plans."""
        del measure
        self.plans |= cases
        texts = {each: each.text if isinstance(each, Assumption) else each for each in cases}
        return {each: self.made.get(text, self.base) for each, text in texts.items()}


def transfer(goodput_bps: float = 1e6, *, noise: float = 0.0, seeds: int = 5, **more: Any) -> Any:
    """Return the figures of runs of a transfer; ``noise`` is in units of 1 % of the goodput."""
    names = (*(f"{part}_percent" for part in CAPACITY_PARTS), "rtt_mean_ns")
    signals = (name for name in COLUMNS["flows"] if name.startswith("lost_"))
    zeros = dict.fromkeys((*names, *signals, "retransmitted_percent", "marked_packets"), 0.0)
    figures = zeros | {"congestion_avoidance_percent": 50.0} | more
    made = {name: np.resize(np.asarray(each, float), seeds) for name, each in figures.items()}
    made["goodput_bps"] = goodput_bps * (1 + noise * np.resize(NOISE, seeds) / 100)
    return Measurements(made)


def answered(base: Measurements, settings: tuple[str, ...] = (), **cases: Measurements) -> Answer:
    return Tcp(settings=settings, experiment=Made(base, **cases)).ask()


def line(answer: Answer, start: str) -> str:
    return next((each for each in answer.lines if each.startswith(start)), "")


# --- tcp: what is said ----------------------------------------------------------------------------


def test_a_link_with_two_rates_is_not_measured_by_the_larger() -> None:
    """Given 10 Mbit/s for 20 s and 31 for 40 s, expect shares and the bound of 24 Mbit/s."""
    steps = "[{at: 0 s, value: 10 Mbit/s}, {at: 20 s, value: 31 Mbit/s}]"
    answer = answered(transfer(12e6), (f"link.forward.rate={steps}", "link.*.delay=10ms"))
    assert answer.figures["link_rate_bps"] == 24_000_000
    assert answer.figures["bounds_bps"]["headers"] == pytest.approx(24e6 * MSS_SHARE)
    assert line(answer, "Goodput").endswith("50.0 % of the mean link rate, 24 Mbit/s")


def test_the_window_over_a_delay_that_varies_has_the_mean_of_both_rates() -> None:
    """Given 40 and 60 ms of round trip, half the time each, expect the mean of window / each."""
    steps = "[{at: 0 s, value: 20 ms}, {at: 30 s, value: 40 ms}]"
    window = "traffic.transfer.tcp.window_scaling=false"
    answer = answered(
        transfer(12e6), (f"link.forward.delay={steps}", "link.return.delay=20ms", window)
    )
    bounds = [each for name, each in answer.figures["bounds_bps"].items() if "window" in name]
    assert bounds == pytest.approx([65_535 * 8 * (1 / 0.04 + 1 / 0.06) / 2])
    assert line(answer, "Round trip").startswith("Round trip 50 ms of propagation on average")


@pytest.mark.parametrize(
    ("settings", "window"),
    [
        # 1448 of 2304 bytes are 160 of 256 parts.
        ((), 6 * 2**20 * 160 // 256),
        (("receive_buffer_counts=window",), 4 * 2**20),
        (("mss=512B",), 6 * 2**20 * (500 * 256 // 1280) // 256),
        (("window_scaling=false",), 65_535),
        (("send_buffer=100kB",), 100_000),
    ],
)
def test_the_bound_counts_the_memory_of_a_receive_buffer(
    settings: tuple[str, ...], window: int
) -> None:
    asked = Tcp(settings=[f"traffic.transfer.tcp.{each}" for each in settings])
    (bound,) = (bps for name, bps in asked.bounds_bps().items() if name.startswith("window"))
    assert bound == pytest.approx(window * 8 / 0.542)


@pytest.mark.parametrize(
    ("cause", "words"),
    [
        ("lost_queue_full_packets", "overflowed a queue"),
        ("lost_bit_error_packets", "were lost on the channel"),
        ("lost_processor_overload_packets", "overflowed a packet processor"),
        ("lost_red_packets", "were dropped early by RED"),
        ("lost_codel_packets", "were dropped by CoDel"),
        ("lost_early_packet_discard_packets", "were dropped by early packet discard"),
        ("lost_selective_drop_packets", "were dropped by selective drop"),
        ("lost_no_route_packets", "had no route"),
        ("marked_packets", "were marked by the queue (ECN)"),
    ],
)
def test_losses_have_their_cause_instead_of_the_channel(cause: str, words: str) -> None:
    answer = answered(transfer(**{cause: 40}))
    assert answer.reason.startswith(f"40 packets a run {words}. TCP reduces its rate")
    assert ("channel" in answer.reason) == (cause == "lost_bit_error_packets")


def test_several_causes_are_named_the_largest_first() -> None:
    losses = {"lost_codel_packets": 4, "lost_bit_error_packets": 30}
    reason = answered(transfer(**losses)).reason
    assert reason.startswith("30 packets a run were lost on the channel, 4 packets a run were drop")


def test_a_loss_in_some_runs_is_not_none() -> None:
    """Given one packet lost in one of five runs, expect 0.2 a run."""
    reason = answered(transfer(lost_queue_full_packets=[0, 1, 0, 0, 0])).reason
    assert reason.startswith("0.2 packets a run overflowed a queue (in 1 of 5 runs). TCP reduces")
    assert answered(transfer()).reason.startswith("nothing was lost. After slow start cubic")


def test_slow_start_is_the_reason_only_where_it_takes_the_most() -> None:
    shares = {"slow_start_percent": 40, "congestion_avoidance_percent": 3}
    reason = answered(transfer(**shares, lost_queue_full_packets=12)).reason
    assert reason.startswith("the handshake and slow start take the most of the rest; 12 packets")
    reason = answered(transfer(outage_percent=70, headers_percent=90)).reason
    assert reason == "outage takes the most of the rest; nothing was lost."


def test_a_setting_that_is_larger_already_is_not_offered() -> None:
    def tried(*settings: str) -> set[str]:
        made = Made(transfer())
        Tcp(settings=[f"traffic.transfer.tcp.{each}" for each in settings], experiment=made).ask()
        return {name for name in made.plans if isinstance(name, str)}

    buffers, first = "TCP buffers of 64 MiB", "initial window of 30 segments"
    assert {buffers, first} <= tried()
    both = tried("send_buffer=65MiB", "receive_buffer=65MiB", "initial_window=31")
    assert not {buffers, first} & both
    assert buffers in tried("send_buffer=65MiB")
    assert {"window scaling", "selective acknowledgements"} & tried() == set()
    assert "selective acknowledgements" in tried("sack=false")


def test_ten_seconds_are_ten_seconds_in_milliseconds() -> None:
    """Given transfers of 10,000 ms, expect no comparison with transfers of 10 s."""
    texts = {}
    for duration in ("10000 ms", "60 s"):
        made = Made(transfer())
        Tcp(duration=duration, experiment=made).ask()
        texts[duration] = {each.text for each in made.plans if isinstance(each, Assumption)}
    assert texts["60 s"] - texts["10000 ms"] == {"transfer of 10 s"}
    assert texts["10000 ms"]


def test_what_matters_most_does_not_contradict_what_helps_most() -> None:
    """Given a setting with +300 % and a round trip with +25 %, expect the setting first."""
    shorter = {"round-trip propagation 433.6 ms": transfer(1.25e6)}
    answer = answered(transfer(), **{BBR: transfer(4e6)}, **shorter)
    assert line(answer, "Helps most") == f"Helps most of 7 settings tried: {BBR}: +300.0 %"
    assert answer.matters_most.startswith(
        f"the setting above, {BBR}. Of what is taken for granted: round-trip propagation 433.6 ms"
    )
    less = answered(transfer(), **{BBR: transfer(1.1e6)}, **shorter)
    assert less.matters_most.startswith("round-trip propagation 433.6 ms instead of 542 ms: +25")


def test_noise_does_not_matter_more_than_a_shown_effect() -> None:
    effects = [
        Effect("with noise", "without", Estimate(50.0, 60.0, 5)),
        Effect("10 s", "60 s", Estimate(-20.0, 1.0, 5)),
    ]
    assert (
        Answer(figures={}, effects=effects).matters_most
        == "10 s instead of 60 s: -20.0 % (-21.0 to -19.0)."
    )
    assert Answer(figures={}, effects=effects[:1]).matters_most.startswith(
        "none: no effect is shown"
    )


def test_the_best_of_several_settings_needs_a_wider_interval() -> None:
    """Given +7.0 % with a standard error of 0.5 %, expect help alone, and none as one of 7."""
    base, after = transfer(noise=0.0), transfer(1.07e6, noise=1.0)
    alone = base.change("goodput_bps", after)
    assert alone.low > 5
    answer = answered(base, **{BBR: after})
    assert answer.figures["helps_most"] is None
    assert line(answer, "No setting tried is shown to help by 5 % or more")
    assert line(answer, "Not decided").startswith(f"Not decided: {BBR}: +7.0 % (")


def test_settings_that_lose_and_those_as_good_are_named() -> None:
    others = {
        BBR: transfer(2e6, noise=1.0),
        "TCP buffers of 64 MiB": transfer(1.99e6, noise=-1.0),
        "initial window of 30 segments": transfer(0.5e6),
    }
    answer = answered(transfer(), **others)
    assert "not shown to be worse: TCP buffers of 64 MiB: +99.0 %" in line(answer, "Helps most")
    assert line(answer, "Loses") == "Loses: initial window of 30 segments: -50.0 %"


def test_one_run_decides_nothing() -> None:
    answer = answered(transfer(seeds=1), **{BBR: transfer(2e6, seeds=1)})
    assert answer.figures["helps_most"] is None
    assert line(answer, "One run").endswith(f"the best has {BBR}: +100.0 %")


# --- tcp: on paper --------------------------------------------------------------------------------


@pytest.mark.system
def test_a_window_limits_a_transfer_to_one_window_a_round_trip() -> None:
    """Given no window scaling over GEO, expect 65,535 bytes per 542 ms, less slow start."""
    answer = ask("tcp", "geo", settings=["traffic.transfer.tcp.window_scaling=false"], **short())
    bound_bps = 65_535 * 8 / 0.542
    goodput_bps = answer.figures["goodput_bps"].mean
    # Slow start from 10 segments to 45 takes three of the 110 round trips of 60 s.
    assert 0.95 * bound_bps < goodput_bps <= bound_bps
    assert answer.figures["helps_most"] == "window scaling"
    assert "one window in flight per round trip" in answer.reason
    # A window is 33.9 ms of sending at 16 Mbit/s: the link idles 93.7 % of each round trip. The
    # handshake and slow start take some 4 of 60 s.
    capacity = answer.figures["capacity"]
    assert 93.7 * 0.93 < capacity["window_limit_percent"].mean < 93.8
    assert sum(part.mean for part in capacity.values()) == pytest.approx(100)


@pytest.mark.system
def test_a_transfer_that_fills_the_link_gets_the_payload_of_its_packets() -> None:
    """Given LEO, expect 1448 of each 1500 bytes, and no setting that helps by more than 1 %."""
    answer = ask("tcp", "leo", **short(1))
    goodput_bps = answer.figures["goodput_bps"].mean
    assert 0.99 * 100e6 * MSS_SHARE < goodput_bps <= 100e6 * MSS_SHARE
    assert answer.figures["helps_most"] is None
    assert answer.reason.startswith("the link is full")


@pytest.mark.system
def test_bit_errors_are_what_matters_most_on_a_clean_link() -> None:
    """Given GEO and CUBIC, expect a bit error rate of 1e-7 to cost more than half the goodput."""
    answer = ask("tcp", "geo", **short(4))
    assert answer.matters_most.startswith("bit error rate 1e-07 instead of 0: -")
    assert answer.effects[0].percent.high < -50


@pytest.mark.system
def test_a_transfer_over_two_rates_gets_nearly_the_mean_of_both() -> None:
    """Given 4 and 12 Mbit/s for 2 s each in turn, expect the payload of 8 Mbit/s, less the start.

    A queue of 1 bdp at 12 Mbit/s keeps the link busy through each change.
    """
    rate = "link.forward.rate={every: 2 s, values: [4 Mbit/s, 12 Mbit/s]}"
    answer = ask("tcp", "leo", settings=[rate, "link.forward.queue.limit=3 bdp"], **short(1))
    bound_bps = 8e6 * MSS_SHARE
    assert answer.figures["bounds_bps"]["headers"] == pytest.approx(bound_bps)
    assert 0.95 * bound_bps < answer.figures["goodput_bps"].mean <= bound_bps


@measures
@needs("iperf3")
def test_the_case_of_an_answer_agrees_with_linux() -> None:
    """Given 20 Mbit/s and 26 ms, expect the goodput of the kernel's CUBIC within 5 %."""
    settings = ["link.forward.rate=20Mbit/s", "link.return.rate=4Mbit/s"]
    answer = ask("tcp", "leo", duration="8 s", settings=settings, seeds=1)
    assert answer.trial is not None
    case = answer.trial.cases["as asked"]
    measured = until_on_time(lambda: emulate(case.plan.scenario), lambda each: each.invalid)
    simulated_bps = answer.figures["goodput_bps"].mean
    assert answer.trial.measure(measured) == pytest.approx(simulated_bps, rel=0.05)


# --- buffer ---------------------------------------------------------------------------------------


@pytest.mark.system
def test_one_newreno_transfer_uses_what_its_sawtooth_leaves() -> None:
    """Given a buffer of b BDP, expect at most 3/4 (1 + b)^2 / (1 + b + b^2) of the goodput.

    The window grows from (1 + b) / 2 to 1 + b BDP. Below 1 the link idles; above, the round trip
    grows with the queue. Slow start and recovery take up to 4 % of these 200 s.
    """
    link = ["link.*.delay=50ms", "link.forward.rate=10Mbit/s"]
    length = ["traffic.transfer.duration=200s", "duration=200s"]
    answer = ask(
        "buffer",
        "geo",
        settings=[*link, *length],
        flows=1,
        congestion_control="newreno",
        **short(1),
    )
    queues = {queue["queue"]: queue for queue in answer.figures["queues"]}
    for b in BUFFERS_BDP:
        sawtooth = min(0.75 * (1 + b) ** 2 / (1 + b + b * b), 1.0) if b < 1 else 1.0
        bound_bps = 10e6 * MSS_SHARE * sawtooth
        assert 0.95 * bound_bps < queues[f"{b:g} BDP"]["goodput_bps"].mean <= 1.01 * bound_bps
    assert answer.figures["knee"]["bdp"] in {0.75, 1.0}


@pytest.mark.system
def test_a_packet_waits_no_longer_than_the_queue_takes_to_send() -> None:
    """Given drop-tail queues at 16 Mbit/s, expect waits up to limit / rate and a packet."""
    answer = answer_to("buffer")
    for factor in BUFFERS_BDP:
        queue = next(
            each for each in answer.figures["queues"] if each["queue"] == f"{factor:g} BDP"
        )
        longest_ns = factor * 0.542e9 + 1500 * 8e9 / 16e6
        assert queue["queue_delay_p99_ns"].mean <= longest_ns
    _now, *sizes, _managed = (row[1] for row in answer.tables[0].rows)
    assert sizes == pytest.approx([factor * 1_084_000 for factor in BUFFERS_BDP], abs=1)


@pytest.mark.system
def test_the_figures_over_the_queue_are_one_chart_with_three_scales() -> None:
    """Given GEO, expect 1 BDP at 1,084 kB and 542 ms, and the knee at the recommended size.

    16 Mbit/s send 2 kB per ms, for a round trip of 542 ms.
    """
    answer = answer_to("buffer")
    (chart,) = answer.charts
    figure = draw(chart)
    figure.draw_without_rendering()
    panels, lowest = figure.axes, figure.axes[-1]
    assert [axes.get_ylabel().split("\n")[0] for axes in panels] == [
        "Goodput",
        "Queue delay",
        "Not played",
        "Fairness",
        "Speech quality",
    ]
    kb = np.array(lowest.get_xlim())
    scales = {axes.get_xlabel(): axes.get_xlim() for axes in lowest.child_axes}
    assert lowest.get_xlabel() == "Queue limit [kB]"
    assert scales["at the link rate [ms]"] == pytest.approx(kb / 2)
    assert scales["in bandwidth-delay products"] == pytest.approx(kb / 1084)
    # Every panel marks the knee; the first names it.
    knee = answer.figures["knee"]
    for axes in panels:
        assert axes.lines[-1].get_xdata() == pytest.approx([knee["limit_bytes"] / 1e3] * 2)
    at_knee = panels[0].texts[0].get_text().removeprefix("knee: ")
    assert any(each.partition(": ")[2].startswith(at_knee) for each in answer.lines[:2])
    # The same in the JSON: each queue in three units.
    queues = answer.to_json()["figures"]["queues"]
    one = next(queue for queue in queues if queue["queue"] == "1 BDP")
    assert (one["limit_bytes"], one["limit_ns"], one["bdp"]) == (1_084_000, 542e6, 1.0)
    assert queues[-1]["queue"] == "fq_codel"
    assert queues[-1]["limit_bytes"] is None


@pytest.mark.thorough
@pytest.mark.system
def test_the_command_that_follows_works() -> None:
    """Given the answer for LEO, expect its next command to be a valid lab setting."""
    answer = ask("buffer", "leo", flows=1, **short())
    setting = answer.commands[0].split("--set ")[1].split(" ")[0]
    size = answer.figures["knee"]["limit_bytes"]
    assert setting == f"link.forward.queue.limit={size}B"
    assert ask("tcp", "leo", settings=[setting], **short(1)).figures["link_rate_bps"]


@pytest.mark.thorough
@measures
@needs("iperf3")
def test_the_wait_of_a_call_agrees_with_linux() -> None:
    """Given two transfers over 8 Mbit/s and 40 ms, expect the wait at the kernel's within 10 %."""
    lengths = ["traffic.transfer.duration=8s", "duration=8s"]
    link = ["link.forward.rate=8Mbit/s", "link.*.delay=20ms", "link.forward.queue.limit=80kB"]
    answer = ask("buffer", "leo", settings=[*link, *lengths], flows=2, seeds=5)
    assert answer.trial is not None
    assert answer.trial.figure == "queue_delay_p99_ns"
    now = answer.trial.cases[NOW]
    measured = until_on_time(lambda: emulate(now.plan.scenario), lambda each: each.invalid)
    assert answer.trial.measure(measured) == pytest.approx(now.simulated.mean, rel=0.1)


# --- buffer: what is said -------------------------------------------------------------------------


def queues(
    *, seeds: int = 3, now_wait_s: float = 1.0, **goodputs_mbps: Any
) -> dict[str, Measurements]:
    """Return the figures of queues by name: goodputs, and a wait of 1 s per bdp."""
    waits_s = {f"{bdp:g} BDP": bdp for bdp in BUFFERS_BDP} | {"fq_codel": 0.005, NOW: now_wait_s}
    found = {}
    for name, wait_s in waits_s.items():
        bps = np.resize(np.asarray(goodputs_mbps.get(name, 10.0), float), seeds) * 1e6
        figures = {"goodput_bps": bps, "queue_delay_p99_ns": np.full(seeds, wait_s * 1e9)}
        others = ("fairness", "call_unplayed_percent", "call_r_factor", "call_mos")
        found[name] = Measurements(figures | {each: np.ones(seeds) for each in others})
    return found


def sized(**options: Any) -> tuple[Answer, Made]:
    found = queues(**options)
    made = Made(found["3 BDP"], **found)
    return Buffer(experiment=made).ask(), made


def test_one_transfer_is_not_several() -> None:
    found = queues()
    answer = Buffer(flows=1, experiment=Made(found["3 BDP"], **found)).ask()
    assert "Goodput of 1 transfer, with drop-tail: " in "\n".join(answer.lines)


SMALL = dict.fromkeys(("0.05 BDP", "0.1 BDP", "0.2 BDP"), 1.0)


def test_a_knee_that_another_seed_moves_is_said() -> None:
    """Given runs whose knee is at 0.35, 0.5 and 0.35 BDP, expect both and how many agree."""
    moving, _ = sized(**SMALL, **{"0.35 BDP": [9.9, 9.7, 9.9]})
    assert moving.figures["knees_of_runs"] == ["0.35 BDP", "0.5 BDP", "0.35 BDP"]
    assert moving.lines[0].startswith("Queue: 379.4 kB = 0.35 BDP = 189.7 ms at the link rate")
    assert line(moving, "Another seed") == (
        "Another seed moves the knee: single runs have it from 0.35 BDP to 0.5 BDP, "
        "2 of 3 at 0.35 BDP"
    )
    assert "a larger queue" in moving.uncertainty
    same, _ = sized(**SMALL)
    assert not line(same, "Another seed")
    assert "Each single run has the same knee." in same.uncertainty
    one, _ = sized(seeds=1, **SMALL)
    assert "another seed may move the knee" in one.uncertainty


def test_a_queue_is_recommended_with_its_delay() -> None:
    answer, _ = sized(**SMALL)
    assert answer.lines[1].endswith("packets of a call wait at most 350 ms in it (99 % of them)")


@pytest.mark.parametrize(
    ("now_mbps", "now_wait_s", "figure", "percent"),
    [
        (8.0, 0.1, "goodput_bps", 25.0),
        (8.0, 1.0, "goodput_bps", 25.0),
        (10.0, 0.7, "queue_delay_p99_ns", -50.0),
        (10.0, 0.34, None, None),
        (10.8, 1.0, None, None),
        ([9.5, 10.0, 10.5], 1.0, None, None),
    ],
)
def test_the_knee_is_compared_with_the_queue_of_the_link(
    now_mbps: Any, now_wait_s: float, figure: str | None, percent: float | None
) -> None:
    """Given 10 Mbit/s and 350 ms at the knee, expect goodput first, then the wait, or neither.

    A shorter wait does not make up for goodput that is less, or may be.
    """
    answer, made = sized(**SMALL, now=now_mbps, now_wait_s=now_wait_s)
    assert answer.figures["better_by"] == figure
    trial = answer.trial
    assert trial is not None
    assert [*trial.cases] == [NOW, "0.35 BDP"][: 1 if figure is None else 2]
    assert trial.cases[NOW].plan is made.plans[NOW]
    assert (trial.figure, trial.percent and trial.percent.mean) == (
        figure or "goodput_bps",
        percent and pytest.approx(percent),
    )
    assert line(answer, "Now").startswith(f"Now, 1.084 MB: goodput {np.mean(now_mbps):g} Mbit/s")
    assert ("not shown to be better" in line(answer, "Now")) == (figure is None)
    assert answer.figures["queues"][0]["queue"] == NOW


@pytest.mark.parametrize(
    ("queue", "own_queue", "limit_bytes"),
    [
        ("{limit: 100 kB}", "100 kB", 100_000),
        ("{limit: 50 ms}", "100 kB", 100_000),
        ("{limit: 100 packets}", "drop_tail", None),
        ("{discipline: codel}", "codel", None),
    ],
)
def test_the_queue_of_the_link_has_its_size_or_its_name(
    queue: str, own_queue: str, limit_bytes: int | None
) -> None:
    """Given 16 Mbit/s, expect 50 ms to be 100 kB."""
    made = Made(queues()["3 BDP"], **queues())
    asked = Buffer(settings=[f"link.forward.queue={queue}"], experiment=made)
    assert asked.queues.own_text == own_queue
    (now, *_) = asked.ask().figures["queues"]
    assert now["limit_bytes"] == limit_bytes


@pytest.mark.parametrize(
    ("rate", "names"),
    [
        ("16Mbit/s", ["0.05 BDP", "0.1 BDP", "0.2 BDP", "0.35 BDP", "0.5 BDP", "0.75 BDP"]),
        ("1Mbit/s", ["0.48 BDP", "0.5 BDP", "0.75 BDP"]),
        ("150kbit/s", []),
    ],
)
def test_no_queue_is_smaller_than_a_few_packets(rate: str, names: list[str]) -> None:
    """Given 6 kB at least, 0.48 of the BDP of 1 Mbit/s and 100 ms, expect it in place of less."""
    made = Made(queues()["3 BDP"])
    settings = [f"link.forward.rate={rate}", "link.*.delay=50ms"]
    answer = Buffer(settings=settings, experiment=made).ask()
    now, *found = answer.figures["queues"]
    assert now["queue"] == NOW
    large = ["1 BDP", "1.5 BDP", "2 BDP", "3 BDP"] if names else ["3.2 BDP"]
    assert [each["queue"] for each in found] == [*names, *large, "fq_codel"]
    assert found[0]["limit_bytes"] == (10_000 if rate == "16Mbit/s" else 6_000)


def test_fq_codel_is_set_for_the_round_trip_and_better_with_equal_goodput() -> None:
    """Given GEO, expect an interval of 542 ms; it comes first only without a loss of goodput."""
    answer, made = sized(**SMALL)
    (queue,) = (
        plan.data["directions"][0]["queue"]
        for name, plan in made.plans.items()
        if name == "fq_codel"
    )
    assert (queue["interval_ns"], queue["target_ns"]) == (542_000_000, 27_100_000)
    managed = "{discipline: fq_codel, target: 27.1 ms, interval: 542 ms}"
    assert answer.lines[0].startswith(f"Queue: {managed}: packets of a call wait at most 5 ms")
    assert answer.lines[0].endswith("goodput +0.0 % compared with drop-tail")
    assert answer.reason.startswith("a queue for each flow with CoDel keeps the goodput")
    assert "interval: 542 ms" in answer.commands[0]
    worse, _ = sized(**SMALL, fq_codel=8.0)
    assert worse.lines[0].startswith("Queue: 379.4 kB")
    assert line(worse, "Instead").startswith(f"Instead: {managed}: goodput -20.0 %")
    assert worse.reason.startswith("it is the smallest queue")
    assert len(worse.commands) == 1


@pytest.mark.parametrize(
    ("rtt_ms", "rate", "queue"),
    [
        (542, "16 Mbit/s", "{discipline: fq_codel, target: 27.1 ms, interval: 542 ms}"),
        (26, "16 Mbit/s", "{discipline: fq_codel, target: 5 ms, interval: 100 ms}"),
        # 12,000 bits take 93.75 ms.
        (390, "128 kbit/s", "{discipline: fq_codel, target: 93.75 ms, interval: 390 ms}"),
    ],
)
def test_codel_gets_an_interval_for_the_round_trip_of_the_link(
    rtt_ms: int, rate: str, queue: str
) -> None:
    """RFC 8289, sections 4.3 and 4.4: the interval is a round trip, the target 5 % of it.

    But a target is at least the time of a large packet.
    """
    asked = Buffer(settings=[f"link.forward.rate={rate}"])
    assert fq_codel(rtt_ms * 10**6, asked.wire) == queue


@pytest.mark.parametrize(
    ("setting", "is_random"),
    [
        ("link.forward.rate=8Mbit/s", False),
        ("link.forward.bit_error_rate=1e-11", True),
        ("link.return.jitter=1ms", True),
        ("link.forward.queue={discipline: red}", True),
        ("traffic.transfer.tcp.congestion_control=bbr", True),
    ],
)
def test_runs_that_agree_by_chance_are_told_from_those_without(
    setting: str, *, is_random: bool
) -> None:
    assert Tcp(settings=[setting]).base.is_random is is_random


def test_a_window_says_of_which_buffer_it_is_a_part() -> None:
    """Given 64 kB of memory, expect that of the words; a window that is set needs none."""
    buffer = "traffic.transfer.tcp.receive_buffer=64kB"
    text = ", a part of 64 kB since Linux counts the memory of packets,"
    assert Tcp(settings=[buffer]).window_text == text
    counts = "traffic.transfer.tcp.receive_buffer_counts=window"
    assert Tcp(settings=[buffer, counts]).window_text == ""
    assert Tcp(settings=["traffic.transfer.tcp.send_buffer=16kB"]).window_text == ""
