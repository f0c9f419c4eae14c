"""Models of all columns of two tables: found from nothing, judged by rows they have not seen; and joined tables."""

from itertools import product

import numpy as np
import pytest

import keyless
from keyless.datasets import make_shuffled_tables
from keyless.engine import Side
from keyless.engine import columns as columns_module
from keyless.engine.columns import ColumnModel, has_gaps, is_narrow, stands_out
from keyless.engine.forms import Form
from keyless.engine.joined import Joined, side_by_side
from keyless.maps.rotations import best_alignment
from keyless.model.factor_model import information
from keyless.pairs.likelihood import exact_log_ratio
from keyless.pairs.limits import Limits
from keyless.progress import Deadline, check_time
from keyless.searches import _named, _places


def sides(made):
    """Both tables as the engine sees them, and the right row, in its order, of each left row."""
    tables = [np.asarray(table, dtype=float) for table in made.tables.values()]
    left, right = (Side(np.nan_to_num(table), ~np.isnan(table)) for table in tables[:2])
    return left, right, np.argsort(right.order)[made.truth["table1"][left.order]]


@pytest.fixture(scope="module")
def made():
    """80 rows and 10 factors: too few rows for a map between factors, enough for one model of all columns."""
    return make_shuffled_tables(80, (30, 24), rank=10, noise=0.2, observed=0.8, random_state=3)


@pytest.fixture(scope="module")
def model(made):
    left, right, truth = sides(made)
    return ColumnModel(left, right, limits=Limits((80, 80))), truth


@pytest.fixture(scope="module")
def found(model):
    return model[0].found()[2]


def test_rows_are_found_from_nothing(found, model):
    assert stands_out(found)
    np.testing.assert_array_equal(found.ratios.argmax(axis=1), model[1])


def test_strangers_do_not_stand_out(made):
    other = make_shuffled_tables(80, (30, 24), rank=10, noise=0.2, observed=0.8, random_state=4)
    left, right = sides(made)[0], sides(other)[1]
    _, coupling, found = ColumnModel(left, right, limits=Limits((80, 80))).found(quick=True)
    assert coupling.shape == (80, 80)
    assert found is None or not stands_out(found)


def test_the_best_so_far_is_kept_when_time_is_up(model, monkeypatch):
    """The first rotation is returned though time is up while the second one is sought."""
    columns, _ = model
    late = ColumnModel.__new__(ColumnModel)
    late.__dict__.update(columns.__dict__, deadline=Deadline(60))
    turned = []

    def slow(*arguments, **options):
        if turned:
            late.deadline.stop()
            check_time()
        turned.append(best_alignment(*arguments, **options))
        return turned[-1]

    monkeypatch.setattr(columns_module, "best_alignment", slow)
    monkeypatch.setattr(columns_module, "stands_out", lambda _: False)
    monkeypatch.setattr(columns_module, "_plan", lambda models, *_, **__: [("own", models[0].rank)] * 2)
    name, coupling, matching = late.found()
    assert len(turned) == 1
    assert name.startswith(turned[0].start)
    np.testing.assert_array_equal(coupling, turned[0].coupling.astype(np.float32))
    assert matching is not None
    late.deadline = Deadline(0)
    assert late.found() is None


def test_a_row_is_judged_by_models_that_have_not_seen_it(model, monkeypatch):
    """Each model is fitted without the pairs of its fold, and gives the ratios of that fold, by their definition."""
    columns, truth = model
    coupling = np.zeros((80, 80))
    coupling[np.arange(80), truth] = 1.0
    fitted, judged = [], []
    fit, ratios = columns._fitted, columns._ratios
    monkeypatch.setattr(columns, "_fitted", lambda rows, *rest: fitted.append(rows) or fit(rows, *rest))
    monkeypatch.setattr(columns, "_ratios", lambda *given: judged.append((*given, ratios(*given))) or judged[-1][-1])
    columns.run(coupling)
    assert len(judged) >= 2
    width = columns.tables[0][0].shape[1]
    seen = iter(fitted)
    for folds, models, found in judged:
        for fold, one in enumerate(models):
            own = np.flatnonzero(folds == fold)
            assert not np.intersect1d(next(seen), own).size
            left = information(one.columns(slice(0, width)), *(part[own] for part in columns.tables[0]))
            right = information(one.columns(slice(width, None)), *columns.tables[1])
            pairs = [index.ravel() for index in np.meshgrid(np.arange(len(own)), np.arange(80), indexing="ij")]
            # All ratios are approximate, but the best partner of a row is the same.
            exact = exact_log_ratio(left, right, *pairs).reshape(len(own), 80)
            np.testing.assert_array_equal(found[own].argmax(axis=1), exact.argmax(axis=1))


