from .lab import Lab as Lab
