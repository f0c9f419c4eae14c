"""Why rows are linked: against Gaussian densities of whole rows, written out, one column at a time."""

import re

import numpy as np
import pandas as pd
import pytest
from scipy.stats import multivariate_normal

import keyless
from keyless.answers.contributions import PairSide, contributions, costs_of_dropping, log_ratios, predictions
from keyless.answers.explaining import ExplainedPairs
from keyless.answers.labels import shown, shown_guess, stated
from keyless.datasets import make_shuffled_tables
from keyless.errors import InputError
from keyless.model.factor_model import FactorModel

NAN = np.nan


def factor_model(rng, columns, rank, noise=(0.05, 0.6)):
    return FactorModel(
        loadings=rng.normal(size=(columns, rank)),
        offsets=rng.normal(size=columns) / 3,
        noise=rng.uniform(*noise, columns),
        spread=np.zeros((columns, rank + 1, rank + 1)),
        shrinkage=np.ones(rank + 1),
    )


def two_sides(seed=0, rows=4, widths=(5, 3), rank=2, noise=(0.05, 0.6)):
    rng = np.random.default_rng(seed)
    sides = []
    for width in widths:
        mask = rng.random((rows, width)) < 0.8
        sides.append(
            PairSide(factor_model(rng, width, rank, noise), np.where(mask, rng.normal(size=(rows, width)), 0), mask)
        )
    return sides


def log_density(model, values, weights):
    """Of the cells whose weight is above 0, the noise of each divided by its weight; 0 where there are none."""
    seen = np.flatnonzero(weights > 0)
    if not seen.size:
        return 0.0
    covariance = model.loadings @ model.loadings.T + np.diag(model.noise / np.where(weights > 0, weights, 1.0))
    return multivariate_normal.logpdf(values[seen], model.offsets[seen], covariance[np.ix_(seen, seen)])


def ratio(left, right, row, weights=None):
    """log p(both rows, one entity) − log p(left) − log p(right), the cells weighted."""
    values = np.concatenate([left.scores[row], right.scores[row]])
    seen = np.concatenate([left.mask[row], right.mask[row]]).astype(float)
    weights = seen if weights is None else seen * weights
    width = left.scores.shape[1]
    return (
        log_density(left.model.joined(right.model), values, weights)
        - log_density(left.model, values[:width], weights[:width])
        - log_density(right.model, values[width:], weights[width:])
    )


@pytest.mark.parametrize("seed", range(3))
def test_ratios_are_those_of_gaussian_densities(seed):
    left, right = two_sides(seed)
    np.testing.assert_allclose(log_ratios(left, right), [ratio(left, right, i) for i in range(4)], atol=1e-9)


@pytest.mark.parametrize("noise", [(0.05, 0.6), (1e-5, 1e-4), (5.0, 50.0)])
@pytest.mark.parametrize("seed", range(3))
def test_contributions_add_up_to_the_ratio(seed, noise):
    left, right = two_sides(seed, rows=6, widths=(9, 7), rank=4, noise=noise)
    one, two = contributions(left, right)
    whole = log_ratios(left, right)
    np.testing.assert_allclose(one.sum(axis=1) + two.sum(axis=1), whole, rtol=1e-6, atol=1e-6)
    assert not one[~left.mask].any()
    assert not two[~right.mask].any()


@pytest.mark.slow
def test_contributions_are_the_parts_in_the_growth_of_the_ratio():
    """∫ ∂ratio/∂weight_k along equal weights, by differences of densities and the trapezoid rule."""
    left, right = two_sides(1, rows=1)
    one, two = contributions(left, right)
    found = np.hstack([one, two])
    grid, step = np.linspace(0, 1, 401), 1e-4
    for k in range(8):
        slopes = []
        for t in np.maximum(grid, 2 * step):
            up, down = np.full(8, t), np.full(8, t)
            up[k] += step
            down[k] -= step
            slopes.append((ratio(left, right, 0, up) - ratio(left, right, 0, down)) / (2 * step))
        assert found[0, k] == pytest.approx(np.trapezoid(slopes, grid), abs=2e-3)


@pytest.mark.parametrize("seed", range(3))
def test_the_cost_of_dropping_is_the_ratio_less_the_ratio_without(seed):
    left, right = two_sides(seed)
    groups = ([[0], [1, 3], [2], [4]], [[0, 1], [2]])
    costs = costs_of_dropping(left, right, groups)
    for side, (own, start) in enumerate(zip(groups, (0, 5), strict=True)):
        for g, group in enumerate(own):
            weights = np.ones(8)
            weights[[start + k for k in group]] = 0
            expected = [ratio(left, right, i) - ratio(left, right, i, weights) for i in range(4)]
            np.testing.assert_allclose(costs[side][:, g], expected, atol=1e-9)


