"""Scales: there and back, units and signs, odd columns, errors carried over, missing entries left alone."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from keyless.errors import InputError
from keyless.model.scales import Scale, choose_scale, scale_table

KINDS = ["identity", "log", "sqrt", "rank"]
NAMES = ["auto", *KINDS]

# Numbers of ordinary size: below 1e-6 of the column's size nothing of a value is left after a root and a square.
positive = arrays(np.float64, st.integers(1, 30), elements=st.floats(1e-3, 1e3))
signed = arrays(np.float64, st.integers(1, 30), elements=st.floats(-1e3, 1e3).map(lambda x: round(x, 3)))


def columns(seed=0, size=200):
    """One column of each shape, all with a clear best scale."""
    normal = np.random.default_rng(seed).normal(size=size)
    squares = (normal + 3) ** 2
    return {"identity": normal, "log": np.exp(normal), "sqrt": squares, "identity, positive": normal + 50}


@pytest.mark.parametrize("kind", NAMES)
@given(values=positive)
def test_there_and_back_for_positive_columns(kind, values):
    scale = choose_scale(values, kind=kind)
    # The scores carry a rounding error of about 1e-16 · (1 + |centre| / spread); exp, square and the slopes of the
    # knots multiply it by at most max(values) / min(values) = 1e6 here.
    np.testing.assert_allclose(scale.undo(scale.apply(values)), values, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", NAMES)
@given(values=signed)
def test_there_and_back_for_columns_of_any_sign(kind, values):
    scale = choose_scale(values, kind=kind)
    np.testing.assert_allclose(scale.undo(scale.apply(values)), values, atol=1e-7)


@pytest.mark.parametrize("kind", NAMES)
@given(values=signed)
def test_scores_have_mean_0_and_variance_1_and_keep_the_order(kind, values):
    scores = choose_scale(values, kind=kind).apply(values)
    if np.ptp(values) == 0:
        np.testing.assert_array_equal(scores, 0.0)
        return
    assert abs(scores.mean()) < 1e-6
    assert abs(scores.std() - 1) < 1e-6
    # Equal stays equal, larger never becomes smaller.
    order = np.argsort(values, kind="stable")
    assert (np.diff(scores[order]) >= 0).all() or (np.diff(scores[order]) <= 0).all()
    assert (np.diff(scores[order])[np.diff(values[order]) == 0] == 0).all()


@pytest.mark.parametrize("wanted", ["identity", "log", "sqrt", "identity, positive"])
@pytest.mark.parametrize("factor", [1.0, 1e-6, 2.54, 1e9, -1.0, -1e-3])
def test_neither_unit_nor_sign_changes_the_scale(wanted, factor):
    column = columns()[wanted]
    plain, changed = choose_scale(column), choose_scale(factor * column)
    assert plain.kind == wanted.split(",")[0]
    assert changed.kind == plain.kind
    # A log or a root of a column of negative numbers looks at its absolute values; any other scale turns with the sign.
    sign = -1.0 if factor < 0 and plain.kind == "identity" else 1.0
    np.testing.assert_allclose(sign * changed.apply(factor * column), plain.apply(column), rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(changed.undo(changed.apply(factor * column)), factor * column, rtol=1e-9)


@pytest.mark.parametrize("factor", [1e-6, 3.0, -1.0, -1e4])
def test_ranks_do_not_know_units_and_turn_with_the_sign(factor):
    column = np.round(columns()["log"], 1)  # with ties
    plain, changed = (choose_scale(c, kind="rank").apply(c) for c in (column, factor * column))
    np.testing.assert_allclose(changed, np.sign(factor) * plain, atol=1e-12)


def test_zeros_get_a_stand_in_in_the_columns_own_unit():
    counts = np.round(3 * columns()["log"])
    assert (counts == 0).any()
    for factor in (1.0, 1e-5, -7.0):
        scale = choose_scale(factor * counts, kind="log")
        scores = scale.apply(factor * counts)
        assert np.isfinite(scores).all()
        np.testing.assert_allclose(scores, choose_scale(counts, kind="log").apply(counts), rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(scale.undo(scores), factor * counts, rtol=1e-9, atol=1e-9 * abs(factor))
    # Half the 5 per cent quantile of the positive values.
    assert choose_scale(counts, kind="log").offset == pytest.approx(0.5 * np.quantile(counts[counts > 0], 0.05))


@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize("value", [0.0, 1e-300, 7.25, -3e8])
def test_constant_columns_say_nothing_and_come_back(kind, value):
    for size in (1, 2, 5):
        column = np.full(size, value)
        scale = choose_scale(column, kind=kind)
        np.testing.assert_array_equal(scale.apply(column), 0.0)
        np.testing.assert_array_equal(scale.apply(column + 1), 0.0)
        np.testing.assert_allclose(scale.undo(np.array([-2.0, 0.0, 3.0])), value, rtol=1e-15)
        np.testing.assert_array_equal(scale.slope(np.array([-2.0, 0.0])), 0.0)


@pytest.mark.parametrize("kind", NAMES)
def test_of_an_empty_column_nothing_is_known(kind):
    scale = choose_scale(np.array([]), kind=kind)
    np.testing.assert_array_equal(scale.apply(np.array([1.0, 5.0])), 0.0)
    assert np.isfinite(scale.undo(np.array([0.0, 2.0]))).all()
    np.testing.assert_array_equal(scale.slope(np.array([0.0, 2.0])), np.inf)


@pytest.mark.parametrize("kind", ["log", "sqrt"])
def test_columns_of_both_signs_have_no_log_or_root(kind):
    column = np.array([-1.0, 0.0, 2.0, 5.0])
    scale = choose_scale(column, kind=kind)
    assert scale.kind == "identity"
    np.testing.assert_allclose(scale.apply(column), (column - column.mean()) / column.std())


@given(values=signed, probes=arrays(np.float64, 20, elements=st.floats(-2e3, 2e3)))
def test_the_rank_scale_is_monotone_also_between_and_beyond_what_was_seen(values, probes):
    scale = choose_scale(values, kind="rank")
    probes = np.sort(probes)
    # Both ways up to rounding of the interpolation, of scores below 10 and of values up to 1e3.
    assert (np.diff(scale.apply(probes)) >= -1e-12).all()
    scores = np.linspace(-5, 5, 40)
    back = scale.undo(scores)
    assert (np.diff(back) >= -1e-9).all()
    assert back.min() >= values.min() - 1e-9
    assert back.max() <= values.max() + 1e-9


@pytest.mark.parametrize("kind", ["identity", "log", "sqrt"])
@pytest.mark.parametrize("factor", [1.0, -2.0])
def test_the_slope_is_the_derivative_of_undo(kind, factor):
    column = factor * columns()["sqrt"]
    scale = choose_scale(column, kind=kind)
    scores = np.linspace(-1.5, 1.5, 25)
    step = 1e-5
    # Central differences: error step²/6 · third derivative, rounding 1e-16 / step.
    slope = np.abs(scale.undo(scores + step) - scale.undo(scores - step)) / (2 * step)
    np.testing.assert_allclose(scale.slope(scores), slope, rtol=1e-6)
    assert (scale.slope(scores) > 0).all()


def test_the_slope_of_ranks_follows_the_density_of_values():
    column = columns(size=4000)["log"]
    scale = choose_scale(column, kind="rank")
    scores = np.linspace(-1, 1, 9)
    # Values are e^z, so is their derivative; half-widths of 1/4 curve it by 1/4²/6 ≈ 1%. The quantiles of 4000 draws
    # are off by about 1.4/√4000 ≈ 2.2% of a score within one standard deviation, the difference of two by 6% of ½.
    np.testing.assert_allclose(scale.slope(scores), np.exp(scores), rtol=0.2)


def test_new_values_below_all_seen_do_not_outweigh_everything():
    column = columns()["log"]
    scale = choose_scale(column, kind="log")
    seen = scale.apply(column)
    new = scale.apply(np.array([0.0, -5.0, column.min() / 10]))
    # Held at half the smallest value seen: log 2 below its score, in units of the spread.
    np.testing.assert_allclose(new, seen.min() - np.log(2) / scale.spread, rtol=1e-9)
    assert scale.apply(np.array([column.min() * 0.8]))[0] < seen.min()


@pytest.mark.parametrize("kind", NAMES)
def test_missing_entries_are_left_alone(kind):
    rng = np.random.default_rng(3)
    values = np.exp(rng.normal(size=(30, 5)))
    mask = rng.random(values.shape) < 0.7
    mask[:, 4] = False
    scores, scales = scale_table(np.where(mask, values, 0.0), mask, kind=kind)
    np.testing.assert_array_equal(scores[~mask], 0.0)
    garbage, _ = scale_table(np.where(mask, values, 1e9), mask, kind=kind)
    np.testing.assert_array_equal(garbage, scores)
    assert len(scales) == 5
    for k in range(5):
        alone = choose_scale(values[mask[:, k], k], kind=kind)
        np.testing.assert_array_equal(scores[mask[:, k], k], alone.apply(values[mask[:, k], k]))


def test_a_scale_must_exist():
    with pytest.raises(
        InputError, match=r"^scale: must be one of 'auto', 'identity', 'log', 'sqrt', 'rank'; found 'cube'\.$"
    ):
        choose_scale(np.ones(3), kind="cube")


def test_a_plain_scale_changes_nothing():
    values = np.array([-1.0, 0.0, 4.0])
    np.testing.assert_array_equal(Scale().apply(values), values)
    np.testing.assert_array_equal(Scale().undo(values), values)
