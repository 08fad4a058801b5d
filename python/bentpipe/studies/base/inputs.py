"""The files of a study: its scenario, published rows, and inputs with their provenance."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, Final

from ruamel.yaml import YAML

from bentpipe.scenario import PROFILES, Scenario
from bentpipe.text import csv_rows

STUDIES_FOLDER: Final = Path(__file__).parent.parent


def read_scenario(study: str) -> dict[str, Any]:
    """Return the configuration of all cells of a study as plain data, which may be changed."""
    return copy.deepcopy(load_scenario(study))


@cache
def load_scenario(study: str) -> dict[str, Any]:
    """Return the same configuration, always as the same object, which must not be changed."""
    return Scenario.load(STUDIES_FOLDER / study / "scenario.yaml").to_dict()


def read_rows(study: str, name: str) -> list[dict[str, str]]:
    """Return the rows of a CSV file of a study."""
    return csv_rows(STUDIES_FOLDER / study / name)


def read_yaml(study: str, name: str) -> Any:
    """Return the content of a YAML file."""
    return YAML(typ="safe").load(STUDIES_FOLDER / study / name)


def read_quantities(study: str, name: str) -> dict[str, tuple[float, str]]:
    """Return published values by quantity, each with its unit, in the order of the file."""
    rows = read_rows(study, name)
    return {row["quantity"]: (float(row["value"]), row["unit"]) for row in rows}


class Provenance(StrEnum):
    """The origin of an input, or the evidential value of a compared row."""

    STATED = "stated"
    DERIVED = "derived"
    ASSUMED = "assumed"
    CALIBRATED = "calibrated"
    FITTED = "fitted"
    PREDICTED = "predicted"


MEANINGS: Final[Mapping[Provenance, str]] = {
    Provenance.STATED: "stated in the source; as a row, the source's own number was an input",
    Provenance.DERIVED: "computed from values that the source states; as a row, an input was "
    "computed from it",
    Provenance.ASSUMED: "not in the source; set by hosts and products of the time, without regard "
    "to the published figures; as a row, such a choice decides its value",
    Provenance.CALIBRATED: "chosen because it fits the published figures, once for all rows; as a "
    "row, its value depends on such a choice",
    Provenance.FITTED: "chosen for this row",
    Provenance.PREDICTED: "computed without regard to any published figure",
}
# The rows that headlines and mean errors count, each kind by itself.
COUNTED: Final = (Provenance.PREDICTED, Provenance.CALIBRATED)

_QUANTITY: Final = re.compile(r"([0-9][0-9.,e+-]*) (\S+)")
_TCP: Final = re.compile(r"traffic\.(\d+)\.tcp\.(\w+)")


@dataclass(frozen=True)
class Input:
    """One input of a study: a path in the scenario, or the name of a value that the code sets."""

    name: str
    value: str
    unit: str
    provenance: Provenance
    source: str


def read_inputs(
    study: str,
    scenario: Mapping[str, Any],
    values: Mapping[str, Any] | None = None,
    *,
    engine: str = "simulate",
) -> tuple[Input, ...]:
    """Read inputs.csv of a study: names, their provenance and their sources.

    A row of one engine is for that one only. Its value, in which ``values`` are inserted, is that
    of the row, or that of the scenario at this path, in which ``*`` matches any part. A TCP setting
    that the scenario does not have is that of its host profile.

    Raises:
        KeyError: there is no such value.
    """
    known = dict(_leaves(scenario))
    inputs = []
    for row in read_rows(study, "inputs.csv"):
        if row["engine"] not in {"", engine}:
            continue
        text = row["value"].format_map(values or {}) or _text(known, scenario, row["input"])
        quantity = _QUANTITY.fullmatch(text)
        number, unit = quantity.groups() if quantity else (text, "")
        provenance = Provenance(row["provenance"])
        inputs.append(Input(row["input"], number, unit, provenance, row["source"]))
    return tuple(inputs)


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    parts = value.items() if isinstance(value, Mapping) else enumerate(value)
    for name, part in parts:
        inner = f"{path}.{name}" if path else str(name)
        if isinstance(part, Mapping | list):
            yield from _leaves(part, inner)
        else:
            yield inner, part


def _text(known: Mapping[str, Any], scenario: Mapping[str, Any], name: str) -> str:
    prefix = name.count(".") + 1
    texts = [
        " ".join(filter(None, [".".join(path.split(".")[prefix:]), _plain(value)]))
        for path, value in known.items()
        if fnmatchcase(path, name) or fnmatchcase(path, f"{name}.*")
    ]
    if texts:
        return ", ".join(dict.fromkeys(texts))
    setting = _TCP.fullmatch(name)
    if setting is None:
        raise KeyError(name)
    profile = PROFILES[scenario["traffic"][int(setting[1])]["profile"]]
    return _plain(getattr(profile, setting[2]))


def _plain(value: Any) -> str:
    return ("no", "yes")[value] if isinstance(value, bool) else str(value)
