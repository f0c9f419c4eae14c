"""Rows in shards and cells: the same as all rows at once, against looks at every pair."""

import pickle
import time
from functools import partial

import numpy as np
import pytest
from scipy import sparse
from scipy.optimize import linear_sum_assignment

import keyless
from keyless.assignment import best_matching, in_parts
from keyless.assignment.in_parts import match_in_parts
from keyless.cluster import LOCAL, OnDisk
from keyless.model import shards
from keyless.model.positions import Positions
from keyless.model.scored_tables import ScoredTable
from keyless.pairs import nearest_rows, neighbours
from keyless.pairs.cells import Cells
from keyless.pairs.metric import Metric
from keyless.pairs.nearest_rows import find_nearest_rows
from keyless.pairs.neighbours import nearest
from keyless.progress import Deadline, cut_short
from many_rows import shuffled


@pytest.fixture
def small(monkeypatch):
    """Shards and cells of a few hundred rows."""
    monkeypatch.setattr(shards, "SHARD", 300)
    monkeypatch.setattr(nearest_rows, "CELL", 250)


def placed(rng, *, rows=1_500, others=1_300, rank=4, noise=0.1):
    """Posterior means of the same entities twice, in order, with strangers at the end of the longer."""
    latents = rng.laplace(size=(max(rows, others), rank))
    found = []
    for size in (rows, others):
        means = (latents[:size] + noise * rng.normal(size=(size, rank))) / (1 + noise**2)
        found.append(Positions.of(means.astype(np.float32), np.eye(rank) / noise**2))
    return tuple(found)


def all_ratios(pair):
    """The log-likelihood ratio of every pair."""
    means = [positions.rows.take(np.arange(len(positions))) for positions in pair]
    metric = Metric.between(pair[0].precision, pair[1].precision)
    queries, points = metric.queries(means[0]).astype(float), metric.points(means[1]).astype(float)
    square = np.square(queries[:, None] - points[None]).sum(axis=2)
    return metric.offsets(means[0])[:, None] - 0.5 * square


# --- cells ------------------------------------------------------------------------------------------------------------


def test_cells_hold_about_as_many_points_each(rng):
    points = rng.normal(size=(4_000, 3)) * [5.0, 1.0, 0.2]
    cells = Cells.of(points, 6)
    assert len(cells) == 8
    assert np.bincount(cells.home(points), minlength=8).tolist() == [500] * 8


def test_no_point_of_a_cell_is_nearer_than_the_cell(rng):
    points, queries = rng.normal(size=(2_000, 3)), rng.normal(size=(50, 3))
    cells = Cells.of(points, 16)
    bound, home = cells.distances(queries), cells.home(points)
    assert (bound[np.arange(50), cells.home(queries)] == 0).all()
    for cell in range(16):
        nearest = np.square(queries[:, None] - points[home == cell][None]).sum(axis=2).min(axis=1)
        assert (bound[:, cell] <= nearest + 1e-4).all()
    # It is not 0 for all: it would bound nothing.
    assert (bound > 0).mean() > 0.8


def test_points_that_coincide_and_no_points_at_all(rng):
    same = np.zeros((100, 2))
    cells = Cells.of(same, 4)
    assert len(np.unique(cells.home(same))) == 1
    assert Cells.of(np.empty((0, 2)), 4).home(rng.normal(size=(5, 2))).shape == (5,)


# --- shards -----------------------------------------------------------------------------------------------------------


def test_shards_are_equal_and_cover_all_rows(monkeypatch):
    monkeypatch.setattr(shards, "SHARD", 10)
    assert shards.edges_of(25).tolist() == [0, 8, 16, 25]
    assert shards.edges_of(10).tolist() == [0, 10]
    assert shards.edges_of(0).tolist() == [0, 0]
    places = shards.split(np.array([24, 0, 8, 7]), shards.edges_of(25))
    assert [place.tolist() for place in places] == [[1, 3], [2], [0]]


def test_what_is_asked_of_all_rows_does_not_depend_on_shards(rng, monkeypatch):
    means = rng.laplace(size=(1_000, 3)).astype(np.float32)
    whole = Positions.of(means, np.eye(3))
    monkeypatch.setattr(shards, "SHARD", 130)
    parts = Positions.of(means, np.eye(3))
    assert len(parts.rows.shards) == 8
    np.testing.assert_allclose(parts.whitening, whole.whitening, rtol=1e-12)
    assert parts.outermost(40, skip=7).tolist() == whole.outermost(40, skip=7).tolist()
    distance = np.square(means @ whole.whitening).sum(axis=1)
    assert whole.outermost(40, skip=7).tolist() == np.argsort(-distance)[7:47].tolist()
    some = rng.random(1_000) < 0.1
    assert set(parts.outermost(20, among=some).tolist()) == set(np.flatnonzero(some)[np.argsort(-distance[some])[:20]])
    rows = rng.permutation(1_000)[:50]
    turn = rng.normal(size=(3, 2))
    np.testing.assert_allclose(parts.rows.turned(turn).take(rows), means[rows] @ turn, atol=1e-5)


