from .links import link_document as link_document, resolved_plan as resolved_plan
from .plan import Plan as Plan
from .presets import link_plan as link_plan, stored_plan as stored_plan
