"""Options of linking that Python and the command line take in the same form. Nothing heavy is imported here."""

# Annotations are evaluated here, not postponed: the command line reads them off classes of other modules.
from dataclasses import dataclass
from typing import Literal

__all__ = ["Effort", "Partners", "ScaleName", "SearchOptions"]

Partners = Literal["auto", "all", "some"]
ScaleName = Literal["auto", "identity", "log", "sqrt", "rank"]
Effort = Literal["quick", "normal", "thorough"]


@dataclass(kw_only=True)
class SearchOptions:
    """What is known of the tables, and what the search may spend: options that every door takes in the same form.

    Args:
        reference: Table whose row order the answer is given in; the first unless given.
        partners: Which rows have a partner: `all` rows of the smaller table, `some` of them, or `auto`: found from the
            data.
        repeats: Table that has several rows of one entity. Each of its rows gets a partner of its own, and several may
            get the same one. This table becomes the reference. `auto` finds out whether there is one.
        rank: How many factors the tables have at most; found from the data unless given.
        effort: `quick` tries few first maps and compares with chance once. `thorough` tries every first map and
            compares with chance five times.
        max_time: Seconds after which the best so far is returned, with a status that says so, or nobody is matched if
            nothing was found by then.
    """

    reference: str | None = None
    partners: Partners = "auto"
    repeats: str | None = None
    rank: int | None = None
    effort: Effort = "normal"
    max_time: float | None = None
