"""Alignments of latents: laws of signatures and rotations, and the right correspondence found from nothing."""

import itertools

import numpy as np
import pytest

from keyless.maps.rotations import (
    alignments,
    anneal,
    best_alignment,
    kicked,
    procrustes,
    settle,
    signature_cost,
    signature_starts,
    signatures,
)
from keyless.model.factor_model import Information
from keyless.model.latents import Latents, whiten
from keyless.pairs.likelihood import couple


def random_rotation(rng, rank):
    return np.linalg.qr(rng.normal(size=(rank, rank)))[0]


def noisy_views(rng, rows, rank, *, noise=0.2):
    """Two tables' information about the same latents, the right one turned and shuffled; truth[i] = right row."""
    latents = rng.normal(size=(rows, rank))
    order = rng.permutation(rows)
    rotation = random_rotation(rng, rank)
    infos = []
    for seen in (latents, latents[order] @ rotation):
        shift = (seen + noise * rng.normal(size=seen.shape)) / noise**2
        infos.append(Information(np.broadcast_to(np.eye(rank) / noise**2, (rows, rank, rank)).copy(), shift))
    return infos[0], infos[1], np.argsort(order), rotation


@pytest.mark.parametrize("kind", ["product", "distance", "cosine"])
def test_signatures_ignore_rotation_and_the_order_of_rows(rng, kind):
    factors = rng.normal(size=(30, 4))
    order = rng.permutation(30)
    moved = factors[order] @ random_rotation(rng, 4)
    found = signatures(moved, np.arange(30), kind=kind)
    np.testing.assert_allclose(found, signatures(factors, order, kind=kind), atol=1e-7)
    cost = signature_cost(factors, moved, kind=kind)
    np.testing.assert_array_equal(order[cost.argmin(axis=1)], np.arange(30))


def test_signatures_are_quantiles():
    factors = np.arange(1.0, 9.0)[:, None]
    np.testing.assert_allclose(signatures(factors, np.array([1]), size=8), [2 * np.arange(1.0, 9.0)])
    np.testing.assert_allclose(signatures(factors, np.array([0]), size=4), [[1.5, 3.5, 5.5, 7.5]])


def test_white_latents_have_unit_spread_and_empty_directions_stay_empty(rng):
    factors = rng.normal(size=(50, 3)) @ rng.normal(size=(3, 3))
    white = whiten(np.pad(factors, ((0, 0), (0, 1))))
    np.testing.assert_allclose(white.T @ white / 50, np.diag([1.0, 1.0, 1.0, 0.0]), atol=1e-9)
    np.testing.assert_array_equal(whiten(np.zeros((5, 2))), 0.0)


def test_procrustes_finds_the_rotation(rng):
    left = rng.normal(size=(20, 3))
    rotation = random_rotation(rng, 3)
    order = rng.permutation(20)
    np.testing.assert_allclose(procrustes(left, left[order] @ rotation.T, np.eye(20)[order].T), rotation, atol=1e-10)


def test_annealing_reaches_the_rotation_from_a_poor_coupling(rng):
    left = whiten(rng.laplace(size=(80, 4)))
    rotation = random_rotation(rng, 4)
    order = rng.permutation(80)
    poor = 0.3 * np.eye(80)[order].T + 0.7 / 80
    np.testing.assert_allclose(anneal(left, left[order] @ rotation.T, poor), rotation, atol=1e-2)


@pytest.mark.parametrize(("rows", "rank"), [(60, 2), (100, 5), (150, 8)])
def test_the_right_rows_are_found_and_score_what_is_expected(rng, rows, rank):
    left, right, truth, rotation = noisy_views(rng, rows, rank, noise=0.05)
    found = max(itertools.islice(alignments(*map(Latents.of, (left, right))), 4), key=lambda item: item.score)
    assert np.mean(found.coupling.argmax(axis=1) == truth) > (0.8 if rank == 2 else 0.99)
    np.testing.assert_allclose(right.shift @ found.rotation, right.shift @ rotation.T, atol=0.2 * right.shift.std())
    # What rows of both tables say about their latents, by the precisions alone.
    alone = [0.5 * np.linalg.slogdet(np.eye(rank) + side.precision[0])[1] for side in (left, right)]
    both = 0.5 * np.linalg.slogdet(np.eye(rank) + left.precision[0] + right.precision[0])[1]
    expected = sum(alone) - both
    assert 0.85 * expected < found.score < 1.15 * expected


