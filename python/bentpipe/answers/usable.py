"""Whether calls, lectures and images are usable.

They share the link with TCP downloads. The call is G.711 both ways with a jitter buffer of 60
ms, usable with an R-factor of 60. The lecture is a video with a buffer of 30 s; it is usable if
it starts within 10 s and stalls for at most 1 % of the time. Images are fetched one after the
other with 10 s between them, each over a new TCP connection; they are usable if 95 % arrive
within 10 s, the rule of HERMES.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Annotated, Any, Final

import polars as pl

from bentpipe.answers.answer import Answer, columns
from bentpipe.answers.catalog import Option
from bentpipe.answers.question import Assumption, LinkQuestion
from bentpipe.answers.remedies import Goal, all_met
from bentpipe.answers.runs import Measurements
from bentpipe.answers.traffic import call, median_and_p95, times_ns, with_fq_codel
from bentpipe.results.result import Result
from bentpipe.results.views import View
from bentpipe.results.voice import BEST_R
from bentpipe.units import NS_PER_S, format_duration, parse_rate, parse_size

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
# What each service needs.
NEEDS: Final[Mapping[str, tuple[Goal, ...]]] = {
    "call": (Goal("r_factor", MIN_R_FACTOR, more_is_better=True),),
    "lecture": (
        Goal("lecture_start_up_ns", MAX_START_UP_NS),
        Goal("lecture_stall_percent", MAX_STALL_PERCENT),
    ),
    "image": (Goal("image_p95_ns", MAX_IMAGE_NS),),
}
_OF_CALL: Final = (
    "r_factor",
    "mos",
    "delay_impairment",
    "loss_impairment",
    "mouth_to_ear_ns",
    "unplayed_percent",
)
_WORDS: Final = {True: "usable", False: "NOT usable", None: "not decided"}


@dataclass(kw_only=True, eq=False)
class Usable(LinkQuestion):
    """Whether each service is usable."""

    video: Annotated[str, Option("The rate of the lecture's media.", "RATE")] = "1Mbit/s"
    image: Annotated[str, Option("The size of an image.", "SIZE")] = "500kB"
    downloads: Annotated[int, Option("TCP downloads at the same time.", "N", min=0, max=500)] = 1
    duration: str = field(default="120 s", init=False)

    examples = ("--link geo", "--link isdn-return --video 300kbit/s --downloads 0")
    figure = "image_p95_ns"
    goals = tuple(chain.from_iterable(NEEDS.values()))

    def __post_init__(self) -> None:
        super().__post_init__()
        self.media_bps, self.size_bytes = parse_rate(self.video), parse_size(self.image)

    def _traffic(self) -> list[dict[str, Any]]:
        start, forward = {"start_jitter": "10 s"}, {"direction": "forward"}
        lecture = {"kind": "video", "rate": f"{self.media_bps} bit/s", "start_jitter": "4 s"}
        image = {"kind": "fetch", "size": f"{self.size_bytes} B", "think": "10 s", **start}
        download = {"kind": "bulk", "duration": self.duration, "start_jitter": "1 s"}
        entries = [
            call("both"),
            {"name": "lecture", **forward, **lecture},
            {"name": "image", **forward, **image},
            {"name": "download", **forward, **download, "count": self.downloads},
        ]
        return entries if self.downloads else entries[:-1]

    def _assumptions(self) -> list[Assumption]:
        count, start = "traffic.download.count", "traffic.download.start"
        many = (f"{count}={4 * self.downloads}",)
        # A download that starts at the end of the run sends nothing.
        none = (f"{start}=119s", f"{start}_jitter=0s", f"{count}=1")
        found = [
            with_fq_codel(self.rtt_ns),
            Assumption("with four times the downloads", "with those asked for", many),
            Assumption("without downloads", "with them", none),
        ]
        return found if self.downloads else found[:1]

    def _measure(self, result: Result) -> Mapping[str, float]:
        rows, end_ns = result.flows.to_dicts(), result.manifest["end_ns"]
        entries = [row["entry"] for row in rows]
        calls = result.flows.filter(pl.col("entry") == "call")
        worse = calls.sort("r_factor").row(0, named=True)
        lecture = next(row for row in reversed(rows) if row["entry"] == "lecture")
        start_up_ns = lecture["start_up_time_ns"]
        if start_up_ns is None:
            # What it took so far.
            start_up_ns = end_ns - lecture["start_ns"]
        images = result.tables["exchanges"].filter(pl.col("flow") == entries.index("image"))
        median_ns, slow_ns = median_and_p95(times_ns(images, end_ns, MAX_IMAGE_NS))
        return {
            **{name: worse[name] for name in _OF_CALL},
            "lecture_start_up_ns": float(start_up_ns),
            "lecture_stalls": float(lecture["stalls"]),
            "lecture_stall_percent": lecture["stall_ratio_percent"],
            "image_p50_ns": median_ns,
            "image_p95_ns": slow_ns,
        }

    @property
    def jitter_buffer_ns(self) -> int:
        """The jitter buffer of the call."""
        return int(self.base.data["flows"][0]["workload"]["jitter_buffer_ns"])

    @property
    def image_on_paper_ns(self) -> float:
        """Two round trips, for the handshake and the request, and the bits of an image."""
        return 2 * self.rtt_ns + 8 * NS_PER_S * self.size_bytes / self.rate_bps

    def _judge(self, found: Mapping[str, Measurements]) -> Answer:
        (base,) = found.values()
        # The verdicts on all services hold together.
        count = len(self.goals)
        usable = {service: all_met(goals, base, count) for service, goals in NEEDS.items()}
        words = {service: _WORDS[good] for service, good in usable.items()}
        mean, means = base.mean, base.means()
        figures = {
            "call": (f"R {mean('r_factor'):.1f}", "mouth_to_ear_ns"),
            "lecture": (f"{mean('lecture_stall_percent'):.2f} % stalled", "lecture_start_up_ns"),
            "image": (f"{format_duration(mean('image_p50_ns'))} (median)", "image_p95_ns"),
        }
        rows = [(name, words[name], text, means[time]) for name, (text, time) in figures.items()]
        return Answer(
            facts={"base": base, "words": words, "best_r": BEST_R},
            figures={"usable": usable, **base.estimates()},
            tables=[View("Each service", columns("usable"), rows)],
        )
