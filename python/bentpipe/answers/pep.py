"""``ask pep``: what a split-TCP PEP at the hub gives at a load, and which traffic it can split."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from bentpipe.answers.answer import Answer, Chart, DataTable, Estimate, signed_percent
from bentpipe.answers.cases import Experiment, Figures, change_percent, estimate, initial
from bentpipe.answers.pep_runs import (
    DURATION_S,
    LARGE,
    LARGE_QUIC,
    PROBES,
    QUIC,
    SHORT,
    SHORT_BYTES,
    Asked,
    Case,
    Change,
    Runs,
)
from bentpipe.answers.wording import (
    Link,
    percent_text,
    rate_text,
    runs_text,
    settings_text,
    time_text,
)
from bentpipe.errors import UsageError
from bentpipe.plan.plan import Plan
from bentpipe.units import format_duration, format_size

_MAX_LOAD: Final = 0.95
# A gain below this is not worth a box in the path of all traffic.
_WORTH_PERCENT: Final = 5.0
# The link is full from this load on.
_FULL: Final = 0.9
# The timestamps option and its padding (RFC 7323, appendix A).
_TIMESTAMPS_BYTES: Final = 12


class _Measure(NamedTuple):
    """A figure of the runs with a probe: goodput in bit/s, or a time in ns."""

    probe: str
    figure: str
    title: str


_MEASURES: Final = {
    "total": _Measure(SHORT, "channels_bps", "goodput of all users"),
    "large": _Measure(LARGE, f"{LARGE}_bps", "goodput of a large download"),
    "short": _Measure(SHORT, f"{SHORT}_ns", "time of a short download"),
    "large_quic": _Measure(LARGE_QUIC, f"{LARGE_QUIC}_bps", "goodput of a large one, not split"),
    "short_quic": _Measure(SHORT, f"{SHORT}{QUIC}_ns", "time of a short one, not split"),
}
# Those that are shown for other assumptions, too.
_VARIED: Final = ("large", "short")


def pep(
    link: str = "geo",
    *,
    settings: Sequence[str] = (),
    load: float = 0.5,
    quic_share: float = 0.4,
    terrestrial_ns: int = 80_000_000,
    experiment: Experiment | None = None,
) -> Answer:
    """Answer what a split-TCP PEP at the hub gives, beside users that keep the link busy.

    Channels, each one download after another without a pause, keep the forward direction busy for
    ``load`` (0 to 0.95) of the time without a PEP. ``quic_share`` (0 to 1) of them, by number,
    cannot be split: QUIC, or TCP inside a VPN. Servers are ``terrestrial_ns`` of round trip behind
    the hub. Settings of ``gateways.hub.pep`` apply to the runs with the PEP.

    Raises:
        ScenarioError: the link or a setting is wrong.
        UsageError: there is no such link, its rate varies with time, the load or the share is out
            of range, or the load takes too many channels.
        RunsInterrupted: Ctrl-C.
    """
    for name, share, most in (("load", load, _MAX_LOAD), ("quic-share", quic_share, 1.0)):
        if not 0 <= share <= most:
            raise UsageError(f"{name}: read {share:.0%}; expected 0% to {most:.0%}")
    experiment = experiment or Experiment()
    asked = Asked(Link(link, settings), load, quic_share, terrestrial_ns)
    runs = Runs(asked, experiment)
    channels = runs.channels()
    found = runs.run(channels, PROBES)
    others = {
        name: Runs(changed, experiment).run(channels, (LARGE, SHORT))
        for name, changed in _assumptions(asked).items()
    }
    return _answer(_Facts(asked, runs.base, runs.large_bytes(), channels, found, others))


def _assumptions(asked: Asked) -> dict[str, Asked]:
    """Return what the answer takes for granted, and may be otherwise."""
    found = {
        f"a terrestrial round trip of {ms} ms": asked._replace(terrestrial_ns=ms * 1_000_000)
        for ms in (0, 200)
        if ms * 1_000_000 != asked.terrestrial_ns
    }
    window = 30
    found[f"an initial window of {window} segments at the servers"] = asked._replace(
        tcp={"initial_window": window}
    )
    return found


class _Facts(NamedTuple):
    asked: Asked
    base: Plan
    large_bytes: int
    channels: int
    found: Mapping[Case, Figures]
    others: Mapping[str, Mapping[Case, Figures]]

    def change(self, name: str, found: Mapping[Case, Figures] | None = None) -> Change:
        """Return a figure without and with the PEP."""
        cases = self.found if found is None else found
        probe, figure, _ = _MEASURES[name]
        plain, pep = (cases[Case(probe, pep)][figure] for pep in (False, True))
        return Change(estimate(plain), estimate(pep), change_percent(plain, pep))

    def plain(self, figure: str) -> Estimate:
        """Return a figure of the channels and the short downloads without the PEP."""
        return estimate(self.found[Case(SHORT, pep=False)][figure])

    @property
    def link_ns(self) -> int:
        """The round-trip propagation of the link."""
        return sum(initial(each["delay_ns"]) for each in self.base.data["directions"][:2])

    @property
    def saved_ns(self) -> int:
        """What a PEP saves of a short download on paper: see docs/model/pep.md."""
        return (self.rounds - 1) * min(self.asked.terrestrial_ns, self.link_ns)

    @property
    def rounds(self) -> int:
        """The rounds of slow start of a short download: the window doubles in each."""
        tcp = self.base.data["flows"][0]["workload"]["server"]
        segments = math.ceil(SHORT_BYTES / (tcp["mss_bytes"] - _TIMESTAMPS_BYTES))
        return math.ceil(math.log2(1 + segments / tcp["initial_window_segments"]))


def _answer(facts: _Facts) -> Answer:
    asked = facts.asked
    changes = {name: facts.change(name) for name in _MEASURES if facts.channels or name != "total"}
    helped = [name for name, each in changes.items() if _helps(name, each)]
    shell = f"--link {asked.link.shell}{settings_text(asked.link.settings)}"
    runs = changes["short"].plain
    return Answer(
        question=f"Does {asked.link} need a PEP, with the link busy for {asked.load:.0%} and "
        f"{asked.quic_share:.0%} of the traffic QUIC or in VPNs?",
        lines=_lines(facts, changes, helped),
        reason=_reason(facts, changes),
        uncertainty=f"{runs_text(runs)} of {DURATION_S} s; ± and brackets are 95 % intervals, "
        "those of changes by pairs of runs with the same downloads. The users are a model: "
        "downloads with a heavy tail, one after another without a pause.",
        assumption=_matters_most(facts),
        commands=[
            f"bentpipe ask pep {shell} --load {'90%' if asked.load < _FULL else '30%'} "
            f"--quic-share {asked.quic_share:.0%} --terrestrial {asked.terrestrial_ns}ns",
            f"bentpipe ask buffer {shell}",
        ],
        figures={
            "channels": facts.channels,
            "busy": facts.plain("busy"),
            "splittable_share": facts.plain("splittable_share") if facts.channels else None,
            "helps": helped,
            "large_bytes": facts.large_bytes,
            "short_bytes": SHORT_BYTES,
            "saved_on_paper_ns": facts.saved_ns,
            "changes": {name: each._asdict() for name, each in changes.items()},
            "assumptions": {
                name: {each: _gain(each, facts.change(each, found)) for each in _VARIED}
                for name, found in facts.others.items()
            },
        },
        tables=[_table(facts, changes), _assumptions_table(facts)],
        charts=[_chart(changes)],
        sources=[
            "RFC 3135, performance enhancing proxies: types, implications, and QUIC's and "
            "IPsec's packets that none can split"
        ],
        parameters={
            "link": asked.link.name,
            "set": list(asked.link.settings),
            "load": asked.load,
            "quic_share": asked.quic_share,
            "terrestrial_ns": asked.terrestrial_ns,
        },
    )


def _gain(name: str, change: Change) -> Estimate:
    """Return a change as a gain in percent: more goodput, or less time."""
    if not _is_time(name):
        return change.percent
    return Estimate(-change.percent.mean, change.percent.half_width, change.percent.runs)


def _is_time(name: str) -> bool:
    return name.startswith(SHORT)


def _helps(name: str, change: Change) -> bool:
    gain = _gain(name, change)
    return gain.mean >= _WORTH_PERCENT and gain.low > 0


def _lines(facts: _Facts, changes: Mapping[str, Change], helped: Sequence[str]) -> list[str]:
    names = {"total": "the total", "large": "large downloads", "short": "short downloads"}
    worth = [names[name] for name in helped if name in names]
    large, short = format_size(facts.large_bytes), format_size(SHORT_BYTES)
    titles = {
        "total": f"Total of {facts.channels} users",
        "large": f"A large download ({large})",
        "short": f"A short download ({short})",
        "large_quic": "A large one that is not split",
        "short_quic": "A short one that is not split",
    }
    lines = [
        f"A PEP at the hub gains {_WORTH_PERCENT:g} % or more for {' and '.join(worth)}"
        if worth
        else f"A PEP at the hub shows no gain of {_WORTH_PERCENT:g} % or more",
        *(f"{titles[name]}: {_compared(name, each)}" for name, each in changes.items()),
    ]
    if facts.channels:
        lines.append(
            f"Of the users' bytes {percent_text(facts.plain('splittable_share'))} can be split; "
            "QUIC, and TCP inside a VPN, pass a PEP unchanged"
        )
    return lines


def _compared(name: str, change: Change) -> str:
    text = time_text if _is_time(name) else rate_text
    return f"{text(change.plain)}, with the PEP {signed_percent(change.percent)}"


def _reason(facts: _Facts, changes: Mapping[str, Change]) -> str:
    near, link = (format_duration(each) for each in (facts.asked.terrestrial_ns, facts.link_ns))
    whole = format_duration(facts.asked.terrestrial_ns + facts.link_ns)
    rounds = (
        f"slow start doubles the window once a round trip. Without a PEP that is {whole}, from the "
        f"server to the user; with it {link}, the link's alone, while the round trips of {near} to "
        f"the server go on beside it. A short download has {facts.rounds} rounds, so on paper it "
        f"saves {facts.rounds - 1} x {near} = {format_duration(facts.saved_ns)}."
    )
    if facts.asked.terrestrial_ns == 0:
        rounds = (
            "servers at the hub leave a PEP nothing to shorten: slow start runs over the link's "
            f"round trip of {link} with or without it."
        )
    busy = facts.plain("busy").mean
    if busy >= _FULL:
        return (
            f"{rounds} But the link is busy for {100 * busy:.0f} % of the time: what one flow "
            "gains another one loses at the queue, and the total is that of the link."
        )
    if changes["large"].percent.mean >= _WORTH_PERCENT:
        return (
            f"{rounds} A large download also regains its share after losses at the queue in "
            "shorter round trips, at the cost of flows with longer ones."
        )
    return f"{rounds} After slow start the link and its queue limit both alike."


def _matters_most(facts: _Facts) -> str:
    base = _gain("large", facts.change("large"))
    gains = {
        name: _gain("large", facts.change("large", found)) for name, found in facts.others.items()
    }
    name = max(gains, key=lambda name: abs(gains[name].mean - base.mean))
    return (
        f"{name}: with it a large download gains {signed_percent(gains[name])} instead of "
        f"{signed_percent(base)}."
    )


def _table(facts: _Facts, changes: Mapping[str, Change]) -> DataTable:
    rows = []
    for name, each in changes.items():
        text = time_text if _is_time(name) else rate_text
        gain = signed_percent(_gain(name, each))
        rows.append([_MEASURES[name].title, text(each.plain), text(each.pep), gain])
    columns = (("", ""), ("without", ""), ("with the PEP", ""), ("gain", "%, 95 % interval"))
    return DataTable(title=f"Beside {facts.channels} users", columns=columns, rows=rows)


def _assumptions_table(facts: _Facts) -> DataTable:
    rows = [
        [name, *(signed_percent(_gain(each, facts.change(each, found))) for each in _VARIED)]
        for name, found in (("as asked", facts.found), *facts.others.items())
    ]
    columns = (("with", ""), *((_MEASURES[each].title, "gain in %") for each in _VARIED))
    return DataTable(title="One assumption changed at a time", columns=columns, rows=rows)


def _chart(changes: Mapping[str, Change]) -> Chart:
    return Chart(
        title="Gain of a PEP at the hub: more goodput, or less time",
        x_label="",
        y_label="Gain [%]",
        x=[_MEASURES[name].title for name in changes],
        series={"gain": [_gain(name, each) for name, each in changes.items()]},
        kind="bars",
    )