# --- near rows --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", [0.02, 0.3])
@pytest.mark.usefixtures("small")
def test_nobody_misses_the_likeliest_partner_at_a_border(rng, noise):
    """In rank 4, with cells of 250 points, most rows are near a border; noise decides how many are sure at once."""
    pair = placed(rng, noise=noise)
    ratios = all_ratios(pair)
    found = find_nearest_rows(pair)
    assert np.sort(found.asked).tolist() == list(range(1_500))
    assert found.recall > 0.99
    best, second = np.sort(ratios, axis=1)[:, [-1, -2]].T
    np.testing.assert_allclose(found.values, ratios[found.rows, found.columns], atol=0.02)
    best, second = best[found.asked], second[found.asked]
    # Everybody knows the best. Who is not beyond all chance also knows the next best, unless that is far behind.
    np.testing.assert_allclose(found.best, best, atol=0.02)
    rivalled = (best < np.log(1_300) + 12) & (second > best - 10)
    assert rivalled.any()
    listed = np.full(ratios.shape, -np.inf)
    listed[found.rows, found.columns] = found.values
    next_best = np.sort(listed, axis=1)[found.asked, -2]
    np.testing.assert_allclose(next_best[rivalled], second[rivalled], atol=0.02)


@pytest.mark.usefixtures("small")
def test_some_rows_among_some_rows(rng):
    pair = placed(rng)
    rows, columns = np.sort(rng.permutation(1_500)[:200]), rng.permutation(1_300)[:700]
    found = find_nearest_rows(pair, (rows, columns))
    assert np.sort(found.asked).tolist() == rows.tolist()
    assert set(found.columns.tolist()) <= set(columns.tolist())
    best = all_ratios(pair)[np.ix_(rows, columns)].max(axis=1)
    np.testing.assert_allclose(found.best[np.argsort(found.asked)], best, atol=0.02)


@pytest.mark.parametrize("further", [False, True])
@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("noise", [0.1, pytest.param(0.5, marks=pytest.mark.slow)])
def test_many_cells_give_the_pairs_that_one_gives(rng, monkeypatch, exact, further, noise):
    """Rows that are sure look into one cell only; all others have the same candidates, and not more of them."""
    pair = placed(rng, noise=noise)
    one = find_nearest_rows(pair, exact=exact, further=further)
    monkeypatch.setattr(nearest_rows, "CELL", 100)
    many = find_nearest_rows(pair, exact=exact, further=further)
    ratios = all_ratios(pair)
    sure = ratios.max(axis=1) > np.log(1_300) + 12
    pairs = [set(zip(found.rows.tolist(), found.columns.tolist(), strict=True)) for found in (one, many)]
    assert np.bincount(many.rows).max() <= np.bincount(one.rows).max()
    # What is at most 9 nats behind the best is looked for in every cell.
    near_best = [{(i, j) for i, j in found if not sure[i] and ratios[i, j] > ratios[i].max() - 9} for found in pairs]
    assert len(near_best[0]) > 100
    assert len(near_best[0] ^ near_best[1]) <= 0.001 * len(near_best[0])


def test_whoever_has_a_likely_partner_finds_it_where_hopeless_pairs_are_not_wanted(rng, monkeypatch):
    pair = placed(rng, noise=0.1)
    monkeypatch.setattr(nearest_rows, "CELL", 100)
    found, ratios = find_nearest_rows(pair, lowest=0.0), all_ratios(pair)
    best = ratios.max(axis=1)[found.asked]
    likely = best > 0
    assert 0.2 < likely.mean() < 1
    np.testing.assert_allclose(found.best[likely], best[likely], atol=0.02)
    assert (found.values > 0).all()


