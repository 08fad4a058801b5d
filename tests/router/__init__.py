"""A router with rules and paths as real routers have them, and what a gateway does to connections.

``cases.toml`` has the routers, ``journeys.py`` the connections. Each journey is made without and
with a PEP on the router; both must end alike, or ``gateway check`` refuses.
"""
