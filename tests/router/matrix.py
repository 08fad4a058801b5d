"""Every journey on every router, without and with a PEP, and which of them differ."""

from __future__ import annotations

import csv
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from routers import Routers, counters, daemons_of, wait_until

from router import servers
from router.cases import Case
from router.journeys import FILE_SIZES, LARGE, OTHERS, SLOW, USUAL, Journey, Trip
from router.network import VERSIONS, new_network, separate_sequence_numbers

KNOWN_FILE: Final = Path(__file__).parent / "known_failures.csv"
# Of a gateway that ends by itself.
DAEMON: Final = "daemon"
_UP: Final = "up"
_ENDED: Final = "ended"
_DURING_S: Final = 0.4
# So many journeys at once on a slow machine, the third of which is the stream.
_SLOW_AT_ONCE: Final = 3
_CONFIG: Final = """\
name = "{name}"
functions = ["pep"]
lan.interfaces = {lan}
link.interfaces = {link}

[pep]
connections = 3000
threads = 1
"""


@dataclass(frozen=True, order=True)
class Cell:
    """A journey of a case with one version of IP."""

    case: str
    version: int
    journey: str


@dataclass
class Outcome:
    """How the journeys of a case ended, without and with a PEP.

    ``refusal`` is why `check` refuses the router, ``impossible`` what this kernel lacks; then there
    are no journeys with a PEP, or none at all. ``split`` is how many connections the PEP split.
    """

    case: Case
    without: dict[Cell, str] = field(default_factory=dict)
    with_pep: dict[Cell, str] = field(default_factory=dict)
    split: int = 0
    refusal: str | None = None
    impossible: str | None = None

    def unexpected(self) -> dict[Cell, str]:
        """Return the journeys that do not end as they must without a PEP: a case that is wrong."""
        chosen = journeys_of(self.case, large=True)
        expected = {name: journey.expected for name, journey in chosen.items()} | self.case.expect
        return {cell: end for cell, end in self.without.items() if end != expected[cell.journey]}

    def differing(self) -> set[Cell]:
        """Return the journeys that end otherwise with the PEP."""
        return {cell for cell, end in self.with_pep.items() if end != self.without.get(cell, _UP)}


def journeys_of(case: Case, *, large: bool = False) -> dict[str, Journey]:
    """Return the journeys of a case by name; ``large`` adds those of 100 MB."""
    return USUAL | {name: OTHERS[name] for name in case.journeys} | (LARGE if large else {})


def run_case(
    case: Case, folder: Path, *, large: bool = False, names: Iterable[str] = ()
) -> Outcome:
    """Make the journeys of a case, or those of these names, without and with a PEP."""
    outcome = Outcome(case, impossible=case.why_impossible())
    if outcome.impossible:
        return outcome
    chosen = journeys_of(case, large=large)
    chosen = {name: chosen[name] for name in names or chosen}
    with _network(case) as routers:
        outcome.without = _make(routers, case, folder, chosen)
    with _network(case) as routers, gateway(routers, case, folder) as (name, outcome.refusal):
        if outcome.refusal:
            return outcome
        outcome.with_pep = _make(routers, case, folder, chosen)
        is_up = bool(daemons_of(name))
        outcome.split = _split_connections(name) if is_up else 0
        for version in VERSIONS:
            outcome.with_pep[Cell(case.name, version, DAEMON)] = _UP if is_up else _ENDED
    return outcome


def _split_connections(name: str) -> int:
    """Return how many connections a gateway has split, from its next report."""
    path, now_s = Path(f"/run/bentpipe/{name}/state.json"), time.time()
    wait_until(lambda: path.stat().st_mtime > now_s)
    return int(counters(name)["split_connections"])


@contextmanager
def _network(case: Case) -> Iterator[Routers]:
    with new_network(case) as routers:
        separate_sequence_numbers(routers)
        yield routers