@pytest.mark.slow
def test_no_row_looks_into_more_cells_than_it_may(rng, monkeypatch):
    """Rows without partner never find one; so they would go on from cell to cell while they are many."""
    pair = placed(rng, noise=0.5)
    monkeypatch.setattr(nearest_rows, "CELL", 25)
    looked = np.zeros(1_500, dtype=int)
    search = nearest_rows._in_cell

    def counting(asking, *given, **options):
        np.add.at(looked, asking.numbers, 1)
        return search(asking, *given, **options)

    monkeypatch.setattr(nearest_rows, "_in_cell", counting)
    find_nearest_rows(pair)
    assert nearest_rows._MOST_CELLS >= looked.max() > 2


@pytest.mark.parametrize("others", [60, 400])
@pytest.mark.usefixtures("small")
def test_many_rows_that_look_among_few_do_so_some_at_a_time(rng, monkeypatch, others):
    """One cell, and two: of 3,000 rows in ten shards nobody gets many more than a cell's 250 at a time."""
    asked = {"_search": [], "_search_again": []}

    def spy(search, sizes, pieces, *rest):
        sizes.append(sum(len(piece.numbers) for piece in pieces))
        return search(pieces, *rest)

    for name, sizes in asked.items():
        monkeypatch.setattr(nearest_rows, name, partial(spy, getattr(nearest_rows, name), sizes))
    pair = placed(rng, rows=3_000, others=others, noise=0.4)
    found = find_nearest_rows(pair)
    assert sum(asked["_search"]) == 3_000
    assert bool(asked["_search_again"]) is (others == 400)
    assert max(asked["_search"] + asked["_search_again"]) <= 2 * 250
    assert np.sort(found.asked).tolist() == list(range(3_000))
    np.testing.assert_allclose(found.best, all_ratios(pair).max(axis=1)[found.asked], atol=0.02)


def test_all_rows_in_another_order_are_the_same_pairs(rng):
    pair = placed(rng, rows=300, others=250)
    found = find_nearest_rows(pair, (rng.permutation(300), rng.permutation(250)))
    ratios = all_ratios(pair)
    np.testing.assert_allclose(found.values, ratios[found.rows, found.columns], atol=0.02)
    np.testing.assert_allclose(found.best, ratios.max(axis=1)[found.asked], atol=0.02)


@pytest.mark.parametrize(
    "case",
    [pytest.param("complete", marks=pytest.mark.slow)]
    + [pytest.param(case, marks=pytest.mark.soak) for case in ("strangers", "gaps")],
)
def test_shards_and_cells_do_not_change_the_answer(rng, monkeypatch, case):
    tables, truth = shuffled(rng, case, rows=5_200)
    whole = keyless.link(tables, random_state=0)
    monkeypatch.setattr(shards, "SHARD", 1_500)
    monkeypatch.setattr(nearest_rows, "CELL", 700)
    parts = keyless.link(tables, random_state=0)
    assert whole.evidence.verdict == parts.evidence.verdict == "linked"
    assert parts.choices["work"]["distances"] < whole.choices["work"]["distances"] / 2
    np.testing.assert_array_equal(parts.permutations["table1"], whole.permutations["table1"])
    assert (parts.permutations["table1"] == truth).mean() > 0.98
    np.testing.assert_allclose(parts.found["table1"].probability, whole.found["table1"].probability, atol=0.01)


@pytest.mark.parametrize("seconds", [0.1, pytest.param(3.0, marks=pytest.mark.slow)])
def test_a_search_for_neighbours_is_left_when_time_is_up(rng, seconds):
    """It takes more than eight seconds of processor; of what is left of them after the limit, no more than two."""
    pytest.importorskip("faiss")
    points = 6 * rng.laplace(size=(200_000, 20)).astype(np.float32)
    queries = points + rng.normal(size=points.shape).astype(np.float32)
    began, found = time.process_time(), None
    with cut_short(Deadline(seconds)):
        found = nearest(points, queries, 5)
    assert found is None
    assert time.process_time() - began < 2 * seconds + 2  # two threads work at a time, where there are two cores


def test_all_distances_are_found_by_products_of_matrices_and_faiss_is_left_as_it_was(rng, monkeypatch):
    faiss = pytest.importorskip("faiss")
    before, seen, knn = faiss.cvar.distance_compute_blas_threshold, [], faiss.knn

    def spy(*given):
        seen.append((faiss.cvar.distance_compute_blas_threshold, len(given[0])))
        return knn(*given)

    monkeypatch.setattr(faiss, "knn", spy)
    monkeypatch.setattr(neighbours, "_AT_A_TIME", 300 * 500)
    monkeypatch.setattr(neighbours, "_FEWEST", 1)
    points, queries = (rng.normal(size=(size, 4)).astype(np.float32) for size in (500, 700))
    found = nearest(points, queries, 3).points
    assert faiss.cvar.distance_compute_blas_threshold == before
    assert seen == [(20, 300), (20, 300), (20, 100)]
    square = np.square(queries[:, None].astype(float) - points[None]).sum(axis=2)
    np.testing.assert_array_equal(found, np.argsort(square, axis=1)[:, :3])


