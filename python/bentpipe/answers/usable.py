"""``ask usable``: whether calls, lectures and images are usable on a link."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

import polars as pl

from bentpipe.answers.answer import Answer, columns
from bentpipe.answers.question import Assumption, Option, Question, asking
from bentpipe.answers.traffic import CODEC, NS_PER_MS, call, call_quality, median_and_p95, times_ns
from bentpipe.results.result import Result
from bentpipe.results.views import View
from bentpipe.results.voice import quality
from bentpipe.text import counted
from bentpipe.units import (
    NS_PER_S,
    format_duration,
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
_FQ_CODEL: Final = "link.forward.queue={discipline: fq_codel}"


@dataclass(kw_only=True, eq=False)
class Usable(Question):
    """Whether calls, lectures and images are usable.

    They share the link with TCP downloads. The call is G.711 both ways, usable with an R-factor of
    60. The lecture is a video with a buffer of 30 s; it is usable if it starts within 10 s and
    stalls for at most 1 % of the time. Images are fetched one after the other with 10 s between
    them, each over a new TCP connection; they are usable if 95 % arrive within 10 s, the rule of
    HERMES.

    See `Question` for the other parameters and the errors; a UnitError is that a rate or a size is
    wrong.
    """

    video: Annotated[str, Option("The rate of the lecture's media.", "RATE")] = "1Mbit/s"
    image: Annotated[str, Option("The size of an image.", "SIZE")] = "500kB"
    downloads: Annotated[int, Option("TCP downloads at the same time.", "N", min=0, max=500)] = 1
    duration: str = field(default="120 s", init=False)

    name = "usable"
    examples = ("--link geo", "--link isdn-return --video 300kbit/s --downloads 0")

    def __post_init__(self) -> None:
        super().__post_init__()
        self._rate_bps, self._size_bytes = parse_rate(self.video), parse_size(self.image)

    def _traffic(self) -> list[dict[str, Any]]:
        lecture = {"kind": "video", "rate": f"{self._rate_bps} bit/s", "start_jitter": "4 s"}
        image = {"size": f"{self._size_bytes} B", "think": "10 s", "start_jitter": "10 s"}
        download = {
            "kind": "bulk",
            "duration": self.duration,
            "count": self.downloads,
            "start_jitter": "1 s",
        }
        return [
            call("both"),
            {"name": "lecture", "direction": "forward", **lecture},
            {"name": "image", "kind": "fetch", "direction": "forward", **image},
            *([{"name": "download", "direction": "forward", **download}] if self.downloads else []),
        ]

    def _assumptions(self) -> list[Assumption]:
        count, start = "traffic.download.count", "traffic.download.start"
        found = [Assumption("with fq_codel on the forward link", "its queue", (_FQ_CODEL,))]
        if self.downloads:
            many = (f"{count}={4 * self.downloads}",)
            # A download that starts at the end of the run sends nothing.
            none = (f"{start}=119s", f"{start}_jitter=0s", f"{count}=1")
            found += [
                Assumption("with four times the downloads", "with those asked for", many),
                Assumption("without downloads", "with them", none),
            ]
        return found

    def _measure(self, result: Result) -> Mapping[str, float]:
        rows = result.flows.to_dicts()
        calls = [row for row in rows if row["entry"] == "call"]
        lecture = next(row for row in reversed(rows) if row["entry"] == "lecture")
        r_factors, mos = zip(*map(call_quality, calls), strict=True)
        start_up_ns = lecture["start_up_time_ns"]
        if start_up_ns is None:
            # What it took so far.
            start_up_ns = result.manifest["end_ns"] - lecture["start_ns"]
        image = [row["entry"] for row in rows].index("image")
        images = result.tables["exchanges"].filter(pl.col("flow") == image)
        image_times_ns = times_ns(images, result.manifest["end_ns"], MAX_IMAGE_NS)
        median_ns, slow_ns = median_and_p95(image_times_ns)
        return {
            "r_factor": min(r_factors),
            "mos": min(mos),
            "call_delay_p99_ns": max(row["one_way_delay_p99_ns"] or math.inf for row in calls),
            "lecture_start_up_ns": float(start_up_ns),
            "lecture_stalls": float(lecture["stalls"]),
            "lecture_stall_percent": lecture["stall_ratio_percent"],
            "image_p50_ns": median_ns,
            "image_p95_ns": slow_ns,
        }

    def _answer(self) -> Answer:
        assumptions = self._assumptions()
        self.choose_seeds(1 + len(assumptions))
        found = self.run_case()
        r_factor, stall_percent = found.of("r_factor"), found.mean("lecture_stall_percent")
        start_up_ns, image_ns = found.of("lecture_start_up_ns"), found.of("image_p95_ns")
        delay_ms = found.mean("call_delay_p99_ns") / NS_PER_MS
        impairment = quality(delay_ms + CODEC.coding_delay_ms, CODEC).delay_impairment
        verdicts = {
            "call": r_factor.mean >= MIN_R_FACTOR,
            "lecture": start_up_ns.mean <= MAX_START_UP_NS and stall_percent <= MAX_STALL_PERCENT,
            "image": image_ns.mean <= MAX_IMAGE_NS,
        }
        words = {name: "usable" if good else "NOT usable" for name, good in verdicts.items()}
        figures = {
            "call": (f"R {r_factor.mean:.1f}", "call_delay_p99_ns"),
            "lecture": (f"{stall_percent:.2f} % stalled", "lecture_start_up_ns"),
            "image": (f"{format_duration(found.mean('image_p50_ns'))} (median)", "image_p95_ns"),
        }
        rows = [
            (name, words[name], text, found.mean(time)) for name, (text, time) in figures.items()
        ]
        return Answer(
            question=f"Are calls, lectures and images usable on {self.subject}, beside "
            f"{counted(self.downloads, 'download')}?",
            lines=[
                f"Call (G.711, both ways): {words['call']}: R {r_factor.mean:.0f}, MOS "
                f"{found.mean('mos'):.2f} (usable from R {MIN_R_FACTOR:.0f})",
                f"Lecture ({format_rate(self._rate_bps)}): {words['lecture']}: starts after "
                f"{start_up_ns.text(format_duration)}, stalls {stall_percent:.2f} % of the time "
                f"(usable to {MAX_START_UP_NS // NS_PER_S} s and {MAX_STALL_PERCENT:g} %)",
                f"Image ({format_size(self._size_bytes)}): {words['image']}: "
                f"{image_ns.text(format_duration)} for 95 % "
                f"(usable to {MAX_IMAGE_NS // NS_PER_S} s)",
            ],
            reason=f"99 % of the packets of a call take at most {delay_ms:.0f} ms one way; that "
            f"delay alone takes {impairment:.0f} of 93 from the R-factor.",
            uncertainty=f"{r_factor.runs_text} of 2 minutes. R-factor and MOS are those of the "
            "E-model (ITU-T G.107), a planning model, without echo. The lecture has one rate; "
            "players that adapt it show a worse picture instead of stalls.",
            effects=self.effects(assumptions, found, "image_p95_ns"),
            commands=[
                self.ask_command(self.name, settings=[_FQ_CODEL]),
                self.ask_command("buffer"),
            ],
            figures={"usable": verdicts, **found.estimates()},
            tables=[View("Each service", columns("usable"), rows)],
        )


usable = asking(Usable)
