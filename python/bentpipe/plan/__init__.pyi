from .lower import PlanningError as PlanningError, origin as origin
from .plan import Plan as Plan
from .presets import (
    link_document as link_document,
    link_plan as link_plan,
    preset_plans as preset_plans,
    resolved_plan as resolved_plan,
)
