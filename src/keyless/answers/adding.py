"""New rows of tables that are linked: where they belong, and links that know them, by the map that is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

import narwhals.stable.v2 as nw
import numpy as np
import pandas as pd
from scipy import sparse
from scipy.optimize import linear_sum_assignment

from keyless.answers.candidates import ranked
from keyless.answers.distributions import distribution
from keyless.answers.labels import ids
from keyless.arrays import FloatArray, IntArray, check_count
from keyless.block import Block
from keyless.errors import InputError, check_among
from keyless.knowledge import groups_of
from keyless.pairs.likelihood import FORBIDDEN, exact_log_ratio, pair_log_ratio
from keyless.pairs.placing import likeliest
from keyless.pairs.posterior import prior_log_odds, scaled
from keyless.table_link import LinkedTables, TableLink
from keyless.tables import Reading, Table, read_like
from keyless.tables.frames import taken
from keyless.tables.ids import row_numbers
from keyless.tables.matrices import is_anndata, is_sparse

__all__ = ["add", "new_rows", "place"]


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
    links: LinkedTables, tables: Sequence[Table], ratios: FloatArray, rows: IntArray, others: tuple[int, IntArray]
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
        coupling=_with_more(partners, more, axis=1),
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
        coupling=_with_more(partners, more, axis=0),
        alone=np.concatenate([alone, nobody]),
    )


def _with_more(coupling: Any, more: FloatArray, *, axis: int) -> Any:
    """Return a coupling with more rows (axis 0) or columns (axis 1)."""
    if not is_sparse(coupling):
        return np.concatenate([coupling, more], axis=axis)
    parts = [coupling, sparse.csr_array(more)]
    return sparse.csr_array(sparse.hstack(parts) if axis else sparse.vstack(parts))


# --- a table and more rows of it, as one table of the caller's kind ---------------------------------------------------


def extended(like: Table, read: Table, rows: Any) -> Table:
    """Return a table with more rows at its end.

    Args:
        like: the table.
        read: its new rows, as read.
        rows: the new rows, as the caller gave them.
    """
    if like.large_file is not None:
        raise InputError(
            f"{like.name}: must be held in memory to add rows to it; it is a large file that is read in parts. "
            "Link the tables again, with the new rows in the file."
        )
    ids = _ids(like, read)
    values = np.vstack([like.block.values, read.block.values])
    block = Block(values, np.vstack([like.block.mask, read.block.mask]), like.name, like.columns, ids)
    if like.form == "anndata":
        if not is_anndata(rows):
            raise InputError(f"rows: must be an AnnData, as {like.name} is; found {type(rows).__name__}.")
        given = set(rows.var_names)
        lacking = [one for one in like.native.var_names if one not in given]
        if lacking:
            raise InputError(f"rows: must have all variables of {like.name}; {lacking[0]!r} is not among them.")
        import anndata  # noqa: PLC0415 - an extra

        new = rows[:, list(like.native.var_names)]
        native = anndata.concat([like.native, new], join="outer", merge="first", uns_merge="first")
        return replace(like, block=block, native=native, matrix=native.X)
    if like.form in ("array", "sparse"):
        return replace(like, block=block, matrix=None if like.matrix is None else _stacked(like, rows))
    native = _frame(like, read)
    return replace(like, block=block, native=native)


def _ids(like: Table, read: Table) -> Sequence[Any]:
    """Return the labels of all rows; a new row must not have a label that the table has."""
    if like.id_column is None and not like.indexed:
        return row_numbers(like.block.shape[0] + read.block.shape[0])
    if like.id_column is not None and like.id_column not in _labels(read):
        raise InputError(f"rows: must have the column {like.id_column!r}, which names the rows of {like.name}.")
    known = set(like.row_ids)
    for label in read.row_ids:
        if label in known:
            raise InputError(
                f"rows: must be new rows of {like.name}, with ids of their own; it has a row {label!r} already."
            )
        known.add(label)
    return (*like.row_ids, *read.row_ids)


def _labels(read: Table) -> list[str]:
    return [str(label) for label in nw.from_native(read.native, eager_only=True).columns]


def _stacked(like: Table, rows: Any) -> Any:
    """Return the array or sparse matrix given with more rows; all its columns must be there."""
    new: Any = rows if is_sparse(rows) else np.asarray(rows)
    if new.shape[1] != like.matrix.shape[1]:
        raise InputError(f"rows: must have all {like.matrix.shape[1]} columns of {like.name}; found {new.shape[1]}.")
    if is_sparse(like.matrix):
        return type(like.matrix)(sparse.vstack([like.matrix, sparse.csr_array(new)], format=like.matrix.format))
    return np.vstack([like.matrix, new.toarray() if is_sparse(new) else new])


def _frame(like: Table, read: Table) -> Any:
    new = nw.from_native(read.native, eager_only=True)
    labels = {str(label): label for label in new.columns}
    count = len(new)
    old = like.native if isinstance(like.native, pd.DataFrame) else nw.from_native(like.native, eager_only=True)
    order = np.concatenate([np.arange(len(old)), np.full(count, -1)])
    columns = {}
    for label in like.all_columns:
        if str(label) not in labels:
            columns[label] = taken(old, label, order)
            continue
        entries = new.get_column(labels[str(label)])
        if isinstance(old, pd.DataFrame):
            columns[label] = _appended(old[label], entries.to_pandas(), like)
        else:
            more = nw.new_series("pool", entries.to_list(), old.schema[label], backend=old.implementation)
            column = old.get_column(label).alias("pool").to_frame()
            columns[label] = nw.concat([column, more.to_frame()], how="vertical").get_column("pool")
    if not isinstance(old, pd.DataFrame):
        return nw.from_dict(
            {str(label): column.to_native() for label, column in columns.items()}, backend=old.implementation
        ).to_native()
    made = pd.DataFrame(columns)
    made.columns = old.columns
    if like.indexed:
        more_labels = read.native.index if isinstance(read.native, pd.DataFrame) else pd.RangeIndex(count)
        made.index = old.index.append(more_labels).set_names(old.index.names)
    return made


def _appended(old: pd.Series, new: pd.Series, like: Table) -> pd.Series:
    """Return entries with more at the end, in their type wherever the new ones fit it."""
    if like.form == "cells":
        new = new.map(lambda entry: None if pd.isna(entry) else str(entry)).astype(object)
    elif isinstance(old.dtype, pd.CategoricalDtype):
        known = old.dtype.categories
        more = [level for level in new.dropna().unique() if level not in known]
        old = old.cat.add_categories(more) if more else old
        new = new.astype(object).astype(old.dtype)
    else:
        try:
            new = new.astype(old.dtype)
        except (TypeError, ValueError):
            new = new.astype(object) if old.dtype == object else new
    return pd.concat([old.reset_index(drop=True), new.reset_index(drop=True)], ignore_index=True)


def place(
    links: LinkedTables, rows: Any, *, table: str, candidates: int = 5, reading: Reading | None = None
) -> pd.DataFrame:
    """Place new rows of a known table among the reference's entities, or say that they are none of these.

    Args:
        links: the result.
        rows: a frame or file with columns of that table, or an array with its numbers (`Table.columns`). Columns
            that are not there count as missing; others are not looked at.
        table: name of the table.
        candidates: how many reference rows to return for each, at most.
        reading: how to read a file.

    Returns:
        One line per new row and candidate, the likeliest first: row, reference_id and probability. A line whose
        reference_id is missing stands for "nobody"; it is there for each row. Over all reference rows and "nobody"
        the probabilities sum to 1. Before its entries are looked at, a new row is as likely to have a partner as to
        have none.
    """
    number, _, fresh = new_rows(links, rows, table=table, reading=reading)
    count = check_count(candidates, name="candidates")
    best, chance = likeliest(links.model, *links._placed, number=number, fresh=fresh.block, count=count)
    nobody = _nobody(links, number, fresh, best[:, 0], chance[:, 0])
    partners = np.zeros((len(best), best.shape[1]))
    partners[:] = chance
    row, column, probability = ranked(partners, nobody, count)
    places = np.where(column < 0, -1, best[row, np.maximum(column, 0)])
    return pd.DataFrame(
        {
            "row": [fresh.row_ids[i] for i in row.tolist()],
            "reference_id": ids((links.tables[0], places), like=None),
            "probability": probability,
        }
    )


def new_rows(links: LinkedTables, rows: Any, *, table: str, reading: Reading | None) -> tuple[int, Table, Table]:
    """Return the number of a table, its new rows as read, and the same as they are linked.

    Args:
        links: the result.
        rows: a frame or file with columns of that table, or an array with its numbers.
        table: name of the table.
        reading: how to read a file.
    """
    check_among("table", table, [known.name for known in links.tables])
    number = links._number(table)
    like = links.tables[number]
    read = read_like(rows, like=like, reading=reading)
    if read.block.shape[1] != like.block.shape[1]:
        raise InputError(f"rows: must have {like.block.shape[1]} columns, as {table} has; found {read.block.shape[1]}.")
    return number, read, links._used(read, like=like)


def _nobody(links: LinkedTables, number: int, fresh: Table, best: IntArray, chance: FloatArray) -> FloatArray:
    """Return how likely each new row is no entity of the reference.

    With n reference rows, "nobody" has the weight n, and reference row j that of the likelihood ratio of the pair. The
    probability of the likeliest row is known; that of "nobody" follows from the ratio of their weights.
    """
    blocks, rows = links._placed
    nobody = np.empty(len(best))
    for part in links.model.parts(len(best)):
        some = np.arange(len(best))[part]
        new = links.model.information(number, fresh.block, rows=some)
        known = links.model.entity_information(blocks, [index[best[some]] for index in rows], without=number)
        pairs = np.arange(len(some))
        weight = np.log(len(rows[0])) - exact_log_ratio(new, known, pairs, pairs)
        nobody[some] = chance[some] * np.exp(np.minimum(weight, 700.0))
    return np.clip(nobody, 0.0, 1.0)
