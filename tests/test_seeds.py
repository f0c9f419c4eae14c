"""A map that grows from a few known pairs."""

import numpy as np
import pytest

from keyless.maps.growth import Growth
from keyless.maps.seeds import grown_from
from keyless.model.factors import whitened
from keyless.pairs.limits import Limits


def factors(seed, *, rows=80, common=5, private=2):
    """Factors of both tables, turned at random, the right rows in another order; and the partner of each left row."""
    rng = np.random.default_rng(seed)
    shared = rng.normal(size=(rows, common))
    sides = [
        whitened(np.column_stack([shared, rng.normal(size=(rows, private))]) @ rng.normal(size=(common + private,) * 2))
        for _ in range(2)
    ]
    order = rng.permutation(rows)
    return sides[0].astype(np.float32), sides[1][order].astype(np.float32), np.argsort(order)


def grown(left, right, known):
    limits = Limits((len(left), len(right)), known=known)
    return grown_from(Growth(left, right, allowed=limits.mask()), known, left.shape[1])


@pytest.mark.parametrize("seed", range(4))
def test_six_pairs_lead_to_all_others(seed):
    left, right, partner = factors(seed)
    # Rows far out, as a person would be asked for.
    rows = np.argsort(-np.sum(left**2, axis=1))[:6]
    coupling = grown(left, right, np.stack([rows, partner[rows]], axis=1))
    assert np.mean(coupling.argmax(axis=1) == partner) > 0.8
    np.testing.assert_allclose(coupling[rows, partner[rows]], 1.0, atol=0.05)


def test_pairs_of_other_entities_lead_nowhere():
    left, right, partner = factors(0)
    rows = np.arange(6)
    coupling = grown(left, right, np.stack([rows, partner[rows[::-1]]], axis=1))
    assert np.mean(coupling.argmax(axis=1)[6:] == partner[6:]) < 0.2


def test_a_table_with_fewer_rows_keeps_its_partners():
    left, right, partner = factors(1)
    kept = np.flatnonzero(partner >= 12)
    rows = np.argsort(-np.sum(left[kept] ** 2, axis=1))[:8]
    known = np.stack([rows, partner[kept[rows]]], axis=1)
    coupling = grown(left[kept], right, known)
    assert coupling.shape == (68, 80)
    assert np.mean(coupling.argmax(axis=1) == partner[kept]) > 0.7
