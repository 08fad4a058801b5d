"""``ask tcp``: what one TCP connection gets, and the one setting that helps most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from bentpipe.answers.answer import (
    Answer,
    Chart,
    Check,
    DataTable,
    Effect,
    Estimate,
    largest_first,
    signed_percent,
)
from bentpipe.answers.cases import (
    Experiment,
    Figures,
    change_percent,
    estimate,
    initial,
    link_scenario,
    peak_bps,
    resolved,
    variants,
)
from bentpipe.answers.wording import Link, percent_of, rate_text, runs_text, settings_text
from bentpipe.metrics import CAPACITY_PARTS
from bentpipe.plan.plan import Plan
from bentpipe.results.result import Result
from bentpipe.scenario.framings import frame_bits
from bentpipe.scenario.link import DirectionName
from bentpipe.units import format_duration, format_size

_BASE: Final = "as asked"
# A gain under this is not worth a change of a setting, whatever its interval.
_WORTH_PERCENT: Final = 1.0
_IP_TCP_BYTES: Final = 40
# The timestamps option and its padding (RFC 7323, appendix A).
_TIMESTAMPS_BYTES: Final = 12
_CONGESTION_CONTROLS: Final = ("cubic", "bbr", "hybla", "newreno")
_LARGE_BUFFER: Final = "64 MiB"
_UNSCALED_WINDOW_BYTES: Final = 65_535
# What a goodput near its bound reaches; the handshake and slow start take the rest.
_NEAR: Final = 0.85
# What a transfer that fills the link reaches.
_FULL: Final = 0.98


class _Path(NamedTuple):
    """The direction of the data and the opposite one, with their names in a scenario."""

    name: DirectionName
    back: DirectionName
    data: Mapping[str, Any]
    acks: Mapping[str, Any]

    @property
    def rtt_ns(self) -> int:
        """The round-trip propagation delay, at the start of the run."""
        return sum(initial(each["delay_ns"]) for each in (self.data, self.acks))


def tcp(
    link: str = "geo",
    *,
    settings: Sequence[str] = (),
    direction: DirectionName = "forward",
    congestion_control: str = "cubic",
    duration: str = "60 s",
    experiment: Experiment | None = None,
) -> Answer:
    """Answer what one TCP transfer of a duration gets on a link, and what would help most.

    ``link`` is a preset or a scenario file, of which the link and the gateways are taken;
    ``settings`` override values of it, and of the entry ``traffic.transfer``.

    Raises:
        ScenarioError: the link or a setting is wrong.
        UsageError: there is no such link.
        RunsInterrupted: Ctrl-C.
    """
    experiment = experiment or Experiment()
    transfer: dict[str, Any] = {
        "name": "transfer",
        "kind": "bulk",
        "direction": direction,
        "duration": duration,
        "tcp": {"congestion_control": congestion_control},
    }
    document = link_scenario(link, [transfer], duration)
    base = resolved(document, settings)
    path = _path(base.data, direction)
    tried = variants(document, settings, _options(base.data, path))
    assumed = variants(document, settings, _assumptions(path, duration))
    experiment.expect(base.data, 1 + len(tried) + len(assumed))
    found = experiment.run({_BASE: base} | tried | assumed, _figures)
    return _answer(_Facts(Link(link, settings), base, path, found), tried, assumed)


class _Facts(NamedTuple):
    link: Link
    base: Plan
    path: _Path
    found: Mapping[str, Figures]

    @property
    def goodput_bps(self) -> Estimate:
        return estimate(self.found[_BASE]["goodput_bps"])

    def gain(self, name: str) -> Estimate:
        return change_percent(self.found[_BASE]["goodput_bps"], self.found[name]["goodput_bps"])


def _figures(result: Result) -> dict[str, float]:
    flow = result.flows.row(0, named=True)
    attribution = result.attribution.row(0, named=True)
    return {
        **{f"{part}_percent": attribution[f"{part}_percent"] for part in CAPACITY_PARTS},
        "goodput_bps": float(result.goodput_bps[0]),
        "rtt_mean_ns": flow["rtt_mean_ns"] if flow["rtt_mean_ns"] is not None else np.nan,
        "retransmitted_percent": flow["retransmitted_percent"] or 0.0,
        "queue_drops": float(flow["lost_queue_full_packets"]),
        "losses": float(flow["lost_packets"] or 0),
    }


def _path(plan: Mapping[str, Any], direction: DirectionName) -> _Path:
    forward, back = plan["directions"][:2]
    if direction == "forward":
        return _Path("forward", "return", forward, back)
    return _Path("return", "forward", back, forward)


def _options(plan: Mapping[str, Any], path: _Path) -> dict[str, list[str]]:
    """Return the settings that may help: each changes one thing that the transfer does not have."""
    tcp_now = plan["flows"][0]["workload"]["sender"]
    to = "traffic.transfer.tcp"
    options = {
        f"{to}.congestion_control={name}": [f"{to}.congestion_control={name}"]
        for name in _CONGESTION_CONTROLS
        if name != tcp_now["congestion_control"]
    }
    if not tcp_now["window_scaling"]:
        options["window scaling"] = [f"{to}.window_scaling=true"]
    if not tcp_now["sack"]:
        options["selective acknowledgements"] = [f"{to}.sack=true"]
    options[f"TCP buffers of {_LARGE_BUFFER}"] = [
        f"{to}.{each}={_LARGE_BUFFER}" for each in ("send_buffer", "receive_buffer")
    ]
    options["initial window of 30 segments"] = [f"{to}.initial_window=30"]
    limit = f"link.{path.name}.queue"
    if path.data["queue"]["discipline"] == "drop_tail":
        for factor, label in ((0.5, "half"), (2.0, "twice")):
            changed = _scaled_limit(path.data, factor)
            if changed is not None:
                options[f"{label} the queue ({changed})"] = [f"{limit}.limit={changed}"]
    return options


def _assumptions(path: _Path, duration: str) -> dict[str, list[str]]:
    """Return what the answer takes for granted, and may be otherwise on the real link."""
    found: dict[str, list[str]] = {}
    for factor in (0.8, 1.2):
        changes = [
            f"link.{name}.delay={round(initial(each['delay_ns']) * factor)}ns"
            for name, each in ((path.name, path.data), (path.back, path.acks))
            if each["delay_ns"]["kind"] == "constant"
        ]
        if changes:
            rtt = format_duration(path.rtt_ns * factor)
            found[f"round-trip propagation {rtt}"] = changes
    channel = path.data["channel"]
    if channel["kind"] in {"clear", "bit_errors"}:
        rate = channel["bit_error_rate"] if channel["kind"] == "bit_errors" else 1e-8
        for error_rate in (rate / 10, rate * 10) if channel["kind"] != "clear" else (rate, 1e-7):
            name = f"bit error rate {error_rate:.0e}"
            found[name] = [f"link.{path.name}.bit_error_rate={error_rate:e}"]
    found["transfer of 10 s"] = ["traffic.transfer.duration=10s", "duration=10s"]
    return {} if duration == "10 s" else found


def _scaled_limit(direction: Mapping[str, Any], factor: float) -> str | None:
    limit = direction["queue"]["limit"]
    if limit["unit"] == "unlimited":
        return None
    value = round(limit["value"] * factor)
    unit = {"packets": " packets", "time_ns": " ns"}.get(limit["unit"], " B")
    return f"{value}{unit}"


def _answer(facts: _Facts, tried: Mapping[str, Any], assumed: Mapping[str, Any]) -> Answer:
    goodput, path = facts.goodput_bps, facts.path
    rate_bps = peak_bps(path.data["rate_bps"])
    gains = {name: facts.gain(name) for name in tried}
    best = max(gains, key=lambda name: gains[name].mean, default=None)
    helps = best is not None and gains[best].low > 0 and gains[best].mean >= _WORTH_PERCENT
    tcp_now = facts.base.data["flows"][0]["workload"]["sender"]
    bounds = _bounds(facts.base.data, path)
    name, bound_bps = min(bounds.items(), key=lambda item: item[1])
    rtt_ns = estimate(facts.found[_BASE]["rtt_mean_ns"])
    lines = [
        f"Goodput {rate_text(goodput)}, {percent_of(goodput.mean, rate_bps)} of the link rate",
        f"Round trip {format_duration(path.rtt_ns)} of propagation; "
        f"measured mean {format_duration(rtt_ns.mean)}",
        f"Bound on paper: {rate_text(bound_bps)} ({name})",
        f"The rest of the link: {_rest(facts)}",
        f"Helps most: {best}: {signed_percent(gains[best])}"
        if best is not None and helps
        else f"No setting tried helps by more than {_WORTH_PERCENT:g} %",
    ]
    effects = largest_first(
        [Effect(name, _normal(facts, name), facts.gain(name)) for name in assumed]
    )
    commands = [_exec_command(facts), f"bentpipe ask buffer --link {facts.link.shell}"]
    return Answer(
        question=f"One TCP transfer ({tcp_now['congestion_control']}), "
        f"{format_duration(facts.base.data['stop_ns'])}, {path.name} over {facts.link}",
        lines=lines,
        reason=_reason(facts, name, bound_bps),
        uncertainty=_uncertainty(facts),
        effects=effects,
        commands=commands,
        figures={
            "goodput_bps": goodput,
            "link_rate_bps": rate_bps,
            "rtt_propagation_ns": path.rtt_ns,
            "rtt_mean_ns": rtt_ns,
            "retransmitted_percent": estimate(facts.found[_BASE]["retransmitted_percent"]),
            "bounds_bps": bounds,
            "capacity": {
                f"{part}_percent": estimate(facts.found[_BASE][f"{part}_percent"])
                for part in CAPACITY_PARTS
            },
            "gains_percent": gains,
            "helps_most": best if helps else None,
        },
        tables=[_table(facts, tried)],
        charts=[_chart(facts, tried)],
        check=Check(scenario=facts.base.scenario.to_dict(), flow=0, goodput_bps=goodput),
        parameters={"link": facts.link.name, "set": list(facts.link.settings)},
    )


def _bounds(plan: Mapping[str, Any], path: _Path) -> dict[str, float]:
    """Return bounds of the goodput in bit/s, on paper: headers, and window over round trip."""
    sender = plan["flows"][0]["workload"]["sender"]
    options = _TIMESTAMPS_BYTES if sender["timestamps"] else 0
    payload = sender["mss_bytes"] - options
    bits = frame_bits(path.data["framing"], sender["mss_bytes"] + _IP_TCP_BYTES)
    bounds = {"headers": peak_bps(path.data["rate_bps"]) * 8 * payload / bits}
    window = min(sender["send_buffer_bytes"], sender["receive_buffer_bytes"])
    if not sender["window_scaling"]:
        window = min(window, _UNSCALED_WINDOW_BYTES)
    bounds[f"window {format_size(window)} / round trip"] = window * 8e9 / max(path.rtt_ns, 1)
    return bounds


def _rest(facts: _Facts) -> str:
    """Say where the capacity went that is not goodput: parts of 1 % and more, largest first."""
    parts = {
        name.replace(", ", " and "): estimate(facts.found[_BASE][f"{part}_percent"]).mean
        for part, name in CAPACITY_PARTS.items()
        if part != "goodput"
    }
    shown = sorted((name for name in parts if parts[name] >= 1), key=lambda name: -parts[name])
    return ", ".join(f"{name} {parts[name]:.1f} %" for name in shown) or "nothing of 1 % and more"


def _normal(facts: _Facts, name: str) -> str:
    if name.startswith("round-trip"):
        return format_duration(facts.path.rtt_ns)
    if name.startswith("bit error rate"):
        channel = facts.path.data["channel"]
        return f"{channel['bit_error_rate']:.0e}" if channel["kind"] == "bit_errors" else "0"
    return format_duration(facts.base.data["stop_ns"])


def _reason(facts: _Facts, bound: str, bound_bps: float) -> str:
    figures, goodput = facts.found[_BASE], facts.goodput_bps
    if bound.startswith("window") and goodput.mean > _NEAR * bound_bps:
        return (
            "a sender has at most one window in flight per round trip, and this window is smaller "
            "than the bandwidth-delay product of the link."
        )
    if goodput.mean > _FULL * bound_bps:
        return "the link is full: headers and framing take what goodput lacks."
    drops, losses = float(np.mean(figures["queue_drops"])), float(np.mean(figures["losses"]))
    if losses > 2 * drops and losses >= 1:
        return (
            f"{losses:.0f} packets a run were lost on the channel, not in the queue; TCP reduces "
            "its rate for each, and takes many round trips to regain it."
        )
    if drops >= 1:
        return (
            f"{drops:.0f} packets a run overflowed the queue; after that the rate has to grow "
            "again, one round trip at a time."
        )
    return "nothing was lost: the time goes to the handshake and to slow start."


def _uncertainty(facts: _Facts) -> str:
    goodput = facts.goodput_bps
    if goodput.half_width == 0:
        return f"{runs_text(goodput)} agree: nothing in this scenario is random."
    return (
        f"{runs_text(goodput)}; ± is the 95 % interval of the mean. The model is within 0.3 % "
        "(median) of Linux TCP: docs/model/validation.md."
    )


def _exec_command(facts: _Facts) -> str:
    sets = settings_text(each for each in facts.link.settings if each.startswith("link."))
    return (
        f"bentpipe exec --link {facts.link.shell}{sets} -- curl -o page http://world/bytes/10000000"
    )


def _table(facts: _Facts, tried: Mapping[str, Any]) -> DataTable:
    rows = [
        [
            name,
            f"{estimate(facts.found[name]['goodput_bps']).mean / 1e6:.3f}",
            "" if name == _BASE else signed_percent(facts.gain(name)),
            f"{estimate(facts.found[name]['rtt_mean_ns']).mean / 1e6:.0f}",
            f"{estimate(facts.found[name]['retransmitted_percent']).mean:.2f}",
        ]
        for name in (_BASE, *tried)
    ]
    columns = (
        ("setting", ""),
        ("goodput", "Mbit/s"),
        ("change", "%, 95 % interval"),
        ("round trip", "ms, mean"),
        ("retransmitted", "% of segments"),
    )
    return DataTable(title="One setting changed at a time", columns=columns, rows=rows)


def _chart(facts: _Facts, tried: Mapping[str, Any]) -> Chart:
    names = [_BASE, *tried]
    values = [estimate(facts.found[name]["goodput_bps"]) for name in names]
    return Chart(
        title="Goodput with one setting changed",
        x_label="",
        y_label="Goodput [Mbit/s]",
        x=names,
        series={"goodput": [each.times(1e-6) for each in values]},
        kind="bars",
    )
