"""A whole scenario: what a person writes, in YAML or in Python, with units.

A `Scenario` holds its quantities as text, exactly as they were written ("16 Mbit/s", "275 ms"), and
checks each when it is made. Whether its parts fit together is for `bentpipe.plan` to check.

Defaults have one home: the classes of this package, `link.DEFAULT_DIRECTION` and
`profiles.PROFILES`. A field that is left out (or null) takes the value of the preset or the host
profile that was named, and after that the default.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field, ValidationError

from bentpipe import units
from bentpipe.errors import ScenarioError
from bentpipe.scenario.document import Document
from bentpipe.scenario.gateways import Gateways
from bentpipe.scenario.hosts import Hosts
from bentpipe.scenario.link import DEFAULT_DIRECTION, Link
from bentpipe.scenario.problems import problems_of
from bentpipe.scenario.queues import QUEUES, DropTail
from bentpipe.scenario.record import PositiveDuration, Record
from bentpipe.scenario.traffic import FLOWS, Flow

LARGEST_SEED: Final = 2**64 - 1


class Scenario(Record):
    """A link, the traffic on it, and how long to watch."""

    name: str = ""
    """What this scenario is about, for titles."""
    link: Link
    """The satellite hop."""
    gateways: Gateways = Field(default_factory=Gateways)
    """What stands between the local networks and the link."""
    hosts: Hosts = Field(default_factory=Hosts)
    """Hosts at some distance from their gateway."""
    traffic: Annotated[tuple[Flow, ...], Field(strict=False, min_length=1)]
    """The flows, at least one."""
    duration: PositiveDuration
    """When the run stops, at the latest."""
    sample_interval: PositiveDuration | None = units.duration("100 ms")
    """Time between the rows of the time series; null records none."""
    packet_events: bool = False
    """Whether to record each packet's every step (about 40 bytes an event)."""
    seed: Annotated[int, Field(ge=0, le=LARGEST_SEED)] = 1
    """The seed of every random draw. Same plan, seed and version: the same result, to the byte."""

    def to_dict(self) -> dict[str, Any]:
        """Return the scenario as it was written: plain data, without presets and defaults."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)


def parse(document: Document) -> Scenario:
    """Check a document against the schema of a scenario, and return the scenario.

    Raises:
        ScenarioError: naming file, line, field, what was read and what is allowed.
    """
    try:
        return Scenario.model_validate(_with_paths(document))
    except ValidationError as error:
        raise ScenarioError(*problems_of(error, document)) from None


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of a scenario file, for editors and other programs."""
    schema = Scenario.model_json_schema(by_alias=True)
    definitions = schema["$defs"]
    for name, value in DEFAULT_DIRECTION.model_dump(mode="json", exclude={"queue"}).items():
        if value is not None:
            definitions["Direction"]["properties"][name]["default"] = value
    for discipline, queue in QUEUES.items():
        record = definitions[queue.__name__]
        record["properties"]["limit"]["default"] = queue.default_limit
        record["properties"]["discipline"]["default"] = discipline
        if queue is not DropTail:
            record.setdefault("required", []).insert(0, "discipline")
    for flow in FLOWS.values():
        definitions[flow.__name__]["required"].insert(0, "kind")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _with_paths(document: Document) -> dict[str, Any]:
    """Return the data, with the files that its link names found from the folder of the document."""
    folder, link = Path(document.source).parent, document.data.get("link")
    if folder == Path() or not isinstance(link, Mapping):
        return document.data
    link = dict(link)
    for name, direction in link.items():
        if isinstance(direction, Mapping):
            link[name] = {field: _from_folder(folder, value) for field, value in direction.items()}
    return {**document.data, "link": link}


def _from_folder(folder: Path, value: object) -> object:
    """Return a field of a direction, with its file from a folder if it is one that names a file."""
    if not isinstance(value, Mapping):
        return value
    files = {
        key: str(folder / file)
        for key, file in value.items()
        if key in ("trace", "csv") and isinstance(file, str) and file
    }
    return {**value, **files}
