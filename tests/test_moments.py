"""Factor models from sums over rows: against the same steps taken row by row."""

from itertools import pairwise

import numpy as np
import pytest

from keyless.model import factor_model
from keyless.model.factor_model import model_from_directions
from keyless.model.moments import Moments, fit_moments


def table(rng, rows=300, *, rank=3, columns=12, noise=0.3):
    values = rng.normal(size=(rows, rank)) @ rng.normal(size=(rank, columns))
    values += noise * rng.normal(size=values.shape)
    return (values - values.mean(axis=0)) / values.std(axis=0)


def row_by_row(values, *, rank, max_iter, tolerance, prune=True):
    """`factor_model.fit` from the start that `fit_moments` takes, made from the rows themselves."""
    second = values.T @ values / len(values)
    size, vectors = np.linalg.eigh(second)
    directions = (vectors[:, ::-1] * np.sqrt(np.maximum(size[::-1], 0.0)))[:, :rank]
    start = model_from_directions(directions, noise=0.03)
    mask = np.ones(values.shape, dtype=bool)
    return factor_model.fit(values, mask, start, max_iter=max_iter, tolerance=tolerance, prune=prune)[0]


def product(model):
    """What of the loadings does not depend on how the factors are turned."""
    return model.loadings @ model.loadings.T


@pytest.mark.parametrize("observed", [1.0, 0.7])
def test_sums_of_parts_add_up_to_those_of_the_whole(rng, observed):
    values = table(rng)
    mask = rng.random(values.shape) < observed
    values = np.where(mask, values, 0.0)
    edges = [0, 1, 90, 300]
    parts = [slice(a, b) for a, b in pairwise(edges)]
    total = Moments.of(values[parts[0]], mask[parts[0]])
    for part in parts[1:]:
        total = total + Moments.of(values[part], mask[part])
    whole = Moments.of(values, mask)
    for name in ("count", "total", "products", "mean", "second"):
        np.testing.assert_allclose(getattr(total, name), getattr(whole, name), rtol=1e-12, atol=1e-12)


def test_sums_are_what_they_say(rng):
    values = table(rng, 40, columns=4)
    mask = rng.random(values.shape) < 0.6
    values = np.where(mask, values, 0.0)
    found = Moments.of(values, mask)
    for k in range(4):
        for other in range(4):
            both = mask[:, k] & mask[:, other]
            assert found.count[k, other] == both.sum()
            np.testing.assert_allclose(found.total[k, other], values[both, k].sum(), atol=1e-12)
            np.testing.assert_allclose(found.products[k, other], (values[both, k] * values[both, other]).sum())
        np.testing.assert_allclose(found.mean[k], values[mask[:, k], k].mean())


@pytest.mark.parametrize("steps", [1, 3, 40])
def test_each_step_is_that_of_the_rows(rng, steps):
    """Offsets too: the columns are moved off their centre."""
    values = table(rng) + rng.normal(size=12) * 0.1
    moments = Moments.of(values, np.ones(values.shape, dtype=bool))
    found = fit_moments(moments, rank=6, max_iter=steps, tolerance=0.0)
    expected = row_by_row(values, rank=6, max_iter=steps, tolerance=0.0)
    assert found.rank == expected.rank
    np.testing.assert_allclose(found.noise, expected.noise, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(found.offsets, expected.offsets, atol=1e-8)
    np.testing.assert_allclose(product(found), product(expected), atol=1e-8)


def test_the_fit_ends_where_that_of_the_rows_does(rng):
    values = table(rng)
    moments = Moments.of(values, np.ones(values.shape, dtype=bool))
    found = fit_moments(moments, rank=6, tolerance=1e-7)
    expected = row_by_row(values, rank=6, max_iter=2_000, tolerance=1e-7)
    assert found.rank == expected.rank == 3
    np.testing.assert_allclose(found.noise, expected.noise, rtol=1e-4)
    np.testing.assert_allclose(product(found), product(expected), atol=1e-4)


def test_the_rank_is_found_in_a_wide_table(rng):
    values = table(rng, 4_000, rank=10, columns=60, noise=1.0)
    found = fit_moments(Moments.of(values, np.ones(values.shape, dtype=bool)), rank=40)
    assert found.rank == 10


def test_a_table_with_gaps_gives_a_usable_start(rng):
    """Near the model of the whole table, and a few steps of EM take it there."""
    values = table(rng, 3_000, columns=16)
    mask = rng.random(values.shape) < 0.6
    seen = np.where(mask, values, 0.0)
    truth = fit_moments(Moments.of(values, np.ones(values.shape, dtype=bool)), rank=8)
    start = fit_moments(Moments.of(seen, mask), rank=8, max_iter=200)
    assert np.all(np.isfinite(start.loadings))
    assert np.all(start.noise > 0)
    distance = np.linalg.norm(product(start) - product(truth)) / np.linalg.norm(product(truth))
    assert distance < 0.2
    settled = factor_model.fit(seen, mask, start, max_iter=20)[0]
    assert np.linalg.norm(product(settled) - product(truth)) < 0.05 * np.linalg.norm(product(truth))


@pytest.mark.parametrize("columns", [1, 2])
def test_few_or_constant_columns_have_a_model_too(rng, columns):
    values = np.column_stack([table(rng, columns=columns, rank=1), np.zeros(300)])
    found = fit_moments(Moments.of(values, np.ones(values.shape, dtype=bool)), rank=40)
    assert found.rank == 1
    assert np.all(np.isfinite(found.loadings))
    assert abs(found.loadings[-1, 0]) < 1e-3
