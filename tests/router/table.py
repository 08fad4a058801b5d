"""The outcomes as tables of Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from router.matrix import Cell, Outcome
from router.network import VERSIONS


def markdown(outcomes: Sequence[Outcome]) -> str:
    """Return a table for each version of IP, and the cases without journeys."""
    parts = ["\n".join(_rows(outcomes, version)) for version in VERSIONS]
    parts += ["\n".join(lines) for lines in (_refused(outcomes), _impossible(outcomes)) if lines]
    return "\n\n".join(parts) + "\n"


def _rows(outcomes: Sequence[Outcome], version: int) -> Iterator[str]:
    columns = {
        cell.journey: None for outcome in outcomes for cell in (*outcome.without, *outcome.with_pep)
    }
    yield f"| IPv{version} | {' | '.join(columns)} |"
    yield f"| --- |{' --- |' * len(columns)}"
    for outcome in outcomes:
        if outcome.with_pep:
            texts = [_text(outcome, Cell(outcome.case.name, version, name)) for name in columns]
            yield f"| {outcome.case.name} | {' | '.join(texts)} |"


def _text(outcome: Outcome, cell: Cell) -> str:
    without, with_pep = outcome.without.get(cell), outcome.with_pep.get(cell)
    if without == with_pep:
        return without or ""
    # The daemon has no state without it.
    return f"{without} / **{with_pep}**" if without else with_pep or ""


def _refused(outcomes: Sequence[Outcome]) -> list[str]:
    found = [f"| {each.case.name} | {each.refusal} |" for each in outcomes if each.refusal]
    return ["| refused by check | message |", "| --- | --- |", *found] if found else []


def _impossible(outcomes: Sequence[Outcome]) -> list[str]:
    found = [f"| {each.case.name} | {each.impossible} |" for each in outcomes if each.impossible]
    return ["| not possible on this kernel | reason |", "| --- | --- |", *found] if found else []


def summary(outcomes: Sequence[Outcome]) -> str:
    """Return how many journeys were made, and how many differ."""
    made = sum(len(outcome.without) for outcome in outcomes if outcome.with_pep)
    differing = sum(len(outcome.differing()) for outcome in outcomes)
    cases = sum(bool(outcome.with_pep) for outcome in outcomes)
    usual = sum(bool(outcome.with_pep) and not outcome.differing() for outcome in outcomes)
    return f"{made} journeys in {cases} cases; {differing} differ with a PEP; {usual} cases pass"
