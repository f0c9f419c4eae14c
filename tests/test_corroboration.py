"""What directions of a map say about partners that the other directions chose."""

import numpy as np
import pytest

from keyless.engine.corroboration import corroboration
from keyless.engine.crossing import _CLEAR_WITH_DIRECTIONS
from keyless.engine.forms import View
from keyless.engine.refine import Refinement, smoothed
from keyless.engine.search import Search
from keyless.maps.canonical import information
from keyless.model.factors import Factors, whitened
from keyless.pairs.limits import Limits

ROWS = 160


def factors(rng, *, directions, noise, related=True):
    """Whitened factors of two tables; row i of one is row i of the other, or no row at all."""
    latent = rng.normal(size=(ROWS, directions))
    other = latent if related else rng.normal(size=latent.shape)
    return [whitened(side + noise * rng.normal(size=latent.shape)) for side in (latent, other)]


def fitted(left, right, rounds=1):
    """A map fitted to row i with row i, matched under it once, or in turn with further fits."""
    return Refinement(left, right, limits=Limits((ROWS, ROWS))).run(np.eye(ROWS), rounds=rounds, common=float(ROWS))


def borne_out(matching, left, right):
    return corroboration(matching.fit, matching.folds, matching.common, left, right)


def correlations_of_partners(matching, left, right):
    """Correlation of row i with row i along each direction, one pair after the other."""
    found = []
    for number in range(len(matching.fit.whole.correlations)):
        x, y = np.empty(ROWS), np.empty(ROWS)
        for row, fold in enumerate(matching.folds):
            model = matching.fit.models[fold]
            strongest = np.argsort(-model.correlations, kind="stable")[number]
            x[row] = model.left(left[[row]])[0, strongest]
            y[row] = model.right(right[[row]])[0, strongest]
        found.append(np.corrcoef(np.clip(x, -3, 3), np.clip(y, -3, 3))[0, 1])
    return np.array(found)


def test_partners_that_any_directions_tell_show_their_own_correlations(rng):
    left, right = factors(rng, directions=16, noise=0.2)
    matching = fitted(left, right)
    expected = information(np.clip(correlations_of_partners(matching, left, right), 0.0, 0.99))
    np.testing.assert_allclose(borne_out(matching, left, right), expected, rtol=0.02)


def test_a_single_direction_has_nobody_to_bear_it_out(rng):
    left, right = factors(rng, directions=1, noise=0.1)
    matching = fitted(left, right)
    assert matching.information > 1
    np.testing.assert_allclose(borne_out(matching, left, right), 0.0, atol=0.01)


def test_strangers_stand_out_but_are_not_borne_out(rng):
    """A search finds a partner for everybody, related or not; chosen by the other directions, strangers are far off."""
    related, strangers = (factors(rng, directions=12, noise=0.5, related=each) for each in (True, False))
    limits = Limits((ROWS, ROWS))
    (left, right), (_, other_right) = ([Factors(side, np.ones(12)) for side in each] for each in (related, strangers))
    # Pairs that are known end as those of a search do.
    own = smoothed(fitted(*related, rounds=10), [(left, right)], limits=limits, by_map=(left.compact, right.compact))
    view = View("identity", Factors(strangers[0], np.ones(12)), other_right)
    other = Search([view], limits, generations=2).run().matching
    assert own.identification > other.identification > 0.6 * own.identification
    # So many nats above chance are asked for where directions are compared: they would do even if nothing else told.
    assert np.log(borne_out(own, *related) / borne_out(other, *strangers)) > _CLEAR_WITH_DIRECTIONS


@pytest.mark.parametrize("side", [0, 1])
def test_neither_signs_nor_the_order_of_rows_matter(rng, side):
    tables = factors(rng, directions=6, noise=0.4)
    expected = borne_out(fitted(*tables), *tables)
    turned = [each.copy() for each in tables]
    turned[side] *= [1, -1, 1, -1, -1, 1]
    if side:
        # The folds are made by the left rows; the right ones may come in any order.
        order = rng.permutation(ROWS)
        matching = Refinement(turned[0], turned[1][order], limits=Limits((ROWS, ROWS))).run(
            np.eye(ROWS)[:, order], rounds=1, common=float(ROWS)
        )
        found = borne_out(matching, turned[0], turned[1][order])
    else:
        found = borne_out(fitted(*turned), *turned)
    np.testing.assert_allclose(found, expected, rtol=0.05)
