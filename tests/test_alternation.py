"""Couplings and maps in turn: couplings against scalings in logs, stacks against single ones, the truth found."""

import numpy as np
import pytest
from scipy.special import logsumexp

from keyless.maps.alternation import Alternation
from keyless.maps.canonical import CanonicalModel
from keyless.model.factors import whitened


def random_rotation(rng, rank):
    return np.linalg.qr(rng.normal(size=(rank, rank)))[0]


def two_clouds(rng, sizes, common, *, rank=4, noise=0.3):
    """Whitened factors of two tables that share `common` entities, and the right row of each left row, −1 for none."""
    shared = np.arange(common)
    own = np.arange(common, sizes[0]), np.arange(sizes[0], sizes[0] + sizes[1] - common)
    entities = [rng.permutation(np.concatenate([shared, rest])) for rest in own]
    latent = rng.exponential(size=(sum(sizes), rank)) - 1
    left, right = (
        whitened(latent[each] @ random_rotation(rng, rank) + noise * rng.normal(size=(len(each), rank)))
        for each in entities
    )
    place = {int(entity): j for j, entity in enumerate(entities[1])}
    truth = np.array([place.get(int(entity), -1) for entity in entities[0]])
    return left.astype(np.float32), right.astype(np.float32), truth


def noisy_truth(rng, truth, columns, *, share=0.5):
    """A coupling with the true partner for a share of the rows, and a random row for all others."""
    coupling = np.full((len(truth), columns), 0.2 / columns, dtype=np.float32)
    right = (rng.random(len(truth)) < share) & (truth >= 0)
    partner = np.where(right, truth, rng.integers(0, columns, len(truth)))
    coupling[np.arange(len(truth)), partner] += 0.8
    return coupling


def mild_model(size=4, correlations=(0.9, 0.8, 0.6, 0.3)):
    return CanonicalModel(np.zeros(size), np.zeros(size), np.eye(size), np.eye(size), np.array(correlations))


@pytest.mark.parametrize("sizes", [(40, 40), (50, 30), (24, 60)])
def test_couplings_have_the_masses_asked_for(rng, sizes):
    left, right, _ = two_clouds(rng, sizes, 20)
    alternation = Alternation(left, right)
    smaller = min(sizes)
    stacked = np.full((2, *sizes), smaller / sizes[0] / sizes[1], dtype=np.float32)
    grown = alternation.grow(stacked, first=2, last=4, steps=3)
    for coupling in (alternation.coupled(mild_model()), *grown, *alternation.climb(stacked, [2, 4])):
        assert coupling.shape == sizes
        assert coupling.min() >= 0
        np.testing.assert_allclose(coupling.sum(axis=0), smaller / sizes[1], rtol=1e-3)
        assert np.abs(coupling.sum(axis=1) - smaller / sizes[0]).sum() < 0.06 * smaller


def test_rows_have_the_masses_that_are_given(rng):
    left, right, _ = two_clouds(rng, (30, 20), 15)
    masses = rng.uniform(0.2, 1.0, 30).astype(np.float32), rng.uniform(0.5, 1.0, 20).astype(np.float32)
    masses = masses[0] / masses[0].sum() * 12, masses[1] / masses[1].sum() * 12
    coupling = Alternation(left, right, masses=masses).coupled(mild_model())
    np.testing.assert_allclose(coupling.sum(axis=0), masses[1], rtol=1e-3)
    # Scaling stops where columns are off by a twentieth of the weight; rows are then off by as much at the most.
    assert np.abs(coupling.sum(axis=1) - masses[0]).sum() < 0.05 * 12


def scaled_in_logs(ratios, masses, *, steps=1500):
    """argmax Σ P·(ratio − log P) with the given masses, in double precision."""
    f, g = np.zeros(ratios.shape[0]), np.zeros(ratios.shape[1])
    for _ in range(steps):
        f = np.log(masses[0]) - logsumexp(ratios + g, axis=1)
        g = np.log(masses[1]) - logsumexp(ratios + f[:, None], axis=0)
    return np.exp(ratios + f[:, None] + g)


@pytest.mark.parametrize("sizes", [(30, 30), (25, 40)])
def test_scaling_settles_at_the_best_coupling(rng, sizes):
    left, right, _ = two_clouds(rng, sizes, 20)
    mask = rng.random(sizes) < 0.8
    alternation, model = Alternation(left, right, allowed=mask), mild_model()
    smaller = min(sizes)
    masses = np.full(sizes[0], smaller / sizes[0]), np.full(sizes[1], smaller / sizes[1])
    ratios = np.where(mask, model.log_ratios(left.astype(float), right.astype(float)), -np.inf)
    expected = scaled_in_logs(ratios, masses)
    # Each call goes on where the last one ended.
    weight = (model.correlations / (1 - model.correlations**2)).astype(np.float32)
    queries = (model.left(alternation.left) * weight)[None]
    kernels, potentials = (
        np.empty((1, *alternation.left.shape[:2], sizes[1]), dtype=np.float32),
        np.zeros((1, sizes[1])),
    )
    for _ in range(40):
        alternation._scale(kernels, queries, model.right(alternation.right), potentials)
    np.testing.assert_allclose(alternation.folds.unfolded(kernels[0]), expected, atol=2e-3)
    # A single call stops where columns are off by a twentieth of the weight.
    assert np.abs(alternation.coupled(model) - expected).sum() < 0.1 * smaller


