"""The search for the rows that two tables share: many starts, grown, bred and judged by rows held out."""

from keyless.search.options import SearchOptions
from keyless.search.population import Start
from keyless.search.two_tables import PairLink, link_two_tables

__all__ = ["PairLink", "SearchOptions", "Start", "link_two_tables"]
