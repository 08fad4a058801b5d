from .binary import find_binary as find_binary
from .checks import examine as examine, summary as summary
from .config import (
    GatewayConfig as GatewayConfig,
    described as described,
    read_config as read_config,
)
from .daemon import become as become, plan_of as plan_of, start as start, stop as stop
from .machine import make_key as make_key
from .plan import (
    MARK as MARK,
    NOBODY as NOBODY,
    ROUTE_TABLE as ROUTE_TABLE,
    Installation as Installation,
    connections_within as connections_within,
    open_files as open_files,
    pep_plan as pep_plan,
    refused_settings as refused_settings,
)
from .reload import reload_gateway as reload_gateway
from .state import GatewayFolder as GatewayFolder, gateway_names as gateway_names
