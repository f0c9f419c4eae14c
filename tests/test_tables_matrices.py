"""Sparse matrices and AnnData: what is not stored, what comes back, what is written into a copy."""

import builtins

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

import keyless
from keyless.errors import InputError
from keyless.tables import Reading, read_like, read_table, read_tables, to_anndata

NAN = np.nan

MATRIX = np.array([[1.0, 0.0, 3.0, 0.0], [0.0, 2.0, 3.0, 0.0], [4.0, 5.0, 0.0, 0.0]])


def test_what_a_sparse_matrix_does_not_store_is_missing():
    table = read_table(sp.csr_array(MATRIX), name="ratings")
    assert table.columns == ("ratings_0", "ratings_1")
    assert table.block.mask.tolist() == [[True, False], [False, True], [True, True]]
    assert [use.reason for use in table.uses[2:]] == ["every observed entry is the same, 3", "no entry is observed"]
    assert table.native is None
    np.testing.assert_array_equal(table.column("ratings_0"), [1.0, NAN, 4.0])


def test_what_is_not_stored_may_be_zero():
    table = read_table(sp.csc_matrix(MATRIX), name="counts", reading=Reading(unstored="zero"))
    assert table.block.mask.all()
    np.testing.assert_array_equal(table.block.values, MATRIX[:, :3])
    made = table.rebuilt(np.full((3, 3), 9.0), np.array([2, -1, 0]))
    assert type(made) is sp.csc_matrix
    np.testing.assert_array_equal(made.toarray(), [[4.0, 5.0, 0.0, 0.0], [9.0, 9.0, 9.0, 0.0], [1.0, 0.0, 3.0, 0.0]])


def test_stored_zeros_are_observed_and_kept():
    stored = sp.coo_array(([0.0, 1.0, 2.0, 5.0], ([0, 1, 0, 1], [0, 0, 1, 1])), shape=(3, 2))
    table = read_table(stored, name="s")
    assert table.block.mask.tolist() == [[True, True], [True, True], [False, False]]
    made = table.rebuilt(np.full((3, 2), 7.0), np.arange(3))
    assert made.nnz == 6
    np.testing.assert_array_equal(made.toarray(), [[0.0, 2.0], [1.0, 5.0], [7.0, 7.0]])


def test_columns_that_are_left_out_come_along():
    table = read_table(sp.csr_array(MATRIX), name="s")
    made = table.rebuilt(np.full((2, 2), 7.0), np.array([1, -1]))
    assert made.shape == (2, 4)
    assert made[0, 2] == 3.0
    assert made.nnz == 5
    np.testing.assert_array_equal(
        table.marked(np.array([1, -1])).toarray(), [[True, False, False, False], [True, True, False, False]]
    )


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (sp.csr_array((3, 0)), r"^s: must be a table with at least one row and one column; found shape \(3, 0\)"),
        (sp.csr_array(np.eye(2)), r"^s: must have at least one column whose entries differ; found none\. If what is"),
        (sp.csr_array(np.array([[1.0, np.inf], [2.0, 1.0]])), r"^s, row 0, column 1: must be a finite number"),
        (sp.csr_array(np.eye(2) * 1j), r"^s: must hold real numbers; found dtype complex128"),
    ],
)
def test_bad_sparse_matrices_are_named(matrix, message):
    if matrix.shape == (2, 2) and matrix.nnz == 2 and matrix.dtype == float:
        matrix = sp.csr_array(np.eye(2) + np.eye(2)[::-1])
    with pytest.raises(InputError, match=message):
        read_table(matrix, name="s")


def test_a_sparse_matrix_that_cannot_fit_is_refused():
    with pytest.raises(
        InputError, match=r"^s: must fit in memory; a table of 1000000 × 1000000 numbers needs about 25 TB"
    ):
        read_table(sp.csr_array((10**6, 10**6)), name="s")


def test_columns_of_arrays_can_be_dropped():
    table = read_table(np.arange(6.0).reshape(2, 3), name="a", reading=Reading(drop=("a_1",)))
    assert table.columns == ("a_0", "a_2")
    np.testing.assert_array_equal(table.rebuilt(np.full((2, 2), 9.0), np.array([1, -1])), [[3, 4, 5], [9, NAN, 9]])
    with pytest.raises(InputError, match=r"^a: must have at least one column that is used"):
        read_table(np.ones((2, 1)), name="a", reading=Reading(drop=("a_0",)))


# --- AnnData ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def anndata():
    return pytest.importorskip("anndata", reason="anndata is not installed")


@pytest.fixture
def cells(anndata):
    counts = np.random.default_rng(0).poisson(1.5, size=(8, 5)).astype(np.float32)
    counts[:, 3] = 0
    obs = pd.DataFrame({"batch": list("aabbaabb")}, index=[f"cell{i}" for i in range(8)])
    var = pd.DataFrame({"length": range(5)}, index=[f"gene{k}" for k in range(5)])
    return anndata.AnnData(X=sp.csr_matrix(counts), obs=obs, var=var)


def links_of(first, second, permutation, **options):
    from keyless.errors import CONVERGED
    from keyless.evidence import Evidence
    from keyless.links import Links, TableLink
    from keyless.model.factor_model import FactorModel
    from keyless.model.joint_model import JointModel
    from keyless.model.scales import scale_table

    rng = np.random.default_rng(0)
    read, _ = read_tables({"first": first, "second": second}, **options)
    scales = tuple(scale_table(table.block.values, table.block.mask)[1] for table in read)
    width = sum(table.block.shape[1] for table in read)
    parts = (rng.normal(size=(width, 2)), np.zeros(width), np.ones(width), np.zeros((width, 3, 3)), np.ones(3))
    size = len(permutation)
    coupling = np.full((size, read[1].block.shape[0]), 1 / size)
    evidence = Evidence("linked", 5.5, (1.0, 1.25), 3.0, 1.0, 3)
    link = TableLink(np.asarray(permutation), np.arange(size) / 10, np.ones(size), coupling, evidence)
    return Links(read, {"second": link}, JointModel(FactorModel(*parts), scales), CONVERGED)


