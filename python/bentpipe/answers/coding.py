"""``ask coding``: what network coding and titration give on a link, at some loads."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from bentpipe.answers.answer import Answer, Chart, DataTable, Estimate, signed_percent
from bentpipe.answers.cases import Experiment, Figures, estimate
from bentpipe.answers.coding_reason import reason
from bentpipe.answers.coding_runs import (
    ADAPTIVE,
    CODED,
    DURATION_S,
    MAX_CHANNELS,
    PEP,
    PEP_ADAPTIVE,
    PLAIN,
    SMALL_BYTES,
    UNORDERED,
    VARIANTS,
    Asked,
    Case,
    run,
)
from bentpipe.answers.coding_verdict import (
    MEASURES,
    WORTH_PERCENT,
    Verdict,
    compare,
    decisive,
    headline,
    verdicts,
)
from bentpipe.answers.wording import Link, rate_text, runs_text, settings_text, time_text
from bentpipe.errors import UnitError, UsageError
from bentpipe.text import counted
from bentpipe.units import NS_PER_S, format_duration, format_size, parse_queue_limit

DEFAULT_LOADS: Final = (0, 20, 60)
_MAX_LOADS: Final = 4
_QUEUE: Final = "link.forward.queue.limit"
_NS_PER_MS: Final = 1_000_000
# Of 100 intervals at 95 %, those that exclude zero by chance.
_BY_CHANCE: Final = 0.05


class _Facts(NamedTuple):
    asked: Asked
    found: Mapping[Case, Figures]
    verdicts: Sequence[Verdict]
    best: Verdict

    def figure(self, case: Case, name: str) -> Estimate:
        return estimate(self.found[case][name])

    def compared(self, load: int, before: str, after: str) -> Verdict:
        case = Case(load, after)
        return compare(self.found[Case(load, before)], self.found[case], case)


def coding(
    link: str = "geo",
    *,
    settings: Sequence[str] = (),
    loads: Sequence[int] = DEFAULT_LOADS,
    queue: str | None = None,
    experiment: Experiment | None = None,
) -> Answer:
    """Answer what a coded tunnel between the gateways gives, over a plain link and over a PEP.

    ``loads`` are one to four numbers of channels, each one download after another, beside a long
    transfer and small downloads. ``queue`` is the limit of the forward queue. Settings of
    ``gateways.*.tunnel`` and ``gateways.hub.pep`` apply to the runs with those functions.

    Raises:
        ScenarioError: the link or a setting is wrong.
        UsageError: there is no such link, a load is out of range, or ``queue`` is no limit.
        KeyboardInterrupt: Ctrl-C before the first seed was complete; later, the answer is that of
            the complete ones.
    """
    found_loads = sorted({*loads})
    if not 1 <= len(found_loads) <= _MAX_LOADS:
        raise UsageError(f"load: read {len(found_loads)} numbers; expected 1 to {_MAX_LOADS}")
    for load in found_loads:
        if not 0 <= load <= MAX_CHANNELS:
            raise UsageError(f"load: read {load}; expected 0 to {MAX_CHANNELS:,} channels")
    if queue is not None:
        try:
            parse_queue_limit(queue)
        except UnitError as error:
            raise UsageError(f"queue: {error}") from None
    all_settings = [*settings, *([f"{_QUEUE}={queue}"] if queue is not None else [])]
    asked = Asked(Link(link, all_settings), found_loads)
    runs = run(asked, experiment or Experiment())
    judged = verdicts(runs.figures, asked.loads)
    return _answer(_Facts(asked, runs.figures, judged, decisive(judged)), runs.interrupted)


def _answer(facts: _Facts, interrupted: bool) -> Answer:
    asked, best = facts.asked, facts.best
    load = best.case.load
    lines = [
        headline(facts.verdicts),
        *(_load_line(facts, each) for each in asked.loads),
        _pep_line(facts),
        _costs_line(facts),
    ]
    return Answer(
        question=f"What would network coding give over {asked.link}?",
        lines=lines,
        reason=reason(facts.found[Case(load, PLAIN)], facts.found[best.case], best),
        uncertainty=_uncertainty(facts),
        assumption=_matters_most(facts),
        commands=_commands(facts),
        figures=_figures(facts),
        summary=_summary(facts),
        tables=[_changes_table(facts), _costs_table(facts)],
        charts=[_chart(facts, measure) for measure in ("total_bps", "small_p50_ns")],
        sources=[
            "RFC 8681, sliding-window random linear codes: the code of the tunnel",
            "docs/model/tunnel-policies.md: redundancy, titration, order",
        ],
        interrupted=interrupted,
        parameters={
            "link": asked.link.name,
            "set": list(asked.link.settings),
            "loads": list(asked.loads),
        },
    )


def _load_line(facts: _Facts, load: int) -> str:
    busy = facts.figure(Case(load, PLAIN), "busy_percent").mean
    each = [str(verdict) for verdict in facts.verdicts if verdict.case.load == load]
    return f"{counted(load, 'channel')}, link {busy:.0f} % busy: {'; '.join(each)}"


def _pep_line(facts: _Facts) -> str:
    load = facts.best.case.load
    alone = facts.compared(load, PLAIN, PEP)
    over = facts.compared(load, PEP, PEP_ADAPTIVE)
    beside = facts.compared(load, PEP, facts.best.case.variant).changes[0]
    return (
        f"At {counted(load, 'channel')} a PEP without coding {alone.finding}; {facts.best.name} "
        f"has {beside} compared with it. Adaptive coding over the PEP {over.finding}"
    )


def _costs_line(facts: _Facts) -> str:
    case = facts.best.case
    plain, coded = (
        facts.figure(each, "link_bytes_per_byte").mean for each in (Case(case.load, PLAIN), case)
    )
    share, wait, longest, before, after = (
        facts.figure(case, name).mean
        for name in (
            "repair_share_percent",
            "order_wait_mean_ns",
            "order_wait_max_ns",
            "loss_before_percent",
            "loss_after_percent",
        )
    )
    waits = (
        f"packets wait {_time(wait)} for their order on average, up to {_time(longest)}"
        if wait > 0
        else "packets do not wait for their order"
    )
    return (
        f"Costs of {facts.best.name} at {counted(case.load, 'channel')}: repair is {share:.1f} % "
        f"of the bytes, {coded:.2f} link bytes per byte delivered instead of {plain:.2f}; {waits}. "
        f"Loss {before:.2f} % before and {after:.2f} % after decoding"
    )


def _time(time_ns: float) -> str:
    return "-" if math.isnan(time_ns) else format_duration(time_ns)


def _uncertainty(facts: _Facts) -> str:
    count = len(facts.verdicts) * len(MEASURES)
    first = facts.best.changes[0].percent
    text = (
        f"{runs_text(first)} of {DURATION_S} s for each case, with common seeds; intervals are of "
        f"95 %, and a gain or loss is one of {WORTH_PERCENT:g} % or more whose interval excludes "
        f"zero. Of {count} such intervals about {_BY_CHANCE * count:.0f} exclude it by chance."
    )
    return (
        f"{text} Not modelled: the time that gateways take to code, traffic that bypasses the "
        "gateways in the same queue, users who pause, and QUIC."
    )


def _matters_most(facts: _Facts) -> str:
    """Return what changes the total goodput most: the load, or that flows keep their order."""
    orders = [facts.compared(load, ADAPTIVE, UNORDERED) for load in facts.asked.loads]
    order = max(orders, key=lambda each: abs(each.changes[0].percent.mean))
    variant = facts.best.case.variant
    totals = {
        each.case.load: each.changes[0].percent
        for each in facts.verdicts
        if each.case.variant == variant
    }
    low, high = (pick(totals, key=lambda load: totals[load].mean) for pick in (min, max))
    of_order = order.changes[0].percent
    spread = totals[high].mean - totals[low].mean
    if order.changes[0].is_shown and abs(of_order.mean) > spread:
        return (
            "whether the tunnel restores the order of flows: at "
            f"{counted(order.case.load, 'channel')} adaptive coding without it has a total goodput "
            f"of {signed_percent(of_order)} compared with that in order."
        )
    if low == high:
        return "not shown by these runs: the load was not varied, and order has no clear effect."
    return (
        f"the load: {facts.best.name} changes the total goodput by {signed_percent(totals[low])} "
        f"at {counted(low, 'channel')}, and by {signed_percent(totals[high])} at "
        f"{counted(high, 'channel')}."
    )


def _commands(facts: _Facts) -> list[str]:
    link = facts.asked.link
    others = [each for each in link.settings if not each.startswith(_QUEUE)]
    sets = settings_text(others)
    queue = "1bdp" if len(others) < len(link.settings) else "120kB"
    return [
        f"bentpipe ask coding --link {link.shell} --queue {queue}{sets}",
        f"bentpipe ask buffer --link {link.shell}"
        + settings_text(each for each in others if each.startswith("link.")),
    ]


def _figures(facts: _Facts) -> dict[str, object]:
    return {
        "decisive": {
            "load": facts.best.case.load,
            "variant": facts.best.case.variant,
            "verdict": facts.best.kind,
        },
        "loads": [
            {
                "channels": load,
                "cases": {
                    variant: {
                        name: estimate(values)
                        for name, values in facts.found[Case(load, variant)].items()
                        if not np.isnan(values).any()
                    }
                    for variant in VARIANTS
                },
                "changes_percent": {
                    each.case.variant: {
                        "verdict": each.kind,
                        **{change.measure: change.percent for change in each.changes},
                    }
                    for each in _compared_with_plain(facts, load)
                },
                "pep_adaptive_over_pep_percent": {
                    change.measure: change.percent
                    for change in facts.compared(load, PEP, PEP_ADAPTIVE).changes
                },
            }
            for load in facts.asked.loads
        ],
    }


def _compared_with_plain(facts: _Facts, load: int) -> list[Verdict]:
    return [facts.compared(load, PLAIN, each) for each in VARIANTS if each != PLAIN]


def _summary(facts: _Facts) -> DataTable:
    """Return what the terminal shows: a row a case, within 80 columns."""
    rows = []
    for load in facts.asked.loads:
        for variant, found in VARIANTS.items():
            case = Case(load, variant)
            total, transfer, p50, p95 = (facts.figure(case, name).mean for name in MEASURES)
            coded = found.tunnel is not None
            loss = "loss_after_percent" if coded else "link_loss_percent"
            change = facts.compared(load, PLAIN, variant).changes[0].percent
            rows.append(
                [
                    str(load) if variant == PLAIN else "",
                    found.title,
                    f"{total / 1e6:.2f}",
                    "" if variant == PLAIN else _plus_minus(change),
                    f"{transfer / 1e6:.2f}",
                    _number(p50 / NS_PER_S, 2),
                    _number(p95 / NS_PER_S, 2),
                    _number(facts.figure(case, loss).mean, 2),
                    _number(facts.figure(case, "repair_share_percent").mean, 1),
                    _number(facts.figure(case, "order_wait_mean_ns").mean / _NS_PER_MS, 0),
                ]
            )
    columns = (
        ("load", ""),
        ("case", ""),
        ("total", "Mbit/s"),
        ("change", "%"),
        ("long", "Mbit/s"),
        ("small", "s, 50%"),
        ("small", "s, 95%"),
        ("lost", "%"),
        ("repair", "%"),
        ("wait", "ms"),
    )
    title = f"Means, small downloads of {format_size(SMALL_BYTES)}, loss after decoding"
    return DataTable(title=title, columns=columns, rows=rows)


def _number(value: float, digits: int) -> str:
    return "-" if math.isnan(value) else f"{value:.{digits}f}"


def _plus_minus(percent: Estimate) -> str:
    text = f"{percent.mean:+.1f}"
    return f"{text} ± {percent.half_width:.1f}" if percent.half_width else text


def _changes_table(facts: _Facts) -> DataTable:
    rows = [
        [
            str(load),
            VARIANTS[each.case.variant].title,
            *(signed_percent(change.percent) for change in each.changes),
        ]
        for load in facts.asked.loads
        for each in _compared_with_plain(facts, load)
    ]
    columns = (
        ("channels", ""),
        ("case", ""),
        *((name, "change in %") for name in MEASURES.values()),
    )
    return DataTable(title="Changes from the plain link", columns=columns, rows=rows)


def _costs_table(facts: _Facts) -> DataTable:
    rows = []
    for load in facts.asked.loads:
        for variant in (PLAIN, PEP, *CODED, PEP_ADAPTIVE):
            case = Case(load, variant)
            coded = VARIANTS[variant].tunnel is not None
            before = "loss_before_percent" if coded else "link_loss_percent"
            rows.append(
                [
                    str(load),
                    VARIANTS[variant].title,
                    rate_text(facts.figure(case, "total_bps")),
                    _number(facts.figure(case, before).mean, 2),
                    _number(facts.figure(case, "loss_after_percent").mean, 2),
                    _number(facts.figure(case, "repair_share_percent").mean, 1),
                    _number(facts.figure(case, "repairs_received_percent").mean, 1),
                    _number(facts.figure(case, "link_bytes_per_byte").mean, 2),
                    _time(facts.figure(case, "order_wait_mean_ns").mean),
                    _time(facts.figure(case, "order_wait_max_ns").mean),
                    time_text(facts.figure(case, "rtt_mean_ns")),
                ]
            )
    columns = (
        ("channels", ""),
        ("case", ""),
        ("total goodput", ""),
        ("loss", "% before decoding"),
        ("loss", "% after decoding"),
        ("repair", "% of bytes"),
        ("repair that arrives", "%"),
        ("link bytes", "per byte delivered"),
        ("wait for order", "mean"),
        ("wait for order", "maximum"),
        ("RTT of the long transfer", "mean"),
    )
    return DataTable(title="Loss and costs", columns=columns, rows=rows)


def _chart(facts: _Facts, measure: str) -> Chart:
    names, changes = [], []
    for load in facts.asked.loads:
        for each in _compared_with_plain(facts, load):
            names.append(f"{counted(load, 'channel')}, {VARIANTS[each.case.variant].title}")
            changes.append(next(one for one in each.changes if one.measure == measure).percent)
    return Chart(
        title=f"Change of the {MEASURES[measure]} from the plain link",
        x_label="",
        y_label="Change [%]",
        x=names,
        series={"change": changes},
        kind="bars",
    )
