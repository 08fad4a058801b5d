"""Whether a split-TCP PEP helps, and whom.

The answer has what a PEP at the hub gains and loses for the total, for large and for short flows,
and whether BBR with larger buffers at the hosts does the same without a box. Channels, each one
download after another without a pause, keep the forward direction busy. A PEP cannot split QUIC, or
TCP inside a VPN: such users send TCP that is ``splittable: false``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Final

import numpy as np

from bentpipe.answers.answer import Answer, table
from bentpipe.answers.catalog import Option
from bentpipe.answers.question import Entries
from bentpipe.answers.runs import Verdict
from bentpipe.answers.traffic import slow_start_rounds
from bentpipe.answers.variants import BESIDE, Cases, VariantQuestion
from bentpipe.results.measures import finished_times_ns, rate_bps
from bentpipe.results.result import Result
from bentpipe.units import NS_PER_S

# Assumed: three rounds of slow start from ten segments.
SHORT_BYTES: Final = 100_000
# What is measured beside the channels, in separate runs, so that they do not disturb each other:
# short downloads, split or not, and one large download after another, split, and not split.
SHORT, LARGE, LARGE_QUIC = PROBES = ("short", "large", "large-quic")
QUIC: Final = "-quic"
# Assumed: a large download takes this long at the link rate, within bounds.
_LARGE_S: Final = 5
_LARGE_BYTES: Final = (1_000_000, 100_000_000)
_SERVER: Final = "internet"


@dataclass(kw_only=True, eq=False)
class Pep(VariantQuestion):
    """What a PEP changes; settings of ``gateways.hub.pep`` apply to the runs with it."""

    load: Annotated[
        float, Option("How busy users keep the link without a PEP.", "PERCENT", min=0, max=0.95)
    ] = 0.5
    quic_share: Annotated[
        float, Option("Users of QUIC or VPNs, which no PEP can split.", "PERCENT", min=0, max=1)
    ] = 0.4
    terrestrial_ns: Annotated[
        int, Option("The round trip between the hub and the servers.", "TIME", flag="--terrestrial")
    ] = 80_000_000

    examples = (
        "--link geo --load 50% --quic-share 40%",
        "--link geo --load 90% --terrestrial 20ms --report pep.html",
    )
    constants = ("rate_bps",)
    searched = 10
    differs: ClassVar = {"pep": ()}  # only in whether there is one
    entries = (*PROBES, f"{SHORT}{QUIC}", "channels", f"channels{QUIC}")
    run_length = (1_920_000_000, 40, 120)  # bits at the link rate, 40 to 120 s
    figure = f"{LARGE}_bps"
    tried = ("channels_bps", f"{LARGE}_bps", f"{SHORT}_ns")

    def _traffic(self, load: int = 0, probe: str = SHORT) -> list[dict[str, Any]]:
        fetch = {**BESIDE, "kind": "fetch", "world_host": _SERVER, "think": "0 s"}
        fetch["size"] = f"{SHORT_BYTES if probe == SHORT else self.large_bytes} B"
        think = {"think": {"exponential": "1 s"}} if probe == SHORT else {}
        names = [SHORT, f"{SHORT}{QUIC}"] if probe == SHORT else [probe]
        entries = [{"name": name, **fetch, **think} for name in names]
        quic = round(load * self.quic_share)
        for name, count in {"channels": load - quic, f"channels{QUIC}": quic}.items():
            servers = [self._server(f"{_SERVER}-{name}")]
            users = {"name": name, "kind": "channels", "channels": count, "servers": servers}
            entries += [users] if count else []
        return [{**entry, "splittable": not entry["name"].endswith(QUIC)} for entry in entries]

    @property
    def large_bytes(self) -> int:
        """The size of a large download."""
        return int(np.clip(round(self.link_rate_bps * _LARGE_S / 8, -6), *_LARGE_BYTES))

    def _amend(self, data: dict[str, Any]) -> None:
        data.setdefault("hosts", {}).setdefault("world", []).append(self._server(_SERVER))

    def _server(self, name: str) -> dict[str, str]:
        return {"name": name, "delay": f"{self.terrestrial_ns // 2} ns"}

    def parts(self, load: int) -> list[Entries]:
        """Return the traffic of the probes."""
        return [self._traffic(load, probe) for probe in PROBES]

    def _trial_traffic(self, load: int, figure: str) -> Entries:
        # Real programs send TCP, which a PEP splits.
        short, large, _ = replace(self, quic_share=0.0).parts(load)
        probes = large if figure == self.figure else short
        return [probe for probe in probes if probe["splittable"]]

    def _measure_flows(self, result: Result) -> dict[str, float]:
        flows, stop_ns = result.plan["flows"], result.plan["stop_ns"]
        delivered = result.flows["delivered_bytes"].to_numpy().astype(np.float64)
        channels = [i for i, flow in enumerate(flows) if flow["name"].startswith("channels")]
        figures = {"busy": float(result.directions["utilization"][0])}
        if channels:
            split = [flows[i]["splittable"] for i in channels]
            total = float(delivered[channels].sum())
            figures["channels_bps"] = total * 8 * NS_PER_S / stop_ns
            figures["splittable_share"] = float(delivered[channels] @ split) / max(total, 1.0)
        for i, flow in enumerate(flows[: len(flows) - len(channels)]):
            name, times_ns = flow["name"], finished_times_ns(result, "exchanges", [i])
            if name.startswith(LARGE):
                figures[f"{name}_bps"] = rate_bps(delivered[i], stop_ns - flow["start_ns"]).item()
            else:
                figures[f"{name}_ns"] = float(times_ns.mean()) if times_ns.size else math.nan
        return figures

    def _find(self, _cases: object) -> Cases:
        """Run the probes beside as many channels as keep the plain link as busy as asked for."""
        if self.load:
            self.loads = [self.channels_for(self.load, self._traffic)]
        return super()._find(self._cases())

    def _others(self) -> dict[str, tuple[Pep, Entries]]:
        questions = {
            f"a terrestrial round trip of {ms} ms": replace(self, terrestrial_ns=ms * 1_000_000)
            for ms in (0, 200)
            if ms * 1_000_000 != self.terrestrial_ns
        }
        window = replace(self, settings=[*self.settings, "traffic.*.tcp.initial_window=30"])
        questions["an initial window of 30 segments at the servers"] = window
        return {text: (asked, asked.parts(*self.loads)[1]) for text, asked in questions.items()}

    def best(self, boxes: Sequence[Verdict]) -> Verdict:
        """Return the PEP with the largest gain, on average over what is compared."""
        return max(boxes, key=lambda box: np.nanmean([change.gain.mean for change in box.changes]))

    def _judge(self, measurements: Cases) -> Answer:
        answer, (load,), rows = super()._judge(measurements), self.loads, self.rows(measurements)
        rounds = slow_start_rounds(self.base.data["flows"][0]["workload"]["server"], SHORT_BYTES)
        figures = {
            "large_bytes": self.large_bytes,
            "short_bytes": SHORT_BYTES,
            "saved_on_paper_ns": (rounds - 1) * min(self.terrestrial_ns, self.rtt_ns),
        }
        users = f"beside {load} users" if load else "without users"
        return replace(
            answer,
            facts={**answer.facts, "rounds": rounds},
            figures={**answer.figures, **figures},
            summary=table("pep", f"Gain [%] {users}: more goodput, or less time", rows[1:]),
        )
