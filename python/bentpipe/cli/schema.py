"""The verb ``schema``: the JSON Schema of scenario files."""

from __future__ import annotations

from bentpipe import scenario
from bentpipe.cli.options import print_json


def schema() -> None:
    """Print the JSON Schema of scenario files, for editors."""
    print_json(scenario.json_schema())
