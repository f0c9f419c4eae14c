"""The engine: from two tables to a map between them, matched rows, and a comparison with chance."""

from keyless.engine.crossing import Crossing
from keyless.engine.many_rows import link_many_rows, tells_by_groups
from keyless.engine.pair import PairLink, compared, find_pair, link_pair, rematched
from keyless.engine.repeats import best_rivals, repeated_side, shared_partners
from keyless.engine.side import Side
from keyless.engine.task import Task

__all__ = [
    "Crossing",
    "PairLink",
    "Side",
    "Task",
    "best_rivals",
    "compared",
    "find_pair",
    "link_many_rows",
    "link_pair",
    "rematched",
    "repeated_side",
    "shared_partners",
    "tells_by_groups",
]
