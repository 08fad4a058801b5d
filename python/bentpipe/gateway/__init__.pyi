from .binary import find_binary as find_binary
from .checks import Check as Check, examine as examine, summary as summary
from .config import (
    GatewayConfig as GatewayConfig,
    parse_config as parse_config,
    read_config as read_config,
    read_document as read_document,
)
from .daemon import become as become, plan_of as plan_of, start as start, stop as stop
from .plan import (
    MARK as MARK,
    NOBODY as NOBODY,
    ROUTE_TABLE as ROUTE_TABLE,
    GatePlan as GatePlan,
    Installation as Installation,
    gate_plan as gate_plan,
    refused_settings as refused_settings,
)
from .state import GatewayFolder as GatewayFolder, gateway_names as gateway_names
