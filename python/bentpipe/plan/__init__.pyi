from .links import link_document as link_document
from .links import resolved_plan as resolved_plan
from .presets import link_plan as link_plan
from .presets import stored_plan as stored_plan
from .resolver import checked as checked
from .resolver import from_dict as from_dict
from .resolver import load as load
from .resolver import resolve as resolve
