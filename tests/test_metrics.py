from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import keyless
from keyless import metrics

answers = st.integers(0, 8).flatmap(
    lambda n: st.tuples(*[st.lists(st.integers(-1, max(n - 1, -1)), min_size=n, max_size=n)] * 2)
)


def kinds(array):
    """The array in every library that is installed."""
    yield array
    try:
        import torch
    except ImportError:
        return
    yield torch.asarray(array)


# Wrong rows


@given(answers)
def test_hamming_counts_wrong_rows(pair):
    permutation, truth = pair
    assert metrics.hamming(permutation, truth) == sum(a != b for a, b in zip(permutation, truth, strict=True))


@given(st.integers(0, 8).flatmap(lambda n: st.tuples(*[st.permutations(range(n))] * 3)))
def test_hamming_is_a_distance_that_relabelling_leaves_alone(orders):
    a, b, c = (np.array(order, dtype=int) for order in orders)
    assert metrics.hamming(a, a) == 0
    assert metrics.hamming(a, b) == metrics.hamming(b, a)
    assert metrics.hamming(a, b) != 1  # two permutations never differ in one row alone
    assert metrics.hamming(a, c) <= metrics.hamming(a, b) + metrics.hamming(b, c)
    assert metrics.hamming(c[a], c[b]) == metrics.hamming(a, b)


def test_hamming_sizes_0_1_2():
    assert metrics.hamming([], []) == 0
    assert metrics.hamming([0], [0]) == 0
    assert metrics.hamming([-1], [0]) == 1
    assert metrics.hamming([1, 0], [0, 1]) == 2


def test_hamming_takes_any_integer_array():
    for permutation in kinds(np.array([2, 0, 1], dtype=np.int32)):
        assert metrics.hamming(permutation, np.array([2, 1, 0])) == 2
    assert metrics.hamming(np.array([1, 0], dtype=np.uint8), [1, -1]) == 1


def test_normalised_error_averages_over_tables():
    truth = {"lab": [0, 1, 2, 3], "ward": [3, 2, 1, 0]}
    found = {"ward": [3, 2, 0, 1], "lab": [1, 0, 3, 2]}
    assert metrics.normalised_error(found, truth) == (2 + 4) / 2
    in_order = (found["lab"], found["ward"])
    assert metrics.normalised_error(in_order, truth) == 3
    assert metrics.normalised_error(in_order, list(truth.values())) == 3
    assert metrics.normalised_error(truth, truth) == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: metrics.hamming([0.0], [0]),
            r"permutation: must be a 1-D array of whole numbers; found 1-D of dtype f",
        ),
        (lambda: metrics.hamming([[0]], [0]), r"permutation: must be a 1-D array of whole numbers; found 2-D"),
        (lambda: metrics.hamming([True], [0]), r"permutation: must be a 1-D array of whole numbers.*bool"),
        (lambda: metrics.hamming([0, -2], [0, 1]), r"permutation, row 1: must be a row number or -1.*found -2"),
        (lambda: metrics.hamming([0], [0, 1]), r"permutation: must have one entry per reference row, 2 .*found 1"),
        (lambda: metrics.normalised_error({"a": [0]}, {"b": [0]}), r"must have the tables of truths, \['b'\]; found"),
        (lambda: metrics.normalised_error([[0]], [[0], [0]]), r"must be one per truth, 2; found 1"),
        (lambda: metrics.normalised_error([], []), r"must hold at least one table; found none"),
    ],
)
def test_bad_permutations_are_named(call, message):
    with pytest.raises(keyless.InputError, match=message):
        call()


# Links made and missed


@given(answers)
def test_link_scores_against_the_definition(pair):
    permutation, truth = pair
    made = [i for i, j in enumerate(permutation) if j >= 0]
    there = [i for i, j in enumerate(truth) if j >= 0]
    right = [i for i in made if permutation[i] == truth[i]]
    scores = metrics.link_scores(permutation, truth)
    assert scores.precision == (len(right) / len(made) if made else 1)
    assert scores.recall == (len(right) / len(there) if there else 1)
    if scores.precision and scores.recall:
        assert scores.f1 == pytest.approx(2 / (1 / scores.precision + 1 / scores.recall))
    else:
        assert scores.f1 == 0


def test_saying_nothing_is_precise_but_recalls_nothing():
    assert metrics.link_scores([-1, -1], [0, 1]) == (1, 0)
    assert metrics.link_scores([-1, -1], [-1, -1]) == (1, 1)
    assert metrics.link_scores([0, 1], [-1, -1]) == (0, 1)
    assert metrics.link_scores([], []) == (1, 1)


# Errors of values


