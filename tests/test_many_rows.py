"""Tables of many rows: every part against plain arithmetic on all pairs, and the whole through the front door."""

import itertools
import time
import tracemalloc
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.datasets import load_sample_images

import keyless
from keyless.engine import matches
from keyless.maps.by_moments import from_moments
from keyless.maps.by_pairs import from_pairs
from keyless.maps.far_rows import from_far_rows
from keyless.model.factor_model import Information
from keyless.model.positions import Positions
from keyless.model.scored_tables import ScoredTable
from keyless.pairs import faiss_index, neighbours
from keyless.pairs.candidates import limited
from keyless.pairs.faiss_index import CellLayout, FaissIndex
from keyless.pairs.likelihood import exact_log_ratio
from keyless.pairs.limits import Limits
from keyless.pairs.matching import match_listed
from keyless.pairs.metric import Metric
from keyless.pairs.neighbours import lay_out, nearest
from keyless.pairs.posterior import marginals
from many_rows import check_all_cells, check_one_cell
from ways import link_by

DRAWS = {
    "laplace": lambda rng, size: rng.laplace(size=size) / np.sqrt(2),
    "normal": lambda rng, size: rng.normal(size=size),
    "exponential": lambda rng, size: rng.exponential(size=size) - 1,
}


def made(
    sizes=(5_000, 5_000), columns=(16, 14), *, rank=5, noise=0.05, common=None, missing=0.0, kind="laplace", seed=0
):
    """Return tables by name, and per table after the first the row of every row of the first, −1 for none."""
    rng = np.random.default_rng(seed)
    entities, start = [rng.permutation(sizes[0])], sizes[0]
    for size in sizes[1:]:
        shared = min(size, sizes[0]) if common is None else common
        own = np.concatenate([rng.permutation(sizes[0])[:shared], np.arange(start, start + size - shared)])
        start += size - shared
        entities.append(rng.permutation(own))
    latents = DRAWS[kind](rng, (start, rank))
    tables, truth = {}, {}
    for number, (rows, width) in enumerate(zip(entities, columns, strict=True)):
        values = latents[rows] @ rng.normal(size=(rank, width))
        values += noise * values.std() * rng.normal(size=values.shape)
        values[rng.random(values.shape) < missing] = np.nan
        tables[f"t{number}"] = values
        place = np.full(start, -1)
        place[rows] = np.arange(len(rows))
        truth[f"t{number}"] = place[entities[0]]
    del truth["t0"]
    return tables, truth


def linked(tables, **options):
    return keyless.link(tables, random_state=0, **options)


def scores(links, truth, name="t1"):
    """Return precision and recall."""
    found = links.permutations[name]
    right = np.count_nonzero((found == truth[name]) & (found >= 0))
    return right / max(np.count_nonzero(found >= 0), 1), right / max(np.count_nonzero(truth[name] >= 0), 1)


# --- The space in which the likeliest partner is the nearest -------------------------------------------------------


@pytest.mark.parametrize("ranks", [(4, 4), (2, 4), (4, 1), (0, 3)])
def test_distance_is_likelihood(rng, ranks):
    """Precisions of full and of lower rank."""
    precisions = []
    for used in ranks:
        half = rng.normal(size=(4, used))
        precisions.append(3 * half @ half.T)
    metric = Metric.between(*precisions)
    # Means that a precision of lower rank can lead to; no row has others.
    shifts = [rng.normal(size=(count, 4)) @ half for count, half in zip((7, 9), precisions, strict=True)]
    means = [h @ np.linalg.inv(np.eye(4) + precision) for h, precision in zip(shifts, precisions, strict=True)]
    queries, points = metric.queries(means[0]), metric.points(means[1])
    square = np.square(queries[:, None, :].astype(float) - points[None, :, :]).sum(axis=2)
    found = metric.offsets(means[0])[:, None] - 0.5 * square
    infos = [
        Information(np.broadcast_to(precision, (len(shift), 4, 4)), shift)
        for precision, shift in zip(precisions, shifts, strict=True)
    ]
    rows, columns = (index.ravel() for index in np.indices((7, 9)))
    expected = exact_log_ratio(*infos, rows, columns).reshape(7, 9)
    np.testing.assert_allclose(found, expected, atol=2e-4)
    if min(ranks):
        near = nearest(points, queries, 1).points[:, 0]
        np.testing.assert_allclose(expected[np.arange(7), near], expected.max(axis=1), atol=1e-3)