def test_parts_lie_inside_folds(model):
    columns, _ = model
    for part in np.unique(columns.parts):
        assert len(np.unique(columns.folds[columns.parts == part])) == 1
    assert len(np.unique(columns.parts)) == 16


def test_factors_of_the_model_agree_for_matched_rows(made, model, found):
    columns, truth = model
    left, right, _ = sides(made)
    form = columns.in_factors(Form("auto", left.factors(), right.factors(), found, by_columns=True))
    # Factors of the same model, in the order of how much of either table they are: the space they span is the same.
    shared = np.linalg.svd(form.left.scores.T @ form.right.scores[truth] / 80, compute_uv=False)
    assert shared[0] > 0.9
    assert form.left.rank == form.right.rank


def test_gaps_and_width_are_told():
    full, wide = (
        Side(np.random.default_rng(0).normal(size=(30, 8))),
        Side(np.random.default_rng(1).normal(size=(30, 250))),
    )
    mask = np.random.default_rng(2).random((30, 8)) < 0.8
    assert not has_gaps(full, full)
    assert has_gaps(full, Side(np.where(mask, full.values, 0.0), mask))
    assert is_narrow(full, full)
    assert not is_narrow(full, wide)


# --- joined tables ---------------------------------------------------------------------------------------------------


def test_joined_tables_hold_every_row_once():
    first, second, third = Joined.alone(0, 4), Joined.alone(1, 3), Joined.alone(2, 5)
    two = first.with_partners(second, np.array([2, -1, 0, -1]))
    assert [rows.tolist() for rows in two.rows] == [[0, 1, 2, 3, -1], [2, -1, 0, -1, 1]]
    three = third.with_partners(two, np.array([4, 0, -1, -1, 3]))
    assert three.numbers == (2, 0, 1)
    for number, size in ((0, 4), (1, 3), (2, 5)):
        rows = three.rows_of(number)
        assert sorted(rows[rows >= 0]) == list(range(size))
        np.testing.assert_array_equal(rows[three.entities_of(number)], np.arange(size))
    left = three.without(1)
    assert left.numbers == (2, 0)
    assert all((left.rows_of(2)[k], left.rows_of(0)[k]) != (-1, -1) for k in range(len(left)))


def test_couplings_of_rows_become_couplings_of_entities():
    left, right = Joined((0, 2), (np.array([1, 0, -1]), np.array([-1, 0, 1]))), Joined.alone(1, 2)
    coupling = np.array([[0.1, 0.2], [0.3, 0.4]])
    (name, carried), (_, turned) = left.carried({(0, 1): [("known", coupling)], (1, 2): [("columns", coupling)]}, right)
    assert name == "known"
    np.testing.assert_array_equal(carried, [[0.3, 0.4], [0.1, 0.2], [0, 0]])
    np.testing.assert_array_equal(turned, [[0, 0], [0.1, 0.3], [0.2, 0.4]])


def test_side_by_side_is_missing_where_an_entity_has_no_row():
    tables = [(np.arange(4.0).reshape(2, 2), np.ones((2, 2), dtype=bool)), (np.ones((1, 1)), np.array([[False]]))]
    values, mask = side_by_side(tables, [np.array([1, -1]), np.array([0, -1])])
    np.testing.assert_array_equal(values, [[2, 3, 0], [0, 0, 0]])
    np.testing.assert_array_equal(mask, [[True, True, False], [False, False, False]])


