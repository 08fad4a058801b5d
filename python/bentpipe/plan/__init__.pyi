from .links import link_document as link_document, resolved_plan as resolved_plan
from .presets import link_plan as link_plan, stored_plan as stored_plan
from .resolver import (
    Loaded as Loaded,
    checked as checked,
    from_dict as from_dict,
    load as load,
    loaded as loaded,
    read as read,
    resolve as resolve,
)