def test_rmse_and_relative_error_against_a_double_loop(rng):
    estimate, values = rng.normal(size=(2, 6, 4))
    mask = rng.random((6, 4)) < 0.5
    squares = [(estimate[i, j] - values[i, j]) ** 2 for i in range(6) for j in range(4) if mask[i, j]]
    size = sum(values[i, j] ** 2 for i in range(6) for j in range(4) if mask[i, j])
    values[~mask] = np.nan
    estimate[~mask] = np.inf
    for guess, right, chosen in zip(kinds(estimate), kinds(values), kinds(mask), strict=True):
        assert metrics.rmse(guess, right, chosen) == pytest.approx(math.sqrt(sum(squares) / len(squares)), rel=1e-14)
        assert metrics.relative_error(guess, right, chosen) == pytest.approx(math.sqrt(sum(squares) / size), rel=1e-14)


def test_rmse_closed_forms():
    assert metrics.rmse(np.full((3, 3), 7), np.full((3, 3), 4)) == 3
    assert metrics.rmse([1.0], [1.0]) == 0
    assert metrics.relative_error(np.zeros((2, 2)), np.ones((2, 2))) == 1
    assert metrics.relative_error(2 * np.eye(3), np.eye(3)) == 1


def test_rmse_of_single_precision_is_computed_in_double():
    size = 1_000_000
    estimate = np.full(size, 0.1, dtype=np.float32)
    assert metrics.rmse(estimate, np.zeros(size)) == pytest.approx(float(np.float32(0.1)), rel=1e-12)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: metrics.rmse([1.0], [1.0, 2.0]), r"estimate: must have the shape of values, \(2,\); found \(1,\)"),
        (lambda: metrics.rmse([1.0], [1.0], [[True]]), r"mask: must have the shape of values, \(1,\); found \(1, 1\)"),
        (lambda: metrics.rmse([1.0], [1.0], [1]), r"mask: must hold True and False; found dtype int64\. Write"),
        (lambda: metrics.rmse([1.0], [1.0], [False]), r"mask: must choose at least one entry"),
        (lambda: metrics.rmse([], []), r"mask: must choose at least one entry"),
        (lambda: metrics.rmse([1.0], [np.nan]), r"values: must be finite where compared; found NaN or infinity"),
        (lambda: metrics.rmse([np.inf], [1.0]), r"estimate: must be finite where compared"),
        (lambda: metrics.rmse(["a"], [1.0]), r"estimate: must hold real numbers"),
        (lambda: metrics.relative_error([1.0], [0.0]), r"values: must not all be zero.*Use rmse"),
    ],
)
def test_bad_values_are_named(call, message):
    with pytest.raises(keyless.InputError, match=message):
        call()


# Fraction of samples closer than the true match


def foscttm_by_loops(cost, truth, direction):
    shares = []
    n, m = cost.shape
    for i, j in enumerate(truth):
        if j < 0:
            continue
        if direction == "forward":
            others, size = [cost[i, k] for k in range(m) if k != j], m - 1
        else:
            others, size = [cost[k, j] for k in range(n) if k != i], n - 1
        points = sum(1.0 if other < cost[i, j] else 0.5 if other == cost[i, j] else 0.0 for other in others)
        shares.append(points / size if size else 0.0)
    return sum(shares) / len(shares)


@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 2**32))
def test_foscttm_against_a_double_loop(n, m, seed):
    rng = np.random.default_rng(seed)
    cost = rng.integers(0, 4, size=(n, m)).astype(float)  # few values: many ties
    truth = np.full(n, -1)
    partners = rng.permutation(m)[: rng.integers(1, min(n, m) + 1)]
    truth[rng.permutation(n)[: len(partners)]] = partners
    forward, backward = (foscttm_by_loops(cost, truth, direction) for direction in ("forward", "backward"))
    assert metrics.foscttm(cost, truth, direction="forward") == pytest.approx(forward, abs=1e-14)
    assert metrics.foscttm(cost, truth, direction="backward") == pytest.approx(backward, abs=1e-14)
    assert metrics.foscttm(cost, truth) == pytest.approx((forward + backward) / 2, abs=1e-14)
    assert metrics.foscttm(-cost, truth, kind="coupling") == metrics.foscttm(cost, truth)


def test_foscttm_closed_forms(rng):
    truth = rng.permutation(7)
    right = np.ones((7, 7))
    right[np.arange(7), truth] = 0
    assert metrics.foscttm(right, truth) == 0
    assert metrics.foscttm(-right, truth) == 1
    assert metrics.foscttm(right, truth, kind="coupling") == 1
    assert metrics.foscttm(np.ones((7, 7)), truth) == 0.5
    assert metrics.foscttm([[3.0]], [0]) == 0
    # Points on a line: row i sits at i, its match one place on, so only the ends differ.
    places = np.arange(4.0)
    cost = np.abs(places[:, None] - places)
    shares = [1 / 3, 2 / 3 - 1 / 6, 2 / 3 - 1 / 6]
    assert metrics.foscttm(cost, [1, 2, 3, -1], direction="forward") == pytest.approx(sum(shares) / 3)
    for array in kinds(cost):
        assert metrics.foscttm(array, np.arange(4)) == 0


