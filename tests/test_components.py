"""Clouds matched component by component: planted factors, factors of one table alone, unequal sizes, strangers."""

import numpy as np
import pandas as pd
import pytest

import keyless
from keyless.engine.by_columns import _better
from keyless.errors import InputError
from keyless.maps import components
from keyless.maps.by_pairs import from_pairs
from keyless.maps.components import find_components, from_components, independent_directions
from keyless.maps.proposed import ProposedMap, confirmed_share
from keyless.model import shards
from keyless.model.positions import Positions
from keyless.model.shards import Sharded

DRAWS = {
    "laplace": lambda rng, size: rng.laplace(size=size) / np.sqrt(2),
    "exponential": lambda rng, size: rng.exponential(size=size) - 1,
    "student": lambda rng, size: rng.standard_t(5, size=size) / np.sqrt(5 / 3),
}


def means(positions):
    return positions.rows.take(np.arange(len(positions)))


def turned_positions(latents, rng, noise=0.1):
    """Posterior means of latents seen with noise, turned at random, their precision, and the turn."""
    rank = latents.shape[1]
    turn = np.linalg.qr(rng.normal(size=(rank, rank)))[0]
    means = (latents + noise * rng.normal(size=latents.shape)) / (1 + noise**2)
    return Positions.of((means @ turn.T).astype(np.float32), np.eye(rank) / noise**2), turn


def planted(rng, *, sizes=(8_000, 8_000), shared=None, common=8, own=4, kind="laplace"):
    """Two tables with common latents and own ones, and the rows of both that are the same entity."""
    shared = min(sizes) if shared is None else shared
    latents = DRAWS[kind](rng, (sum(sizes) - shared, common))
    entities = [np.arange(sizes[0]), np.r_[:shared, sizes[0] : len(latents)]]
    found = []
    for own_order in entities:
        rows = rng.permutation(own_order)
        both = np.concatenate([latents[rows], DRAWS[kind](rng, (len(rows), own))], axis=1)
        found.append((*turned_positions(both, rng), rows))
    return found


# --- What is known of some directions ------------------------------------------------------------------------------


def test_what_is_known_of_some_directions_by_themselves(rng):
    """Against the posterior of a Gaussian with the other directions integrated out."""
    root = rng.normal(size=(5, 5))
    positions = Positions.of(rng.normal(size=(3, 5)).astype(np.float32), root @ root.T)
    directions = np.linalg.qr(rng.normal(size=(5, 2)))[0]
    found = positions.marginal(directions)
    covariance = np.linalg.inv(np.eye(5) + root @ root.T)
    np.testing.assert_allclose(
        np.linalg.inv(np.eye(2) + found.precision), directions.T @ covariance @ directions, atol=1e-10
    )
    np.testing.assert_allclose(means(found), means(positions) @ directions, atol=1e-5)


def test_nothing_is_known_of_latents_that_are_appended(rng):
    positions, _ = turned_positions(rng.laplace(size=(50, 3)), rng)
    found = positions.padded(5)
    assert found.rank == 5
    np.testing.assert_array_equal(means(found)[:, :3], means(positions))
    assert not means(found)[:, 3:].any()
    assert not found.precision[3:].any()
    assert positions.padded(2) is positions


# --- Components ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", list(DRAWS))
def test_planted_components_are_found(rng, kind):
    latents = DRAWS[kind](rng, (10_000, 6))
    positions, turn = turned_positions(latents, rng)
    found = find_components(positions.padded(8), rng=rng)
    assert found.count == 6
    np.testing.assert_allclose(found.directions.T @ found.directions, np.eye(6), atol=1e-9)
    cosines = np.abs(found.directions[:6].T @ turn)
    assert np.all(np.sort(cosines, axis=1)[:, -1] > 0.98)
    assert len(np.unique(cosines.argmax(axis=1))) == 6
    # Posterior means with noise 0.1 leave a variance of about 0.01.
    np.testing.assert_allclose(found.variance, 0.01, rtol=0.1)


def test_rows_far_out_are_those_of_the_whole_table(rng, monkeypatch):
    """Part by part and merged, against a look at all of them."""
    positions, _ = turned_positions(rng.laplace(size=(4_000, 3)), rng)
    turn = rng.normal(size=(3, 3))
    monkeypatch.setattr(shards, "BATCH", 700)
    monkeypatch.setattr(shards, "SHARD", 1_500)
    rows, values = components._far_out(Sharded.of(means(positions).astype(np.float32)).turned(turn), 20, 50)
    whole = means(positions) @ turn
    np.testing.assert_allclose(values, whole[rows], atol=1e-9)
    expected = set()
    for k in range(3):
        order = np.argsort(whole[:, k])
        expected |= {*order[:20].tolist(), *order[-20:].tolist()}
    for size in (2, 3):
        expected |= set(np.argsort(-np.sort(np.abs(whole), axis=1)[:, -size])[:50].tolist())
    assert set(rows.tolist()) == expected


