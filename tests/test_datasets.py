from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import keyless
from keyless.datasets import ShuffledTables, load_shuffled_tumours, make_shuffled_tables


def columns_of(data: ShuffledTables) -> dict[str, slice]:
    edges = np.cumsum([0, *(table.shape[1] for table in data.tables.values())])
    return {name: slice(edges[i], edges[i + 1]) for i, name in enumerate(data.tables)}


def test_unpacks_as_tables_and_truth():
    data = make_shuffled_tables(5, (3, 2, 4), random_state=0)
    tables, truth = data
    assert tables is data.tables
    assert truth is data.truth
    assert list(tables) == ["reference", "table1", "table2"]
    assert list(truth) == ["table1", "table2"]
    assert [table.shape for table in tables.values()] == [(5, 3), (5, 2), (5, 4)]
    assert all(table.dtype == np.float64 for table in tables.values())
    assert all(answer.dtype.kind == "i" for answer in truth.values())


def test_the_truth_puts_the_tables_in_order():
    data = make_shuffled_tables(40, (12, 10, 8), rank=3, noise=0.0, random_state=1)
    aligned = [data.tables["reference"], *(data.tables[name][data.truth[name]] for name in data.truth)]
    assert np.linalg.matrix_rank(np.hstack(aligned)) == 3
    assert np.linalg.matrix_rank(np.hstack(list(data.tables.values()))) == 9  # as given, every table adds its own 3
    np.testing.assert_allclose(np.hstack(aligned), data.clean, atol=1e-12)


def test_what_an_oracle_knows_fits_together():
    data = make_shuffled_tables(30, (7, 6), rank=2, noise=0.3, random_state=2)
    assert data.factors.shape == (30, 2)
    assert data.loadings.shape == (2, 13)
    np.testing.assert_array_equal(data.clean, data.factors @ data.loadings)
    assert data.noise == 0.3


def test_noise_has_the_stated_size_and_nothing_else_changes():
    quiet, loud = (make_shuffled_tables(300, (40, 30), noise=noise, random_state=3) for noise in (0.2, 0.4))
    np.testing.assert_array_equal(quiet.clean, loud.clean)
    for name, where in columns_of(quiet).items():
        order = quiet.truth.get(name, slice(None))
        np.testing.assert_array_equal(order, loud.truth.get(name, slice(None)))
        first, second = (data.complete[name][order] - data.clean[:, where] for data in (quiet, loud))
        np.testing.assert_allclose(2 * first, second, atol=1e-12)
        # Standard error of a standard deviation: η/√(2N).
        assert abs(first.std() - 0.2) < 5 * 0.2 / np.sqrt(2 * first.size)
        assert abs(first.mean()) < 5 * 0.2 / np.sqrt(first.size)


def test_the_released_law_removes_the_same_share_from_every_table():
    for seed in range(5):
        data = make_shuffled_tables(10, (4, 3, 5), observed=0.35, missing="per_table", random_state=seed)
        assert [int(np.isfinite(table).sum()) for table in data.tables.values()] == [14, 10, 18]  # 10.5 to even


def test_the_law_of_missing_entries_changes_nothing_else():
    uniform, released = (
        make_shuffled_tables(12, (6, 5), observed=0.5, missing=law, random_state=7) for law in ("overall", "per_table")
    )
    for name, table in uniform.complete.items():
        np.testing.assert_array_equal(table, released.complete[name])
    np.testing.assert_array_equal(uniform.truth["table1"], released.truth["table1"])
    # Over all tables together the share of one of them is left to chance.
    counts = {
        int(np.isfinite(make_shuffled_tables(12, (6, 5), observed=0.5, random_state=seed).tables["table1"]).sum())
        for seed in range(20)
    }
    assert len(counts) > 1


@pytest.mark.parametrize(("observed", "expected"), [(1.0, 35), (0.8, 28), (0.4, 14), (0.5, 18), (0.02, 1)])
def test_exactly_the_stated_share_of_all_entries_stays(observed, expected):
    data = make_shuffled_tables(5, (4, 3), observed=observed, random_state=4)
    assert sum(int(np.isfinite(table).sum()) for table in data.tables.values()) == expected
    for name, table in data.tables.items():
        seen = ~np.isnan(table)
        np.testing.assert_array_equal(table[seen], data.complete[name][seen])


def test_entries_are_removed_uniformly():
    counts = np.zeros((4, 5))
    draws = 2000
    for seed in range(draws):
        data = make_shuffled_tables(4, (3, 2), observed=0.4, random_state=seed)
        counts += np.hstack([np.isfinite(table) for table in data.tables.values()])
    assert np.abs(counts - 0.4 * draws).max() < 5 * np.sqrt(draws * 0.4 * 0.6)


def test_observing_less_only_removes_more():
    sparse, dense = (make_shuffled_tables(20, (6, 5), observed=share, random_state=5) for share in (0.3, 0.7))
    for name in sparse.tables:
        np.testing.assert_array_equal(sparse.complete[name], dense.complete[name])
        seen = ~np.isnan(sparse.tables[name])
        assert not np.isnan(dense.tables[name][seen]).any()


