"""The cases of ``ask coding``, and the verdict: which tunnel pays at which load, and why.

It is by intervals of paired runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from bentpipe.answers.answer import Estimate, signed_percent
from bentpipe.answers.question import WORTH_PERCENT, Change, Measurements
from bentpipe.errors import InternalError
from bentpipe.text import counted

# Figures that are compared, and what a change of them is called; the first one counts first.
MEASURES: Final[Mapping[str, str]] = {
    "total_bps": "total goodput",
    "transfer_bps": "goodput of the long transfer",
    "small_p50_ns": "median time of small downloads",
    "small_p95_ns": "95 % time of small downloads",
}
Kind = Literal["pays", "mixed", "loses", "unclear"]
# The best first.
_ORDER: Final[tuple[Kind, ...]] = ("pays", "mixed", "unclear", "loses")
# Losses of which this share has one cause have that cause.
_MOSTLY: Final = 0.9
# Recovery below this share of the losses leaves senders most of them.
_FEW: Final = 0.5
# Losses that grow by this factor are said to.
_GROWN: Final = 1.2
# What the variants differ in; `delay` is of a titration that none has.
OF_VARIANTS: Final = frozenset({"redundancy", "titration", "delay", "order"})
_ORDERED_ONLY: Final = "order_hold_time"


class Variant(NamedTuple):
    """What is at the gateways: a PEP at the hub, a tunnel with settings at both, or neither.

    ``title`` is for tables, ``name`` for sentences.
    """

    title: str
    name: str
    pep: bool = False
    tunnel: Mapping[str, Any] | None = None

    def can_have(self, name: str) -> bool:
        """Return whether a setting of a tunnel may be that of the file or of ``--set``."""
        is_ordered = self.tunnel is not None and self.tunnel.get("order", True)
        return name not in OF_VARIANTS and (name != _ORDERED_ONLY or is_ordered)

    def tunnel_settings(self, of_file: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings of the tunnel, from those of the scenario file."""
        kept = {name: value for name, value in of_file.items() if self.can_have(name)}
        return {**kept, **(self.tunnel or {})}


_FIXED: Final = {"redundancy": "10 %"}
_ADAPTIVE: Final = {"redundancy": "adaptive", "titration": "titrated"}
VARIANTS: Final = {
    "plain": Variant("plain", "the plain link"),
    "pep": Variant("PEP", "a PEP", pep=True),
    "at_once": Variant(
        "at once 10 %", "coding sent at once", tunnel={**_FIXED, "titration": "immediate"}
    ),
    "titrated": Variant(
        "titrated 10 %", "titrated coding", tunnel={**_FIXED, "titration": "titrated"}
    ),
    "adaptive": Variant("adaptive", "adaptive coding", tunnel=_ADAPTIVE),
    "unordered": Variant(
        "unordered", "adaptive coding without order", tunnel={**_ADAPTIVE, "order": False}
    ),
    "pep_adaptive": Variant(
        "PEP, adaptive", "adaptive coding over a PEP", pep=True, tunnel=_ADAPTIVE
    ),
}
PLAIN, PEP, AT_ONCE, TITRATED, ADAPTIVE, UNORDERED, PEP_ADAPTIVE = VARIANTS
# Those that are compared with the plain link.
CODED: Final = (AT_ONCE, TITRATED, ADAPTIVE, UNORDERED)


class Case(NamedTuple):
    """A number of channels, and the name of a variant."""

    load: int
    variant: str