@pytest.mark.parametrize(
    "case",
    [
        {},
        {"kind": "exponential"},
        {"kind": "student", "own": 0},
        {"own": 10},
        {"sizes": (2_000, 8_000)},
        pytest.param({"sizes": (20_000, 2_000)}, marks=pytest.mark.slow),
        {"shared": 3_000},
    ],
    ids=str,
)
def test_common_components_are_matched(rng, case):
    (left, left_turn, left_rows), (right, right_turn, right_rows) = planted(rng, **case)
    found = from_components(left, right, rng=rng)
    assert found.convincing
    assert found.agreement >= 1
    rank = len(found.rotation)
    np.testing.assert_allclose(found.rotation @ found.rotation.T, np.eye(rank), atol=1e-9)
    # What the two have in common is turned onto each other, what they do not onto nothing.
    common, own = 8, case.get("own", 4)
    assert rank == common + 2 * own
    turned = (found.rotation.T @ np.pad(right_turn, ((0, rank - right.rank), (0, 0))))[: left.rank]
    agreement = left_turn.T @ turned
    # Components are known up to errors that shrink as the square root of the rows.
    error = 4 / np.sqrt(min(len(left), len(right)))
    np.testing.assert_allclose(agreement[:common, :common], np.eye(common), atol=error)
    assert np.abs(agreement[:common, common:]).max(initial=0.0) < error
    assert np.abs(agreement[common:, common:]).max(initial=0.0) < error
    same = left_rows[found.pairs[:, 0]] == right_rows[found.pairs[:, 1]]
    assert len(same) > 50
    assert same.mean() > 0.9


@pytest.mark.parametrize("kind", list(DRAWS))
@pytest.mark.parametrize("common", [2, *(pytest.param(common, marks=pytest.mark.slow) for common in (3, 8))])
def test_unrelated_tables_have_no_components_in_common(rng, kind, common):
    tables = [planted(rng, common=common, own=0, kind=kind)[0][0] for _ in range(2)]
    found = from_components(*tables, rng=rng)
    assert found is None or not found.convincing


def test_when_time_is_up_nothing_is_tried(rng):
    (left, _, _), (right, _, _) = planted(rng)
    assert from_components(left, right, rng=rng, expired=lambda: True) is None


def test_a_convincing_map_is_better_than_one_that_more_rows_confirm_but_not_enough():
    """Maps found in different ways need different shares."""
    pairs = np.empty((0, 2), dtype=np.int64)
    unsure = ProposedMap(np.eye(3), pairs, 0.2, 1, (("a", "b", 0.2),))
    sure = ProposedMap(np.eye(3), pairs, 0.1, 3, (("c", "d", 0.1),), needed=0.06)
    for found in (_better(unsure, sure), _better(sure, unsure)):
        assert found.needed == 0.06
        assert len(found.tried) == 2
    assert sure.promising
    assert not unsure.promising


def test_a_single_component_cannot_be_matched(rng):
    positions, _ = turned_positions(rng.laplace(size=(3_000, 1)), rng)
    assert from_components(positions, positions, rng=rng) is None


@pytest.mark.parametrize("right_share", [1.0, 0.4])
def test_pairs_of_which_not_all_are_right_give_the_map(rng, right_share):
    (left, left_turn, left_rows), (right, right_turn, right_rows) = planted(rng, own=6)
    place = np.argsort(right_rows)[left_rows]
    place = np.where(rng.random(len(place)) < right_share, place, rng.permutation(len(place)))
    pairs = np.stack([np.arange(3_000), place[:3_000]], axis=1)
    found = from_pairs(left, right, pairs, name="told", rng=rng)
    assert found.convincing
    assert found.tried[0][:2] == ("pairs", "told")
    rank = 8 + 2 * 6
    turned = (found.rotation.T @ np.pad(right_turn, ((0, rank - right.rank), (0, 0))))[: left.rank]
    np.testing.assert_allclose((left_turn.T @ turned)[:8, :8], np.eye(8), atol=4 / np.sqrt(3_000))


def test_pairs_at_random_give_no_map(rng):
    (left, _, _), (right, _, _) = planted(rng)
    pairs = np.stack([np.arange(2_000), rng.permutation(len(right))[:2_000]], axis=1)
    found = from_pairs(left, right, pairs, name="told", rng=rng)
    assert found is None or not found.convincing


def test_what_is_dealt_anew_keeps_its_shape_and_loses_its_rows(rng):
    positions, _ = turned_positions(rng.exponential(size=(5_000, 4)) - 1, rng)
    directions = independent_directions(positions, rng)
    dealt = positions.scattered(directions, rng)
    turn = positions.whitening @ directions
    before, after = means(positions) @ turn, means(dealt) @ turn
    np.testing.assert_allclose(np.sort(after, axis=0), np.sort(before, axis=0), atol=1e-3)
    for k in range(4):
        assert abs(np.corrcoef(before[:, k], after[:, k])[0, 1]) < 4 / np.sqrt(5_000)


# --- Through the front door ----------------------------------------------------------------------------------------