def test_counts_that_are_not_stored_are_zeros(cells):
    table = read_table(cells, name="rna")
    assert table.columns == ("gene0", "gene1", "gene2", "gene4")
    assert table.left_out == ("gene3",)
    assert table.block.mask.all()
    assert table.row_ids == tuple(cells.obs_names)
    assert table.column("batch") == list("aabbaabb")
    np.testing.assert_array_equal(table.block.values, cells.X.toarray()[:, [0, 1, 2, 4]])
    missing = read_table(cells, name="rna", reading=Reading(unstored="missing"))
    np.testing.assert_array_equal(missing.block.mask, (cells.X.toarray() > 0)[:, [0, 1, 2, 4]])
    dense = read_table(cells.copy(), name="rna")
    np.testing.assert_array_equal(dense.block.values, table.block.values)


def test_an_anndata_comes_back_as_one(cells, tmp_path):
    links = links_of(cells, cells, [3, -1, 0, 1, 2, 4, 5, 6])
    made = links.completed["second"]
    assert type(made) is type(cells)
    assert list(made.obs_names) == list(cells.obs_names)
    assert list(made.var_names) == list(cells.var_names)
    assert made.obs["batch"].tolist()[0] == "b"
    assert pd.isna(made.obs["batch"].tolist()[1])
    np.testing.assert_array_equal(made.X.toarray()[0], cells.X.toarray()[3])
    assert links.filled["second"].X[1].tolist() == [True, True, True, False, True]
    assert isinstance(links.matches, pd.DataFrame)
    assert links.joined().shape == (8, 12)
    links.save(tmp_path / "run.keyless")
    again = keyless.load(tmp_path / "run.keyless")
    np.testing.assert_array_equal(again.completed["second"].X.toarray(), made.X.toarray())
    pd.testing.assert_frame_equal(again.tables[0].native.obs, cells.obs)
    assert len(links.place(cells[:2], table="second", candidates=1)) == 4
    assert len(links.place(cells.X[:2].toarray()[:, [0, 1, 2, 4]], table="second", candidates=1)) == 4


def test_without_anndata_a_saved_one_comes_back_as_pandas(cells, tmp_path, monkeypatch):
    links_of(cells, cells, range(8)).save(tmp_path / "run.keyless")
    real = builtins.__import__

    def fails(name, *arguments, **options):
        if name == "anndata":
            raise ImportError(name)
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", fails)
    again = keyless.load(tmp_path / "run.keyless")
    made = again.completed["second"]
    assert isinstance(made, pd.DataFrame)
    np.testing.assert_array_equal(made.to_numpy(), cells.X.toarray())


def test_links_are_written_into_a_copy(cells):
    links = links_of(cells, cells[:6].copy(), [3, -1, 0, 1, 2, 4, 5, -1])
    made = to_anndata(links, cells, name="first")
    assert "keyless" not in cells.uns
    assert made.obs["keyless_second"].tolist()[0] == "cell3"
    assert made.obs["keyless_second"].isna().tolist() == [False, True, *[False] * 5, True]
    np.testing.assert_array_equal(made.obs["keyless_second_probability"], np.arange(8) / 10)
    np.testing.assert_array_equal(made.obsm["X_keyless"], links.factors)
    assert made.uns["keyless"]["verdicts"] == {"second": "linked"}
    other = to_anndata(links, cells[:6].copy(), name="second", key="found")
    assert other.obs["found_first"].tolist() == ["cell2", "cell3", "cell4", "cell0", "cell5", "cell6"]
    np.testing.assert_array_equal(other.obsm["X_found"], links.factors[[2, 3, 4, 0, 5, 6]])
    assert other.obs["found_first_probability"].tolist() == [0.2, 0.3, 0.4, 0.0, 0.5, 0.6]
    with pytest.raises(InputError, match=r"^name: must be one of 'first', 'second'; found 'third'\.$"):
        to_anndata(links, cells, name="third")
    with pytest.raises(InputError, match=r"^adata: must have 6 observations, as second; found 8\.$"):
        to_anndata(links, cells, name="second")


def test_an_observation_without_a_partner_has_no_factors(cells):
    links = links_of(cells[:6].copy(), cells, [3, -1, 0, 1, 2, 4])
    made = to_anndata(links, cells, name="second")
    alone = made.obs["keyless_first"].isna().to_numpy()
    assert alone.tolist() == [False] * 5 + [True] * 3
    assert np.isnan(made.obsm["X_keyless"][alone]).all()
    assert np.isfinite(made.obsm["X_keyless"][~alone]).all()


def test_bad_anndata_are_named(cells, anndata):
    cells.var_names = ["a", "a", "b", "c", "d"]
    with pytest.raises(InputError, match=r"^rna: must have different variable names; 'a' occurs twice"):
        read_table(cells, name="rna")
    with pytest.raises(InputError, match=r"^rna: must have its numbers in X; X is None"):
        read_table(anndata.AnnData(obs=pd.DataFrame(index=["a", "b"])), name="rna")
    other = anndata.AnnData(X=np.ones((1, 1)), var=pd.DataFrame(index=["x"]))
    with pytest.raises(InputError, match=r"^rows: must have at least one of the variables of rna\.$"):
        read_like(other, like=read_table(anndata.AnnData(X=np.eye(3)), name="rna"))