class Verdict(NamedTuple):
    """What a variant changes at a load."""

    case: Case
    changes: Sequence[Change]

    @property
    def gains(self) -> list[Change]:
        """The changes that are gains."""
        return [each for each in self.changes if each.is_gain]

    @property
    def losses(self) -> list[Change]:
        """The changes that are losses."""
        return [each for each in self.changes if each.is_loss]

    @property
    def kind(self) -> Kind:
        """Whether it gains, loses, does both, or shows neither; a lost total outweighs gains."""
        if self.changes[0].is_loss:
            return "loses"
        if self.gains:
            return "mixed" if self.losses else "pays"
        return "loses" if self.losses else "unclear"

    @property
    def percents(self) -> dict[str, Estimate]:
        """The changes in percent, by measure."""
        return {change.figure: change.percent for change in self.changes}

    @property
    def name(self) -> str:
        """The name of the variant, for sentences."""
        return VARIANTS[self.case.variant].name

    @property
    def finding(self) -> str:
        """What is found, as a predicate with the first changes that show it."""
        if self.changes[0].percent.half_width is None:
            return f"has {named(self.changes[0])}"
        if self.kind == "mixed":
            return f"gains ({named(self.gains[0])}) and loses ({named(self.losses[0])})"
        if self.kind == "unclear":
            return f"shows no {_small_or_none(self.changes)}"
        if self.kind == "pays":
            return f"gains ({named(self.gains[0])})"
        also = f", but gains {named(self.gains[0])}" if self.gains else ""
        return f"loses ({named(self.losses[0])}{also})"

    def __str__(self) -> str:
        """Return the name of the variant and what is found."""
        return f"{VARIANTS[self.case.variant].title} {self.finding}"


def named(change: Change) -> str:
    """Return a part of a sentence, such as "total goodput +12.1 % (+11.8 to +12.4)"."""
    return f"{MEASURES[change.figure]} {signed_percent(change.percent)}"


def compare(before: Measurements, after: Measurements, case: Case) -> Verdict:
    """Return what changes from the runs of one case to those of another, ``case``."""
    return Verdict(case, [Change.of(measure, before, after) for measure in MEASURES])


def verdicts(found: Mapping[Case, Measurements], loads: Sequence[int]) -> list[Verdict]:
    """Return the verdicts on all coded variants over the plain link, load by load."""
    return [
        compare(found[Case(load, PLAIN)], found[Case(load, variant)], Case(load, variant))
        for load in loads
        for variant in CODED
    ]


def decisive(found: Sequence[Verdict]) -> Verdict:
    """Return the verdict that the answer is about.

    It is the one with the best total of those that only gain; else, of those that gain and lose,
    the one whose total exceeds its largest loss the most; else the one with the best total of those
    that show nothing, or of those that lose.
    """
    for kind in _ORDER:
        some = [each for each in found if each.kind == kind]
        if some:
            return max(some, key=_net_percent)
    raise InternalError("no verdict to decide on")


def _net_percent(verdict: Verdict) -> float:
    total = verdict.changes[0].gain.mean
    if verdict.kind != "mixed":
        return total
    return total + min(each.gain.mean for each in verdict.losses)


def headline(found: Sequence[Verdict]) -> str:
    """Return the answer as one sentence."""
    best = decisive(found)
    total = best.changes[0]
    at = counted(best.case.load, "channel")
    if total.percent.half_width is None:
        return (
            "One run has no interval, so nothing is decided: "
            f"{best.name} has {named(total)} at {at}"
        )
    losing, paying = _loads(found, "loses"), _loads(found, "pays", "mixed")
    # Loads at which some variant loses and none gains.
    lost = [load for load in losing if load not in paying]
    if best.kind == "pays":
        loads = _channels(_loads(found, "pays"))
        text = f"Coding pays at {loads}; most gains {best.name} at {at}: {named(best.gains[0])}"
    elif best.kind == "mixed":
        gain, loss = named(best.gains[0]), named(best.losses[0])
        text = f"Coding gains and loses: {best.name} has {gain} at {at}, but {loss}"
    elif best.kind == "loses":
        return (
            f"Coding loses at {_channels(lost)}; least {best.name}, {named(best.losses[0])} at {at}"
        )
    elif losing:
        worst = min((each for each in found if each.kind == "loses"), key=_net_percent)
        return (
            f"Coding shows no gain: its best is {best.name}, {named(total)} at {at}; most loses "
            f"{worst.name}, {named(worst.losses[0])} at {counted(worst.case.load, 'channel')}"
        )
    else:
        small = _small_or_none([change for each in found for change in each.changes])
        loads = _channels(_loads(found, *_ORDER))
        return f"No {small} that these runs show between coding and the plain link, at {loads}"
    return text + (f". At {_channels(lost)} it gains nothing, and loses" if lost else "")


