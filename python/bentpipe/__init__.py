"""bentpipe: how traffic fares over a satellite link, simulated packet by packet.

>>> import bentpipe
>>> result = bentpipe.simulate("scenarios/geo-bulk.yaml")  # doctest: +SKIP
>>> result.flows["goodput_bps"]  # doctest: +SKIP
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bentpipe._simulate import simulate
    from bentpipe.errors import (
        BentpipeError,
        InternalError,
        InvalidRunError,
        MachineError,
        MemoryLimitError,
        ScenarioError,
        ThresholdError,
        UnitError,
        UsageError,
    )
    from bentpipe.presets import PRESETS, Preset
    from bentpipe.results import Result
    from bentpipe.scenario import (
        Bulk,
        ChannelState,
        CoDel,
        Conference,
        ConstantRate,
        DelayStep,
        DeliveryTrace,
        Direction,
        DropTail,
        EarlyPacketDiscard,
        Fetch,
        FqCoDel,
        FramingOptions,
        Gateway,
        Gateways,
        GilbertElliott,
        Link,
        LognormalSize,
        LognormalTime,
        ParetoSize,
        ParetoTime,
        PerFlowDropTail,
        Processor,
        RateStep,
        Red,
        RequestResponse,
        Scenario,
        SelectiveDrop,
        SizeDraw,
        StrictPriority,
        Tcp,
        TimeDraw,
        TimeSeries,
        from_dict,
        json_schema,
        load,
    )
    from bentpipe.search import Loss, NoDropRate, NoDropSearch, Trial, no_drop_rate
    from bentpipe.sweep import Job, Outcome, run_many

    __version__: str

# Where each public name lives. They are imported when first used: the command line answers
# `--version` and `--help` without waiting for numpy, pydantic and polars.
_HOMES = {
    "BentpipeError": "errors",
    "Bulk": "scenario",
    "CoDel": "scenario",
    "Conference": "scenario",
    "ConstantRate": "scenario",
    "ChannelState": "scenario",
    "DelayStep": "scenario",
    "DeliveryTrace": "scenario",
    "Direction": "scenario",
    "DropTail": "scenario",
    "EarlyPacketDiscard": "scenario",
    "Fetch": "scenario",
    "FqCoDel": "scenario",
    "FramingOptions": "scenario",
    "Gateway": "scenario",
    "Gateways": "scenario",
    "GilbertElliott": "scenario",
    "InternalError": "errors",
    "InvalidRunError": "errors",
    "Job": "sweep",
    "Link": "scenario",
    "LognormalSize": "scenario",
    "LognormalTime": "scenario",
    "Loss": "search",
    "MachineError": "errors",
    "MemoryLimitError": "errors",
    "NoDropRate": "search",
    "NoDropSearch": "search",
    "Outcome": "sweep",
    "PRESETS": "presets",
    "ParetoSize": "scenario",
    "ParetoTime": "scenario",
    "PerFlowDropTail": "scenario",
    "Preset": "presets",
    "Processor": "scenario",
    "RateStep": "scenario",
    "TimeSeries": "scenario",
    "Red": "scenario",
    "RequestResponse": "scenario",
    "Result": "results",
    "Scenario": "scenario",
    "ScenarioError": "errors",
    "SelectiveDrop": "scenario",
    "SizeDraw": "scenario",
    "StrictPriority": "scenario",
    "Tcp": "scenario",
    "ThresholdError": "errors",
    "TimeDraw": "scenario",
    "Trial": "search",
    "UnitError": "errors",
    "UsageError": "errors",
    "from_dict": "scenario",
    "json_schema": "scenario",
    "load": "scenario",
    "no_drop_rate": "search",
    "run_many": "sweep",
    "simulate": "_simulate",
}

__all__ = [
    "PRESETS",
    "BentpipeError",
    "Bulk",
    "ChannelState",
    "CoDel",
    "Conference",
    "ConstantRate",
    "DelayStep",
    "DeliveryTrace",
    "Direction",
    "DropTail",
    "EarlyPacketDiscard",
    "Fetch",
    "FqCoDel",
    "FramingOptions",
    "Gateway",
    "Gateways",
    "GilbertElliott",
    "InternalError",
    "InvalidRunError",
    "Job",
    "Link",
    "LognormalSize",
    "LognormalTime",
    "Loss",
    "MachineError",
    "MemoryLimitError",
    "NoDropRate",
    "NoDropSearch",
    "Outcome",
    "ParetoSize",
    "ParetoTime",
    "PerFlowDropTail",
    "Preset",
    "Processor",
    "RateStep",
    "Red",
    "RequestResponse",
    "Result",
    "Scenario",
    "ScenarioError",
    "SelectiveDrop",
    "SizeDraw",
    "StrictPriority",
    "Tcp",
    "ThresholdError",
    "TimeDraw",
    "TimeSeries",
    "Trial",
    "UnitError",
    "UsageError",
    "__version__",
    "from_dict",
    "json_schema",
    "load",
    "no_drop_rate",
    "run_many",
    "simulate",
]


if not TYPE_CHECKING:  # a checker would take every misspelt name for one that this function knows

    def __getattr__(name: str) -> Any:
        if name == "__version__":
            return import_module("bentpipe._core").version()
        if name not in _HOMES:
            raise AttributeError(f"module 'bentpipe' has no attribute {name!r}")
        return getattr(import_module(f"bentpipe.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
