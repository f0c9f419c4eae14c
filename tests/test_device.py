"""Neighbours, couplings and sums of EM on a device of PyTorch.

Here that is PyTorch's processor, for which the source is the same as for a card; the last tests need a card.
"""

import sys
from functools import partial

import numpy as np
import pytest
from scipy.spatial import cKDTree

import keyless
from keyless import searches
from keyless.arrays import find_device, smallest
from keyless.cluster import computing_on, device_for
from keyless.datasets import make_shuffled_tables
from keyless.engine import by_columns
from keyless.engine.by_columns import ColumnSearch
from keyless.errors import InputError
from keyless.model import factor_model
from keyless.model.scored_tables import ScoredTable
from keyless.options import Options
from keyless.pairs import cell_index, likelihood, neighbours
from keyless.pairs.cell_index import CellIndex, nearest_of_all
from keyless.pairs.likelihood import couple, exact_log_ratio
from keyless.pairs.neighbours import nearest
from keyless.parallel import in_turn
from many_rows import check_all_cells, check_one_cell, shuffled

torch = pytest.importorskip("torch")

CPU = torch.device("cpu")


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("shape", [(7, 40), (2, 5, 9)])
def test_the_smallest_entries_are_those_that_sorting_finds(rng, shape, count):
    values = rng.permutation(int(np.prod(shape))).reshape(shape).astype(float)
    order = np.argsort(values, axis=-1)[..., :count]
    for given in (values, torch.tensor(values)):
        found, place = smallest(given, count)
        np.testing.assert_array_equal(np.asarray(place), order)
        np.testing.assert_array_equal(np.asarray(found), np.take_along_axis(values, order, axis=-1))


def test_all_pairs_are_those_of_scipy(rng, monkeypatch):
    monkeypatch.setattr(cell_index, "_IN_MEMORY", 1_000)
    points, queries = rng.normal(size=(300, 4)), rng.normal(size=(50, 4))
    distance, found = nearest_of_all(torch.tensor(points), torch.tensor(queries), 6)
    expected, places = cKDTree(points).query(queries, k=6)
    np.testing.assert_array_equal(found.numpy(), places)
    np.testing.assert_allclose(distance.numpy(), expected**2)


@pytest.mark.parametrize(("held", "centre"), [(2**24, 0.0), (5_000, 1_000.0)])
def test_who_looks_into_all_cells_finds_the_nearest(rng, monkeypatch, held, centre):
    """Far from 0 distances are as exact as near it: single precision alone would be wrong by 0.1."""
    monkeypatch.setattr(cell_index, "_IN_MEMORY", held)
    monkeypatch.setattr(cell_index, "_QUERIES", 130)
    points = (centre + rng.normal(size=(1_000, 5))).astype(np.float32)
    queries = (centre + rng.normal(size=(300, 5))).astype(np.float32)
    index = CellIndex(points, 30, np.random.default_rng(0), CPU)
    check_all_cells(index, points, queries, 30)


def test_who_looks_into_one_cell_finds_the_nearest_of_that_cell(rng):
    points, queries = rng.normal(size=(400, 3)).astype(np.float32), rng.normal(size=(90, 3)).astype(np.float32)
    index = CellIndex(points, 20, np.random.default_rng(5), CPU)
    centres = points[np.sort(np.random.default_rng(5).choice(400, 20, replace=False, shuffle=False))]
    check_one_cell(index, centres, points, queries, 30)