# --- Nearest rows -------------------------------------------------------------------------------------------------


@pytest.fixture
def without_faiss(monkeypatch):
    monkeypatch.setattr(neighbours, "_faiss", lambda: None)


def by_loops(points, queries, count):
    found = []
    for query in queries.astype(float):
        square = [float(((point - query) ** 2).sum()) for point in points.astype(float)]
        found.append(sorted(range(len(points)), key=square.__getitem__)[:count])
    return np.array(found)


@pytest.mark.usefixtures("without_faiss")
@pytest.mark.parametrize("shard", [7, 65_536])
def test_all_distances_without_faiss(rng, monkeypatch, shard):
    monkeypatch.setattr(neighbours, "_SHARD", shard)
    points, queries = (rng.normal(size=(size, 3)).astype(np.float32) for size in (60, 25))
    found = nearest(points, queries, 4)
    np.testing.assert_array_equal(found.points, by_loops(points, queries, 4))
    assert found.evaluations == 60 * 25


def test_all_distances_with_faiss(rng):
    pytest.importorskip("faiss")
    points, queries = (rng.normal(size=(size, 3)).astype(np.float32) for size in (60, 25))
    np.testing.assert_array_equal(nearest(points, queries, 4).points, by_loops(points, queries, 4))


@pytest.mark.usefixtures("without_faiss")
def test_more_neighbours_than_points(rng):
    found = nearest(rng.normal(size=(3, 2)), rng.normal(size=(5, 2)), 6).points
    assert np.all(found[:, 3:] == -1)
    assert np.all(np.sort(found[:, :3], axis=1) == [0, 1, 2])


def test_more_neighbours_than_points_with_faiss(rng):
    pytest.importorskip("faiss")
    assert np.all(nearest(rng.normal(size=(3, 2)), rng.normal(size=(5, 2)), 6).points[:, 3:] == -1)
    assert nearest(np.empty((0, 2)), rng.normal(size=(5, 2)), 1).points.tolist() == [[-1]] * 5


def index_of(points, cells, seed=0):
    faiss = pytest.importorskip("faiss")
    points = points.astype(np.float32)
    return FaissIndex(faiss, points, CellLayout.of(faiss, points, cells, np.random.default_rng(seed)))


@pytest.mark.parametrize("queries", [5, 300])
@pytest.mark.parametrize("centre", [0.0, 1_000.0])
def test_who_looks_into_all_cells_finds_the_nearest(rng, monkeypatch, queries, centre):
    """Far from 0 distances are as exact as near it: single precision alone would be wrong by 0.1."""
    monkeypatch.setattr(faiss_index, "_SORTED", 130)
    monkeypatch.setattr(faiss_index, "_FOUND", 130 * 30 * 4)
    points, asking = (centre + rng.normal(size=(size, 5)).astype(np.float32) for size in (1_000, queries))
    check_all_cells(index_of(points, 30), points, asking, 30)


def test_who_looks_into_one_cell_finds_the_nearest_of_that_cell(rng):
    points, queries = (rng.normal(size=(size, 3)).astype(np.float32) for size in (400, 90))
    index = index_of(points, 20)
    check_one_cell(index, index.layout.centres, points, queries, 60)


