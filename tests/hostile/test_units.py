"""The answer does not depend on units, however large or small, and nothing that is returned is infinite or NaN."""

import re

import numpy as np
import pandas as pd
import pytest

import keyless
from keyless import runs
from keyless.datasets import make_shuffled_tables
from keyless.metrics import relative_error, rmse
from keyless.model.scales import choose_scale
from keyless.paper.soft_impute import soft_impute
from keyless.report import render
from keyless.tables.cells import written_numbers
from keyless.tables.numbers import NumberStyle

FACTORS = [1e160, 1e-200, 1e300, 1e-300]
PARTS = ("objective_", "singular_values_", "column_factors_", "row_factors_", "column_offsets_", "penalty_", "noise_")


def gappy_tables():
    tables, truth = make_shuffled_tables(40, (12, 10), rank=3, random_state=0)
    rng = np.random.default_rng(1)
    return {name: np.where(rng.random(table.shape) < 0.05, np.nan, table) for name, table in tables.items()}, truth


@pytest.fixture(scope="module")
def ordinary():
    tables, truth = gappy_tables()
    return tables, truth, keyless.link(tables, random_state=0)


def assert_finite(links):
    for table in links.tables:
        assert np.isfinite(links.completed[table.name]).all()
        assert np.isfinite(links.standard_errors[table.name]).all()
    for found in links.found.values():
        assert np.isfinite(found.probability).all()
        assert np.isfinite(found.coupling).all()


@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.slow
def test_tables_in_another_unit_are_linked_alike(ordinary, factor):
    tables, truth, before = ordinary
    links = keyless.link({name: table * factor for name, table in tables.items()}, random_state=0)
    assert links.evidence.verdict == before.evidence.verdict == "linked"
    assert links.evidence.score == pytest.approx(before.evidence.score, rel=1e-6)
    np.testing.assert_array_equal(links.permutations["table1"], before.permutations["table1"])
    assert (links.permutations["table1"] == truth["table1"]).all()
    assert_finite(links)
    for name in tables:
        np.testing.assert_allclose(links.completed[name] / factor, before.completed[name], rtol=1e-5, atol=1e-6)
        expected = before.standard_errors[name]
        np.testing.assert_allclose(links.standard_errors[name] / factor, expected, rtol=1e-4, atol=1e-6)


def test_one_column_in_a_huge_unit_changes_nothing_else(ordinary):
    tables, _, before = ordinary
    changed = tables | {"table1": tables["table1"] * np.where(np.arange(10) == 3, 1e300, 1.0)}
    links = keyless.link(changed, random_state=0)
    np.testing.assert_array_equal(links.permutations["table1"], before.permutations["table1"])
    assert_finite(links)
    np.testing.assert_allclose(links.completed["reference"], before.completed["reference"], rtol=1e-6)


def test_a_power_of_two_gives_the_very_same_answer_beyond_the_usual_range(ordinary):
    tables, _, _ = ordinary
    one, two = (
        keyless.link({name: table * 2.0**power for name, table in tables.items()}, random_state=0)
        for power in (600, 700)
    )
    np.testing.assert_array_equal(one.found["table1"].probability, two.found["table1"].probability)
    np.testing.assert_array_equal(one.completed["table1"] * 2.0**100, two.completed["table1"])


