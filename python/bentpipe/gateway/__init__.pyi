from .checks import examine as examine, summary as summary
from .config import (
    GatewayConfig as GatewayConfig,
    plan_of as plan_of,
    read_config as read_config,
)
from .daemon import (
    GatewayFolder as GatewayFolder,
    become as become,
    closed_networks as closed_networks,
    first_counters as first_counters,
    gateway_names as gateway_names,
    reload_gateway as reload_gateway,
    start as start,
    stop as stop,
)
from .fields import (
    placeholder_key as placeholder_key,
    refused_settings as refused_settings,
    refused_tcp as refused_tcp,
)
from .machine import (
    PEERS_MAX as PEERS_MAX,
    PORT as PORT,
    find_binary as find_binary,
    make_key as make_key,
    open_files as open_files,
)