def test_a_map_without_correlations_couples_all_rows_alike(rng):
    left, right, _ = two_clouds(rng, (30, 30), 20)
    coupling = Alternation(left, right).coupled(mild_model(correlations=(0.0, 0.0, 0.0, 0.0)))
    np.testing.assert_allclose(coupling, 1 / 30, rtol=1e-4)


@pytest.mark.parametrize("sizes", [(37, 37), (40, 28)])
def test_couplings_of_a_stack_are_those_of_each_by_itself(rng, sizes):
    left, right, truth = two_clouds(rng, sizes, 28)
    alternation = Alternation(left, right, allowed=rng.random(sizes) < 0.9)
    starts = np.stack([noisy_truth(rng, truth, sizes[1], share=share) for share in (0.2, 0.5, 0.8)])
    for work in (
        lambda couplings: alternation.climb(couplings, [2, 4, 4]),
        lambda couplings: alternation.grow(couplings, first=2, last=4, steps=6),
    ):
        together, alone = work(starts), np.concatenate([work(start[None]) for start in starts])
        np.testing.assert_array_equal(together, alone)


@pytest.mark.parametrize("sizes", [(150, 150), (160, 130), (130, 170)])
def test_a_climb_finds_the_truth_from_a_noisy_coupling(rng, sizes):
    left, right, truth = two_clouds(rng, sizes, min(sizes), rank=6, noise=0.1)
    start = noisy_truth(rng, truth, sizes[1], share=0.6)
    found = Alternation(left, right).climb(start[None], [6] * 10)[0]
    matched = truth >= 0
    assert np.mean(start.argmax(axis=1)[matched] == truth[matched]) < 0.7
    assert np.mean(found.argmax(axis=1)[matched] == truth[matched]) > 0.9


def test_growth_finds_the_truth_from_a_noisy_coupling(rng):
    left, right, truth = two_clouds(rng, (90, 90), 90, rank=6, noise=0.1)
    coupling = Alternation(left, right).grow(noisy_truth(rng, truth, 90)[None], first=4, last=6, steps=15)[0]
    assert np.mean(coupling.argmax(axis=1) == truth) > 0.9
    np.testing.assert_allclose(coupling.sum(axis=0), 1, rtol=1e-3)


def test_the_order_of_rows_does_not_matter(rng):
    left, right, truth = two_clouds(rng, (60, 50), 45)
    rows, columns = rng.permutation(60), rng.permutation(50)
    start = noisy_truth(rng, truth, 50, share=0.8)
    one = Alternation(left, right).climb(start[None], [3, 4, 4])[0]
    two = Alternation(left[rows], right[columns]).climb(start[None][:, rows][:, :, columns], [3, 4, 4])[0]
    np.testing.assert_allclose(two, one[np.ix_(rows, columns)], atol=5e-3)


def test_rows_that_may_match_nobody_are_coupled_to_nobody(rng):
    left, right, _ = two_clouds(rng, (20, 25), 20)
    mask = np.ones((20, 25), dtype=bool)
    mask[7], mask[:, 3] = False, False
    start = mask.astype(np.float32) / 25 + np.eye(20, 25, dtype=np.float32) * mask
    alternation = Alternation(left, right, allowed=mask)
    for coupling in (
        alternation.climb(start[None], [4, 4])[0],
        alternation.grow(start[None], first=2, last=4, steps=4)[0],
        alternation.coupled(mild_model()),
    ):
        assert np.isfinite(coupling).all()
        np.testing.assert_array_equal(coupling[~mask], 0.0)
        assert np.flatnonzero(coupling.sum(axis=1) == 0).tolist() == [7]


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_tables_of_fewer_rows_than_folds(rng, rows):
    left, right = (rng.normal(size=(count, 2)).astype(np.float32) for count in (rows, 5))
    alternation = Alternation(left, right)
    coupling = alternation.climb(np.full((1, rows, 5), 0.2, dtype=np.float32), [1, 2])[0]
    np.testing.assert_allclose(coupling.sum(axis=0), rows / 5, rtol=1e-3)
    np.testing.assert_array_equal(alternation.factors[0], left)
