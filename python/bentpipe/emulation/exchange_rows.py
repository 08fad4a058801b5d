"""Exchanges and web pages in real time, as rows of the result tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np

from bentpipe.emulation.iperf3 import Flow
from bentpipe.emulation.record import RunRecord

_EXCHANGE_MOMENTS: Final = ("start_ns", "established_ns", "first_byte_ns", "finished_ns")
_PAGE_MOMENTS: Final = (
    *("start_ns", "resolved_ns", "established_ns"),
    *("first_byte_ns", "document_ns", "finished_ns"),
)

Row = dict[str, Any]


def exchange_rows(flow: Flow, record: RunRecord) -> list[Row]:
    """Return the exchanges of a flow as they were at the end of the run."""
    report_json = flow.program_report("receiver") or {}
    rows = _in_run(report_json.get("exchanges", []), _EXCHANGE_MOMENTS, record)
    return [{**row, "flow": flow.index, "exchange": number} for number, row in enumerate(rows)]


def page_rows(flow: Flow, record: RunRecord) -> list[Row]:
    """Return the pages of a flow as they were at the end of the run.

    The client knows the times, and the server what it sent.
    """
    client, server = (flow.program_report(end) or {} for end in ("receiver", "sender"))
    rows = _in_run(client.get("pages", []), _PAGE_MOMENTS, record)
    sent = server.get("pages", [])
    nothing = {"objects": 0, "connections": 0, "response_bytes": 0}
    return [
        {
            **row,
            **(sent[number] if number < len(sent) else nothing),
            "flow": flow.index,
            "page": number,
        }
        for number, row in enumerate(rows)
    ]


def _in_run(
    rows: Iterable[Mapping[str, Any]], moments: Iterable[str], record: RunRecord
) -> list[Row]:
    """Return the rows that began in a run, with their times from its start, and none after it."""

    def in_run(at_ns: int | None) -> int | None:
        since_ns = None if at_ns is None else at_ns - record.monotonic_ns
        return since_ns if since_ns is None or since_ns <= record.duration_ns else None

    found = [{**row, **{name: in_run(row[name]) for name in moments}} for row in rows]
    return [row for row in found if row["start_ns"] is not None]


def sampled_rows(
    flow: Flow, sender: dict[str, Any], receiver: dict[str, Any] | None, record: RunRecord
) -> list[Row]:
    """Return the samples of a flow of exchanges or pages as rows of ``flow_samples``."""
    report = {} if receiver is None else receiver
    times_ns, delivered = np.array(
        [(record.monotonic_ns, 0), *report.get("progress", [])], dtype=np.float64
    ).T
    rows = []
    for sample in sender["samples"]:
        at_ns = sample["at_ns"]
        if not 0 <= at_ns - record.monotonic_ns <= record.duration_ns:
            continue
        row = {name: value for name, value in sample.items() if name != "at_ns"}
        row |= {"time_ns": at_ns - record.monotonic_ns, "flow": flow.index}
        if "progress" in report:
            row["delivered_bytes"] = int(np.interp(at_ns, times_ns, delivered))
        rows.append(row)
    return rows