def test_points_that_coincide_leave_cells_empty(rng):
    """Of five places with 200 points each, ten are centres: at least five cells have nobody in them."""
    places = rng.normal(size=(5, 3)).astype(np.float32)
    points = np.repeat(places, 200, axis=0)
    index = CellIndex(points, 10, np.random.default_rng(0), CPU)
    distance, found = index.search(places, 10, 250)
    np.testing.assert_array_equal(np.sort(found[:, :200] // 200, axis=1), np.repeat(np.arange(5)[:, None], 200, axis=1))
    np.testing.assert_allclose(distance[:, :200], 0.0, atol=1e-6)


@pytest.mark.parametrize("most", [10**12, 0])
def test_neighbours_on_a_device_are_the_true_ones(rng, monkeypatch, most):
    monkeypatch.setattr(neighbours, "_ALL_ON_DEVICE", most)
    points = rng.normal(size=(12_000, 8))
    queries = points[:1_500] + 0.1 * rng.normal(size=(1_500, 8))
    found = nearest(points, queries, 3, device=CPU)
    expected = cKDTree(points.astype(np.float32)).query(queries.astype(np.float32))[1]
    assert (found.points[:, 0] == expected).mean() >= 0.999
    assert found.recall >= 0.999
    assert (found.evaluations == 12_000 * 1_500) is (most > 0)


@pytest.mark.parametrize("device", [CPU, None])
def test_nobody_who_asks_gets_no_neighbours(rng, device):
    found = nearest(rng.normal(size=(300, 4)), np.empty((0, 4)), 3, device=device)
    assert found.points.shape == (0, 3)
    assert found.evaluations == 0


def test_a_device_that_is_not_there_is_refused_in_one_line(monkeypatch):
    assert find_device("cpu") is None
    tables = [np.eye(4), np.eye(4)]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match=r"^device: 'cuda' needs a graphics card that PyTorch sees; it sees none"):
        keyless.link(tables, device="cuda")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(InputError, match=r"^device: 'cuda' needs PyTorch, which is not installed. Run: pip install"):
        keyless.link(tables, device="cuda")
    with pytest.raises(InputError, match="device: must be one of 'cpu', 'cuda'; found 'tpu'"):
        keyless.link(tables, device="tpu")


def test_a_device_and_a_cluster_exclude_each_other(monkeypatch):
    monkeypatch.setattr(by_columns, "current_workers", object)
    with pytest.raises(InputError, match="device: must be 'cpu' where a cluster works"):
        ColumnSearch([], device=CPU)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_scores_on_a_device_are_those_of_the_processor(rng, dtype):
    """A row outside the sample is far beyond what the others say, and is held at the largest score."""
    values = (5 + rng.normal(size=(400, 3))).astype(dtype)
    table = ScoredTable.scaled(
        values, np.broadcast_to(np.True_, values.shape), kinds=["identity"] * 3, rng=np.random.default_rng(0)
    )
    values[7] = 1e6
    values.flags.writeable = False
    found = table.scores_on(slice(3, 50), CPU).numpy()
    np.testing.assert_allclose(found, table.scores(slice(3, 50))[0], rtol=1e-12)
    np.testing.assert_array_equal(found[4], np.sqrt(400))


def with_gaps(rng, *, rows=300, width=10, rank=3):
    """Standard scores of a factor model, 0 where missing, what is observed, and a model that is not yet fitted."""
    values = rng.normal(size=(rows, rank)) @ rng.normal(size=(rank, width)) + 0.3 * rng.normal(size=(rows, width))
    values, mask = (values - values.mean(axis=0)) / values.std(axis=0), rng.random((rows, width)) < 0.8
    values[~mask] = 0.0
    return values, mask, factor_model.initial_model(values, mask, rank + 1)


def test_sums_of_em_on_a_device_are_those_of_the_processor(rng, monkeypatch):
    values, mask, start = with_gaps(rng)
    expected, bound = factor_model.fit(values, mask, start, max_iter=30)
    sent = []
    monkeypatch.setattr(factor_model, "on_device", lambda given, where: sent.append(where) or torch.tensor(given))
    with computing_on(CPU):
        untouched, _ = factor_model.fit(values, mask, start, max_iter=30)
        assert not sent
        monkeypatch.setattr(factor_model, "_WORTH_A_CARD", 300 * 5**2)
        found, bound_too = factor_model.fit(values, mask, start, max_iter=30)
    assert sent == [CPU, CPU]
    np.testing.assert_array_equal(untouched.loadings, expected.loadings)
    for name in ("loadings", "offsets", "noise", "spread", "shrinkage"):
        assert isinstance(getattr(found, name), np.ndarray)
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(bound_too, bound, rtol=1e-10)


def test_ratios_of_rows_with_gaps_on_a_device_are_those_of_the_processor(rng):
    values, mask, model = with_gaps(rng)
    rows, columns = rng.integers(0, 300, size=(2, 50))
    ours, theirs = (
        factor_model.information(model, to(values), to(mask)) for to in (np.asarray, partial(torch.tensor, device=CPU))
    )
    found = exact_log_ratio(theirs, theirs, rows, columns, chunk=20)
    assert isinstance(found, torch.Tensor)
    np.testing.assert_allclose(found.numpy(), exact_log_ratio(ours, ours, rows, columns), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("shape", [(60, 60), (50, 90), (90, 50)])
@pytest.mark.parametrize("size", [3.0, 900.0])
def test_a_coupling_on_a_device_is_that_of_the_processor(rng, monkeypatch, shape, size):
    """Of large ratios most of the kernel vanishes, and is computed anew from the potentials."""
    ratio = size * rng.normal(size=shape)
    potentials, theirs = np.zeros(shape[1]), np.zeros(shape[1])
    expected = couple(ratio, max_iter=60, potentials=potentials)
    monkeypatch.setattr(likelihood, "_WORTH_A_CARD", shape[0] * shape[1])
    with computing_on(CPU):
        found = couple(ratio, max_iter=60, potentials=theirs)
    assert isinstance(found, np.ndarray)
    np.testing.assert_allclose(found, expected, atol=1e-9)
    np.testing.assert_allclose(theirs, potentials, atol=1e-6)


def test_a_device_is_left_with_its_block_and_known_in_threads():
    seen = list(in_turn(lambda _: device_for(5, least=5), [(k,) for k in range(3)], n_jobs=2))
    with computing_on(CPU):
        inside = list(in_turn(lambda _: device_for(5, least=5), [(k,) for k in range(3)], n_jobs=2))
        assert device_for(4, least=5) is None
        with computing_on(None):
            assert device_for(5, least=5) is None
    assert (seen, inside, device_for(5, least=5)) == ([None] * 3, [CPU] * 3, None)


def test_kept_stages_do_not_depend_on_the_device():
    assert Options(device="cpu").decisive == Options(device="cuda").decisive
    assert Options(device="cuda").changed == {"device": "cuda"}


@pytest.mark.parametrize(
    ("case", "tolerance"),
    [
        pytest.param("complete", 1e-5, marks=pytest.mark.slow),
        pytest.param("strangers", 0.05, marks=pytest.mark.soak),
        pytest.param("gaps", 0.05, marks=pytest.mark.soak),
    ],
)
def test_a_device_gives_the_answer_of_the_processor(rng, monkeypatch, case, tolerance):
    """Both sort the points into cells, each in its own way; the tolerance is that of docs/gpu.md."""
    monkeypatch.setattr(neighbours, "_ALL_PAIRS", 0)
    monkeypatch.setattr(neighbours, "_ALL_ON_DEVICE", 0)
    tables, truth = shuffled(rng, case, rows=11_000)
    plain = keyless.link(tables, random_state=0)
    monkeypatch.setattr(searches, "find_device", lambda _name: CPU)
    monkeypatch.setattr(factor_model, "_WORTH_A_CARD", 1)
    monkeypatch.setattr(likelihood, "_WORTH_A_CARD", 1)
    found = keyless.link(tables, random_state=0)
    assert "device" not in plain.choices["work"]
    assert found.choices["work"]["device"] == "cpu"
    assert found.evidence.verdict == plain.evidence.verdict == "linked"
    same = found.permutations["table1"] == plain.permutations["table1"]
    assert same.mean() >= 0.999
    assert (found.permutations["table1"] == truth).mean() > 0.95
    np.testing.assert_allclose(
        found.found["table1"].probability[same], plain.found["table1"].probability[same], atol=tolerance
    )


@pytest.mark.soak
def test_small_tables_with_gaps_use_the_device(monkeypatch):
    tables, truth = make_shuffled_tables(120, (10, 9), rank=3, noise=0.05, observed=0.95, random_state=2)
    plain = keyless.link(tables, random_state=0, effort="quick")
    sent = []
    monkeypatch.setattr(searches, "find_device", lambda _name: CPU)
    for room in (factor_model, likelihood):
        monkeypatch.setattr(room, "_WORTH_A_CARD", 1)
        monkeypatch.setattr(room, "on_device", lambda given, _, room=room: sent.append(room) or torch.tensor(given))
    found = keyless.link(tables, random_state=0, effort="quick")
    assert {factor_model, likelihood} == set(sent)
    np.testing.assert_array_equal(found.permutations["table1"], plain.permutations["table1"])
    assert (found.permutations["table1"] == truth["table1"]).mean() > 0.9
    np.testing.assert_allclose(found.found["table1"].probability, plain.found["table1"].probability, atol=1e-5)


@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no graphics card")
@pytest.mark.parametrize(("case", "tolerance"), [("complete", 1e-5), ("strangers", 0.05), ("gaps", 0.05)])
def test_a_card_gives_the_answer_of_the_processor(rng, case, tolerance):
    """Below and above 5,000 rows; the tolerance is that of docs/gpu.md."""
    for rows in (1_500, 11_000):
        tables, _ = shuffled(rng, case, rows=rows)
        plain, found = (keyless.link(tables, random_state=0, device=device) for device in ("cpu", "cuda"))
        assert found.evidence.verdict == plain.evidence.verdict
        same = found.permutations["table1"] == plain.permutations["table1"]
        assert same.mean() >= 0.999
        np.testing.assert_allclose(
            found.found["table1"].probability[same], plain.found["table1"].probability[same], atol=tolerance
        )