def test_a_layout_serves_several_searches(rng, monkeypatch):
    """With a layout made for many queries few of them find the same; distances by which it was made count once."""
    pytest.importorskip("faiss")
    points = rng.normal(size=(12_000, 4)).astype(np.float32)
    queries = points[:300] + 0.01
    assert lay_out(points, len(queries)) is None
    expected = nearest(points, queries, 3).points
    monkeypatch.setattr(neighbours, "_ALL_PAIRS", 1)
    layout = lay_out(points, len(points))
    found = nearest(points, queries, 3, layout=layout)
    np.testing.assert_array_equal(found.points[:, 0], expected[:, 0])
    assert np.mean(found.points == expected) > 0.98
    anew = nearest(points, queries, 3)
    assert len(layout.centres) > 2 * len(lay_out(points, len(queries)).centres)
    assert anew.evaluations > lay_out(points, len(queries)).looked
    assert lay_out(points, len(queries), device="card") is None


@pytest.mark.slow
def test_cells_find_nearly_all_and_look_at_few(rng, monkeypatch):
    pytest.importorskip("faiss")
    points = rng.normal(size=(20_000, 4)).astype(np.float32)
    queries = points + 0.01 * rng.normal(size=points.shape).astype(np.float32)
    truth = nearest(points, queries, 1).points[:, 0]
    monkeypatch.setattr(neighbours, "_ALL_PAIRS", 1)
    found = nearest(points, queries, 2)
    assert np.mean(found.points[:, 0] == truth) >= 0.999
    assert found.recall >= 0.999
    # Beside the cells looked into there is the search for cells, and the sample whose true neighbours are needed.
    assert 1_000 * 20_000 < found.evaluations < 0.4 * 20_000**2


def test_who_has_found_enough_looks_no_further(rng, monkeypatch):
    """Partners are at a distance of about 0.3 in ten dimensions; strangers at several times that."""
    pytest.importorskip("faiss")
    points = rng.normal(size=(20_000, 10)).astype(np.float32)
    queries = points + 0.1 * rng.normal(size=points.shape).astype(np.float32)
    monkeypatch.setattr(neighbours, "_ALL_PAIRS", 1)
    thorough = nearest(points, queries, 2)
    enough = np.where(np.arange(len(points)) < 15_000, 0.5, -1.0)
    found = nearest(points, queries, 2, enough=enough)
    assert min(found.recall, thorough.recall) >= 0.999
    assert found.evaluations < 0.8 * thorough.evaluations
    distance = np.square(points[found.points[:, 0]] - queries).sum(axis=1)
    same = found.points[:, 0] == thorough.points[:, 0]
    assert np.all(same | (distance <= enough))
    assert same[15_000:].all()
    assert same.mean() >= 0.999


def test_near_twins_are_not_taken_for_each_other(rng, monkeypatch):
    """What is near enough by far may still be the twin: then all look on until they have found the nearest."""
    pytest.importorskip("faiss")
    one = rng.normal(size=(10_000, 10)).astype(np.float32)
    points = np.concatenate([one, one + 0.05 * rng.normal(size=one.shape).astype(np.float32)])
    queries = points + 0.01 * rng.normal(size=points.shape).astype(np.float32)
    monkeypatch.setattr(neighbours, "_ALL_PAIRS", 1)
    found = nearest(points, queries, 2, enough=np.full(len(queries), 1.0))
    assert found.recall >= 0.999
    assert np.mean(found.points[:, 0] == np.arange(len(points))) >= 0.998


def test_points_that_coincide_are_as_good_as_each_other(rng, monkeypatch):
    """Else no number of cells would seem enough, and all pairs would be looked at."""
    pytest.importorskip("faiss")
    points = rng.integers(0, 6, size=(20_000, 3)).astype(np.float32)
    monkeypatch.setattr(neighbours, "_ALL_PAIRS", 1)
    found = nearest(points, points, 1)
    assert found.recall == 1.0
    assert found.evaluations < 0.4 * 20_000**2


# --- The map ------------------------------------------------------------------------------------------------------


def positions(latents, noise, rng):
    """Posterior means of latents seen with noise, and their precision."""
    rank = latents.shape[1]
    means = (latents + noise * rng.normal(size=latents.shape)) / (1 + noise**2)
    return Positions.of(means.astype(np.float32), np.eye(rank) / noise**2)


