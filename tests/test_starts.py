from __future__ import annotations

import numpy as np
import pytest

from keyless.alignment.starts import (
    SIGNATURE_KINDS,
    annealed_procrustes,
    first_couplings,
    signature_cost,
    signatures,
)
from keyless.model.factors import principal_factors


def rotation(rng, size):
    return np.linalg.qr(rng.normal(size=(size, size)))[0]


@pytest.fixture
def points(rng):
    return rng.exponential(size=(90, 4)) - 1


def true_share(coupling, truth):
    """How much of their weight rows put on their true partner, on average."""
    return float(np.mean(coupling[np.arange(len(truth)), truth]))


@pytest.mark.parametrize("kind", SIGNATURE_KINDS)
def test_signatures_see_neither_rotation_nor_order(points, rng, kind):
    order = rng.permutation(90)
    before, after = signatures(points), signatures(points[order] @ rotation(rng, 4))
    np.testing.assert_allclose(after[kind], before[kind][order], atol=1e-6)


def test_there_is_a_signature_of_every_kind(points):
    assert set(signatures(points)) == set(SIGNATURE_KINDS)


@pytest.mark.parametrize("kind", SIGNATURE_KINDS)
def test_a_row_is_nearest_to_itself_by_every_kind(points, rng, kind):
    order = rng.permutation(90)
    cost = signature_cost(points, points[order] @ rotation(rng, 4), kinds=[kind])
    assert np.mean(order[np.argmin(cost, axis=1)] == np.arange(90)) > 0.95


def test_costs_of_kinds_add_up_on_one_scale(points, rng):
    other = rng.exponential(size=(90, 4)) - 1
    parts = [signature_cost(points, other, kinds=[kind]) for kind in SIGNATURE_KINDS]
    np.testing.assert_allclose([part.std() for part in parts], 1, atol=1e-6)
    np.testing.assert_allclose(signature_cost(points, other), sum(parts), atol=1e-9)


@pytest.mark.parametrize("rotate", [True, False])
def test_annealing_sharpens_a_vague_coupling(points, rng, rotate):
    order = rng.permutation(90)
    truth = np.argsort(order)
    other = (points[order] + 0.05 * rng.normal(size=(90, 4))) @ rotation(rng, 4)
    vague = np.full((90, 90), 0.95 / 89)
    vague[np.arange(90), truth] = 0.05
    sharp = annealed_procrustes(points, other, vague, rotate=rotate)
    assert true_share(sharp, truth) > 4 * 0.05
    assert np.mean(np.argsort(-sharp, axis=1)[:, :5] == truth[:, None]) * 5 > 0.8
    np.testing.assert_allclose(sharp.sum(axis=0), 1, atol=1e-6)


def test_first_couplings_know_more_than_chance(rng):
    latent = rng.exponential(size=(100, 5))
    order = rng.permutation(100)
    truth = np.argsort(order)
    one = principal_factors(latent @ rng.normal(size=(5, 30)) + 0.1 * rng.normal(size=(100, 30))).truncated(5)
    two = principal_factors((latent @ rng.normal(size=(5, 20)) + 0.1 * rng.normal(size=(100, 20)))[order]).truncated(5)
    found = dict(first_couplings(one, two))
    assert len(found) % 3 == 0
    assert len({name.split(",")[0] for name in found}) == 3
    for coupling in found.values():
        assert coupling.dtype == np.float32
        np.testing.assert_allclose(coupling.sum(axis=0), 1, atol=1e-3)
    shares = [true_share(coupling, truth) for coupling in found.values()]
    assert np.median(shares) > 0.05  # chance: 0.01
    assert max(shares) > 0.25


def test_spaces_that_coincide_are_used_once(rng):
    factors = principal_factors(rng.normal(size=(40, 2)))
    names = [name for name, _ in first_couplings(factors, factors, spaces=[(1.0, 5), (1.0, 9), (0.5, 3)])]
    assert len(names) == len(set(names)) == 6


def test_forbidden_pairs_get_nothing(rng):
    factors = principal_factors(rng.exponential(size=(40, 3)))
    allowed = rng.random((40, 40)) < 0.3
    for _, coupling in first_couplings(factors, factors, spaces=[(1.0, 3)], allowed=allowed):
        assert not coupling[~allowed].any()
        assert np.isfinite(coupling).all()


@pytest.mark.parametrize("n_rows", [1, 2, 3, 5])
def test_tiny_and_constant_tables(n_rows, rng):
    for table in (rng.normal(size=(n_rows, 2)), np.ones((n_rows, 2))):
        factors = principal_factors(table)
        for _, coupling in first_couplings(factors, factors):
            np.testing.assert_allclose(coupling.sum(axis=0), 1, atol=1e-2)
