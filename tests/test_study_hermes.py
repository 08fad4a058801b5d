"""The study of the HERMES measurements: the network on paper, rows, provenance, and the report.

The whole study runs once for most of these, with two runs of each stochastic case. Tests of the
framework's use run a handful of cases.
"""

from __future__ import annotations

import json
from html import unescape
from pathlib import Path

import pytest
from conftest import Program
from test_plots_report import assert_self_contained

from bentpipe import Plan
from bentpipe.studies.base import comparison
from bentpipe.studies.base.comparison import Row
from bentpipe.studies.base.inputs import Provenance, read_quantities
from bentpipe.studies.base.work import Work
from bentpipe.studies.hermes import streams, study, transfers
from bentpipe.studies.hermes.network import Case, Found
from bentpipe.studies.hermes.streams import ConferenceCase, UpstreamCase, max_participants
from bentpipe.studies.hermes.study import (
    HTTP,
    MIN_CALIBRATED_PERCENT,
    OTHER_MSS,
    ROWS,
    HermesOutcome,
)
from bentpipe.studies.hermes.transfers import (
    ASSUMED_LOAD,
    NONE,
    FetchCase,
    PingCase,
    SessionsCase,
    best_of_several,
)

pytestmark = pytest.mark.system

QUANTITIES = [
    "round-trip time",
    "forward rate",
    "return rate",
    "TCP limit with a 64 KB window",
    "HTTP throughput with the default 8 KB window",
    "HTTP throughput measured with a 64 KB window",
    "maximum TCP throughput with several sessions on one client",
    "UDP stream played without tuning",
    "UDP stream reception while buffering; highest seen",
    "video clip multicast from the operating theatre",
    "videoconference participants in continuous presence",
    "upstream each participant manages over ISDN; lowest",
    "upstream each participant manages over ISDN; highest",
    "DICOM image size (512 x 512 x 16 bit)",
    "DICOM image must show within",
    "throughput that the DICOM image needs",
    "medical centres in the network",
]
IMAGE_BYTES = 524_288
# Bytes on the link: MPE adds 17 and 188/184 of all, PPP adds 6, 63/62 of all, and a flag.
DATA_BYTES = (512 + 40 + 17) * 188 / 184
ACK_BYTES = (40 + 6) * 63 / 62 + 1
VOICE_BYTES = (450 + 28 + 17) * 188 / 184

FEW: dict[str, tuple[Case, ...]] = {
    "round_trip": (PingCase(),),
    "files": (FetchCase(10_000, 8192), FetchCase(IMAGE_BYTES, 65_535)),
    "sessions": (SessionsCase(2, 65_535, ASSUMED_LOAD),),
    "conference": (ConferenceCase(7, 90),),
}