@pytest.mark.parametrize(
    ("kind", "propose"),
    [("laplace", from_far_rows), ("exponential", from_far_rows), ("normal", from_moments)],
)
def test_a_planted_rotation_is_found(rng, kind, propose):
    """Unequal sizes, 80% overlap."""
    common, rank, noise = 4_000, 6, 0.1
    latents = DRAWS[kind](rng, (common + 1_000 + 2_000, rank))
    rows = rng.permutation(np.r_[:common, common : common + 1_000])
    columns = rng.permutation(np.r_[:common, common + 1_000 : common + 3_000])
    turn = np.linalg.qr(rng.normal(size=(rank, rank)))[0]
    tables = positions(latents[rows], noise, rng), positions(latents[columns] @ turn.T, noise, rng)
    found = propose(*tables, **({"rng": rng} if propose is from_moments else {}))
    assert found.convincing
    np.testing.assert_allclose(found.rotation, turn, atol=0.05)
    same = rows[found.pairs[:, 0]] == columns[found.pairs[:, 1]]
    assert len(same) > 200
    # A fifth of the far rows are alone, and some of them have a neighbour by chance.
    assert same.mean() > 0.9


def test_unrelated_tables_have_no_map(rng):
    tables = [positions(rng.laplace(size=(4_000, 5)) / np.sqrt(2), 0.1, rng) for _ in range(2)]
    assert not from_far_rows(*tables, most=4).convincing
    assert not from_moments(*tables, rng=rng).convincing


def test_known_pairs_give_the_map_at_once(rng):
    latents = rng.normal(size=(3_000, 6))
    turn = np.linalg.qr(rng.normal(size=(6, 6)))[0]
    known = np.repeat(np.arange(100)[:, None], 2, axis=1)
    tables = positions(latents, 0.1, rng), positions(latents @ turn.T, 0.1, rng)
    found = from_pairs(*tables, known, name="known pairs", rng=rng)
    assert found.convincing
    assert [start for _, start, _ in found.tried] == ["known pairs"]
    np.testing.assert_allclose(found.rotation, turn, atol=0.05)


# --- Probabilities and constraints --------------------------------------------------------------------------------


def frequencies(weights):
    """Marginals by listing every matching."""
    rows, columns = weights.shape
    total, found = 0.0, np.zeros(weights.shape)
    for count in range(min(rows, columns) + 1):
        for chosen in itertools.combinations(range(rows), count):
            for others in itertools.permutations(range(columns), count):
                weight = np.exp(weights[list(chosen), list(others)].sum())
                total += weight
                found[list(chosen), list(others)] += weight
    return found / total


def test_probabilities_are_the_frequencies_among_all_matchings(rng):
    errors = {0.85: [], 0.0: []}
    for _ in range(30):
        weights = rng.normal(size=(4, 4)) * 2 + rng.choice([0.0, 3.0, 6.0])
        truth = frequencies(weights)
        for gamma, found in errors.items():
            found.append(np.abs(marginals(sparse.csr_array(weights), gamma=gamma).toarray() - truth).mean())
    assert np.mean(errors[0.85]) < 0.02
    assert np.mean(errors[0.85]) < 0.5 * np.mean(errors[0.0])


def test_pairs_without_rivals_do_not_depend_on_others(rng):
    """A lone pair is as likely as its odds say, and the others have the probabilities they have by themselves."""
    weights = rng.normal(size=(3, 4))
    both = sparse.block_diag([weights, [[np.log(3.0)]]], format="csr")
    found = marginals(sparse.csr_array(both)).toarray()
    np.testing.assert_allclose(found[3, 4], 0.75)
    np.testing.assert_allclose(found[:3, :4], marginals(sparse.csr_array(weights)).toarray())


