from .differences import (
    Comparison as Comparison,
    Difference as Difference,
    compare as compare,
)