def _small_or_none(changes: Sequence[Change]) -> str:
    """Return what is not shown: a difference, or one that is large enough to matter."""
    small = any(each.is_shown for each in changes)
    return f"gain or loss of {WORTH_PERCENT:g} % or more" if small else "difference"


def _loads(found: Sequence[Verdict], *kinds: Kind) -> list[int]:
    return list(dict.fromkeys(each.case.load for each in found if each.kind in kinds))


def _channels(loads: Sequence[int]) -> str:
    """Return loads as text: ``0, 20 and 60 channels``."""
    *first, last = loads
    return " and ".join([*filter(None, [", ".join(map(str, first))]), counted(last, "channel")])


def reason(plain: Measurements, coded: Measurements, verdict: Verdict) -> str:
    """Return why a coded variant does what it does: losses, room, recovery and overhead."""
    parts = [
        f"At {counted(verdict.case.load, 'channel')} {_losses(plain)}, and the queue is empty for "
        f"{plain.mean('queue_empty_percent'):.0f} % of the time.",
        _survival(coded, verdict.name),
        _recovery(plain, coded),
        _overhead(plain, coded),
    ]
    return " ".join(part for part in parts if part)


def _losses(plain: Measurements) -> str:
    drops, errors = plain.mean("queue_drops"), plain.mean("error_losses")
    if drops + errors == 0:
        return "the plain link loses nothing, so that there is nothing to recover"
    share = drops / (drops + errors)
    loss = f"the plain link loses {plain.mean('link_loss_percent'):.2f} % of the packets"
    if share >= _MOSTLY:
        return f"{loss}, {100 * share:.0f} % of them dropped by its queue"
    if share <= 1 - _MOSTLY:
        return f"{loss}, {100 * (1 - share):.0f} % of them by errors of the channel"
    return (
        f"{loss}, {100 * share:.0f} % of them dropped by its queue and {100 * (1 - share):.0f} % "
        "lost by errors of the channel"
    )


def _survival(coded: Measurements, name: str) -> str:
    arrived = coded.mean("repairs_received_percent")
    unsent = coded.mean("repairs_unsent_percent")
    if math.isnan(arrived):
        return f"With {name} no repair was sent."
    held = f"; {unsent:.0f} % was held until it was of no use" if unsent >= 1 else ""
    return f"With {name} {arrived:.0f} % of the repair that is sent arrives{held}."


def _recovery(plain: Measurements, coded: Measurements) -> str:
    before, after = coded.mean("loss_before_percent"), coded.mean("loss_after_percent")
    if math.isnan(before) or before == 0:
        return ""
    recovered = 1 - after / before
    text = f"It recovers {100 * recovered:.0f} % of the losses"
    if coded.mean("repairs_unsent_percent") > 100 * _FEW:
        text += ", as most repair was not sent: the queue had no room for it in time"
    elif recovered < _FEW:
        text += ": the others come in bursts that the repair does not cover"
    without = plain.mean("link_loss_percent")
    if before > _GROWN * without:
        text += (
            f". There are more of them: {before:.2f} % of the packets instead of "
            f"{without:.2f} %, as senders do not slow down for a loss that is recovered, and "
            "repair takes queue, too"
        )
    return f"{text}."


def _overhead(plain: Measurements, coded: Measurements) -> str:
    before, after = plain.mean("link_bytes_per_byte"), coded.mean("link_bytes_per_byte")
    share = 100 * (1 - before / after)
    if share <= 0:
        return ""
    return (
        f"Repair, the tunnel's headers and additional retransmissions take {share:.0f} % of what "
        "the link sends."
    )