def test_probabilities_of_extreme_weights():
    weights = sparse.csr_array(np.array([[500.0, -900.0, 0.1], [400.0, 450.0, 0.1], [-20.0, -700.0, -3.0]]))
    found = marginals(weights).toarray()
    np.testing.assert_allclose(found.sum(axis=1)[:2], 1.0, atol=1e-6)
    np.testing.assert_allclose(found[:2, :2], np.eye(2), atol=1e-6)
    np.testing.assert_allclose(found[2, 2], np.exp(-3) / (1 + np.exp(-3)), atol=0.02)
    assert marginals(sparse.csr_array((3, 4))).nnz == 0


# --- Candidates to matches ----------------------------------------------------------------------------------------


def matched(ratios, **options):
    return match_listed(sparse.csr_array(np.asarray(ratios, dtype=float)), **options)


def test_who_may_be_alone_is_where_the_odds_are_low():
    ratios = np.diag([20.0] * 30)
    ratios[0, 0], ratios[0, 1] = -15.0, -14.0
    assert matched(ratios, every_row=False).permutation.tolist() == [-1, *range(1, 30)]
    assert matched(ratios, every_row=True).permutation.tolist() == list(range(30))


def test_whether_rows_may_be_alone_is_decided_from_the_data():
    ratios = np.diag([20.0] * 1_000)
    assert matched(ratios, every_row=None).every_row
    ratios[:100] = 0
    ratios[np.arange(100), np.arange(100)] = -20.0
    found = matched(ratios, every_row=None)
    assert not found.every_row
    assert np.all(found.permutation[:100] == -1)
    assert np.all(found.chances.answers(found.permutation) > 0.98)
    assert not matched(ratios[:, :900], every_row=None).every_row


def test_every_row_that_can_gets_a_partner():
    """A pair more counts for more than any choice: here the best pair would leave two rows alone."""
    ratios = sparse.csr_array(([5_000.0, -3_000.0, -2_500.0], ([0, 0, 1], [0, 1, 0])), shape=(2, 2))
    assert match_listed(ratios, every_row=True).permutation.tolist() == [1, 0]


def test_known_pairs_hold_and_forbidden_ones_do_not():
    limits = Limits((4, 4), known=np.array([[0, 1]]), forbidden=np.array([[2, 2]]))
    ratios = limited(sparse.csr_array(np.diag([20.0] * 4) + 1.0), limits)
    assert ratios[[0], :].nnz == ratios[:, [1]].nnz == 1
    found = match_listed(ratios, every_row=False)
    assert found.permutation[0] == 1
    assert found.permutation[2] != 2
    assert found.permutation[3] == 3
    assert found.permutation[1] not in (0, 1) or found.permutation[1] == 0
    assert found.chances.answers(found.permutation)[0] > 0.999


@pytest.mark.parametrize("common", [60, 48])
def test_listed_pairs_give_the_matches_and_probabilities_of_all_pairs(rng, common):
    """Of 60 rows, all or 48 have a partner; the small engine weighs all pairs, the one for many rows lists them."""
    ratios = rng.normal(-12.0, 3.0, size=(60, 60))
    order = rng.permutation(60)
    ratios[order[:common], np.arange(common)] = rng.normal(14.0, 3.0, size=common)
    permutation, chances, every_row = matches.matched(ratios.astype(np.float32), None)
    listed = matched(ratios, every_row=None)
    assert listed.every_row == every_row == (common == 60)
    np.testing.assert_array_equal(listed.permutation, permutation)
    found = listed.chances.answers(listed.permutation)
    np.testing.assert_allclose(found, chances.answers(permutation), atol=1e-3)


def test_listed_rows_in_another_order_have_the_same_matches(rng):
    ratios = rng.normal(-6.0, 3.0, size=(40, 50)) + 18.0 * np.eye(40, 50)
    rows, columns = rng.permutation(40), rng.permutation(50)
    plain, moved = matched(ratios, every_row=False), matched(ratios[rows][:, columns], every_row=False)
    np.testing.assert_array_equal(np.append(columns, -1)[moved.permutation], plain.permutation[rows])
    expected = plain.chances.pairs.toarray()[rows][:, columns]
    np.testing.assert_allclose(moved.chances.pairs.toarray(), expected, atol=1e-9)


