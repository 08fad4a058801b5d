"""The reason of ``ask coding``, from what the runs measured."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from bentpipe.answers.cases import Figures
from bentpipe.answers.coding_verdict import Verdict
from bentpipe.text import counted

# Losses of which this share has one cause have that cause.
_MOSTLY: Final = 0.9
# Recovery below this share of the losses leaves senders most of them.
_FEW: Final = 0.5
# Losses that grow by this factor are said to.
_GROWN: Final = 1.2


def reason(plain: Figures, coded: Figures, verdict: Verdict) -> str:
    """Return why a coded variant does what it does: losses, room, recovery and overhead."""
    parts = [
        f"At {counted(verdict.case.load, 'channel')} {_losses(plain)}, and the queue is empty for "
        f"{_mean(plain, 'queue_empty_percent'):.0f} % of the time.",
        _survival(coded, verdict.name),
        _recovery(plain, coded),
        _overhead(plain, coded),
    ]
    return " ".join(part for part in parts if part)


def _mean(figures: Figures, name: str) -> float:
    return float(np.mean(figures[name]))


def _losses(plain: Figures) -> str:
    drops, errors = _mean(plain, "queue_drops"), _mean(plain, "error_losses")
    if drops + errors == 0:
        return "the plain link loses nothing, so that there is nothing to recover"
    share = drops / (drops + errors)
    loss = f"the plain link loses {_mean(plain, 'link_loss_percent'):.2f} % of the packets"
    if share >= _MOSTLY:
        return f"{loss}, {100 * share:.0f} % of them dropped by its queue"
    if share <= 1 - _MOSTLY:
        return f"{loss}, {100 * (1 - share):.0f} % of them by errors of the channel"
    return (
        f"{loss}, {100 * share:.0f} % of them dropped by its queue and {100 * (1 - share):.0f} % "
        "lost by errors of the channel"
    )


def _survival(coded: Figures, name: str) -> str:
    arrived, unsent = (
        _mean(coded, "repairs_received_percent"),
        _mean(coded, "repairs_unsent_percent"),
    )
    if math.isnan(arrived):
        return f"With {name} no repair was sent."
    held = f"; {unsent:.0f} % was held until it was of no use" if unsent >= 1 else ""
    return f"With {name} {arrived:.0f} % of the repair that is sent arrives{held}."


def _recovery(plain: Figures, coded: Figures) -> str:
    before, after = _mean(coded, "loss_before_percent"), _mean(coded, "loss_after_percent")
    if math.isnan(before) or before == 0:
        return ""
    recovered = 1 - after / before
    text = f"It recovers {100 * recovered:.0f} % of the losses"
    if _mean(coded, "repairs_unsent_percent") > 100 * _FEW:
        text += ", as most repair was not sent: the queue had no room for it in time"
    elif recovered < _FEW:
        text += ": the others come in bursts that the repair does not cover"
    without = _mean(plain, "link_loss_percent")
    if before > _GROWN * without:
        text += (
            f". There are more of them: {before:.2f} % of the packets instead of "
            f"{without:.2f} %, as senders do not slow down for a loss that is recovered, and "
            "repair takes queue, too"
        )
    return f"{text}."


def _overhead(plain: Figures, coded: Figures) -> str:
    before, after = _mean(plain, "link_bytes_per_byte"), _mean(coded, "link_bytes_per_byte")
    share = 100 * (1 - before / after)
    if share <= 0:
        return ""
    return (
        f"Repair, the tunnel's headers and additional retransmissions take {share:.0f} % of what "
        "the link sends."
    )