def test_a_wrong_rotation_scores_far_less(rng):
    left, right, _, rotation = noisy_views(rng, 80, 4)
    first, second = Latents.of(left), Latents.of(right)
    good = settle(first, second, rotation.T)
    flipped = rotation.T @ np.diag([-1.0, 1, 1, 1])
    bad = settle(first, second, flipped, temperatures=(1.0,))
    assert bad.score < 0.7 * good.score


def test_kicks_are_rotations_and_lead_out_of_a_local_optimum(rng):
    left, right, truth, rotation = noisy_views(rng, 100, 4, noise=0.1)
    first, second = Latents.of(left), Latents.of(right)

    def reached(start):
        coupling = couple(2 * first.white @ (second.white @ start).T, temperature=3.0)
        turned = anneal(first.white, second.white, coupling, warmest=3.0, steps=30, damped=False)
        return settle(first, second, turned)

    wrong = reached(rotation.T @ np.diag([-1.0, 1, 1, 1]))
    assert np.mean(wrong.coupling.argmax(axis=1) == truth) < 0.5
    moves = kicked(first, second, wrong)
    assert len(moves) == 4 + 2 * 3
    for move in moves:
        np.testing.assert_allclose(move @ move.T, np.eye(4), atol=1e-10)
    best = max(map(reached, moves), key=lambda item: item.score)
    assert np.mean(best.coupling.argmax(axis=1) == truth) > 0.9


def test_kicks_lead_to_a_better_alignment(rng):
    """Of some tables the starts find a turned or reflected place only; the neighbours of that are better."""
    gained = []
    for _ in range(12):
        left, right, _, _ = noisy_views(rng, 40, 3, noise=0.5)
        plain, better = best_alignment(left, right), best_alignment(left, right, kicks=3)
        assert better.score >= plain.score
        gained.append(better.score - plain.score)
    assert max(gained) > 0.1


def test_the_farthest_rows_are_those_farthest_out(rng):
    info = Information(np.broadcast_to(np.eye(2), (20, 2, 2)), rng.normal(size=(20, 2)))
    latents = Latents.of(info)
    norm = (latents.white**2).sum(axis=1)
    rows = latents.farthest(5)
    assert len(rows) == 5
    assert norm[rows].min() >= np.sort(norm)[-5]
    np.testing.assert_array_equal(latents.farthest(50), np.arange(20))


def test_the_farthest_rows_suffice(rng):
    left, right, truth, _ = noisy_views(rng, 150, 4, noise=0.1)
    found = max(
        itertools.islice(alignments(*map(Latents.of, (left, right)), farthest=60), 4), key=lambda item: item.score
    )
    assert found.coupling.shape == (150, 150)
    assert np.mean(found.coupling.argmax(axis=1) == truth) > 0.95


def test_forbidden_pairs_carry_no_mass_at_any_step(rng):
    left, right, truth, _ = noisy_views(rng, 40, 3)
    groups = np.arange(40) % 4
    right_groups = np.empty(40, dtype=int)
    right_groups[truth] = groups
    allowed = groups[:, None] == right_groups[None, :]
    first, second = Latents.of(left), Latents.of(right)
    every = np.arange(40)
    for _, coupling in signature_starts(first, second, left_rows=every, right_rows=every, allowed=allowed):
        assert coupling[~allowed].max() < 1e-12
    for found in itertools.islice(alignments(first, second, allowed=allowed), 12):
        assert found.coupling[~allowed].max() < 1e-12


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_few_rows_and_unequal_sizes_are_no_trouble(rng, rows):
    left, _, _, _ = noisy_views(rng, rows, 2)
    right, _, _, _ = noisy_views(rng, rows + 2, 2)
    for found in alignments(*map(Latents.of, (left, right))):
        assert np.isfinite(found.score)
        assert found.coupling.shape == (rows, rows + 2)


def test_rows_that_say_nothing_are_no_trouble():
    empty = Information(np.zeros((4, 2, 2)), np.zeros((4, 2)))
    found = best_alignment(empty, empty)
    np.testing.assert_allclose(found.coupling, 0.25, atol=1e-6)
    assert found.score == pytest.approx(0.0, abs=1e-9)