def test_rows_outside_the_sample_stay_in_range():
    values = np.random.default_rng(0).normal(size=(400, 2))
    table = ScoredTable.scaled(
        values, np.ones((400, 2), dtype=bool), kinds=["auto"] * 2, rng=np.random.default_rng(0), sample=100
    )
    wild = replace(table, values=np.where(np.arange(400)[:, None] == 7, 1e30, values))
    found, _ = wild.scores(slice(None))
    assert np.abs(found[7]).max() == 20.0
    others = np.arange(400) != 7
    np.testing.assert_array_equal(found[others], table.scores(slice(None))[0][others])


# --- Through the front door ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def easy():
    return made((5_200,) * 2, noise=0.02)


@pytest.fixture(scope="module")
def easy_links(easy):
    return linked(easy[0])


def test_two_easy_tables_are_linked_exactly(easy, easy_links):
    np.testing.assert_array_equal(easy_links.permutations["t1"], easy[1]["t1"])
    assert easy_links.evidence.verdict == "linked"
    assert easy_links.choices["route"] == "columns"
    assert sparse.issparse(easy_links.coupling("t1"))
    assert easy_links.coupling("t1").shape == (5_200, 5_200)
    assert easy_links.matches["probability"].min() > 0.5


@pytest.mark.slow
def test_order_unit_and_sign_do_not_matter(easy):
    """Permuted rows permute the answer; columns may be scaled and turned."""
    (tables, truth), rng = easy, np.random.default_rng(3)
    rows, columns = rng.permutation(5_200), rng.permutation(5_200)
    factors = rng.choice([-3.0, 0.01, 1e6], size=tables["t0"].shape[1])
    links = linked({"t0": tables["t0"][rows] * factors + 5.0, "t1": tables["t1"][columns]})
    np.testing.assert_array_equal(columns[links.permutations["t1"]], truth["t1"][rows])


def test_links_are_saved_loaded_and_filled_in(easy, easy_links, tmp_path):
    easy_links.save(tmp_path / "run.keyless")
    loaded = keyless.load(tmp_path / "run.keyless")
    pd.testing.assert_frame_equal(loaded.matches, easy_links.matches)
    assert (loaded.coupling("t1") != easy_links.coupling("t1")).nnz == 0
    tables, truth = easy
    np.testing.assert_allclose(easy_links.completed["t1"], tables["t1"][truth["t1"]])


@pytest.mark.slow
def test_three_tables():
    tables, truth = made((5_000,) * 3, (16, 14, 12), noise=0.02)
    links = linked(tables)
    for name in ("t1", "t2"):
        np.testing.assert_array_equal(links.permutations[name], truth[name])
        assert links.evidence_for(name).verdict == "linked"


@pytest.mark.slow
def test_a_fifth_of_all_entries_missing():
    tables, truth = made((5_000,) * 2, (24, 20), rank=4, noise=0.02, missing=0.2)
    links = linked(tables)
    assert min(scores(links, truth)) > 0.995
    filled = np.asarray(links.completed["t1"])
    assert np.isfinite(filled).all()


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(5_000, 5_000), (5_000, 7_000)])
def test_part_of_the_entities_in_both(sizes):
    tables, truth = made(sizes, common=4_000, noise=0.02)
    links = linked(tables)
    assert min(scores(links, truth)) >= 0.99
    assert links.evidence.verdict == "linked"


@pytest.mark.slow
def test_all_of_the_smaller_table_in_a_larger_reference():
    tables, truth = made((7_000, 5_000), noise=0.02)
    assert min(scores(linked(tables), truth)) > 0.99