def test_predictions_are_conditional_means():
    left, right = two_sides(2)
    scores, deviations = predictions(left, right)
    model = left.model.joined(right.model)
    covariance = model.loadings @ model.loadings.T + np.diag(model.noise)
    for i in range(4):
        seen = 5 + np.flatnonzero(right.mask[i])
        gain = covariance[np.ix_(range(5), seen)] @ np.linalg.inv(covariance[np.ix_(seen, seen)])
        mean = model.offsets[:5] + gain @ (right.scores[i][seen - 5] - model.offsets[seen])
        np.testing.assert_allclose(scores[i], mean, atol=1e-9)
        variance = np.diag(covariance[:5, :5] - gain @ covariance[np.ix_(seen, range(5))])
        np.testing.assert_allclose(deviations[i], np.sqrt(variance), atol=1e-9)


# --- in the words of the tables --------------------------------------------------------------------------------------


def test_a_row_is_explained_in_the_units_of_its_columns(clinic_lab_and_watch):
    links = clinic_lab_and_watch
    label = links.tables[0].row_ids[5]
    found = links.explain(label)
    assert found.reference_id == label
    assert list(found.pairs) == ["lab", "watch"]
    pair = found.pairs["lab"]
    assert pair.row_id == links.matches.set_index(["table", "reference_id"]).loc[("lab", label), "row_id"]
    assert pair.cells["contribution"].sum() == pytest.approx(pair.log_ratio)
    cells = pair.cells.set_index(["table", "column"])
    clinic = links.tables[0].native
    assert cells.loc[("clinic", "vital 3"), "actual"] == clinic.loc[label, "vital 3"]
    assert cells.loc[("clinic", "ward"), "actual"] == clinic.loc[label, "ward"]
    assert cells.loc[("clinic", "ward"), "predicted"] in {"north", "south", "east"}
    assert np.isnan(cells.loc[("clinic", "ward"), "standard_error"])
    assert "note" not in cells.index.get_level_values("column")
    number = cells.loc[("lab", "assay 2")]
    assert abs(number["actual"] - number["predicted"]) < 5 * number["standard_error"]
    assert "assay" in repr(found)
    assert len(repr(found)) < 3000
    assert set(found.cells["link"]) == {"lab", "watch"}


def test_missing_cells_say_nothing(clinic_lab_and_watch):
    links = clinic_lab_and_watch
    row = int(np.flatnonzero(~links.tables[0].block.mask[:, 0])[0])
    cells = links.explain(links.tables[0].row_ids[row], table="lab").pairs["lab"].cells
    cell = cells[(cells["table"] == "clinic") & (cells["column"] == "vital 0")].iloc[0]
    assert cell["actual"] is None
    assert (cell["contribution"], cell["drop_cost"]) == (0.0, 0.0)
    assert np.isfinite(cell["predicted"])


def test_a_row_without_a_partner_is_compared_with_its_likeliest_candidate(clinic_lab_and_watch):
    links = clinic_lab_and_watch
    row = int(np.flatnonzero(links.permutations["watch"] < 0)[0])
    pair = links.explain(links.tables[0].row_ids[row], table="watch").pairs["watch"]
    assert not pair.matched
    best = links.candidates(1, table="watch")
    lines = best[(best["reference_id"] == links.tables[0].row_ids[row]) & best["row_id"].notna()]
    assert pair.row_id == lines["row_id"].item()
    assert "is not matched with" in repr(links.explain(links.tables[0].row_ids[row], table="watch"))


def test_any_pair_can_be_looked_at(clinic_lab_and_watch):
    links = clinic_lab_and_watch
    first, other = links.tables[0].row_ids[0], links.tables[1].row_ids[links.permutations["lab"][1]]
    pair = links.explain(first, table="lab", partner=other).pairs["lab"]
    assert pair.row_id == other
    assert not pair.matched
    assert pair.log_ratio < links.explain(first, table="lab").pairs["lab"].log_ratio


def test_the_pieces_of_several_rows_are_those_of_each(clinic_lab_and_watch):
    links = clinic_lab_and_watch
    rows = np.arange(7)
    found = ExplainedPairs(links, "lab", rows, links.permutations["lab"][rows])
    assert found.contributions.shape == found.drop_costs.shape == (7, len(found.columns))
    for i in rows:
        cells = links.explain(links.tables[0].row_ids[i], table="lab").pairs["lab"].cells
        assert list(zip(cells["table"], cells["column"], strict=True)) == list(found.columns)
        np.testing.assert_allclose(cells["contribution"], found.contributions[i], atol=1e-7)
        np.testing.assert_allclose(cells["drop_cost"], found.drop_costs[i], atol=1e-9)