@pytest.fixture(scope="module")
def full() -> HermesOutcome:
    """All cases, two runs of the stochastic ones."""
    return study.run(Work("hermes", runs=2))


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A study of five cases."""
    monkeypatch.setattr(study, "PARTS", FEW)


def value(found: Found, case: Case, figure: str) -> float:
    mean = found[case][figure].mean
    assert mean is not None
    return mean


def rows_of(outcome: HermesOutcome, comparison: str = ROWS) -> dict[str, Row]:
    return {row.name: row for row in outcome.comparisons[comparison].rows}


# --- the published rows -------------------------------------------------------------------------


def test_every_row_of_the_source_is_there_once_and_in_its_order(full: HermesOutcome) -> None:
    assert list(read_quantities("hermes", "published.csv")) == QUANTITIES
    cells = full.to_json()["cells"]
    assert [cell["quantity"] for cell in cells] == QUANTITIES
    for cell in cells:
        assert cell["how"]
        assert (cell["reason"] is not None) == (cell["agreement"] == "outside")


@pytest.mark.usefixtures("few")
def test_no_run_reads_a_published_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    """With all published figures 7 the simulated ones are the same."""
    honest = study.run(Work("hermes", runs=1))
    bent_rows = {
        name: (7.0, unit) for name, (_, unit) in read_quantities("hermes", "published.csv").items()
    }
    monkeypatch.setattr(comparison, "read_quantities", lambda *_: bent_rows)
    bent = study.run(Work("hermes", runs=1))
    for name, row in rows_of(honest).items():
        assert rows_of(bent)[name].simulated == row.simulated
    assert bent.main.rows[0].error != honest.main.rows[0].error


@pytest.mark.usefixtures("undrawn")
def test_rows_agree_but_one_which_has_its_reason_everywhere(full: HermesOutcome) -> None:
    """Given a tolerance of 15 %, expect the participants outside, 6 for 8, and no other row."""
    (row,) = full.main.outside
    assert (row.name, row.simulated.values, row.error) == (QUANTITIES[10], (6.0, 6.0), -25.0)
    assert "56 copies of 90 kbit/s" in row.reason
    (cell,) = (cell for cell in full.to_json()["cells"] if cell["reason"])
    assert cell["reason"] == row.reason
    assert row.reason in unescape(full.report())


# --- provenance ---------------------------------------------------------------------------------


def test_the_provenance_of_rows(full: HermesOutcome) -> None:
    """Inputs are stated or derived; rows that depend on the MSS are calibrated."""
    rows = rows_of(full)
    names = {
        each: [i for i, name in enumerate(QUANTITIES) if rows[name].provenance is each]
        for each in Provenance
    }
    assert names == {
        Provenance.STATED: [0, 1, 2, 7, 8, 9, 11, 12, 16],
        Provenance.DERIVED: [13, 15],
        Provenance.ASSUMED: [6],
        Provenance.CALIBRATED: [4, 5, 14],
        Provenance.FITTED: [],
        Provenance.PREDICTED: [3, 10],
    }
    summary = full.to_json()["summary"]["by_provenance"]
    assert (summary["predicted"]["rows"], summary["calibrated"]["rows"]) == (2, 3)
    assert summary["assumed"] == {"rows": 1}
    assert [line.split(":")[0] for line in full.headline()] == ["Predicted rows", "Calibrated rows"]


def test_calibrated_rows_are_those_that_the_other_mss_moves(full: HermesOutcome) -> None:
    """512 bytes is nearer to both rows of HTTP, for which it was chosen."""
    rows, others = rows_of(full), rows_of(full, OTHER_MSS)
    for name, other in others.items():
        moved = 100 * ((other.simulated.mean or 0) / (rows[name].simulated.mean or 1) - 1)
        calibrated = rows[name].provenance is Provenance.CALIBRATED
        assert (abs(moved) > MIN_CALIBRATED_PERCENT) == calibrated
        assert other.agreement is None
    for name in HTTP.values():
        assert abs(rows[name].error or 99) < abs(others[name].error or 0)
    errors = [f"{each[name].error:+.1f}" for each in (rows, others) for name in HTTP.values()]
    (mss,) = (each for each in full.inputs if each.name == "traffic.0.tcp.mss")
    assert mss.provenance is Provenance.CALIBRATED
    assert all(error in mss.source for error in errors)


def test_the_row_of_several_sessions_has_an_interval(full: HermesOutcome) -> None:
    row = rows_of(full)[QUANTITIES[6]]
    assert len(row.simulated.values) == 2
    assert row.simulated.interval is not None
    case = best_of_several(full.found, ASSUMED_LOAD)
    (part,) = (
        each
        for each in full.to_json()["sessions"]
        if (each["sessions"], each["window_bytes"]) == (case.sessions, 65_535)
        and each["background"] == ASSUMED_LOAD
    )
    low, high = part["intervals"]["goodput_bps"]
    assert (low / 1e6, high / 1e6) == pytest.approx(
        (row.simulated.interval.low, row.simulated.interval.high)
    )


# --- against paper ------------------------------------------------------------------------------


def test_the_window_bound_holds_within_one_percent(full: HermesOutcome) -> None:
    """Windows of an even number of segments meet W/RTT; of 127, 126 are under way."""
    for case in transfers.ideal_cases():
        goodput_bps = value(full.found, case, "goodput_bps")
        assert goodput_bps <= case.bound_bps
        if case.mss_bytes == 512:
            segments = case.window_bytes // 512 // 2 * 2
            exact = segments * 512 * 8e3 / case.round_trip_ms
            assert goodput_bps == pytest.approx(exact, rel=1e-6)
    largest = transfers.largest_window_error_percent(full.found, 512)
    assert largest == pytest.approx(-100 / 127)
    assert full.to_json()["window_bound_error_percent_largest"] == largest


def test_the_round_trip_by_hand(full: HermesOutcome) -> None:
    """390 ms, and 72 bytes each way: 5 ms over ISDN, 0.2 ms over the carrier."""
    isdn_ms = ((72 + 6) * 63 / 62 + 1) * 8 / 128
    carrier_ms = (72 + 17) * 188 / 184 * 8 / 4000
    assert full.main.rows[0].simulated.mean == pytest.approx(390 + isdn_ms + carrier_ms, abs=0.01)


def test_the_image_with_8_kb_by_hand(full: HermesOutcome) -> None:
    """1,024 segments, 16 a round of 0.394 s: 64 rounds; the start costs five or six more.

    Handshake and request take a round each; of the next, five carry 1, 2, 3, 5 and 8 of 16
    segments, so they lose 61 of 80, some four rounds; the first ACK waits for up to 0.2 s.
    """
    time_s = value(full.found, FetchCase(IMAGE_BYTES, 8192), "time_s")
    round_s = 0.390 + (DATA_BYTES / 4e6 + ACK_BYTES / 128e3) * 8
    assert 64 * round_s < time_s < (64 + 2 + 4 + 1) * round_s + 0.4
    assert value(full.found, FetchCase(IMAGE_BYTES, 65_535), "time_s") < 10


def test_files_are_faster_the_larger_they_are(full: HermesOutcome) -> None:
    for window_bytes in (8192, 65_535):
        rates = [
            value(full.found, FetchCase(size_bytes, window_bytes), "throughput_bps")
            for size_bytes in transfers.SIZES_BYTES
        ]
        assert rates == sorted(rates)
        assert rates[-1] < window_bytes * 8 / 0.390


def test_the_asymmetry_by_hand(full: HermesOutcome) -> None:
    """RFC 3449: k = 31.25 / (581.4 / 47.75); ISDN takes 335 ACKs a second, 1,024 bytes each."""
    small, large = full.asymmetries
    assert small["ratio"] == pytest.approx(31.25 / (DATA_BYTES / ACK_BYTES), rel=1e-3)
    assert small["ratio"] > 2 > large["ratio"]
    assert small["isdn_bps"] == pytest.approx(128e3 / (ACK_BYTES * 8) * 2 * 512 * 8, rel=1e-3)
    assert small["carrier_bps"] == pytest.approx(4e6 * 512 / DATA_BYTES, rel=1e-4)


def test_isdn_is_full_before_the_carrier_and_lost_acks_fill_the_carrier(
    full: HermesOutcome,
) -> None:
    small = full.asymmetries[0]
    three, eight = (SessionsCase(sessions, 65_535) for sessions in (3, 8))
    assert value(full.found, three, "goodput_bps") == pytest.approx(small["isdn_bps"], rel=0.01)
    assert value(full.found, three, "isdn_loss_percent") == 0
    assert value(full.found, eight, "goodput_bps") == pytest.approx(small["carrier_bps"], rel=0.01)
    # ISDN takes as many ACKs as 2.74 Mbit/s need; the carrier asks for those of 3.52.
    lost = 100 * (1 - small["isdn_bps"] / small["carrier_bps"])
    assert value(full.found, eight, "isdn_loss_percent") == pytest.approx(lost, abs=2)


def test_a_stream_leaves_the_rest_of_the_carrier(full: HermesOutcome) -> None:
    """With a stream of 2,000 kbit/s the carrier has room for 1.65 Mbit/s of TCP.

    A datagram of 1,024 bytes takes 1,092.2 on the carrier: 2.133 of 4 Mbit/s, and of the others
    512 of 581.4 bytes are data.
    """
    room_bps = (4e6 - 2e6 * (1024 + 28 + 17) * 188 / 184 / 1024) * 512 / DATA_BYTES
    case = SessionsCase(8, 65_535, "the stream while it buffers")
    assert 0.97 * room_bps < value(full.found, case, "goodput_bps") <= 1.01 * room_bps
    alone, loaded = (best_of_several(full.found, load) for load in (NONE, ASSUMED_LOAD))
    assert value(full.found, alone, "goodput_bps") > value(full.found, loaded, "goodput_bps")


def test_streams_by_hand(full: HermesOutcome) -> None:
    for case in (streams.STREAM, streams.BUFFERING, streams.CLIP):
        assert value(full.found, case, "loss_percent") == 0
    # Twenty copies of 600 kbit/s, each 6.67 % more on the carrier, and a queue of 0.39 s.
    carried = 4e6 / (20 * 600e3 * (1024 + 28 + 17) * 188 / 184 / 1024)
    lost = value(full.found, streams.CLIP_EACH, "loss_percent")
    assert 100 * (1 - carried * (1 + 0.39 / 40)) - 0.1 < lost < 100 * (1 - carried)
    assert value(full.found, streams.RETURN_FLOOD, "link_bps") == pytest.approx(128e3, rel=0.003)


def test_conferences_on_paper(full: HermesOutcome) -> None:
    """N (N - 1) streams, 505.8 bytes on the carrier for 450: 7 fit at 80 kbit/s, 6 at 90 and 100.

    What does not fit is lost, but for what the queue of 0.39 s holds at the end of 60 s.
    """
    for rate_kbps in streams.RATES_KBPS:
        fits = max(
            n for n in streams.PARTICIPANTS if n * (n - 1) * rate_kbps * VOICE_BYTES / 450 <= 4000
        )
        assert max_participants(full.found, rate_kbps).values == (fits, fits)
        assert max_participants(full.found, rate_kbps, "one").mean == 8
    offered = 56 * 90 * VOICE_BYTES / 450 / 4000
    lost = value(full.found, ConferenceCase(8, 90), "loss_percent")
    assert 100 * (1 - (1 + 0.39 / 60) / offered) - 0.1 < lost < 100 * (1 - 1 / offered)
    assert value(full.found, ConferenceCase(8, 90), "loss_percent_worst") > lost


def test_upstream_on_paper(full: HermesOutcome) -> None:
    """Of 128 kbit/s 450 of 492.8 bytes are payload: 116.9 kbit/s."""
    carried_kbps = 128 * 450 / ((450 + 28 + 6) * 63 / 62 + 1)
    for case in streams.UPSTREAM_CASES:
        lost = value(full.found, case, "loss_percent")
        assert (lost == 0) == (case.rate_kbps < carried_kbps)
    arrived_bps = value(full.found, UpstreamCase(125), "received_bps")
    assert carried_kbps <= arrived_bps / 1e3 < carried_kbps * (1 + 0.4 / 60) + 0.1


# --- the machinery ------------------------------------------------------------------------------


def test_only_stochastic_cases_have_plans_that_depend_on_the_seed() -> None:
    for cases in study.PARTS.values():
        for case in cases[:: max(1, len(cases) // 4)]:
            one, other, same = (job.plan.data for job in case.jobs([1, 2, 1]))
            assert (one != other) == case.is_stochastic
            assert one == same


def test_every_run_is_the_same_network() -> None:
    """But for the ideal path of the window formula; terminals, framing, rates, delays, queues."""
    links = {
        json.dumps(Plan.resolve(case.scenario()).data["directions"], sort_keys=True)
        for part, cases in study.PARTS.items()
        if part != "windows"
        for case in cases
    }
    (link,) = links
    file = Path(study.__file__).parent / "scenario.yaml"
    assert json.loads(link) == Plan.resolve(file).data["directions"]
    assert len(json.loads(link)) == 1 + 20


def test_sessions_and_sites_share_what_the_case_says() -> None:
    plan = Plan.resolve(SessionsCase(4, 8192, ASSUMED_LOAD).scenario()).data
    names = [flow["name"] for flow in plan["flows"]]
    assert sum(name.startswith("session") for name in names) == 4
    assert sum(name.startswith("site") for name in names) == 20
    assert {flow["terminal"] for flow in plan["flows"][:4]} == {0}
    assert max(transfers.SEVERAL) <= max(transfers.SESSIONS)


@pytest.mark.usefixtures("few")
def test_seeds_count_up_from_the_first() -> None:
    """The runs of the seeds 7 and 8 are those of two studies of one run each."""
    (case,) = FEW["sessions"]
    both, seventh, eighth = (
        study.run(Work("hermes", runs=runs, seed=seed)).found[case]["goodput_bps"].values
        for runs, seed in ((2, 7), (1, 7), (1, 8))
    )
    assert seventh != eighth
    assert both == seventh + eighth
    # A deterministic case runs once.
    found = study.run(Work("hermes", runs=2)).found
    assert len(found[FEW["files"][0]]["time_s"].values) == 1


@pytest.mark.usefixtures("few")
def test_the_row_of_several_sessions_needs_a_run_of_each_number() -> None:
    """Given runs of two sessions only, the largest of two to eight is unknown."""
    outcome = study.run(Work("hermes", runs=2))
    assert outcome.found[FEW["sessions"][0]]["goodput_bps"].mean is not None
    assert rows_of(outcome)[QUANTITIES[6]].simulated.mean is None


# --- what it writes -----------------------------------------------------------------------------


def test_the_report_is_self_contained_and_has_the_numbers(full: HermesOutcome) -> None:
    text = full.report()
    page = assert_self_contained(text)
    assert page.tags.count("svg") == 4
    for quantity in QUANTITIES:
        assert quantity in text
    for words in (
        "calibrated",
        "Not stated in the source",
        "RFC 3449",
        "does not test the simulation",
    ):
        assert words in text


@pytest.mark.usefixtures("few")
def test_the_table_names_every_row(bentpipe: Program) -> None:
    called = bentpipe("study", "hermes", "--seeds", "1")
    assert (called.code, called.err) == (0, "")
    for quantity in QUANTITIES:
        assert quantity in called.out