@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("offsets", ["columns", "both"])
def test_soft_impute_in_another_unit(factor, offsets):
    table = gappy_tables()[0]["table1"]
    before = keyless.SoftImpute(offsets=offsets).fit(table)
    after = keyless.SoftImpute(offsets=offsets).fit(table * factor)
    assert after.rank_ == before.rank_
    expected = before.transform(table)
    np.testing.assert_allclose(after.transform(table * factor) / factor, expected, rtol=1e-6, atol=1e-8)
    rows, columns = np.nonzero(np.isnan(table))
    np.testing.assert_allclose(after.estimate_at(rows, columns) / factor, expected[rows, columns], rtol=1e-6, atol=1e-8)
    again = after.estimate_at(rows, columns, X=table * factor)
    np.testing.assert_allclose(again / factor, expected[rows, columns], rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(after.noise_ / factor, before.noise_, rtol=1e-6)
    errors = before.standard_errors(table)
    np.testing.assert_allclose(after.standard_errors(table * factor) / factor, errors, rtol=1e-6)
    # The penalty is for scaled columns where they are scaled.
    assert after.penalty_ == pytest.approx(before.penalty_ * (1.0 if offsets == "columns" else factor))
    for part in PARTS:
        assert np.isfinite(getattr(after, part)).all(), part


def test_soft_impute_of_columns_in_very_different_units():
    table = gappy_tables()[0]["table1"]
    table[:, 4] = np.where(np.isnan(table[:, 4]), np.nan, 1.0)
    units = np.array([1.0, 1e160, 1e-200, 1e300, 1e200, 1e-300, 1e3, 1e-3, 1.7e307, 1e-306])
    before, after = keyless.SoftImpute().fit(table), keyless.SoftImpute().fit(table * units)
    assert after.rank_ == before.rank_
    np.testing.assert_allclose(after.scale_[[1, 2, 3, 5, 6]], (before.scale_ * units)[[1, 2, 3, 5, 6]])
    np.testing.assert_allclose(after.transform(table * units) / units, before.transform(table), rtol=1e-6, atol=1e-8)
    rows, columns = np.nonzero(np.isnan(table))
    expected = before.estimate_at(rows, columns)
    np.testing.assert_allclose(after.estimate_at(rows, columns) / units[columns], expected, rtol=1e-6, atol=1e-8)
    errors = before.standard_errors(table)
    np.testing.assert_allclose(after.standard_errors(table * units) / units, errors, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("scale", [None, False])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_soft_impute_at_the_end_of_the_range_of_numbers(dtype, scale):
    table = gappy_tables()[0]["table1"]
    table /= np.nanmax(np.abs(table))
    largest = float(np.finfo(dtype).max)
    huge = (table * largest * 0.99).astype(dtype)
    options = {"scale": scale, "penalty": None if scale is None else 1e-3 * largest}
    model = keyless.SoftImpute(**options).fit(huge)
    filled = model.transform(huge)
    assert filled.dtype == dtype
    for numbers in (filled, model.standard_errors(huge), *(getattr(model, part) for part in PARTS)):
        assert np.isfinite(numbers).all()
    plain = keyless.SoftImpute(**(options | {"penalty": None if scale is None else 1e-3 / 0.99})).fit(table)
    expected = np.clip(plain.transform(table) * 0.99, -1, 1)
    np.testing.assert_allclose(filled / largest, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("factor", FACTORS)
def test_soft_impute_of_a_given_penalty_in_another_unit(factor):
    table = gappy_tables()[0]["table1"]
    seen = ~np.isnan(table)
    before, after = soft_impute(table, seen, 1.0), soft_impute(table * factor, seen, factor)
    np.testing.assert_allclose(after.estimate() / factor, before.estimate(), rtol=1e-9, atol=1e-12)
    assert np.isfinite(after.objective).all()


def test_rows_of_an_ordinary_size_and_huge_ones_are_filled_by_the_same_fit():
    table = gappy_tables()[0]["table1"]
    fitted = keyless.SoftImpute(offsets="none", penalty=1e-6).fit(table)
    # Without offsets filling is linear in the rows.
    huge = fitted.transform(table * 1e200)
    np.testing.assert_allclose(huge / 1e200, fitted.transform(table), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", ["auto", "identity", "log", "sqrt", "rank"])
def test_scales_never_return_what_is_not_finite(kind):
    largest = np.finfo(np.float64).max
    values = np.linspace(0.5, 1.0, 50) * largest
    scale = choose_scale(values, kind=kind)
    scores = np.array([-1e6, -50.0, 0.0, 50.0, 1e6])
    assert np.isfinite(scale.undo(scores)).all()
    assert np.isfinite(scale.slope(scores) * 100).all()
    assert np.isfinite(choose_scale(values / largest, kind=kind).apply(values)).all()
    np.testing.assert_allclose(scale.undo(scale.apply(values)), values, rtol=1e-9)


def test_huge_numbers_are_written_as_numbers():
    assert written_numbers(np.array([1.5e308]), decimals=3, style=NumberStyle(), width=0) == [f"{1.5e308:.3f}"]


@pytest.mark.slow
def test_files_of_huge_numbers_are_linked_filled_and_reported(tmp_path, ordinary):
    tables, _, before = ordinary
    for name, table in tables.items():
        pd.DataFrame(table * 1e160).to_csv(tmp_path / f"{name}.csv", index=False)
    links = keyless.link([tmp_path / "reference.csv", tmp_path / "table1.csv"], random_state=0)
    np.testing.assert_array_equal(links.permutations["table1"], before.permutations["table1"])
    runs.write_run(links, tmp_path / "out")
    joined = pd.read_parquet(tmp_path / "out" / "joined.parquet").drop(columns="reference_id")
    assert np.isfinite(joined.to_numpy(dtype=float)).all()
    # What is read, not the packed data of the rows, in which these letters may stand by chance.
    page = re.sub(r"<script.*?</script>", "", render(links), flags=re.DOTALL)
    assert "nan" not in page.split("<main")[1].lower().replace("nanometre", "")


@pytest.mark.parametrize("factor", FACTORS)
def test_scores_of_estimates_in_another_unit(factor):
    guess, right = np.array([3.0, 0.0, 1.0]), np.array([3.0, 4.0, 1.5])
    assert rmse(guess * factor, right * factor) / factor == pytest.approx(rmse(guess, right))
    assert relative_error(guess * factor, right * factor) == pytest.approx(relative_error(guess, right))
