"""Where new rows belong: to one of the entities that are known, or to none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from keyless.answers.candidates import ranked
from keyless.arrays import FloatArray, IntArray, check_count
from keyless.errors import InputError, check_among
from keyless.pairs.likelihood import exact_log_ratio
from keyless.pairs.placing import likeliest
from keyless.table_link import LinkedTables
from keyless.tables import Reading, Table, read_like

__all__ = ["new_rows", "place"]


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
    labels = links.tables[0].row_ids
    known = [None if place < 0 else labels[place] for place in places.tolist()]
    whole = all(isinstance(label, int) and not isinstance(label, bool) for label in labels)
    return pd.DataFrame(
        {
            "row": [fresh.row_ids[i] for i in row.tolist()],
            "reference_id": pd.array(known, dtype="Int64") if whole else pd.Series(known, dtype=object),
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
