from .program import (
    PEERS_MAX as PEERS_MAX,
    PORT as PORT,
    PROGRAM as PROGRAM,
    command as command,
    completions as completions,
    find_binary as find_binary,
    placeholder_keys as placeholder_keys,
    read_plan as read_plan,
)