@pytest.mark.parametrize(("rows", "columns", "factor"), [(10, (3, 2), 2 / 10), (4, (3, 6), 2 / 9)])
def test_scale_multiplies_by_two_over_the_larger_side(rows, columns, factor):
    plain, scaled = (
        make_shuffled_tables(rows, columns, noise=0.5, observed=0.9, scale=scale, random_state=6)
        for scale in (False, True)
    )
    for name in plain.tables:
        np.testing.assert_allclose(scaled.tables[name], factor * plain.tables[name], rtol=1e-12)
    np.testing.assert_allclose(scaled.clean, scaled.factors @ scaled.loadings, rtol=1e-12)
    assert scaled.noise == pytest.approx(0.5 * factor, rel=1e-15)


@pytest.mark.parametrize(
    ("latent", "skewness", "kurtosis"), [("normal", 0, 3), ("laplace", 0, 6), ("exponential", 2, 9)]
)
def test_latent_laws_are_standardised(latent, skewness, kurtosis):
    factors = make_shuffled_tables(200_000, (1, 1), rank=2, latent=latent, random_state=7).factors.ravel()
    assert abs(factors.mean()) < 0.01
    assert abs(factors.var() - 1) < 0.03
    assert abs((factors**3).mean() - skewness) < 0.1
    assert abs((factors**4).mean() - kurtosis) < 0.8


def test_permutations_are_uniform_and_independent():
    draws = 3600
    pairs = Counter()
    for seed in range(draws):
        _, truth = make_shuffled_tables(3, (1, 1, 1), rank=1, random_state=seed)
        pairs[tuple(truth["table1"]), tuple(truth["table2"])] += 1
    orders = list(itertools.permutations(range(3)))
    expected = draws / 36
    statistic = sum((pairs[pair] - expected) ** 2 / expected for pair in itertools.product(orders, orders))
    assert statistic < 35 + 5 * np.sqrt(2 * 35)  # chi-squared with 35 degrees of freedom


@pytest.mark.parametrize(("overlap", "n_common"), [(1.0, 20), (0.75, 15), (0.5, 10), (0.0, 0)])
def test_overlap_leaves_that_share_of_rows_a_partner(overlap, n_common):
    data = make_shuffled_tables(20, (6, 5, 4), rank=2, noise=0.0, overlap=overlap, random_state=8)
    partnered = [answer >= 0 for answer in data.truth.values()]
    np.testing.assert_array_equal(*partnered)  # the same entities are in every table
    for name, answer in data.truth.items():
        assert data.tables[name].shape[0] == 20
        assert (answer >= -1).all()
        assert (answer >= 0).sum() == n_common
        assert len(set(answer[answer >= 0])) == n_common
        clean = data.clean[:, columns_of(data)[name]]
        has_partner = answer >= 0
        np.testing.assert_allclose(data.tables[name][answer[has_partner]], clean[has_partner], atol=1e-12)
        # Strangers are new entities: no row of the reference has their values.
        strangers = np.setdiff1d(np.arange(20), answer)
        assert len(strangers) == 20 - n_common
        for row in strangers:
            assert np.abs(clean - data.tables[name][row]).max(axis=1).min() > 1e-6


def test_partners_stand_anywhere_in_the_reference():
    counts = np.zeros(6)
    draws = 1000
    for seed in range(draws):
        counts += make_shuffled_tables(6, (1, 1), overlap=0.5, random_state=seed).truth["table1"] >= 0
    assert np.abs(counts - draws / 2).max() < 5 * np.sqrt(draws / 4)


def test_row_counts_may_differ():
    data = make_shuffled_tables((6, 9, 4), (3, 2, 2), rank=1, noise=0.0, random_state=9)
    assert [table.shape for table in data.tables.values()] == [(6, 3), (9, 2), (4, 2)]
    assert [(answer >= 0).sum() for answer in data.truth.values()] == [4, 4]
    assert all(len(answer) == 6 for answer in data.truth.values())
    assert data.clean.shape == (6, 7)


@pytest.mark.parametrize("n_rows", [1, 2])
def test_smallest_tables(n_rows):
    data = make_shuffled_tables(n_rows, (1, 1), rank=1, noise=0.0, random_state=10)
    assert sorted(data.truth["table1"]) == list(range(n_rows))
    np.testing.assert_allclose(data.tables["table1"][data.truth["table1"]], data.clean[:, 1:], atol=1e-15)


