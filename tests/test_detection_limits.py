"""Values at a limit of detection are told from values that are frequent in truth."""

import numpy as np
import pandas as pd
import pytest

import keyless
from keyless.model.detection_limits import limits_of_columns, within_limits


def factor_table(seed, rows=300, columns=9, rank=3, noise=0.2):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(rows, rank)) @ rng.normal(size=(rank, columns)) + noise * rng.normal(size=(rows, columns))


def limits_of(table):
    found = limits_of_columns(np.nan_to_num(table), np.isfinite(table), np.random.default_rng(0))
    return {k: limits.ends for k, limits in found.items()}


@pytest.mark.parametrize("seed", range(4))
def test_cut_off_values_are_limits(seed):
    table = factor_table(seed)
    low, high = np.quantile(table[:, 2], 0.4), np.quantile(table[:, 5], 0.7)
    table[:, 2] = np.maximum(table[:, 2], low)
    table[:, 5] = np.minimum(table[:, 5], high)
    assert limits_of(table) == {2: (low,), 5: (high,)}


def test_both_ends_can_be_limits():
    table = factor_table(4)
    ends = np.quantile(table[:, 0], (0.25, 0.75))
    table[:, 0] = np.clip(table[:, 0], *ends)
    assert limits_of(table) == {0: tuple(ends)}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("bent", "scale"), [(lambda column: column, "identity"), (np.exp, "log")])
def test_scale_is_the_one_of_a_column_that_is_not_cut_off(seed, bent, scale):
    """A column cut off at 0 has positive values alone, of which half a normal distribution looks like a square."""
    table = factor_table(seed)
    table[:, 2] = bent(np.maximum(table[:, 2], 0.0))
    found = limits_of_columns(table, np.ones(table.shape, dtype=bool), np.random.default_rng(0))
    assert {k: (limits.ends, limits.scale) for k, limits in found.items()} == {2: ((float(bent(0.0)),), scale)}


@pytest.mark.parametrize("seed", range(4))
def test_frequent_values_that_others_do_not_foretell_are_no_limits(seed):
    table, rng = factor_table(seed), np.random.default_rng(seed)
    # Absent in four of ten rows, whatever else the row holds.
    table[:, 1] = np.where(rng.random(len(table)) < 0.4, table[:, 1].min() - 0.5, table[:, 1])
    assert limits_of(table) == {}


@pytest.mark.parametrize("seed", range(4))
def test_counts_and_yes_or_no_are_no_limits(seed):
    table, rng = factor_table(seed), np.random.default_rng(seed)
    table[:, 0] = rng.poisson(np.exp(0.3 * table[:, 0]))
    table[:, 1] = table[:, 1] > 0.5
    assert limits_of(table) == {}


def test_unit_sign_and_order_do_not_matter():
    table = factor_table(7)
    table[:, 3] = np.maximum(table[:, 3], np.quantile(table[:, 3], 0.3))
    found = limits_of(table)
    assert list(found) == [3]
    order = np.random.default_rng(1).permutation(len(table))
    assert limits_of(-1000.0 * table[order]) == {3: (-1000.0 * found[3][0],)}


def test_gaps_stay_gaps():
    table = factor_table(8)
    table[:, 3] = np.maximum(table[:, 3], np.quantile(table[:, 3], 0.3))
    table[::7, 3] = np.nan
    mask, values = np.isfinite(table), np.nan_to_num(table)
    limits = limits_of_columns(values, mask, np.random.default_rng(0))
    inside = within_limits(values, mask, limits)
    np.testing.assert_array_equal(inside[:, 3], mask[:, 3] & (values[:, 3] > limits[3].ends[0]))
    assert inside[:, :3].all()


def test_tables_cut_off_at_limits_are_linked():
    rng = np.random.default_rng(11)
    latent = rng.normal(size=(150, 5))
    order = rng.permutation(150)
    tables = {}
    for name, columns, rows in (("a", 14, np.arange(150)), ("b", 12, order)):
        table = pd.DataFrame(latent @ rng.normal(size=(5, columns)) + 0.1 * rng.normal(size=(150, columns)))
        table.columns = [f"{name}{k}" for k in range(columns)]
        for column in table.columns[::3]:
            table[column] = table[column].clip(lower=table[column].quantile(0.4))
        tables[name] = table.iloc[rows].reset_index(drop=True)
    links = keyless.link(tables, random_state=0)
    assert links.evidence.verdict == "linked"
    assert np.mean(order[links.found["b"].permutation] == np.arange(150)) > 0.97
    assert list(links.choices["detection_limits"]["a"]) == ["a0", "a3", "a6", "a9", "a12"]
    # The tables themselves are as they were given: nothing of them is missing, and nothing is filled.
    assert all(table.block.mask.all() for table in links.tables)
    page = keyless.report.render(links)
    assert "Values at a limit of detection were taken for missing" in page
