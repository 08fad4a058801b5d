"""How to cite bentpipe: CITATION.cff, and what the command prints."""

from __future__ import annotations

import json
import re
import tomllib
from typing import Any, Final

from conftest import ROOT, Program
from ruamel.yaml import YAML

import bentpipe as package

# Of the schema 1.2.0 of the Citation File Format: required, and those that the file may have.
REQUIRED: Final = {"authors", "cff-version", "message", "title"}
ALLOWED: Final = REQUIRED | {"abstract", "keywords", "license", "type", "version", "date-released"}
PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def citation() -> dict[str, Any]:
    found: dict[str, Any] = YAML(typ="safe").load(ROOT / "CITATION.cff")
    return found


def test_the_file_has_the_fields_of_its_format() -> None:
    found = citation()
    assert set(found) >= REQUIRED
    assert set(found) <= ALLOWED
    assert found["cff-version"] == "1.2.0"
    assert found["type"] == "software"
    assert all(isinstance(author["name"], str) for author in found["authors"])
    assert len(set(found["keywords"])) == len(found["keywords"])


def test_the_file_is_that_of_the_package(bentpipe: Program) -> None:
    """Given the version and the license of the package, expect them in the file and the command."""
    found = citation()
    assert found["version"] == package.__version__
    assert found["license"] == PROJECT["license"]
    assert found["keywords"] == PROJECT["keywords"]
    cited = json.loads(bentpipe("show", "cite", "--json").out)
    assert isinstance(cited.pop("year"), int)
    assert cited == {
        "authors": ", ".join(author["name"] for author in found["authors"]),
        **{name: found[name] for name in ("title", "version", "license")},
    }


def test_the_command_prints_bibtex_and_a_text(bentpipe: Program) -> None:
    called = bentpipe("show", "cite")
    assert (called.code, called.err) == (0, "")
    entry, text = called.out.rstrip().split("\n\n")
    assert entry.startswith("@misc{bentpipe,\n")
    assert entry.count("{") == entry.count("}")
    fields = dict(re.findall(r"^  (\w+) = \{(.*)\},?$", entry, re.MULTILINE))
    # Double braces keep the name of a group and the case of a title.
    assert fields["author"] == "{The bentpipe authors}"
    assert fields["title"].startswith("{bentpipe: ")
    assert fields["note"] == f"Version {package.__version__}"
    year = json.loads(bentpipe("show", "cite", "--json").out)["year"]
    assert fields["year"] == str(year)
    assert text.startswith(f"The bentpipe authors ({year}). bentpipe: ")
    assert package.__version__ in text