def test_columns_that_tell_nothing_of_the_other_table_carry_nothing():
    """Eight columns of each table show four common factors, two are noise: those contribute next to nothing."""
    rng = np.random.default_rng(0)
    latent = rng.normal(size=(120, 4))
    a = pd.DataFrame(
        latent @ rng.normal(size=(4, 8)) + 0.2 * rng.normal(size=(120, 8)), columns=[f"a{k}" for k in range(8)]
    )
    b = pd.DataFrame(
        latent @ rng.normal(size=(4, 8)) + 0.2 * rng.normal(size=(120, 8)), columns=[f"b{k}" for k in range(8)]
    )
    a[["x0", "x1"]] = rng.normal(size=(120, 2))
    b[["y0", "y1"]] = rng.normal(size=(120, 2))
    links = keyless.link({"a": a, "b": b.sample(frac=1, random_state=1)}, random_state=0)
    assert links.evidence.verdict == "linked"
    found = links.explain()
    carried = found.columns.set_index("column")["contribution"]
    assert carried.sum() == pytest.approx(found.ratio["b"])
    assert carried[["x0", "x1", "y0", "y1"]].abs().max() < 0.15 * carried.median()
    lost = found.columns.set_index("column")["drop_cost"]
    assert lost[["x0", "x1", "y0", "y1"]].abs().max() < lost.drop(["x0", "x1", "y0", "y1"]).median()
    told = found.columns.set_index("column")["told_apart"]
    assert (told[["x0", "x1", "y0", "y1"]] >= found.told_apart["b"] - 0.02).all()
    assert found.columns["explained"].between(-0.5, 1).all()
    assert "Carried by" in repr(found)


@pytest.mark.slow
def test_two_columns_that_say_the_same_share_it_and_either_can_go():
    data = make_shuffled_tables(100, (6, 6), rank=3, noise=0.3, random_state=3)
    rng = np.random.default_rng(0)
    reference = pd.DataFrame(data.tables["reference"]).add_prefix("r")
    reference["twin"] = reference["r0"] + 0.02 * rng.normal(size=100)
    links = keyless.link({"a": reference, "b": data.tables["table1"]}, random_state=0)
    columns = links.explain().columns.set_index("column")
    assert columns.loc["twin", "contribution"] == pytest.approx(columns.loc["r0", "contribution"], abs=0.4)
    both = columns.loc[["twin", "r0"]]
    assert (both["drop_cost"] < both["contribution"]).all()


def test_bad_questions_are_named(clinic_lab_and_watch):
    links = clinic_lab_and_watch
    with pytest.raises(
        InputError, match=r"^row: must be the id of a row of clinic \('P-1000', .*, …\); found 'P-1'\.$"
    ):
        links.explain("P-1")
    with pytest.raises(InputError, match=r"^table: must be one of 'lab', 'watch'; found 'ward'\.$"):
        links.explain("P-1000", table="ward")
    with pytest.raises(
        InputError, match=r"^table: must say which table the partner is of; it is one of 'lab', 'watch'\.$"
    ):
        links.explain("P-1000", partner="S-1000")


def test_ids_may_be_given_as_text(linked_by_hand):
    rng = np.random.default_rng(0)
    links = linked_by_hand([rng.normal(size=(20, 3)), rng.normal(size=(20, 3))], [rng.permutation(20)])
    assert links.explain("17").reference_id == links.explain(17).reference_id == 17


def test_nothing_is_stated_as_certain():
    assert [stated(p) for p in (1.0, 0.9991, 0.999, 0.25, 0.0)] == [">0.999", ">0.999", "0.999", "0.250", "0.000"]


def test_standard_errors_are_short_to_read():
    errors = (563.2, 0.00161, 12345.0, 1.0, 0.0, 2.5e-9, 3e12)
    said = [shown_guess(3.5, error, comma=False) for error in errors]
    short = ["560", "0.0016", "12000", "1", "0", "2.5e-09", "3e+12"]
    assert said == [f"3.5 ± {error}" for error in short]
    assert shown_guess("3,5", 0.25, comma=True) == "3,5 ± 0,25"
    assert shown_guess("red", np.nan, comma=True) == "red"


def test_long_numbers_are_cut_in_either_dialect():
    assert [shown(text) for text in ("3.14159265", "3,14159265", "12,650", "1.250")] == [
        "3.142",
        "3,142",
        "12,650",
        "1.250",
    ]


def test_a_table_with_decimal_commas_is_explained_with_decimal_commas(tmp_path, linked_by_hand):
    rng = np.random.default_rng(0)
    latent = rng.normal(size=(40, 2))
    for name, decimal in (("comma", ","), ("point", ".")):
        values = latent @ rng.normal(size=(2, 5)) + 0.3 * rng.normal(size=(40, 5))
        frame = pd.DataFrame(values.round(2), columns=[f"{name}{k}" for k in range(5)])
        frame.to_csv(tmp_path / f"{name}.csv", sep=";", decimal=decimal, index=False)
    links = linked_by_hand([tmp_path / "comma.csv", tmp_path / "point.csv"], [np.arange(40)])
    lines = repr(links.explain(3)).splitlines()[1:]
    number = r"-?\d+{0}\d+"
    for line in lines[:-1]:  # the last one is about the other columns
        mark = "," if " comma: " in line else r"\."
        assert re.search(f" is {number}, predicted {number} ± {number}$".replace("{0}", mark), line), line
    assert {" comma: " in line for line in lines[:-1]} == {True, False}
