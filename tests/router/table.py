"""The outcomes as tables of Markdown."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from router.journeys import LARGE, USUAL
from router.matrix import Cell, Outcome
from router.network import VERSIONS

# In a page, what is between them is made here; a page may have several sections, by name.
_BEGIN: Final = "<!-- made by python -m router{} -->\n"
_END: Final = "<!-- end -->\n"
_OTHERS: Final = "others"


def markdown(outcomes: Sequence[Outcome]) -> str:
    """Return the cases, how their journeys ended with each version of IP, and those without any."""
    cases = [f"| {each.case.name} | {each.case.about} |" for each in outcomes]
    parts = [["| case | router |", "| --- | --- |", *cases]]
    parts += [[*_rows(outcomes, version)] for version in VERSIONS]
    refused = [f"| {each.case.name} | {each.refusal} |" for each in outcomes if each.refusal]
    if refused:
        parts.append(["| refused by check | message |", "| --- | --- |", *refused])
    missing = [f"| {each.case.name} | {each.impossible} |" for each in outcomes if each.impossible]
    if missing:
        parts.append(["| not possible on this kernel | reason |", "| --- | --- |", *missing])
    return "\n\n".join("\n".join(lines) for lines in parts) + "\n"


def write(text: str, path: Path, section: str = "") -> None:
    """Write tables to a file, or into a page with a place for them."""
    page = path.read_text(encoding="utf-8") if path.exists() else ""
    option = f" --section {section}" if section else ""
    before, begin, rest = page.partition(_BEGIN.format(option))
    _, end, after = rest.partition(_END)
    if page and not end:
        sys.exit(f"{path} has no place for the section {section!r}")
    whole = f"{before}{begin}\n{text}\n{end}{after}" if end else text
    path.write_text(whole, encoding="utf-8")


def _rows(outcomes: Sequence[Outcome], version: int) -> Iterator[str]:
    made = {cell.journey for each in outcomes for cell in each.with_pep}
    columns = [name for name in (*USUAL, *LARGE) if name in made]
    yield f"| IPv{version} | {' | '.join(columns)} | {_OTHERS} |"
    yield "| --- |" + " --- |" * (len(columns) + 1)
    for outcome in outcomes:
        if outcome.with_pep:
            name = outcome.case.name
            texts = [_text(outcome, Cell(name, version, journey)) for journey in columns]
            others = [cell for cell in outcome.with_pep if cell.version == version]
            last = ", ".join(
                f"{cell.journey} {_text(outcome, cell)}"
                for cell in others
                if cell.journey not in columns
            )
            yield f"| {name} | {' | '.join(texts)} | {last} |"


def _text(outcome: Outcome, cell: Cell) -> str:
    without, with_pep = outcome.without.get(cell), outcome.with_pep.get(cell)
    if without == with_pep:
        return without or ""
    # The daemon has no state without it.
    return f"{without} / **{with_pep}**" if without else with_pep or ""


def summary(outcomes: Sequence[Outcome]) -> str:
    """Return how many journeys were made, and how many differ."""
    made = sum(len(outcome.without) for outcome in outcomes if outcome.with_pep)
    differing = sum(len(outcome.differing()) for outcome in outcomes)
    cases = sum(bool(outcome.with_pep) for outcome in outcomes)
    usual = sum(bool(outcome.with_pep) and not outcome.differing() for outcome in outcomes)
    return f"{made} journeys in {cases} cases; {differing} differ with a PEP; {usual} cases pass"