def test_foscttm_allows_pairs_ruled_out():
    cost = np.array([[0.0, np.inf], [np.inf, 1.0]])
    assert metrics.foscttm(cost, [0, 1]) == 0
    assert metrics.foscttm(cost, [1, 0]) == 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: metrics.foscttm([[np.nan]], [0]), r"closeness, row 0, column 0: must be a finite number; found NaN"),
        (lambda: metrics.foscttm([[1.0]], [0, 0]), r"truth: must have one entry per row of closeness, 1; found 2"),
        (lambda: metrics.foscttm([[1.0]], [1]), r"truth: must name columns of closeness, at most 0; found 1"),
        (lambda: metrics.foscttm([[1.0]], [-1]), r"truth: must give at least one row a partner"),
        (lambda: metrics.foscttm([[1.0], [1.0]], [0, 0]), r"each table row to one reference row at most"),
        (lambda: metrics.foscttm([[1.0]], [0], kind="kernel"), r"kind: must be 'cost' or 'coupling'; found 'kernel'"),
        (lambda: metrics.foscttm([[1.0]], [0], direction="up"), r"direction: must be 'both'.*found 'up'"),
    ],
)
def test_bad_closeness_is_named(call, message):
    with pytest.raises(keyless.InputError, match=message):
        call()


# Probabilities

links = st.lists(st.tuples(st.sampled_from([0.0, 0.1, 0.25, 0.3, 0.5, 0.7, 0.9, 1.0]), st.booleans()), max_size=12)


@given(links)
def test_coverage_against_the_definition(pairs):
    probability, correct = [p for p, _ in pairs], [c for _, c in pairs]
    curve = metrics.accuracy_against_coverage(probability, correct)
    assert curve.threshold.tolist() == sorted(set(probability), reverse=True)
    for threshold, coverage, accuracy in zip(*curve, strict=True):
        kept = [c for p, c in pairs if p >= threshold]
        assert coverage == len(kept) / len(pairs)
        assert accuracy == sum(kept) / len(kept)


def test_coverage_sizes_0_1_2():
    assert [len(part) for part in metrics.accuracy_against_coverage([], [])] == [0, 0, 0]
    assert metrics.accuracy_against_coverage([0.3], [True]).accuracy.tolist() == [1.0]
    assert metrics.accuracy_against_coverage([0.3, 0.6], [True, False]).accuracy.tolist() == [0.0, 0.5]


@given(links.filter(bool), st.sampled_from([1, 2, 4, 10]))
def test_calibration_against_the_definition(pairs, bins):
    total = 0.0
    for index in range(bins):
        low, high = index / bins, (index + 1) / bins
        members = [(p, c) for p, c in pairs if low <= p < high or (index == bins - 1 and p == 1)]
        if members:
            mean = sum(p for p, _ in members) / len(members)
            share = sum(c for _, c in members) / len(members)
            total += len(members) / len(pairs) * abs(mean - share)
    found = metrics.expected_calibration_error(*map(list, zip(*pairs, strict=True)), bins=bins)
    assert found == pytest.approx(total, abs=1e-14)


def test_calibration_closed_forms():
    assert metrics.expected_calibration_error([1.0, 0.0], [True, False]) == 0
    assert metrics.expected_calibration_error([1.0, 0.0], [False, True]) == 1
    assert metrics.expected_calibration_error([0.5] * 4, [True, False] * 2) == 0
    # One bin lets over- and underconfidence cancel; more bins do not.
    assert metrics.expected_calibration_error([1.0, 0.0], [False, True], bins=1) == 0
    for probability in kinds(np.array([0.75, 0.75], dtype=np.float32)):
        assert metrics.expected_calibration_error(probability, np.array([True, False])) == 0.25


def test_probabilities_that_are_true_are_calibrated(rng):
    probability = rng.random(200_000)
    correct = rng.random(200_000) < probability
    assert metrics.expected_calibration_error(probability, correct) < 0.005
    assert metrics.expected_calibration_error(probability**2, correct) > 0.1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: metrics.accuracy_against_coverage([0.5], [True, False]), r"correct: must be 1-D with one entry per"),
        (
            lambda: metrics.accuracy_against_coverage([0.5], [1]),
            r"correct: must hold True and False; found dtype int64",
        ),
        (lambda: metrics.accuracy_against_coverage([0.5, 1.5], [True] * 2), r"probability, row 1: .*found 1\.5"),
        (lambda: metrics.accuracy_against_coverage([np.nan], [True]), r"probability, row 0: .*found nan"),
        (lambda: metrics.expected_calibration_error([], []), r"probability: must hold at least one link; found none"),
        (
            lambda: metrics.expected_calibration_error([0.5], [True], bins=0),
            r"bins: must be a whole number of at least",
        ),
    ],
)
def test_bad_probabilities_are_named(call, message):
    with pytest.raises(keyless.InputError, match=message):
        call()
