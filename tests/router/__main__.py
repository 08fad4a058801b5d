"""Run the matrix and print its tables: in ``tests``, ``python -m router --out matrix.md``."""

from __future__ import annotations

import argparse
import platform
import sys
import tempfile
from pathlib import Path

from router.cases import all_cases
from router.matrix import Outcome, run_case, write_files, write_known_failures
from router.table import markdown, summary, write


def main() -> int:
    """Run the cases that are named, or all; return 1 if a case is wrong without a PEP."""
    parser = argparse.ArgumentParser(prog="python -m router", description=__doc__)
    parser.add_argument("cases", nargs="*", choices=[*all_cases(), []], metavar="CASE")
    parser.add_argument("--journey", action="append", default=[], help="one of the journeys")
    parser.add_argument("--large", action="store_true", help="add the journeys of 100 MB")
    parser.add_argument("--runs", type=int, default=1, help="runs of all; the table has the last")
    parser.add_argument("--out", type=Path, help="a file for the tables, or a page with a place")
    parser.add_argument("--section", default="", help="which of the places of that page")
    parser.add_argument("--write-known", action="store_true", help="write known_failures.csv")
    options = parser.parse_args()
    chosen = [all_cases()[name] for name in options.cases or all_cases()]
    runs: list[list[Outcome]] = []
    is_wrong = False
    with tempfile.TemporaryDirectory() as name:
        write_files(Path(name))
        for _ in range(options.runs):
            runs.append([])
            for case in chosen:
                outcome = run_case(case, Path(name), large=options.large, names=options.journey)
                runs[-1].append(outcome)
                is_wrong |= bool(outcome.unexpected())
                _report(outcome)
    text = f"Kernel: Linux {platform.release()}.\n\n{markdown(runs[-1])}"
    if options.out:
        write(text, options.out, options.section)
    else:
        sys.stdout.write(text)
    if options.write_known:
        write_known_failures(runs)
    sys.stderr.write(f"{summary(runs[-1])}\n")
    return int(is_wrong)


def _report(outcome: Outcome) -> None:
    """Print how a case ended, at once."""
    said = outcome.impossible or outcome.refusal
    if said is None:
        said = f"{outcome.split} split, {len(outcome.differing())} differ"
        said += "".join(
            f"\n  {cell.journey} (IPv{cell.version}): "
            f"{outcome.without.get(cell, 'up')} / {outcome.with_pep[cell]}"
            for cell in sorted(outcome.differing())
        )
    for cell, end in sorted(outcome.unexpected().items()):
        said += f"\n  without a PEP, {cell.journey} (IPv{cell.version}): {end}"
    sys.stderr.write(f"{outcome.case.name}: {said}\n")


if __name__ == "__main__":
    sys.exit(main())