def tables(rng, *, sizes, shared, common=8, own=4, columns=(30, 25), noise=0.1):
    """Two tables, and the right row of every row of the first, −1 for none."""
    latents = rng.laplace(size=(sum(sizes) - shared, common))
    rows = [np.arange(sizes[0]), rng.permutation(np.r_[:shared, sizes[0] : len(latents)])]
    found = []
    for index, width in zip(rows, columns, strict=True):
        both = np.concatenate([latents[index], rng.laplace(size=(len(index), own))], axis=1)
        values = both @ rng.normal(size=(common + own, width))
        found.append(values + noise * values.std() * rng.normal(size=values.shape))
    place = np.full(len(latents), -1)
    place[rows[1]] = np.arange(sizes[1])
    return found, place[: sizes[0]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sizes", "shared", "common", "own"),
    [((6_000, 6_000), 6_000, 8, 8), ((1_500, 6_000), 1_500, 8, 4), ((6_000, 6_000), 2_000, 12, 4)],
)
def test_tables_with_factors_of_their_own_unequal_or_mostly_strangers(rng, sizes, shared, common, own):
    given, truth = tables(rng, sizes=sizes, shared=shared, common=common, own=own)
    links = keyless.link(given, random_state=0)
    assert links.evidence.verdict == "linked"
    assert links.choices["route"] == "columns"
    assert not any("canonical growth" in start["start"] for start in links.starts)
    assert any(start["start"].endswith("components") for start in links.starts)
    found = links.permutations["table1"]
    right = np.count_nonzero((found == truth) & (found >= 0))
    assert right >= 0.99 * np.count_nonzero(found >= 0)
    assert right >= 0.99 * np.count_nonzero(truth >= 0)


def test_outermost_rows_are_confirmed_by_what_both_sides_know(rng):
    """Own factors, many of them, make other rows the outermost of either side."""
    (left, left_turn, _), (right, right_turn, _) = planted(rng, common=6, own=12)
    identity = np.eye(6 + 24)
    padding = ((0, 0), (0, 12))
    # The same latents on both sides: common, those of the left, those of the right.
    sides = []
    for positions, turn, order in (
        (left, left_turn, np.arange(30)),
        (right, right_turn, np.r_[:6, 18:30, 6:18]),
    ):
        straight = Positions.of((means(positions) @ turn).astype(np.float32), turn.T @ positions.precision @ turn)
        wide = Positions.of(np.pad(means(straight), padding), np.pad(straight.precision, (0, 12)))
        sides.append(wide.turned(identity[:, order]))
    assert confirmed_share(*sides) > 0.5


def gaussian_tables(rng, *, size=6_000, common=6, own=6):
    """Two frames of Gaussian factors, several of each alone, with three columns in common, both in the same order."""
    latents = rng.normal(size=(size, common))
    turn = rng.normal(size=(common, 3))
    frames = []
    for name, width in (("a", 26), ("b", 24)):
        both = np.concatenate([latents, rng.normal(size=(size, own))], axis=1)
        values = both @ rng.normal(size=(common + own, width))
        values += 0.1 * values.std() * rng.normal(size=values.shape)
        shared = latents @ turn
        shared += 0.02 * shared.std() * rng.normal(size=shared.shape)
        columns = [f"{name}{k}" for k in range(width)] + ["x", "y", "z"]
        frames.append(pd.DataFrame(np.concatenate([values, shared], axis=1), columns=columns))
    return frames


@pytest.mark.parametrize(
    "selected", [pytest.param(False, marks=pytest.mark.slow), pytest.param(True, marks=pytest.mark.soak)]
)
def test_columns_that_both_have_lead_where_shapes_do_not(rng, selected):
    """Only these tell; also where one table holds those rows only that are large in one of them."""
    first, second = gaussian_tables(rng)
    rows = rng.permutation(np.flatnonzero(second["x"] > second["x"].median()) if selected else len(second))
    links = keyless.link({"t0": first, "t1": second.iloc[rows].reset_index(drop=True)}, random_state=0)
    assert links.evidence.verdict == "linked"
    assert any(start["start"].startswith("shared columns") for start in links.starts)
    found = links.permutations["t1"]
    right = np.count_nonzero(rows[found[found >= 0]] == np.flatnonzero(found >= 0))
    assert right > 0.99 * len(rows)
    assert right > 0.99 * np.count_nonzero(found >= 0)


def test_columns_that_tables_do_not_have_are_named(rng):
    with pytest.raises(InputError, match="shared: must name numeric columns"):
        keyless.link(gaussian_tables(rng), shared=["nothing"])


@pytest.mark.soak
def test_own_factors_beside_gaps_and_in_three_tables(rng):
    common, size = 10, 6_000
    latents = rng.laplace(size=(size, common))
    given, orders = [], []
    for width in (32, 28, 28):
        order = rng.permutation(size)
        both = np.concatenate([latents[order], rng.laplace(size=(size, 3))], axis=1)
        values = both @ rng.normal(size=(common + 3, width))
        values += 0.1 * values.std() * rng.normal(size=values.shape)
        values[rng.random(values.shape) < 0.1] = np.nan
        given.append(values)
        orders.append(order)
    links = keyless.link(given, random_state=0)
    assert links.evidence.verdict == "linked"
    for name, order in zip(("table1", "table2"), orders[1:], strict=True):
        assert np.mean(order[links.permutations[name]] == orders[0]) > 0.99
