"""Filling tables whose columns have different units, with standard errors; columns that hold nothing."""

import warnings

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from keyless import SoftImpute
from keyless.errors import InputError

UNITS = np.array([1.0, 1e3, 1e-3, 50.0, 0.2, 7.0, 1e5, 1.0, 3.0, 1e-2])


def table(seed=0, rows=200, rank=2, noise=0.3, missing=0.2):
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(rows, rank)) @ rng.normal(size=(rank, 10)) + noise * rng.normal(size=(rows, 10))
    mask = rng.random(values.shape) >= missing
    return values, np.where(mask, values, np.nan), mask


@pytest.mark.parametrize("options", [{}, {"penalty": 3.0}, {"penalty": 2.0, "offsets": "none"}])
def test_the_unit_of_a_column_does_not_matter(options):
    _, given, _ = table()
    shift = 0.0 if options.get("offsets") == "none" else 4.0
    plain = SoftImpute(**options).fit_transform(given)
    other = SoftImpute(**options).fit_transform(given * UNITS + shift * UNITS)
    np.testing.assert_allclose(other, plain * UNITS + shift * UNITS, rtol=1e-6, atol=1e-6 * UNITS.min())


def test_scaling_is_dividing_by_the_spread():
    _, given, _ = table()
    given = given * UNITS
    spread = np.nanstd(given, axis=0)
    model = SoftImpute(penalty=3.0).fit(given)
    apart = SoftImpute(penalty=3.0, scale=False).fit(given / spread)
    np.testing.assert_allclose(model.scale_, spread)
    np.testing.assert_allclose(model.transform(given), apart.transform(given / spread) * spread)
    whole = model.row_factors_ @ model.column_factors_.T + model.column_offsets_
    np.testing.assert_allclose(whole[np.isnan(given)], model.transform(given)[np.isnan(given)])
    np.testing.assert_allclose(model.estimate_at(3, np.arange(10)), whole[3])
    np.testing.assert_allclose(model.estimate_at(3, np.arange(10), X=given), whole[3], rtol=1e-6)


def test_scaling_fills_better_where_units_differ():
    """A column of large numbers takes all factors for itself otherwise."""
    values, given, mask = table(noise=0.1)
    errors = {}
    for scale in (True, False):
        filled = SoftImpute(scale=scale, tolerance=1e-4).fit_transform(given * UNITS) / UNITS
        errors[scale] = np.sqrt(np.mean((filled - values)[~mask] ** 2)) / values.std()
    assert errors[True] < 0.3
    assert errors[False] > 1.5 * errors[True]


def test_rows_with_offsets_and_sparse_tables_are_not_scaled():
    _, given, mask = table()
    assert (SoftImpute(penalty=1.0, offsets="both").fit(given).scale_ == 1).all()
    thin = sparse.csr_array(np.where(mask, given, 0.0))
    model = SoftImpute(penalty=1.0).fit(thin)
    assert (model.scale_ == 1).all()
    with pytest.raises(InputError, match=r"^scale: must be False or None where rows have offsets; found True\."):
        SoftImpute(scale=True, offsets="rows").fit(given)
    with pytest.raises(InputError, match=r"^scale: must be False or None where the table is sparse; found True\."):
        SoftImpute(scale=True).fit(thin)
    with pytest.raises(InputError, match=r"^scale: must be True, False or None; found 'yes'\."):
        SoftImpute(scale="yes").fit(given)
    with pytest.raises(InputError, match=r"^X: must be a dense table for standard errors; found a sparse one\."):
        model.standard_errors(thin)


def test_a_sparse_table_is_filled_by_the_fit_of_a_dense_one():
    _, given, mask = table()
    given = given * UNITS
    thin = sparse.csr_array((given[mask], np.nonzero(mask)), shape=mask.shape)
    model = SoftImpute(penalty=1.0).fit(given)
    np.testing.assert_allclose(model.transform(thin), model.transform(given))


def test_constant_columns_are_left_alone():
    _, given, _ = table()
    given[:, 3] = np.where(np.isnan(given[:, 3]), np.nan, 7.0)
    filled = SoftImpute(penalty=1.0).fit_transform(given)
    np.testing.assert_allclose(filled[:, 3], 7.0)


@pytest.mark.parametrize(("noise", "offsets"), [(0.3, "columns"), (0.8, "columns"), (0.3, "both")])
def test_standard_errors_are_calibrated(noise, offsets):
    """z = (truth − filled) / error over about 1,200 entries: spread 1 up to 2% by sampling.

    Shrinkage by the penalty adds bias that no noise explains, and the factors of columns, known from 480 entries each,
    count as known: within 20%.
    """
    values, given, mask = table(rows=600, noise=noise, missing=0.2)
    model = SoftImpute(offsets=offsets).fit(given * (UNITS if offsets == "columns" else 1.0))
    units = UNITS if offsets == "columns" else np.ones(10)
    errors = model.standard_errors(given * units)
    assert (errors[mask] == 0).all()
    z = ((model.transform(given * units) - values * units) / np.where(mask, 1.0, errors))[~mask]
    assert 0.8 < z.std() < 1.2
    np.testing.assert_allclose(model.noise_ / units, noise, rtol=0.35)


def test_rows_that_say_less_are_less_sure():
    _, given, _ = table()
    model = SoftImpute(penalty=2.0).fit(given)
    rows = np.full((3, 10), np.nan)
    rows[1, :2], rows[2, :9] = given[0, :2], np.nan_to_num(given[0, :9])
    errors = model.standard_errors(rows)[:, 9]
    assert errors[0] > errors[1] > errors[2] > model.noise_[9]


def test_columns_of_which_nothing_is_observed_are_named():
    _, given, _ = table()
    given[:, [4, 7]] = np.nan
    with pytest.warns(UserWarning, match=r"^SoftImpute: no entry of column 4, 7 is observed; what is filled in there"):
        SoftImpute(penalty=1.0).fit(given)
    frame = pd.DataFrame(given, columns=[f"c{k}" for k in range(10)])
    with pytest.warns(UserWarning, match=r"^SoftImpute: no entry of column 'c4', 'c7' is observed"):
        filled = SoftImpute(penalty=1.0).fit_transform(frame)
    assert np.isfinite(np.asarray(filled)).all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SoftImpute(penalty=1.0).fit(frame.drop(columns=["c4", "c7"]))
