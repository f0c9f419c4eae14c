"""The options of the next link: what was known and set before, with answers to questions added."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields
from typing import Any

import numpy as np
from scipy import sparse

from keyless.answers.questions import known_rows
from keyless.errors import InputError
from keyless.knowledge import known_partners
from keyless.options import Options
from keyless.table_link import LinkedTables
from keyless.tables import Reading

__all__ = ["earlier_couplings", "options_with"]

Pairs = dict[int, int]
"""The partner of each reference row that is known."""


def options_with(links: LinkedTables, pairs: Any, not_pairs: Any) -> Options:
    """Return the options of an earlier link, its known and forbidden pairs joined by new ones.

    A later answer about a row replaces an earlier one.

    Args:
        links: the earlier link.
        pairs: pairs of ids that are one entity; see `Links.answer`.
        not_pairs: pairs of ids that are not.
    """
    known, forbidden = {}, {}
    # Where the reference repeats entities, several of its rows have the same partner.
    shares = links.choices.get("set", {}).get("repeats") == links.reference
    new, never = (_by_table(links, given, name) for given, name in ((pairs, "pairs"), (not_pairs, "not_pairs")))
    for name in links.found:
        answers = dict(new.get(name, []))
        wrong = set(never.get(name, []))
        _check_once(links, name, new.get(name, []), shares=shares)
        both = sorted(wrong & set(answers.items()))
        if both:
            raise InputError(
                f"not_pairs: must not name a pair that pairs names, too; found {_ids(links, name, both)[0]}."
            )
        earlier = [tuple(pair) for pair in known_rows(links, name).tolist()]
        taken = () if shares else answers.values()
        kept = [pair for pair in earlier if pair[0] not in answers and pair[1] not in taken and pair not in wrong]
        apart = {tuple(pair) for pair in known_rows(links, name, "forbidden").tolist()} - set(answers.items())
        known[name] = _ids(links, name, [*kept, *answers.items()])
        forbidden[name] = _ids(links, name, sorted(apart | wrong))
    given = dict(links.choices.get("set", {}))
    unknown = sorted(set(given) - {field.name for field in fields(Options)})
    if unknown:
        raise InputError(
            f"answer: must start from a link that this version of keyless made; this one has the option "
            f"{unknown[0]!r}, which no longer exists. Link the tables again."
        )
    return Options(
        **given,
        known_pairs={name: listed for name, listed in known.items() if listed} or None,
        forbid={name: listed for name, listed in forbidden.items() if listed} or None,
        reading=Reading(missingness=bool(links.choices.get("missingness", False))),
        random_state=links.seed,
    )


def _check_once(links: LinkedTables, name: str, pairs: list[tuple[int, int]], *, shares: bool) -> None:
    """Refuse pairs that give a row two partners; if the reference repeats entities, rows of the table may have two."""
    tables = (links.tables[0], links.tables[links._number(name)])
    for side, table in enumerate(tables[: 1 if shares else 2]):
        times = Counter(pair[side] for pair in pairs)
        twice = next((row for row, count in times.items() if count > 1), None)
        if twice is not None:
            label = table.row_ids[twice]
            raise InputError(f"pairs: must name each row at most once; row {label!r} of {table.name} has two partners.")


def _by_table(links: LinkedTables, given: Any, name: str) -> dict[str, list[tuple[int, int]]]:
    """Return pairs of row numbers by the name of their table."""
    if given is None or (isinstance(given, list | tuple) and not given):
        return {}
    if isinstance(given, list | tuple) and all(isinstance(one, list | tuple) and len(one) == 3 for one in given):
        named: dict[Any, list[Any]] = {}
        for table, left, right in given:
            named.setdefault(table, []).append((left, right))
        given = named
    found = {}
    for table, (rows, partners) in known_partners(links.tables, given, name=name).items():
        if (partners < 0).any():
            raise InputError(f"{name}: must name a row of {table} in every pair; found a pair in which it is missing.")
        found[table] = list(zip(rows.tolist(), partners.tolist(), strict=True))
    return found


def _ids(links: LinkedTables, name: str, pairs: list[tuple[int, int]]) -> list[tuple[Any, Any]]:
    left, right = links.tables[0].row_ids, links.tables[links._number(name)].row_ids
    return [(left[row], right[partner]) for row, partner in pairs]


def earlier_couplings(links: LinkedTables, pairs: Any) -> dict[str, Any]:
    """Return, per table, the probabilities of pairs from which a search may begin; none for a table of many rows.

    The map of the table must have been believed, and at least half of the new answers must be likelier by it than by a
    guess: answers that contradict a map show that another one is to be sought.
    """
    new = _by_table(links, pairs, "pairs")
    begun = {}
    for name, link in links.found.items():
        if not link.evidence.believed or sparse.issparse(link.coupling):
            continue
        coupling = np.asarray(link.coupling)
        likely = [coupling[pair] * coupling.shape[1] > 1 for pair in new.get(name, [])]
        if 2 * sum(likely) >= len(likely):
            begun[name] = coupling
    return begun
