"""More rows for tables that are linked, by the map that is known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from scipy import sparse
from scipy.optimize import linear_sum_assignment

from keyless.answers.distributions import distribution
from keyless.answers.extending import extended
from keyless.answers.placing import new_rows
from keyless.arrays import FloatArray, IntArray
from keyless.errors import InputError
from keyless.knowledge import groups_of
from keyless.pairs.likelihood import FORBIDDEN, pair_log_ratio
from keyless.pairs.posterior import prior_log_odds, scaled
from keyless.table_link import LinkedTables, TableLink
from keyless.tables import Reading
from keyless.tables.matrices import is_sparse

__all__ = ["add"]

Linked = TypeVar("Linked", bound=LinkedTables)

_MOST_PAIRS = 20_000_000
"""Pairs of a new row and a row without a partner that are compared at once; their ratios take 160 MB."""

_SETTLED = 1e-3
"""Change of the scalings, in logs, below which the probabilities of pairs are settled."""


def add(links: Linked, table: str, rows: Any, *, reading: Reading | None = None) -> Linked:
    """Return links that know more rows of a table; the map between the tables is not searched for again.

    New rows of a table are matched to reference rows that have no partner yet, one to one, or to nobody; new rows
    of the reference likewise to rows of every other table. The matches made before stay, and so do model and
    verdict. Where rows match inside groups only (`within=`), this holds for new rows, too.

    Args:
        links: the result.
        table: name of the table the rows are of.
        rows: a frame, file, array, sparse matrix or AnnData like that table; columns that are not there count as
            missing.
        reading: how to read a file.
    """
    if links.evidence.verdict == "unlinkable":
        raise InputError(
            "add: must be called on tables that were linked; the verdict on these is 'unlinkable'. "
            "Link them again, with the new rows in them."
        )
    number, read, fresh = new_rows(links, rows, table=table, reading=reading)
    whole = extended(links.tables[number], read, rows)
    tables = tuple(whole if k == number else known for k, known in enumerate(links.tables))
    blocks, places = links._placed
    count, first = len(fresh.row_ids), links.tables[number].block.shape[0]
    found = {}
    for k, (name, link) in enumerate(links.found.items(), start=1):
        if number == 0:
            free = np.setdiff1d(np.arange(tables[k].block.shape[0]), link.permutation)
            _check_size(count, len(free))
            left = links.model.information(0, fresh.block)
            right = links.model.information(k, blocks[k], rows=free)
            ratios = _inside_groups(links, tables, pair_log_ratio(left, right), first + np.arange(count), (k, free))
            found[name] = _more_reference_rows(link, free, *_matched(ratios), ratios)
        elif k == number:
            free = np.flatnonzero(link.permutation < 0)
            _check_size(count, len(free))
            left = links.model.entity_information(blocks, [index[free] for index in places], without=number)
            right = links.model.information(number, fresh.block)
            ratios = _inside_groups(links, tables, pair_log_ratio(left, right), free, (k, first + np.arange(count)))
            found[name] = _more_rows(link, free, *_matched(ratios), ratios)
        else:
            found[name] = link
    added = dict(links.choices.get("added", {}))
    added[table] = added.get(table, 0) + count
    return replace(links, tables=tables, found=found, choices={**links.choices, "added": added})


def _check_size(one: int, two: int) -> None:
    if one * two > _MOST_PAIRS:
        raise InputError(
            f"rows: must make at most {_MOST_PAIRS:,} pairs with rows that have no partner yet; {one:,} new rows and "
            f"{two:,} rows without a partner make {one * two:,}. Add the new rows in parts, or link again."
        )


def _inside_groups(
    links: LinkedTables, tables: Any, ratios: FloatArray, rows: IntArray, others: tuple[int, IntArray]
) -> FloatArray:
    """Return the ratios, pairs of different groups forbidden where rows match inside groups only."""
    within = links.choices.get("set", {}).get("within")
    if within is None:
        return ratios
    number, places = others
    columns = [within] if isinstance(within, str) else list(within)
    ours, theirs = groups_of((tables[0], tables[number]), columns)
    one, two = ours[rows][:, None], theirs[places][None, :]
    return np.where((one == two) & (one >= 0), ratios, FORBIDDEN)


def _matched(ratios: FloatArray) -> tuple[IntArray, FloatArray]:
    """Return the partner of each left row, −1 for none, and the probabilities of all pairs.

    Beforehand half of the smaller side is taken to have a partner.
    """
    partner = np.full(len(ratios), -1)
    if 0 in ratios.shape:
        return partner, np.zeros(ratios.shape)
    common = min(ratios.shape) / 2
    gain = ratios + prior_log_odds(ratios.shape, common)
    left, right = linear_sum_assignment(np.maximum(gain, 0.0), maximize=True)
    good = gain[left, right] > 0
    partner[left[good]] = right[good]
    possible = np.where(ratios > FORBIDDEN, ratios, -np.inf)
    return partner, scaled(possible, common, fixed=True, tolerance=_SETTLED)[0]


def _margins(partner: IntArray, ratios: FloatArray) -> FloatArray:
    """Return the ratio of each match, 0 for "nobody", less that of the best other candidate; ∞ if there is no other."""
    others = np.where(ratios <= FORBIDDEN, -np.inf, ratios)
    rows = np.flatnonzero(partner >= 0)
    own = np.zeros(len(partner))
    own[rows] = others[rows, partner[rows]]
    others[rows, partner[rows]] = -np.inf
    best = others.max(axis=1, initial=-np.inf)
    return np.where(np.isneginf(best), np.inf, own - best)


def _more_rows(link: TableLink, free: IntArray, partner: IntArray, chance: FloatArray, ratios: FloatArray) -> TableLink:
    """Return a link whose table has more rows: they share the probability that "nobody" had."""
    partners, alone = distribution(link)
    first, nobody = partners.shape[1], alone[free]
    chance = chance * nobody[:, None]
    taken = np.flatnonzero(partner >= 0)
    permutation, probability, margin = link.permutation.copy(), link.probability.copy(), link.margin.copy()
    permutation[free[taken]] = first + partner[taken]
    probability[free] = np.maximum(nobody - chance.sum(axis=1), 0.0)
    probability[free[taken]] = chance[taken, partner[taken]]
    margin[free] = _margins(partner, ratios)
    more = np.zeros((len(permutation), chance.shape[1]))
    more[free] = chance
    alone[free] = np.maximum(nobody - chance.sum(axis=1), 0.0)
    return replace(
        link,
        permutation=permutation,
        probability=probability,
        margin=margin,
        coupling=_beside(partners, more),
        alone=alone,
    )


def _more_reference_rows(
    link: TableLink, free: IntArray, partner: IntArray, chance: FloatArray, ratios: FloatArray
) -> TableLink:
    """Return a link whose reference has more rows."""
    matched = partner >= 0
    partners, alone = distribution(link)
    nobody = np.maximum(1.0 - chance.sum(axis=1), 0.0)
    stated = nobody.copy()
    stated[matched] = chance[matched, partner[matched]]
    places = np.where(matched, free[np.maximum(partner, 0)] if len(free) else -1, -1)
    more = np.zeros((len(partner), partners.shape[1]))
    more[:, free] = chance
    return replace(
        link,
        permutation=np.concatenate([link.permutation, places]),
        probability=np.concatenate([link.probability, stated]),
        margin=np.concatenate([link.margin, _margins(partner, ratios)]),
        coupling=_below(partners, more),
        alone=np.concatenate([alone, nobody]),
    )


def _beside(coupling: Any, more: FloatArray) -> Any:
    if is_sparse(coupling):
        return sparse.csr_array(sparse.hstack([coupling, sparse.csr_array(more)]))
    return np.hstack([coupling, more])


def _below(coupling: Any, more: FloatArray) -> Any:
    if is_sparse(coupling):
        return sparse.csr_array(sparse.vstack([coupling, sparse.csr_array(more)]))
    return np.vstack([coupling, more])
