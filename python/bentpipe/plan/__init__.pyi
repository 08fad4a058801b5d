from .presets import stored_plan as stored_plan
from .resolve import resolve as resolve
