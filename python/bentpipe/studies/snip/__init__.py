"""The SnIP technical note: UDP through a satellite modem's interface processor, and TCP over it."""
