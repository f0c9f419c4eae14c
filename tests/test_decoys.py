"""Decoys tell how many rows have a partner, whatever partners fit like."""

import numpy as np
import pytest

from keyless.pairs.decoys import most_partners


def ratios_of(rng, sizes, common, *, gain):
    """Return ratios of strangers, by chance, with partners that fit better by so many nats, give or take two."""
    ratios = rng.gumbel(size=sizes)
    pairs = np.arange(common)
    ratios[pairs, pairs] += gain + 2 * rng.normal(size=common)
    return ratios


@pytest.mark.parametrize(("sizes", "common"), [((300, 300), 300), ((300, 300), 220), ((400, 260), 200)])
def test_partners_are_counted(sizes, common):
    told = [most_partners(ratios_of(np.random.default_rng(seed), sizes, common, gain=10)) for seed in range(8)]
    # Some 20 low rows of each table, give or take 4, are 80 rows, give or take 16, and 6 in the mean of eight draws.
    # One error of the count is added.
    alone = np.mean(sizes) - common
    error = np.sqrt(2 * 0.25 * alone) / 0.5
    np.testing.assert_allclose(np.mean(told), min(common + error, *sizes), atol=8)


def test_ratios_of_any_scale_tell_the_same(rng):
    ratios = ratios_of(rng, (250, 250), 180, gain=8)
    assert most_partners(3 * ratios) == most_partners(ratios)


def test_few_rows_may_all_have_partners(rng):
    assert most_partners(ratios_of(rng, (100, 110), 20, gain=8)) == 100
    assert most_partners(np.empty((0, 3))) == 0


def test_few_matches_tell_nothing(rng):
    # One left row is the first choice of all right rows: hardly two rows choose each other.
    ratios = rng.normal(size=(150, 150))
    ratios[0] += 100
    assert most_partners(ratios) == 150


def test_both_tables_tell(rng):
    ratios = ratios_of(rng, (300, 220), 200, gain=9)
    np.testing.assert_allclose(most_partners(ratios), most_partners(ratios.T), rtol=1e-12)