@pytest.mark.slow
def test_known_and_forbidden_pairs(easy):
    """The pairs known are wrong on purpose: what the caller says counts, and does not spoil the others or the score."""
    tables, truth = easy
    place = truth["t1"]
    known = [(0, int(place[1])), (1, int(place[0]))]
    links = linked(tables, known_pairs=known, forbid=[(5, int(place[5]))])
    found = links.permutations["t1"]
    assert [found[0], found[1]] == [place[1], place[0]]
    assert found[5] != place[5]
    # Who may not have its partner takes that of another, which takes that of a third …
    assert np.count_nonzero(found[6:] != place[6:]) <= 3
    assert links.evidence.score < 40


@pytest.mark.soak
def test_rows_match_inside_groups_only():
    """Many groups, some rows of unknown group, in both tables."""
    tables, truth = made((5_000,) * 2, noise=0.1)
    rng = np.random.default_rng(1)
    ward = rng.integers(0, 1_000, 5_000).astype(float)
    other = np.empty(5_000)
    other[truth["t1"]] = ward
    ward[rng.random(5_000) < 0.05], other[rng.random(5_000) < 0.05] = np.nan, np.nan
    frames = {
        name: pd.DataFrame(values, columns=[f"{name} {k}" for k in range(values.shape[1])]).assign(
            ward=pd.Series(labels).map(lambda label: None if np.isnan(label) else f"w{int(label)}")
        )
        for (name, values), labels in zip(tables.items(), (ward, other), strict=True)
    }
    links = linked(frames, within="ward")
    found = links.permutations["t1"]
    both = ~(np.isnan(ward) | np.isnan(other[found]))
    assert np.all(ward[both] == other[found][both])
    assert min(scores(links, truth)) > 0.99


@pytest.mark.slow
def test_factors_of_one_table_alone_do_not_hide_the_common_ones(rng):
    common = rng.laplace(size=(6_000, 10))
    sides = [np.concatenate([common, rng.laplace(size=(6_000, own))], axis=1) for own in (3, 1)]
    tables = [side @ rng.normal(size=(side.shape[1], width)) for side, width in zip(sides, (40, 30), strict=True)]
    tables = [table + 0.1 * table.std() * rng.normal(size=table.shape) for table in tables]
    order = rng.permutation(6_000)
    links = linked([tables[0], tables[1][order]])
    assert links.evidence.verdict == "linked"
    assert (order[links.permutations["table1"]] == np.arange(6_000)).mean() > 0.99


@pytest.mark.soak
def test_unrelated_tables_are_refused():
    tables, _ = made((5_000,) * 2, (8, 7), rank=3, common=0, noise=0.05)
    began = time.process_time()
    links = linked(tables)
    assert links.evidence.verdict == "unlinkable"
    assert links.matches["probability"].where(links.permutations["t1"] >= 0).max() < 0.01
    assert time.process_time() - began < 60


@pytest.mark.soak
def test_as_accurate_as_the_search_of_all_pairs():
    tables, truth = made((1_500,) * 2, (20, 16), noise=0.12, rank=6)
    shares = [scores(link_by(way, tables, random_state=0), truth)[1] for way in ("columns", "pairs")]
    assert 0.8 < shares[1] < 1.0
    assert shares[0] >= shares[1] - 0.002


@pytest.mark.soak
def test_probabilities_are_right_on_ambiguous_data():
    tables, truth = made((5_000,) * 2, (30, 24), rank=6, noise=0.3, kind="normal", seed=1)
    links = linked(tables)
    found = links.permutations["t1"]
    right = np.count_nonzero(found == truth["t1"])
    assert 0.75 < right / 5_000 < 0.95
    assert links.evidence.verdict == "linked"
    expected = links.matches["probability"].to_numpy()[found >= 0].sum()
    assert abs(expected - right) < 0.03 * right


@pytest.mark.slow
def test_rows_of_equal_tables_all_get_a_partner_when_told_so():
    tables, _ = made((5_000,) * 2, (12, 10), noise=0.07)
    found = linked(tables, partners="all").permutations["t1"]
    np.testing.assert_array_equal(np.sort(found), np.arange(5_000))


