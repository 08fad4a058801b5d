"""The simulator compared with Linux TCP: the same points in both engines."""
