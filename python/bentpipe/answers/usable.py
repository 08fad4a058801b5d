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

import numpy as np
import polars as pl

from bentpipe.answers.answer import Answer, columns
from bentpipe.answers.catalog import Option
from bentpipe.answers.question import Assumption, LinkQuestion
from bentpipe.answers.queues import Queues, with_classes
from bentpipe.answers.remedies import Goal, all_met
from bentpipe.answers.runs import DEFAULT_SEEDS, Figures, Measurements, Samples
from bentpipe.answers.traffic import call, quantiles, times_ns
from bentpipe.plan.plan import Plan
from bentpipe.results.result import Result
from bentpipe.results.views import View
from bentpipe.results.voice import BEST_R
from bentpipe.scenario.link import DirectionName
from bentpipe.scenario.tables import CODECS
from bentpipe.units import NS_PER_S, parse_rate, parse_size

# ITU-T G.107, annex B, table B.1: below, nearly all users are dissatisfied; 70 and more satisfy
# most of them.
MIN_R_FACTOR: Final = 60.0
# The HERMES rule: a remote image is useful within 10 s.
MAX_IMAGE_NS: Final = 10 * NS_PER_S
MAX_LATE_PERCENT: Final = 5.0
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
    "image": (Goal("image_late_percent", MAX_LATE_PERCENT),),
}
_OF_CALL: Final = (
    "r_factor",
    "mos",
    "delay_impairment",
    "loss_impairment",
    "mouth_to_ear_ns",
    "unplayed_percent",
)
_DIRECTIONS: Final[tuple[DirectionName, ...]] = ("forward", "return")
_WORDS: Final = {True: "usable", False: "NOT usable", None: "not decided"}


@dataclass(kw_only=True, eq=False)
class Usable(LinkQuestion):
    """Whether each service is usable."""

    video: Annotated[str, Option("The rate of the lecture's media.", "RATE")] = "1Mbit/s"
    image: Annotated[str, Option("The size of an image.", "SIZE")] = "500kB"
    downloads: Annotated[int, Option("TCP downloads at the same time.", "N", min=0, max=500)] = 1
    duration: str = field(default="120 s", init=False)
    limiting: tuple[DirectionName, ...] = field(default=("forward",), init=False)
    """The directions in which the call is not usable, the worst first; else the worse one."""

    # Most runs have no stall: five of them alone are too few to show that there are few.
    seeds = DEFAULT_SEEDS
    examples = ("--link geo", "--link isdn-return --video 300kbit/s --downloads 0")
    figure = "image_p95_ns"
    figure_text = "the time of 95 % of the images"
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
        others = ("lecture", "image", "download") if self.downloads else ("lecture", "image")
        wires = dict(zip(_DIRECTIONS, self.directions, strict=True))
        remedies = {
            "fq_codel": [
                Queues(name, wires[name], self.rtt_ns).fq_codel() for name in self.limiting
            ],
            "the call before the rest": [
                *(with_classes(name, wires[name]) for name in self.limiting),
                *(f"traffic.{name}.priority=1" for name in others),
            ],
        }
        links = " and ".join(f"the {name} link" for name in self.limiting)
        assumptions = [
            *(
                Assumption(f"with {text} on {links}", "its queue", tuple(settings), is_remedy=True)
                for text, settings in remedies.items()
            ),
            Assumption("with four times the downloads", "with those asked for", many),
            Assumption("without downloads", "with them", none),
        ]
        return assumptions if self.downloads else assumptions[:2]

    def _find(self, cases: Mapping[str, Plan]) -> dict[str, Measurements]:
        """Run what was asked; remedies are for the directions that limit the call."""
        measurements = self.run(cases)
        (base,) = measurements.values()
        means = {name: base.mean(f"{name}_r_factor") for name in _DIRECTIONS}
        first, *others = sorted(_DIRECTIONS, key=lambda name: means[name])
        self.limiting = (first, *(name for name in others if means[name] < MIN_R_FACTOR))
        return measurements

    def _measure(self, result: Result) -> Figures:
        rows, end_ns = result.flows.to_dicts(), result.manifest["end_ns"]
        entries = [row["entry"] for row in rows]
        calls = result.flows.filter(pl.col("entry") == "call").sort("r_factor")
        worse, used = calls.row(0, named=True), result.directions["utilization"]
        by_direction = dict(calls.select("direction", "r_factor").iter_rows())
        lecture = next(row for row in reversed(rows) if row["entry"] == "lecture")
        start_up_ns = lecture["start_up_time_ns"]
        if start_up_ns is None:
            # What it took so far.
            start_up_ns = end_ns - lecture["start_ns"]
        images = result.tables["exchanges"].filter(pl.col("flow") == entries.index("image"))
        images_ns = times_ns(images, end_ns, MAX_IMAGE_NS)
        # Of those that `times_ns` counts.
        cut = images.filter(pl.col("start_ns") <= end_ns - MAX_IMAGE_NS)["finished_ns"].is_null()
        return {
            **{name: worse[name] for name in _OF_CALL},
            **{f"{name}_r_factor": by_direction[name] for name in _DIRECTIONS},
            **{f"{name}_used": used[i] for i, name in enumerate(_DIRECTIONS)},
            "lecture_start_up_ns": float(start_up_ns),
            "lecture_stalls": float(lecture["stalls"]),
            "lecture_stall_percent": lecture["stall_ratio_percent"],
            **quantiles("image", images_ns),
            "image_late_percent": Samples(np.where(images_ns > MAX_IMAGE_NS, 100.0, 0.0)),
            "image_cut_percent": Samples(np.where(cut.to_numpy(), 100.0, 0.0)),
        }

    def _shown(self, before: Measurements) -> tuple[str, str]:
        # Of images that did not arrive, no time is known.
        if before.mean("image_cut_percent") > MAX_LATE_PERCENT:
            return "unplayed_percent", "the share of the call's packets that are not played"
        return super()._shown(before)

    @property
    def codec(self) -> str:
        """The codec of the call, for a sentence."""
        name = self.base.data["flows"][0]["workload"]["codec"]
        return CODECS[name].title.partition(" ")[0].rstrip(",")

    @property
    def image_direction(self) -> DirectionName:
        """The direction of the images, which a setting may change."""
        flows = self.base.data["flows"]
        name: DirectionName = next(it["direction"] for it in flows if it["name"] == "image")
        return name

    @property
    def image_on_paper_ns(self) -> float:
        """Two round trips, for the handshake and the request, and the bits of an image."""
        rate_bps = self.rate_bps if self.image_direction == "forward" else self.return_bps
        return 2 * self.rtt_ns + 8 * NS_PER_S * self.size_bytes / rate_bps

    def _judge(self, measurements: Mapping[str, Measurements]) -> Answer:
        (base,) = measurements.values()
        # The verdicts on all services hold together.
        count = len(self.goals)
        usable = {service: all_met(goals, base, count) for service, goals in NEEDS.items()}
        words = {service: _WORDS[good] for service, good in usable.items()}
        mean, means = base.mean, base.means()
        figures = {
            "call": (f"R {mean('r_factor'):.1f}", "mouth_to_ear_ns"),
            "lecture": (f"{mean('lecture_stall_percent'):.2f} % stalled", "lecture_start_up_ns"),
            "image": (f"{mean('image_late_percent'):.1f} % late", "image_p95_ns"),
        }
        rows = [(name, words[name], text, means[time]) for name, (text, time) in figures.items()]
        return Answer(
            facts={"base": base, "words": words, "best_r": BEST_R},
            figures={"usable": usable, **base.estimates()},
            tables=[View("Each service", columns("usable"), rows)],
        )
