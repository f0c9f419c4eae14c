"""Comparisons with chance among all rows, where halves of them are too small to tell."""

import numpy as np
import pytest

from keyless.engine.crossing import _CLEAR_OF_ALL_ROWS, _exchanged, _unchanged, crossings
from keyless.engine.forms import Form, View, searched_views
from keyless.engine.refine import Refinement
from keyless.engine.search import Search
from keyless.engine.side import Side
from keyless.engine.task import Task
from keyless.pairs.limits import Limits

ROWS = 140


def tables(seed):
    """Return two tables of 140 entities, each with three traits of its own beside six common ones."""
    rng = np.random.default_rng(seed)
    traits = rng.standard_t(4, size=(ROWS, 6)) / np.sqrt(2)
    made = []
    for columns in (18, 14):
        seen = np.hstack([traits + 0.15 * rng.normal(size=traits.shape), rng.normal(size=(ROWS, 3))])
        made.append(seen @ rng.normal(size=(9, columns)) + 0.05 * rng.normal(size=(ROWS, columns)))
    return made


def linked(left, right, pairs=None):
    """Return a link of two tables and its matches: of these pairs, or those that a search finds."""
    sides = Side(left), Side(right)
    factors = [side.factors() for side in sides]
    shape = len(left), len(right)
    if pairs is None:
        matching = Search([View(sides[0].scales, *factors)], Limits(shape)).run().matching
    else:
        # Sides have their rows in an order of their own.
        coupling = np.zeros(shape)
        coupling[np.argsort(sides[0].order)[pairs[:, 0]], np.argsort(sides[1].order)[pairs[:, 1]]] = 1.0
        rows = [side.compact for side in factors]
        matching = Refinement(*rows, limits=Limits(shape)).run(coupling, rounds=10, common=float(len(pairs)))
    views = searched_views(*sides)
    return Form(sides[0].scales, *factors, matching, searched=views), matching.coupling.argmax(axis=1)


def distinct(permutation):
    """Return matches of which each right row is in one only."""
    kept = np.full(len(permutation), -1)
    _, first = np.unique(permutation, return_index=True)
    kept[first] = permutation[first]
    return kept


@pytest.mark.slow
def test_partners_stand_out_among_all_rows_and_other_entities_do_not():
    left, right = tables(0)
    same = np.column_stack([np.arange(ROWS), np.arange(ROWS)])
    form, permutation = linked(left, right, same)
    found = _exchanged(form, distinct(permutation), np.random.default_rng(0), ())
    assert found.above_chance > _CLEAR_OF_ALL_ROWS
    half = ROWS // 2
    form, permutation = linked(left[:half], right[half:])
    found = _exchanged(form, distinct(permutation), np.random.default_rng(0), ())
    assert found.above_chance < _CLEAR_OF_ALL_ROWS


def test_chance_matches_nobody_within_its_own_half():
    """Tables without noise: partners stand out fully among the 30 rows of a half, and rows of the other half do not."""
    traits = np.random.default_rng(2).normal(size=(60, 3))
    form, permutation = linked(
        traits @ [[1, 2, 0, 1], [0, 1, 3, 1], [1, 0, 1, 2]], traits, np.stack([range(60)] * 2, 1)
    )
    found = _exchanged(form, distinct(permutation), np.random.default_rng(0), ())
    assert found.same == pytest.approx(np.log(30), abs=0.01)
    assert found.chance < found.same - 1


def test_a_single_factor_is_not_told_from_itself_in_another_order():
    rng = np.random.default_rng(3)
    left, right = rng.normal(size=(20, 1)), rng.normal(size=(20, 1))
    form, permutation = linked(left, right)
    assert next(_unchanged(form)).excess == 0
    for found in crossings(form, distinct(permutation), Task(comparisons=2)):
        assert found.excess == 0
        assert not found.halved
