"""The report of a run: one self-contained HTML file, from ``templates/run.html.j2``.

The same plan, seed and version give identical bytes. So the report names neither the time nor the
machine of a run; the manifest does.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bentpipe.report.html import Exports, environment, write_report
from bentpipe.report.plots import draw
from bentpipe.report.style import figure_of
from bentpipe.report.terminal import competing
from bentpipe.results.charts import chart_data, charts_of, csv_of, is_sampled
from bentpipe.results.files import REPORT
from bentpipe.results.measures import MAX_SINGLE_FLOWS
from bentpipe.results.metric_values import threshold_view
from bentpipe.results.run_views import attribution_view, flow_views, link_views
from bentpipe.results.views import Column, View, from_mappings
from bentpipe.units import format_duration

if TYPE_CHECKING:
    from bentpipe.results.output import OutputFolder
    from bentpipe.results.result import Result

_TIMES: Final = {"simulate": "simulated", "emulate": "real"}
# Keeps a report below 2 MB; the Parquet files have every direction.
_MAX_ROWS: Final = 200
_MAX_PLANNED: Final = 16
# More directions have two lines at the top of the report.
_MAX_HEADLINES: Final = 4
_LOST_OF_SENT: Final = ("lost_packets", "expected_segments")
_LOSS: Final = Column("loss_percent", "loss")
_SHARES: Final = ("p50", "p90", "p99", "p999", "max")


def write_run_report(result: Result, path: str | Path) -> Path:
    """Write the report of a run as one HTML file, with its charts beside it; return its path.

    The charts are PNG, SVG and CSV files in the folder ``charts`` beside ``report.html``, and
    ``NAME-charts`` beside ``NAME.html``; the page is complete without them.

    Raises:
        UsageError: a file cannot be written; an existing report is unchanged.
    """
    return write_report(path, partial(run_report, result))


def save_run(result: Result, folder: Path | OutputFolder) -> Path:
    """Write a result with its report and charts into a folder: see `Result.save`."""
    exports = Exports()
    report = run_report(result, exports)
    return result.save(folder, files={REPORT: report, **exports.files})


def run_report(result: Result, exports: Exports | None = None) -> str:
    """Return the report of a run as HTML; its figures are added to ``exports``, and linked."""
    template = environment().get_template("run.html.j2")
    return template.render(
        run_context(result),
        emulation=_emulation(result),
        flows=result.tables["flows"].height,
        by_entry=result.tables["flows"].height > MAX_SINGLE_FLOWS,
        competing=competing(result),
        attribution=attribution_view(result),
        charts=_charts(result),
        exports=exports,
        seed=result.manifest["seed"],
        version=result.manifest["bentpipe_version"],
    )


def run_views(result: Result) -> list[View]:
    """Return the tables of the report of a run, in its order."""
    emulation = _emulation(result)
    views = [
        threshold_view(result),
        *flow_views(result),
        attribution_view(result),
        *link_views(result, _MAX_ROWS),
        None if emulation is None else emulation["view"],
    ]
    return [view for view in views if view is not None]


def run_context(result: Result) -> dict[str, Any]:
    """Return what each page of a run shows: its report, and that of `bentpipe serve`."""
    manifest, interval_ns = result.manifest, result.plan["sample_interval_ns"] or 0
    return {
        "title": result.title,
        "facts": f"bentpipe {manifest['bentpipe_version']}, seed {manifest['seed']}, "
        f"{result.ending} of {_TIMES[result.engine]} time, "
        f"{manifest['packet_hops']:,} packet-hops",
        "notices": _notices(result),
        "headlines": _headlines(result),
        "thresholds": threshold_view(result),
        "flow_views": flow_views(result),
        "link_views": link_views(result, _MAX_ROWS),
        "sample_interval": format_duration(interval_ns) if is_sampled(result) else None,
        "inputs": _inputs(result),
    }


def _notices(result: Result) -> list[str]:
    """Return what a reader must know first: the verdict, how the run ended, and its warnings."""
    until = "The figures are of what was recorded until then."
    notices = [] if result.invalid is None else [f"INVALID: {result.invalid}."]
    if result.interrupted:
        notices.append(f"The run was interrupted. {until}")
    if result.stop_reason is not None:
        notices.append(f"The run {result.stop_reason}. {until}")
    notices += [f"Warning: {warning}" for warning in result.warnings]
    return notices + list(result.manifest.get("emulation", {}).get("warnings", ()))


def _emulation(result: Result) -> dict[str, Any] | None:
    if result.engine == "simulate":
        return None
    about = result.manifest["emulation"]
    columns = [
        Column("what", "lateness of packets"),
        Column("packets", "packets"),
        *(Column(f"{share}_ns", share) for share in _SHARES),
    ]
    what = {"lateness": "at egress", "wait": "before it was read, at most"}
    rows = [{**about[name], "what": text} for name, text in what.items()]
    title = "Lateness of the link; beyond its limits the run is invalid."
    return {**about, "view": from_mappings(title, columns, rows)}


def _headlines(result: Result) -> list[str]:
    """Return utilization and loss of each direction; of many, of the first and the busiest."""
    directions = result.directions.to_dicts()
    if len(directions) > _MAX_HEADLINES:
        busiest = max(directions[1:], key=lambda row: row["utilization"])
        headlines = [_headline(directions[0]), f"busiest return: {_headline(busiest)}"]
    else:
        headlines = [_headline(row) for row in directions]
    udp = [flow for flow in result.flows.to_dicts() if flow["expected_segments"]]
    if udp and all(flow["lost_packets"] is not None for flow in udp):
        lost, sent = (sum(flow[name] for flow in udp) for name in _LOST_OF_SENT)
        headlines.append(
            f"UDP: {lost:,} of {sent:,} datagrams lost ({_LOSS.write(100 * lost / sent)})"
        )
    return headlines


def _headline(row: dict[str, Any]) -> str:
    return (
        f"{row['direction']}: utilization {row['utilization']:.1%}, {row['dropped_packets']:,} of "
        f"{row['received_packets']:,} packets lost ({_LOSS.write(row['loss_percent'])})"
    )


def _charts(result: Result) -> dict[str, dict[str, Any]]:
    """Return the charts of a run by name: figure, caption, CSV, and whether it is over time."""
    charts = {}
    for chart in charts_of(result):
        data = chart_data(chart, result)
        charts[chart.name] = {
            "figure": figure_of(draw(data)),
            "caption": chart.caption,
            "csv": csv_of(data),
            "over_time": chart.kind == "time",
        }
    return charts


def _inputs(result: Result) -> list[dict[str, str]]:
    """Return scenario and plan as JSON under their titles; of many parts, the first ones."""
    scenario, plan = dict(result.manifest["scenario"]), dict(result.plan)
    title = f"The scenario{_keep_first(scenario, 'traffic', 'entries')}"
    plan_title = f"The complete plan (ns, bytes, bit/s){_keep_first(plan, 'flows', 'flows')}"
    terminals = len(plan["gateways"]) - 1
    if terminals > 1:
        plan_title += f"; the first of {terminals:,} terminals, which are alike"
        plan |= {name: plan[name][:2] for name in ("gateways", "directions")}
    return [
        # Sorted as in the manifest, so that a result from a folder gives the same report.
        {"title": title, "text": json.dumps(data, indent=2, sort_keys=True, ensure_ascii=False)}
        for title, data in ((title, scenario), (plan_title, plan))
    ]


def _keep_first(data: dict[str, Any], name: str, noun: str) -> str:
    """Leave the first values of a list; return a note of that for a title."""
    count = len(data[name])
    data[name] = data[name][:_MAX_PLANNED]
    return f"; the first {_MAX_PLANNED} of {count:,} {noun}" if count > _MAX_PLANNED else ""