@pytest.mark.soak
def test_tables_that_say_too_little_alone_are_linked_together():
    """The reference shows 6 of 20 entries of a row; two tables of which more is seen are joined first."""
    made = make_shuffled_tables(100, (20, 40, 40), rank=5, noise=0.1, observed=0.3, random_state=7101)
    links = keyless.link(made.tables, random_state=0)
    for name, truth in made.truth.items():
        np.testing.assert_array_equal(links.permutations[name], truth)
        assert links.evidence_for(name).verdict == "linked"


@pytest.mark.slow
def test_a_reference_that_fits_in_mirror_images_is_not_linked_to_tables_that_fit_each_other(rng):
    """Two tables have four more factors in common, and so prove each other; the reference they do not prove."""
    signs = np.array(list(product((-1.0, 1.0), repeat=3)))
    points = (rng.normal(size=(12, 1, 3)) * signs).reshape(-1, 3)
    more = np.concatenate([points, rng.normal(size=(96, 4))], axis=1)
    tables = {"reference": points @ rng.normal(size=(3, 10))}
    for name in ("one", "two"):
        tables[name] = (more @ rng.normal(size=(7, 14)))[rng.permutation(96)]
    noisy = {name: table + 0.02 * rng.normal(size=table.shape) for name, table in tables.items()}
    links = keyless.link(noisy, effort="quick", random_state=0)
    assert {links.evidence_for(name).verdict for name in ("one", "two")} == {"uncertain"}


@pytest.mark.soak
def test_of_joined_tables_every_row_has_one_partner_at_the_most():
    made = make_shuffled_tables((90, 90, 90), (10, 20, 20), rank=5, noise=0.4, overlap=0.8, random_state=2)
    forbidden = [(row, int(truth)) for row, truth in enumerate(made.truth["table1"]) if truth >= 0][:5]
    links = keyless.link(made.tables, forbid={"table1": forbidden}, effort="quick", random_state=0)
    for name in made.truth:
        coupling = np.asarray(links.found[name].coupling)
        assert max(coupling.sum(axis=0).max(), coupling.sum(axis=1).max()) <= 1 + 1e-3
        assert coupling.min() >= 0
    assert all(links.found["table1"].coupling[pair] == 0 for pair in forbidden)


def test_searches_of_joined_tables_are_remembered_by_their_rows():
    alone, two = Joined.alone(0, 3), Joined.alone(1, 2)
    joined = [two.with_partners(Joined.alone(2, 2), np.array(partners)) for partners in ([0, 1], [1, 0])]
    assert _named(alone, two) == "pair0-1"
    assert len({_named(alone, group) for group in joined}) == 2


def test_where_the_reference_is_in_doubt_so_are_its_matches():
    """Rows 0 and 1 may be exchanged; row 2 was joined to nobody, and stays where it is."""
    pairs, joined = np.array([[0.6, 0.4, 0], [0.4, 0.6, 0]]), np.array([[1.0, 0, 0], [0, 1, 0]])
    np.testing.assert_allclose(_places(pairs, joined), [[0.6, 0.4, 0], [0.4, 0.6, 0], [0, 0, 1]])


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_a_table_of_other_entities_is_not_joined(seed):
    """Its best rows stand out nearly as far as partners do, but chance does as well: the other two stay as they are."""
    rng = np.random.default_rng(seed)
    traits = rng.normal(size=(300, 6))
    first, second, others = (
        part @ rng.normal(size=(6, 30)) + 0.4 * rng.normal(size=(150, 30))
        for part in (traits[:150], traits[:150], traits[150:])
    )
    order = rng.permutation(150)
    links = keyless.link({"first": first, "second": second[order], "others": others}, random_state=0)
    assert links.evidence_for("others").verdict == "unlinkable"
    assert links.evidence_for("second").verdict == "linked"
    assert np.mean(links.permutations["second"] == np.argsort(order)) > 0.95