@given(
    n_rows=st.lists(st.integers(1, 6), min_size=2, max_size=4),
    overlap=st.floats(0, 1),
    observed=st.floats(0.2, 1),
    seed=st.integers(0, 2**32),
)
def test_invariants(n_rows, overlap, observed, seed):
    data = make_shuffled_tables(
        n_rows, [2] * len(n_rows), rank=2, overlap=overlap, observed=observed, random_state=seed
    )
    n_common = round(overlap * min(n_rows))
    for name, count in zip(data.truth, n_rows[1:], strict=True):
        answer = data.truth[name]
        assert len(answer) == n_rows[0]
        assert ((answer >= -1) & (answer < count)).all()
        assert len(set(answer[answer >= 0])) == (answer >= 0).sum() == n_common
    total = 2 * sum(n_rows)
    assert sum(int(np.isfinite(table).sum()) for table in data.tables.values()) == round(observed * total)


def test_one_seed_gives_one_problem():
    first, again, other = (make_shuffled_tables(8, (3, 2), observed=0.8, random_state=seed) for seed in (11, 11, 12))
    for name in first.tables:
        np.testing.assert_array_equal(first.tables[name], again.tables[name])
        assert not np.array_equal(first.complete[name], other.complete[name])
    np.testing.assert_array_equal(first.truth["table1"], again.truth["table1"])


def test_a_generator_gives_a_new_problem_each_time():
    generator = np.random.default_rng(13)
    first, second = (make_shuffled_tables(8, (3, 2), random_state=generator) for _ in range(2))
    assert not np.array_equal(first.tables["reference"], second.tables["reference"])


def test_a_solver_with_the_same_seed_draws_other_numbers():
    data = make_shuffled_tables(50, (5, 5), rank=1, random_state=14)
    assert not np.isin(data.factors, np.random.default_rng(14).standard_normal(5000)).any()


def test_names():
    tables, truth = make_shuffled_tables(3, (1, 1), names=("clinic", "lab"), random_state=0)
    assert (list(tables), list(truth)) == (["clinic", "lab"], ["lab"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_rows": 0}, r"n_rows: must be a whole number of at least 1; found 0"),
        ({"n_rows": 2.5}, r"n_rows: must be a whole number; found 2\.5"),
        ({"n_rows": (3, 3, 3)}, r"n_rows: must be one number, or one per table \(2\); found 3 numbers\. Give as many"),
        ({"n_rows": (3, 0)}, r"n_rows\[1\]: must be a whole number of at least 1; found 0"),
        ({"column_counts": (5,)}, r"column_counts: must name at least two tables.*found \(5,\)\. Add a count"),
        ({"column_counts": 5}, r"column_counts: must be a sequence, one count per table; found 5\. Wrap it"),
        ({"column_counts": (5, 0)}, r"column_counts\[1\]: must be a whole number of at least 1; found 0"),
        ({"rank": 0}, r"rank: must be a whole number of at least 1; found 0"),
        ({"noise": -0.1}, r"noise: must be zero or a positive number; found -0\.1"),
        ({"noise": float("nan")}, r"noise: must be zero or a positive number; found nan"),
        ({"missing": "rows"}, r"missing: must be 'overall' or 'per_table'; found 'rows'"),
        ({"observed": 80}, r"observed: must be a fraction above 0 and at most 1; found 80\.0\. Write 80 % as 0\.8"),
        ({"observed": 0}, r"observed: must be a positive number; found 0"),
        ({"observed": 1e-9}, r"observed: 1e-09 of 10000 entries leaves none\. Raise it"),
        ({"overlap": 1.5}, r"overlap: must be a fraction from 0 to 1; found 1\.5"),
        ({"overlap": -1}, r"overlap: must be zero or a positive number; found -1"),
        ({"latent": "cauchy"}, r"latent: must be 'normal', 'laplace' or 'exponential'; found 'cauchy'"),
        ({"names": ("a", "a")}, r"names: must be 2 different strings, one per table; found \('a', 'a'\)"),
        ({"names": ("a",)}, r"names: must be 2 different strings, one per table; found \('a',\)"),
        ({"names": "ab"}, r"names: must be a sequence, one name per table; found 'ab'"),
        ({"random_state": "x"}, r"random_state: must be None, a whole number or a numpy Generator; found 'x'"),
    ],
)
def test_bad_input_is_named(options, message):
    with pytest.raises(keyless.InputError, match=message):
        make_shuffled_tables(**options)


def test_tumours_lose_the_entries_they_should():
    whole, truth = load_shuffled_tumours(random_state=3)
    some, same = load_shuffled_tumours(observed=0.9, random_state=3)
    np.testing.assert_array_equal(truth["worst"], same["worst"])
    missing = sum(int(table.isna().to_numpy().sum()) for table in some.values())
    assert missing == 569 * 30 - round(0.9 * 569 * 30)
    for name, table in some.items():
        seen = table.notna().to_numpy()
        np.testing.assert_array_equal(table.to_numpy()[seen], whole[name].to_numpy()[seen])
        assert list(table.columns) == list(whole[name].columns)
    with pytest.raises(keyless.InputError, match=r"^observed: must be a fraction above 0 and at most 1; found 1.5"):
        load_shuffled_tumours(observed=1.5)
