"""Write what the study auckland found into a page: `python benches/auckland_page.py RESULT PAGE`.

``RESULT`` is the result.json of ``bentpipe study auckland --out FOLDER``; ``PAGE`` has a place for
the tables, as docs/how-to/rerun-a-study.md has.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any, Final

from bentpipe.studies.auckland.cells import MORE_RUNS, TUNNELS, LinkPath

BEGIN: Final = "<!-- made by benches/auckland_page.py -->\n"
END: Final = "<!-- end -->\n"
# Of more effects that decide, only the decisive one is shown.
_FEW: Final = 2
_UNITS: Final = {"%": (" %", 1, "+"), "Mbit/s": (" Mbit/s", 2, "+"), "times": (" times", 2, "")}


def _change(effect: dict[str, Any], unit: str) -> str:
    suffix, digits, sign = _UNITS[unit]
    if effect["effect"] is None:
        return "no runs"
    text = f"{effect['effect']:{sign}.{digits}f}{suffix}"
    if effect["effect_low"] is None:
        return text
    return f"{text} ({effect['effect_low']:.{digits}f} to {effect['effect_high']:.{digits}f})"


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _table(headings: list[str], rows: list[list[str]]) -> str:
    lines = [_row(headings), _row(["---"] * len(headings)), *map(_row, rows)]
    return "\n".join(lines)


def claims_table(result: dict[str, Any]) -> str:
    """Return a row for each claim: verdict, effect, where it turns, and what is reported."""
    rows = []
    for claim in result["claims"]:
        unit = claim["effect_unit"]
        effects = claim["effects"]
        decides = [f"{each['of']} {_change(each, unit)}" for each in effects if each["decides"]]
        lowest = f"{claim['effect_of']} {_change(claim, unit)}"
        about = "; ".join(decides) if len(decides) <= _FEW else lowest
        turns = ", ".join(map(str, claim["turns_at_channels"])) or "nowhere"
        row = [str(claim["figure"]), claim["claim"], claim["verdict"], about]
        rows.append([*row, str(claim["seeds"]), turns])
    headings = ["figure", "claim", "verdict", "effect, 95 % interval", "seeds"]
    headings.append("turns at (channels)")
    return _table(headings, rows)


def reported_table(result: dict[str, Any]) -> str:
    """Return what each curve alone would decide of the claims about coding."""
    curves = [path.value for path in TUNNELS]
    rows = []
    for claim in result["claims"]:
        by_path: dict[str, list[dict[str, Any]]] = {}
        for effect in claim["effects"]:
            if effect["path"] is not None:
                by_path.setdefault(effect["path"], []).append(effect)
        if not by_path:
            continue
        sign = 1 if claim["bound"] == "below" else -1
        cells = []
        for curve in curves:
            known = [each for each in by_path.get(curve, ()) if each["effect"] is not None]
            if not known:
                cells.append("")
                continue
            worst = max(known, key=lambda each: sign * each["effect"])
            cells.append(f"{worst['verdict']}: {_change(worst, claim['effect_unit'])}")
        rows.append([f"{claim['figure']}: {claim['claim']}", *cells])
    return _table(["claim", *curves], rows)


def mechanisms_list(result: dict[str, Any]) -> str:
    """Return why each claim holds or does not."""
    lines = []
    for number, claim in enumerate(result["claims"], start=1):
        text = f"{number}. *{claim['claim']}*: {claim['mechanism']}."
        if claim["open"]:
            text += f" Open: {claim['open']}."
        lines.append(text)
    return "\n".join(lines)


def goodputs_table(result: dict[str, Any], queue_kb: int) -> str:
    """Return total and transfer goodput of each curve by channels.

    The last column is what the channels leave beside the plain transfer over its goodput.
    """
    by_cell = {
        (cell["channels"], cell["path"]): cell
        for cell in result["cells"]
        if cell["queue_kB"] == queue_kb
    }
    numbers = sorted({channels for channels, _ in by_cell})
    curves = [path.value for path in LinkPath]
    rows = []
    for number in numbers:
        cells = [by_cell[number, curve] for curve in curves]
        texts = [f"{each['simulated']:.2f} / {each['iperf3_goodput_mbps']:.2f}" for each in cells]
        plain = by_cell[number, LinkPath.PLAIN.value]
        left = plain["left_mbps"] / plain["iperf3_goodput_mbps"]
        rows.append([str(number), *texts, f"{left:.1f}"])
    return _table(["channels", *curves, "left, times"], rows)


def checks_table(result: dict[str, Any]) -> str:
    """Return the published numbers vs. the runs."""
    rows = []
    for row in result["checks"]["cells"]:
        low, high, mean = (row[f"simulated{end}"] for end in ("_low", "_high", ""))
        interval = "" if low is None else f" ({low:.2f} to {high:.2f})"
        kept = "yes" if row["agreement"] in {"within_interval", "within_tolerance"} else "no"
        bound = f"{row['bound'].replace('_', ' ')} {row['published']:g} {row['unit']}"
        value = "not run" if mean is None else f"{mean:.2f}{interval}"
        rows.append([row["quantity"], bound, value, kept])
    return _table(["quantity", "published", "simulated mean, 95 % interval", "kept"], rows)


def halves_table(result: dict[str, Any]) -> str:
    """Return the goodput of each half of the channels of which one is coded."""
    rows = []
    for row in result["half_uncoded"]:
        changes = [
            f"{row[f'{half}_mbps']:.2f} ({row[f'{half}_change_percent']:+.1f} %)"
            for half in ("coded_half", "uncoded_half")
        ]
        rows.append([f"{row['queue_kB']:,} kB", row["path"], *changes])
    return _table(["queue", "curve", "first half, Mbit/s", "second half, never coded"], rows)


def variants_table(result: dict[str, Any]) -> str:
    """Return the verdict on each claim with each variant that was tried."""
    names = dict.fromkeys(
        each["variant"] for claim in result["claims"] for each in claim["variants"]
    )
    claims = result["claims"]
    rows = []
    for name in names:
        texts = []
        for claim in claims:
            tried = [each for each in claim["variants"] if each["variant"] == name]
            unit = claim["effect_unit"]
            texts.append(f"{tried[0]['verdict']}: {_change(tried[0], unit)}" if tried else "")
        rows.append([name, *texts])
    return _table(["instead", *(f"{each['figure']}: {each['claim']}" for each in claims)], rows)


def tables(result: dict[str, Any]) -> str:
    """Return all tables of the page."""
    runs = result["configuration"]["runs_of_a_cell"]
    return "\n\n".join(
        [
            "What older pages and traces give in numbers:",
            checks_table(result),
            "The claims:",
            claims_table(result),
            "Why, in the order of the claims:",
            mechanisms_list(result),
            "What each coded curve alone would decide, of several effects by the one that is "
            "farthest on the wrong side:",
            reported_table(result),
            "Other values of what the source leaves open, with the effect that decides; empty "
            "where a claim was not tried:",
            variants_table(result),
            "Total goodput / goodput of the transfer in Mbit/s with the queue of 120 kB, means of "
            f"{runs} seeds, plain and PEP with up to 20 channels of {MORE_RUNS * runs}. Left is "
            "what the channels leave beside the plain transfer, over its goodput:",
            goodputs_table(result, 120),
            "With the queue of 1,000 kB:",
            goodputs_table(result, 1000),
            "With 90 channels of which only one half is coded, the goodput of each half, and its "
            "change from that of the plain link:",
            halves_table(result),
        ]
    )


def main() -> int:
    """Write the tables into the page; return 2 if it has no place for them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("result", type=Path)
    parser.add_argument("page", type=Path)
    options = parser.parse_args()
    result, page = json.loads(options.result.read_text()), options.page
    text = page.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        sys.stderr.write(f"{page} has no place for the tables: {BEGIN.strip()}\n")
        return 2
    page.write_text(f"{before}{BEGIN}\n{tables(result)}\n\n{END}{after}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
