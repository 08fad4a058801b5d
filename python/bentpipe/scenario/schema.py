"""A whole scenario, in YAML or in Python, with units.

A `Scenario` keeps its quantities as they were written ("16 Mbit/s", "275 ms"), and checks each
field when it is made. `bentpipe.Plan.resolve` checks that the parts fit together.

Only this package defines defaults: its classes, `link.DEFAULT_DIRECTION` and `tcp.PROFILES`. A
field that is left out (or null) has the value of the preset or host profile, or the default.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, PrivateAttr

from bentpipe import units
from bentpipe.scenario.document import Document, read_file
from bentpipe.scenario.gateways import Gateways
from bentpipe.scenario.link import DEFAULT_DIRECTION, QUEUES, DropTail, Link
from bentpipe.scenario.metric_ref import ThresholdText, with_thresholds
from bentpipe.scenario.record import ListOf, NonEmptyListOf, PositiveDuration, Record
from bentpipe.scenario.settings import Setting, with_settings
from bentpipe.scenario.tcp import Hosts
from bentpipe.scenario.traffic import FLOWS, Flow
from bentpipe.units import LARGEST_SEED


class Scenario(Record):  # noqa: PLW1641 - pydantic makes the hash
    """A link, its traffic, and the duration of a run."""

    name: str = ""
    """A title."""
    link: Link
    """The satellite hop."""
    gateways: Gateways = Field(default_factory=Gateways)
    """The gateways between the local networks and the link."""
    hosts: Hosts = Field(default_factory=Hosts)
    """Hosts with a delay to their gateway."""
    traffic: NonEmptyListOf[Flow]
    """The flows, at least one."""
    duration: PositiveDuration
    """The maximum duration of the run."""
    sample_interval: PositiveDuration | None = units.duration("100 ms")
    """The interval of the time series; null disables them."""
    packet_events: bool = False
    """Record every event of each packet (about 40 bytes per event)."""
    thresholds: ListOf[ThresholdText] = ()
    """What the run must reach, such as ``flows.goodput_bps.p5 >= 2 Mbit/s``."""
    seed: Annotated[int, Field(ge=0, le=LARGEST_SEED)] = 1
    """The random seed. The same plan, seed and version give the same result, byte for byte."""

    # Where the values are written, for the messages of errors that a plan has.
    _document: Document = PrivateAttr(default_factory=lambda: Document(data={}, source="scenario"))

    def model_post_init(self, context: Any, /) -> None:
        """Keep the document that the scenario is read from."""
        if isinstance(context, Document):
            self._document = context

    def __eq__(self, other: object) -> bool:
        """Return whether the other scenario has the same values, wherever they are written."""
        return isinstance(other, Scenario) and self.__dict__ == other.__dict__

    @classmethod
    def load(
        cls,
        path: str | Path,
        settings: Sequence[str | Setting] = (),
        *,
        thresholds: Sequence[str] = (),
    ) -> Scenario:
        """Read a scenario file, or standard input for ``-``, and check each of its fields.

        Parameters
        ----------
        path
            The file (YAML).
        settings
            ``path=value`` each, to override its values.
        thresholds
            Added to those of the file.

        Raises
        ------
        ScenarioError
            Naming file, line, field, what was read and what is allowed.

        Examples
        --------
        >>> scenario = bentpipe.Scenario.load("scenarios/geo-bulk.yaml", ["traffic.0.size=1 MB"])
        >>> scenario.traffic[0].size
        '1 MB'
        """
        return cls.from_document(read_file(Path(path)), settings, thresholds=thresholds)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], settings: Sequence[str | Setting] = ()) -> Scenario:
        """Build a scenario from plain data, as YAML or JSON would give them, and check each field.

        Raises:
            ScenarioError: naming the field, what was read and what is allowed.
        """
        return cls.from_document(Document(data=dict(data), source="scenario"), settings)

    @classmethod
    def of(cls, source: Scenario | str | Path | Mapping[str, Any]) -> Scenario:
        """Return a scenario, or one that is read from a file or built from plain data.

        Raises:
            ScenarioError: naming the field, what was read and what is allowed.
        """
        if isinstance(source, Scenario):
            return source
        return cls.from_dict(source) if isinstance(source, Mapping) else cls.load(source)

    @classmethod
    def from_document(
        cls,
        document: Document,
        settings: Sequence[str | Setting] = (),
        *,
        thresholds: Sequence[str] = (),
    ) -> Scenario:
        """Build a scenario from a document with settings; see `load`.

        Raises:
            ScenarioError: naming file, line, field, what was read and what is allowed.
        """
        document = with_thresholds(with_settings(document, settings, cls), thresholds)
        return cls.of_document(document)

    @property
    def document(self) -> Document:
        """The document that the scenario was read from, or an empty one."""
        return self._document

    def to_dict(self) -> dict[str, Any]:
        """Return the scenario as it was written: plain data, without presets and defaults."""
        return self.model_dump(mode="json", exclude_unset=True)


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
        definitions[flow.__name__].setdefault("required", []).insert(0, "kind")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
