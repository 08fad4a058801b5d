"""What the exports share: templates, the first values of a link, and what a format cannot express.

The latter are comments of the header, each with its consequence; `gaps.csv` has those of functions
and hosts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from bentpipe import _core
from bentpipe.plan import Plan
from bentpipe.plan.presets import series_values
from bentpipe.text import csv_rows

# A packet of the largest size on Ethernet, for which sizes are exact.
MTU_BYTES: Final = 1_500
_FOLDER: Final = Path(__file__).parent


def gaps(plan: Plan, export_format: str, *ends: str) -> list[str]:
    """Return what a format cannot express of a scenario, as ``field: consequence``.

    ``ends`` are the gateways that count, by default both.
    """
    texts = {
        part: _consequences().get((export_format, re.sub(r"\.(hub|terminal)\.", ".*.", part)))
        for part in _parts(plan, ends or ("hub", "terminal"))
    }
    return [f"{part}: {text}" for part, text in texts.items() if text is not None]


def _parts(plan: Plan, ends: Iterable[str]) -> Iterator[str]:
    for end in ends:
        for function, _ in getattr(plan.scenario.gateways, end).in_order():
            yield f"gateways.{end}.{function}"
    link = plan.scenario.link
    yield "link"
    if link.terminals > 1:
        yield "link.terminals"
    if link.terminal_paths:
        yield "link.terminal_paths"
    if plan.data["hosts"]:
        yield "hosts"
    yield "traffic"


@cache
def _consequences() -> Mapping[tuple[str, str], str]:
    rows = csv_rows(_FOLDER / "gaps.csv")
    return {(row["format"], row["part"]): row["consequence"] for row in rows}


def directions(plan: Plan) -> list[dict[str, Any]]:
    """Return the directions of the plan, forward and return, with the path of the first terminal.

    ``name`` is that of the field in ``link``.
    """
    merged = []
    for name, data in zip(("forward", "return"), plan.data["directions"], strict=False):
        path = data["to"][0]
        # What differs between terminals is not in the direction itself.
        of_terminal = {"channel": path["channel"]} if path["channel"]["kind"] != "clear" else {}
        if path["delay_ns"]:
            delay_ns = series_values(data["delay_ns"])[0] + path["delay_ns"]
            of_terminal["delay_ns"] = {"kind": "constant", "value": delay_ns}
        merged.append({**data, **of_terminal, "name": name})
    return merged


def first_value(series: Mapping[str, Any]) -> int:
    """Return the first value of a series that is not zero; zero if all are."""
    return next((value for value in series_values(series) if value), 0)


def lost_share(state: Mapping[str, Any], bits: float) -> float:
    """Return the share of packets of ``bits`` on the link that a state of a channel loses."""
    errors: float = state.get("bit_error_rate", 0.0)
    loss: float = state.get("loss_rate", 0.0)
    damaged = 1.0 if errors == 1 else -math.expm1(bits * math.log1p(-errors))
    return loss + (1 - loss) * damaged


def render(template: str, plan: Plan, **context: Any) -> str:
    """Return a template of this package, filled in; ``title`` is that of the scenario."""
    env = Environment(
        loader=FileSystemLoader(_FOLDER / "templates"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    # The outputs are programs, not pages; what a person writes is in comments alone.
    env.filters["comment"] = comment
    title = plan.scenario.name or "A scenario without a name"
    return env.get_template(template).render(title=title, version=_core.version(), **context)


def comment(text: str) -> str:
    """Return a text as one line of a comment, which it cannot end or continue."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line.rstrip("\\ ")