@contextmanager
def gateway(routers: Routers, case: Case, folder: Path) -> Iterator[tuple[str, str | None]]:
    """Start a PEP on the router; yield its name, and why the router was refused, if it was."""
    name = f"{routers.prefix}a"
    config = folder / f"{name}.toml"
    config.write_text(_CONFIG.format(name=name, lan=case.lan, link=case.link))
    done = routers.bentpipe("a", "gateway", "up", str(config))
    # A refusal says what to change.
    assert done.returncode == 0 or "; to fix it: " in done.stderr, done.stderr
    try:
        yield name, done.stderr.strip() if done.returncode else None
    finally:
        if done.returncode == 0:
            routers.bentpipe("a", "gateway", "down", name)


def _make(
    routers: Routers, case: Case, folder: Path, journeys: Mapping[str, Journey]
) -> dict[Cell, str]:
    """Make journeys of both versions of IP at the same time, or fewer at once on a slow machine."""
    cells = [Cell(case.name, version, name) for version in VERSIONS for name in journeys]
    later = [cell for cell in cells if SLOW > 1 and cell.journey in LARGE]
    with (
        servers.serving(routers, "client"),
        servers.serving(routers, "inner"),
        servers.serving(routers, "server"),
        ThreadPoolExecutor(_SLOW_AT_ONCE if SLOW > 1 else len(cells)) as threads,
    ):

        def ending(cell: Cell) -> str:
            trip = Trip(routers, case, cell.version, folder)
            return journeys[cell.journey].ending(trip)

        started = {cell: threads.submit(ending, cell) for cell in cells if cell not in later}
        if case.during:
            time.sleep(_DURING_S)
            routers.on("a", "sh", "-c", case.during)
        endings = {cell: each.result() for cell, each in started.items()}
        return endings | {cell: ending(cell) for cell in later}


def write_files(folder: Path) -> None:
    """Write the files that are uploaded."""
    for size in FILE_SIZES:
        with (folder / str(size)).open("wb") as file:
            file.writelines(servers.content(size))


# --- known failures -------------------------------------------------------------------------------

ALWAYS: Final = "always"
SOMETIMES: Final = "sometimes"


def known_failures() -> dict[Cell, str]:
    """Return the journeys that are known to differ: `ALWAYS`, or `SOMETIMES`."""
    with KNOWN_FILE.open(newline="", encoding="utf-8") as file:
        return {
            Cell(row["case"], int(row["ip_version"]), row["journey"]): row["differs"]
            for row in csv.DictReader(file)
        }


def write_known_failures(runs: Sequence[Sequence[Outcome]]) -> None:
    """Write the journeys that differed in all runs, or in some."""
    found = [{cell for outcome in run for cell in outcome.differing()} for run in runs]
    always = set.intersection(*found)
    with KNOWN_FILE.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["case", "ip_version", "journey", "differs"])
        for cell in sorted(set.union(*found)):
            kind = ALWAYS if cell in always else SOMETIMES
            writer.writerow([cell.case, cell.version, cell.journey, kind])


def against_known(outcome: Outcome, known: Mapping[Cell, str]) -> list[str]:
    """Return what of an outcome is not as known, a line each: new failures, and repaired ones.

    Journeys that were not made are left out.
    """
    differing = outcome.differing()
    lines = [
        f"{cell}: {outcome.without.get(cell, _UP)}, with the PEP {outcome.with_pep[cell]}"
        for cell in sorted(differing - known.keys())
    ]
    mine = {cell: kind for cell, kind in known.items() if cell.case == outcome.case.name}
    if outcome.refusal is not None:
        return [*lines, *(f"{cell}: refused by check; remove it from the list" for cell in mine)]
    made = {cell: kind for cell, kind in mine.items() if cell in outcome.with_pep}
    lines += [
        f"{cell}: no longer differs; remove it from the list"
        for cell, kind in made.items()
        if kind == ALWAYS and cell not in differing
    ]
    if made and not differing & made.keys() and ALWAYS not in made.values():
        lines.append(
            f"{outcome.case.name}: none of its journeys differs; remove them from the list"
        )
    return lines
