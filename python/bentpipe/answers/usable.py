"""``ask usable``: whether calls, lectures and images are usable on a link."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from bentpipe.answers.answer import Answer, DataTable, Effect, largest_first
from bentpipe.answers.call import CODEC, NS_PER_MS, call, call_quality
from bentpipe.answers.cases import (
    Experiment,
    Figures,
    change_percent,
    estimate,
    link_scenario,
    resolved,
    variants,
)
from bentpipe.answers.wording import Link, runs_text, settings_text, time_text
from bentpipe.results.result import Result
from bentpipe.results.voice import quality
from bentpipe.text import counted
from bentpipe.units import (
    NS_PER_S,
    format_rate,
    format_size,
    parse_rate,
    parse_size,
)

# ITU-T G.107, annex B, table B.1: below, nearly all users are dissatisfied; 70 and more satisfy
# most of them.
MIN_R_FACTOR: Final = 60.0
# The HERMES rule: a remote image is useful within 10 s.
MAX_IMAGE_NS: Final = 10 * NS_PER_S
# The longest wait for the first frame of a lecture is that for an image. With stalls of 1 % of the
# media viewers watch 5 % less (Krishnan and Sitaraman, Video Stream Quality Impacts Viewer
# Behavior, IMC 2012).
MAX_START_UP_NS: Final = MAX_IMAGE_NS
MAX_STALL_PERCENT: Final = 1.0
_DURATION: Final = "120 s"


def usable(
    link: str = "geo",
    *,
    settings: Sequence[str] = (),
    video: str = "1 Mbit/s",
    image: str = "500 kB",
    downloads: int = 1,
    experiment: Experiment | None = None,
) -> Answer:
    """Answer whether a call, a lecture and images are usable beside TCP downloads.

    The call is G.711 both ways, usable with an R-factor of 60. The lecture is traffic of kind
    ``video`` at the rate of ``video``, with a buffer of 30 s; it is usable if it starts within 10 s
    and stalls for at most 1 % of the time. Images
    of the size ``image`` are fetched one after the other with 10 s between them, each over a new
    TCP connection; they are usable if 95 % arrive within 10 s, the rule of HERMES.

    Raises:
        ScenarioError: the link or a setting is wrong.
        UsageError: there is no such link.
        UnitError: the rate or the size is wrong.
        RunsInterrupted: Ctrl-C.
    """
    experiment = experiment or Experiment()
    rate_bps, size_bytes = parse_rate(video), parse_size(image)
    document = link_scenario(link, _traffic(rate_bps, size_bytes, downloads), _DURATION)
    base = resolved(document, settings)
    assumed = variants(document, settings, _assumptions(downloads))
    experiment.expect(base.data, 1 + len(assumed))
    figures = experiment.run({0: base}, _figures)[0]
    effects = [
        Effect(name, _INSTEAD[name], change_percent(figures["image_p95_ns"], each["image_p95_ns"]))
        for name, each in experiment.run(assumed, _figures).items()
    ]
    return _answer(Link(link, settings), figures, (rate_bps, size_bytes, downloads), effects)


_NO_DOWNLOADS: Final = "without downloads"
_MORE_DOWNLOADS: Final = "with four times the downloads"
_FQ_CODEL: Final = "with fq_codel on the forward link"
_INSTEAD: Final = {
    _NO_DOWNLOADS: "with them",
    _MORE_DOWNLOADS: "with those asked for",
    _FQ_CODEL: "its queue",
}


def _traffic(rate_bps: int, size_bytes: int, downloads: int) -> list[dict[str, Any]]:
    traffic: list[dict[str, Any]] = [
        call("both"),
        {
            "name": "lecture",
            "kind": "video",
            "direction": "forward",
            "rate": f"{rate_bps} bit/s",
            "start_jitter": "4 s",
        },
        {
            "name": "image",
            "kind": "fetch",
            "direction": "forward",
            "size": f"{size_bytes} B",
            "think": "10 s",
            "start_jitter": "10 s",
        },
    ]
    if downloads:
        traffic.append(
            {
                "name": "download",
                "kind": "bulk",
                "direction": "forward",
                "duration": _DURATION,
                "count": downloads,
                "start_jitter": "1 s",
            }
        )
    return traffic


def _assumptions(downloads: int) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {
        _FQ_CODEL: ("link.forward.queue={discipline: fq_codel}",),
    }
    if downloads:
        found[_MORE_DOWNLOADS] = (f"traffic.download.count={4 * downloads}",)
        # A download that starts at the end of the run sends nothing.
        found[_NO_DOWNLOADS] = (
            "traffic.download.start=119s",
            "traffic.download.start_jitter=0s",
            "traffic.download.count=1",
        )
    return found


def _figures(result: Result) -> dict[str, float]:
    flows = {name: row for row in result.flows.to_dicts() for name in [row["entry"]]}
    calls = [row for row in result.flows.to_dicts() if row["entry"] == "call"]
    lecture, image = flows["lecture"], result.flows["entry"].to_list().index("image")
    rated = [call_quality(row) for row in calls]
    start_up_ns = lecture["start_up_time_ns"]
    if start_up_ns is None:
        # What it took so far.
        start_up_ns = result.manifest["end_ns"] - lecture["start_ns"]
    times_ns = _image_times_ns(result, image)
    median_ns, slow_ns = np.quantile(times_ns, (0.5, 0.95)) if times_ns.size else (np.nan, np.nan)
    return {
        "r_factor": min(0.0 if each is None else each.r_factor for each in rated),
        "mos": min(1.0 if each is None else each.mos for each in rated),
        "call_delay_p99_ns": max(row["one_way_delay_p99_ns"] or math.inf for row in calls),
        "lecture_start_up_ns": float(start_up_ns),
        "lecture_stalls": float(lecture["stalls"]),
        "lecture_stall_percent": lecture["stall_ratio_percent"],
        "image_p50_ns": float(median_ns),
        "image_p95_ns": float(slow_ns),
    }


def _image_times_ns(result: Result, flow: int) -> npt.NDArray[np.float64]:
    """Return the times of images; that of one unfinished after the limit is what it took so far."""
    table = result.tables["exchanges"].filter(pl.col("flow") == flow)
    took_ns = pl.col("finished_ns").fill_null(result.manifest["end_ns"]) - pl.col("start_ns")
    late = pl.col("finished_ns").is_null() & (took_ns <= MAX_IMAGE_NS)
    return table.filter(~late).select(took_ns).to_series().to_numpy().astype(np.float64)


def _answer(
    link: Link, figures: Figures, asked: tuple[int, int, int], effects: Sequence[Effect]
) -> Answer:
    rate_bps, size_bytes, downloads = asked
    r_factor, stall = estimate(figures["r_factor"]), estimate(figures["lecture_stall_percent"])
    start_up_ns = estimate(figures["lecture_start_up_ns"])
    image_ns, mos = estimate(figures["image_p95_ns"]), estimate(figures["mos"])
    verdicts = {
        "call": r_factor.mean >= MIN_R_FACTOR,
        "lecture": start_up_ns.mean <= MAX_START_UP_NS and stall.mean <= MAX_STALL_PERCENT,
        "image": image_ns.mean <= MAX_IMAGE_NS,
    }
    words = {name: "usable" if good else "NOT usable" for name, good in verdicts.items()}
    beside = f"beside {counted(downloads, 'download')}"
    lines = [
        f"Call (G.711, both ways): {words['call']}: R {r_factor.mean:.0f}, MOS {mos.mean:.2f} "
        f"(usable from R {MIN_R_FACTOR:.0f})",
        f"Lecture ({format_rate(rate_bps)}): {words['lecture']}: starts after "
        f"{time_text(start_up_ns)}, stalls {stall.mean:.2f} % of the time "
        f"(usable to {MAX_START_UP_NS // NS_PER_S} s and {MAX_STALL_PERCENT:g} %)",
        f"Image ({format_size(size_bytes)}): {words['image']}: {time_text(image_ns)} for 95 % "
        f"(usable to {MAX_IMAGE_NS // NS_PER_S} s)",
    ]
    shell = f"--link {link.shell}{settings_text(link.settings)}"
    return Answer(
        question=f"Are calls, lectures and images usable on {link}, {beside}?",
        lines=lines,
        reason=_reason(figures),
        uncertainty=f"{runs_text(r_factor)} of 2 minutes. R-factor and MOS are those of the "
        "E-model (ITU-T G.107), a planning model, without echo. The lecture has one rate; "
        "players that adapt it show a worse picture instead of stalls.",
        effects=largest_first(effects),
        commands=[
            f"bentpipe ask usable {shell} --set 'link.forward.queue={{discipline: fq_codel}}'",
            f"bentpipe ask buffer {shell}",
        ],
        figures={
            "usable": verdicts,
            **{name: estimate(values) for name, values in figures.items()},
        },
        tables=[_table(figures, words)],
        parameters={"link": link.name, "set": list(link.settings), "downloads": downloads},
    )


def _reason(figures: Figures) -> str:
    delay_ms = estimate(figures["call_delay_p99_ns"]).mean / NS_PER_MS
    text = f"99 % of the packets of a call take at most {delay_ms:.0f} ms one way"
    share = quality(delay_ms + CODEC.coding_delay_ms, CODEC).idd
    return f"{text}; that delay alone takes {share:.0f} of 93 from the R-factor."


def _table(figures: Figures, words: dict[str, str]) -> DataTable:
    def milliseconds(name: str) -> str:
        return f"{estimate(figures[name]).mean / NS_PER_MS:,.0f}"

    rows = [
        [
            "call",
            words["call"],
            f"R {estimate(figures['r_factor']).mean:.1f}",
            milliseconds("call_delay_p99_ns"),
        ],
        [
            "lecture",
            words["lecture"],
            f"{estimate(figures['lecture_stall_percent']).mean:.2f} % stalled",
            milliseconds("lecture_start_up_ns"),
        ],
        [
            "image",
            words["image"],
            f"{estimate(figures['image_p50_ns']).mean / NS_PER_S:.2f} s (median)",
            milliseconds("image_p95_ns"),
        ],
    ]
    columns = (
        ("service", ""),
        ("", ""),
        ("figure", ""),
        ("time", "ms, call p99 one way; lecture start-up; image p95"),
    )
    return DataTable(title="Each service", columns=columns, rows=rows)
