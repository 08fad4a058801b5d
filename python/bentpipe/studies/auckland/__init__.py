"""Baselines of the Auckland satellite simulator: many TCP downloads and a transfer over GEO."""
