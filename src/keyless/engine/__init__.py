"""The engine: from two tables to a map between them, matched rows, and a comparison with chance."""

from keyless.engine.crossing import Crossing
from keyless.engine.many_rows import link_many_rows, tells_by_groups
from keyless.engine.pair import PairLink, compared, find_pair, link_pair
from keyless.engine.side import Side

__all__ = ["Crossing", "PairLink", "Side", "compared", "find_pair", "link_many_rows", "link_pair", "tells_by_groups"]