@pytest.mark.slow
def test_the_same_seed_gives_the_same_answer_and_finished_stages_are_kept(easy, easy_links, tmp_path):
    first = linked(easy[0], checkpoint=tmp_path)
    stages = []
    again = linked(easy[0], checkpoint=tmp_path, callback=lambda stage, *_: stages.append(stage))
    assert "candidates" not in stages
    for links in (first, again):
        pd.testing.assert_frame_equal(links.matches, easy_links.matches)
        assert (links.coupling("t1") != easy_links.coupling("t1")).nnz == 0


@pytest.mark.slow
def test_a_callback_that_returns_true_ends_it_soon(easy):
    stages = []
    links = linked(easy[0], callback=lambda stage, *_: stages.append(stage) or True)
    assert links.status.reason == "stopped"
    assert links.evidence.verdict != "linked"
    assert "chance" not in stages


@pytest.mark.parametrize("seconds", [1e-3, 1.0])
def test_a_time_limit_is_kept_about(easy, seconds):
    began = time.monotonic()
    links = linked(easy[0], max_time=seconds)
    assert time.monotonic() - began < seconds + 15
    assert links.status.reason == "max_time"
    assert links.permutations["t1"].shape == (5_200,)


@pytest.mark.parametrize("rows", [1, 2, 3, 10])
@pytest.mark.slow
def test_few_rows_are_no_error(rows):
    tables, truth = made((rows,) * 2, rank=2, noise=0.01)
    links = link_by("columns", tables, effort="quick", random_state=0)
    assert links.permutations["t1"].shape == truth["t1"].shape


@pytest.mark.slow
def test_awkward_columns(easy):
    """Constant, empty and integer columns, and rows far off in one table only."""
    tables, truth = easy
    rng = np.random.default_rng(5)
    left = np.column_stack([tables["t0"], np.full(5_200, 3.0), np.round(tables["t0"][:, 0])])
    left[rng.choice(5_200, 60, replace=False), 2] *= 100
    right = np.column_stack([tables["t1"], np.full(5_200, np.nan)])
    assert min(scores(linked({"t0": left, "t1": right}), truth)) > 0.98


@pytest.mark.soak
def test_three_tables_of_many_real_rows_are_linked_as_two_are():
    """Patches of photographs, one table for each colour: many are alike, and a model of all columns mixes them up."""
    pytest.importorskip("PIL")
    patches = np.array(
        [
            image[top : top + 8, left : left + 8].reshape(64, 3)
            for image in load_sample_images().images
            for top in range(0, image.shape[0] - 7, 7)
            for left in range(0, image.shape[1] - 7, 7)
        ],
        dtype=float,
    )
    deviation = patches[..., 0].std(axis=1)
    patches = patches[deviation > np.median(deviation)]
    rng = np.random.default_rng(3)
    orders = [rng.permutation(len(patches)) for _ in range(3)]
    links = keyless.link({f"t{k}": patches[order, :, k] for k, order in enumerate(orders)}, random_state=0)
    for k in (1, 2):
        found, truth = links.permutations[f"t{k}"], np.argsort(orders[k])[orders[0]]
        assert links.found[f"t{k}"].evidence.verdict == "linked"
        assert np.mean(found == truth) > 0.55
        assert np.mean((found == truth)[found >= 0]) > 0.9


# --- WORK GUARD: fails when anything grows with the square of the rows ---------------------------------------------


@pytest.mark.soak
def test_work_guard_neither_memory_nor_distances_grow_with_the_square_of_the_rows(monkeypatch):
    pytest.importorskip("faiss")
    monkeypatch.setattr(neighbours, "_ALL_PAIRS", 1)
    peaks, distances = [], []
    for rows in (8_000, 32_000):
        tables, truth = made((rows,) * 2, (12, 10), noise=0.02)
        tracemalloc.start()
        links = linked(tables)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert scores(links, truth)[1] > 0.97
        distances.append(links.choices["work"]["distances"])
    assert peaks[1] < 5 * peaks[0]
    assert peaks[1] < 0.25 * 32_000**2 * 4
    assert distances[1] < 4**1.6 * distances[0]
