"""What a person writes: link, gateways, hosts, traffic and TCP, with units and defaults."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