# --- assignment -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pairs", [40, 400])
def test_components_matched_by_themselves_gain_as_much_as_all_together(rng, monkeypatch, pairs):
    """Blocks of 1 to 12 rows, one of 200, rows and columns without any pair, against scipy's dense assignment."""
    gains = np.zeros((700, 650))
    row = column = 0
    for size in [200, *rng.integers(1, 13, 60).tolist()]:
        block = rng.normal(1.0, 2.0, size=(size, size)) * (rng.random((size, size)) < 0.3)
        gains[row : row + size, column : column + size] = block
        row, column = row + size, column + size
    gains = gains[rng.permutation(700)][:, rng.permutation(650)]
    monkeypatch.setattr(in_parts, "PAIRS", pairs)
    found = match_in_parts(sparse.csr_array(gains), workers=LOCAL)
    best = np.maximum(gains, 0.0)
    expected = best[linear_sum_assignment(best, maximize=True)].sum()
    matched = np.flatnonzero(found.permutation >= 0)
    assert len(np.unique(found.permutation[matched])) == len(matched)
    np.testing.assert_allclose(gains[matched, found.permutation[matched]].sum(), expected)
    np.testing.assert_allclose(found.gain, expected)
    assert found.gap < 1e-9
    whole = best_matching(sparse.csr_array(gains))
    assert (found.components, found.largest) == (whole.components, whole.largest)


# --- numbers in files -------------------------------------------------------------------------------------------------


def test_a_matrix_in_a_file_is_read_by_rows_and_travels_by_name(tmp_path, rng):
    given = rng.normal(size=(50, 3)).astype(np.float32)
    file = OnDisk(str(tmp_path / "x"), (50, 3), "float32").allocate()
    assert not file[:].any()
    file.write(20, given[20:])
    file.write(0, given[:20])
    sent = pickle.dumps(file)
    assert len(sent) < 500
    again = pickle.loads(sent)
    np.testing.assert_array_equal(again[10:30], given[10:30])
    np.testing.assert_array_equal(again[np.array([49, 0, 7])], given[[49, 0, 7]])
    assert OnDisk.behind(file.mapped) == file
    assert OnDisk.behind(np.asarray(file.mapped)) == file
    assert OnDisk.behind(file.mapped[1:]) is None
    assert OnDisk.behind(given) is None


@pytest.mark.parametrize("mode", ["c", "r+", "r"])
def test_a_file_that_the_caller_has_mapped_is_not_read_behind_the_array(tmp_path, mode):
    file = OnDisk(str(tmp_path / "x"), (50, 3), "float32").allocate()
    given = np.memmap(file.path, "float32", mode=mode, shape=(50, 3))
    if mode == "c":
        given[7] = 5.0
    mask = np.broadcast_to(np.True_, (50, 3))
    table = ScoredTable.scaled(given, mask, kinds=["identity"] * 3, rng=np.random.default_rng(0))
    np.testing.assert_array_equal(table.values[:], given)
    assert OnDisk.behind(given) is None


def test_a_file_that_the_disk_has_no_room_for_is_refused(tmp_path):
    file = OnDisk(str(tmp_path / "x"), (2**50, 1_000), "float64")
    with pytest.raises(keyless.InputError, match=r"must have 90\d+\.\d GB free .*; it has .* GB\. Set KEYLESS_SCRATCH"):
        file.allocate()
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_not_there_is_named(tmp_path):
    file = OnDisk(str(tmp_path / "gone"), (5, 3), "float32")
    for rows in (slice(0, 2), np.array([1])):
        with pytest.raises(keyless.InputError, match="gone: must be seen by every machine"):
            file[rows]


def test_a_table_travels_without_its_numbers(tmp_path, rng):
    file = OnDisk(str(tmp_path / "x"), (400, 3), "float32").allocate()
    file.write(0, rng.normal(size=(400, 3)))
    table = ScoredTable.scaled(
        file.mapped, np.broadcast_to(np.True_, (400, 3)), kinds=["identity"] * 3, rng=np.random.default_rng(0)
    )
    sent = pickle.dumps(table)
    assert len(sent) < 3_000
    np.testing.assert_array_equal(pickle.loads(sent).scores(slice(5, 9))[0], table.scores(slice(5, 9))[0])
    assert pickle.loads(sent).complete
