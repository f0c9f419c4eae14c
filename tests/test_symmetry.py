"""Mirror images: clouds that have one by construction, and clouds that have none."""

import numpy as np
import pytest

from keyless.engine.symmetry import mirrored_share

GRADED = np.array([0.05, 0.1, 0.2, 0.35])
"""Noise that differs from factor to factor, so that the canonical directions are the factors."""


def seen(rng, latent, *, noise=0.05):
    """Factors of partners: the same rows, seen twice."""
    return tuple(latent + noise * rng.normal(size=latent.shape) for _ in range(2))


def skewed(rng, rows, rank=4):
    return rng.exponential(size=(rows, rank)) - 1


def mirrored(rng, signs, rows=60):
    half = skewed(rng, rows, len(signs)) + 0.3
    return np.vstack([half, half * signs])


@pytest.mark.parametrize(
    ("signs", "noise"),
    [((-1, -1, -1, -1), 0.05), ((-1, -1, -1, -1), GRADED), ((-1, 1, 1, 1), GRADED), ((1, 1, -1, 1), GRADED)],
)
def test_rows_and_their_mirror_images_fit_as_well_turned_around(rng, signs, noise):
    share = mirrored_share(*seen(rng, mirrored(rng, np.array(signs)), noise=noise))
    assert 0.93 < share < 1.07


@pytest.mark.parametrize("spokes", [3, 4])
def test_a_wheel_fits_as_well_turned_by_one_spoke(rng, spokes):
    one = np.column_stack([skewed(rng, 40, 2) + np.array([2.0, 0.0]), 0.3 * skewed(rng, 40, 2)])
    parts = []
    for k in range(spokes):
        cosine, sine = np.cos(2 * np.pi * k / spokes), np.sin(2 * np.pi * k / spokes)
        turned = one.copy()
        turned[:, :2] = one[:, :2] @ [[cosine, -sine], [sine, cosine]]
        parts.append(turned)
    assert 0.93 < mirrored_share(*seen(rng, np.vstack(parts))) < 1.07


@pytest.mark.parametrize("rows", [80, 150, 400])
def test_skewed_rows_have_no_mirror_image(rng, rows):
    assert mirrored_share(*seen(rng, skewed(rng, rows))) < 0.85


def test_an_image_that_must_not_be_matched_does_not_count(rng):
    latent = mirrored(rng, np.array([-1, 1, 1, 1]))
    side = np.repeat([0, 1], 60)
    left, right = seen(rng, latent, noise=GRADED)
    assert mirrored_share(left, right, allowed=side[:, None] == side) < 0.85
    assert mirrored_share(left, right, allowed=np.ones((120, 120), dtype=bool)) > 0.93


def test_a_known_row_rules_out_images_that_move_it(rng):
    latent = mirrored(rng, np.array([-1, 1, 1, 1]))
    far, near = int(np.argmax(latent[:60, 0])), int(np.argmax(latent[:60, 1:].sum(axis=1)))
    # The other row lies on the mirror plane: it is its own image, and says nothing.
    latent[near, 0] = 0.0
    left, right = seen(rng, np.delete(latent, near + 60, axis=0), noise=GRADED)
    assert mirrored_share(left, right, known=np.array([near])) > 0.9
    assert mirrored_share(left, right, known=np.array([far])) < 0.85
    assert mirrored_share(left, right, known=np.array([near, far])) < 0.85


def test_the_order_of_rows_does_not_matter(rng):
    left, right = seen(rng, skewed(rng, 120))
    order = rng.permutation(120)
    np.testing.assert_allclose(mirrored_share(left[order], right[order]), mirrored_share(left, right), rtol=0.02)


def test_rows_without_any_relation_are_no_better_than_their_images(rng):
    assert mirrored_share(rng.normal(size=(100, 3)), rng.normal(size=(100, 3))) > 0.7
