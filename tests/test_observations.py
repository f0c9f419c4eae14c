"""AnnData in, AnnData back: nothing is lost, sparse stays sparse, both sides' barcodes are there; MuData out."""

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

import keyless
from keyless.errors import InputError
from keyless.tables import to_anndata, to_mudata

anndata = pytest.importorskip("anndata", reason="anndata is not installed")

ROWS = [3, -1, 0, 1, 2, 4, 5, 6]


def cells(prefix, *, seed=0, size=8):
    rng = np.random.default_rng(seed)
    counts = rng.poisson(1.5, size=(size, 5)).astype(np.float32)
    counts[:, 3] = 0
    made = anndata.AnnData(
        X=sp.csr_matrix(counts),
        obs=pd.DataFrame(
            {"batch": pd.Categorical(rng.choice(["a", "b"], size)), "depth": np.arange(size)},
            index=[f"{prefix}{i}" for i in range(size)],
        ),
        var=pd.DataFrame({"length": range(5)}, index=[f"{prefix}gene{k}" for k in range(5)]),
        uns={"colours": {"batch": ["red", "blue"]}, "version": 3},
    )
    made.layers["raw"] = sp.csc_matrix(counts * 2)
    made.layers["dense"] = counts.astype(np.int64)
    made.obsm["X_pca"] = rng.normal(size=(size, 2))
    made.obsm["scores"] = pd.DataFrame({"s": rng.normal(size=size)}, index=made.obs_names)
    made.obsp["near"] = sp.csr_matrix(rng.random((size, size)) > 0.5).astype(float)
    made.varm["loadings"] = rng.normal(size=(5, 2))
    made.varp["like"] = rng.normal(size=(5, 5))
    made.raw = made.copy()
    return made


@pytest.fixture(scope="module")
def linked(linked_by_hand):
    rna, adt = cells("r"), cells("p", seed=1)
    return rna, adt, linked_by_hand({"rna": rna, "adt": adt}, [ROWS], rank=2)


def test_everything_comes_back(linked):
    rna, adt, links = linked
    made = links.completed["adt"]
    here = np.flatnonzero(np.array(ROWS) >= 0)
    rows = np.array(ROWS)[here]
    assert list(made.obs_names) == list(rna.obs_names)
    assert made.obs["adt_id"].tolist()[0] == "p3"
    assert pd.isna(made.obs["adt_id"].tolist()[1])
    assert type(made.X) is type(adt.X)
    assert made.X.dtype == adt.X.dtype
    np.testing.assert_array_equal(made.X.toarray()[here], adt.X.toarray()[rows])
    assert type(made.layers["raw"]) is sp.csc_matrix
    np.testing.assert_array_equal(made.layers["raw"].toarray()[here], adt.layers["raw"].toarray()[rows])
    assert made.layers["raw"].toarray()[1].sum() == 0
    np.testing.assert_array_equal(made.layers["dense"][here], adt.layers["dense"][rows])
    assert np.isnan(made.layers["dense"][1]).all()
    np.testing.assert_array_equal(made.obsm["X_pca"][here], adt.obsm["X_pca"][rows])
    np.testing.assert_array_equal(made.obsm["scores"]["s"].to_numpy()[here], adt.obsm["scores"]["s"].to_numpy()[rows])
    near = made.obsp["near"].toarray()
    np.testing.assert_array_equal(near[np.ix_(here, here)], adt.obsp["near"].toarray()[np.ix_(rows, rows)])
    assert not near[1].any()
    assert not near[:, 1].any()
    np.testing.assert_array_equal(made.varm["loadings"], adt.varm["loadings"])
    np.testing.assert_array_equal(made.varp["like"], adt.varp["like"])
    assert made.uns == adt.uns
    assert made.uns["colours"] is not adt.uns["colours"]
    pd.testing.assert_frame_equal(made.var, adt.var)
    assert made.obs["batch"].dtype == adt.obs["batch"].dtype
    assert made.obs["depth"].tolist()[0] == 3
    np.testing.assert_array_equal(made.raw.X.toarray()[here], adt.raw.X.toarray()[rows])


def test_the_reference_comes_back_as_it_was(linked):
    rna, _, links = linked
    made = links.completed["rna"]
    pd.testing.assert_frame_equal(made.obs, rna.obs)
    assert (made.X != rna.X).nnz == 0
    assert "rna_id" not in made.obs
    assert made.layers["dense"].dtype == np.int64


def test_it_can_be_written(linked, tmp_path):
    _, _, links = linked
    links.completed["adt"].write_h5ad(tmp_path / "adt.h5ad")
    again = anndata.read_h5ad(tmp_path / "adt.h5ad")
    assert again.obs["adt_id"].tolist()[0] == "p3"


def test_the_coupling_is_written_beside_the_partners(linked):
    rna, adt, links = linked
    made = to_anndata(links, rna, name="rna")
    coupling = made.obsm["keyless_adt_coupling"]
    assert sp.issparse(coupling)
    expected = np.where(links.coupling("adt") < 1e-4, 0, links.coupling("adt"))
    np.testing.assert_allclose(coupling.toarray(), expected)
    assert made.uns["keyless"]["rows"]["adt"].tolist() == list(adt.obs_names)
    other = to_anndata(links, adt, name="adt")
    np.testing.assert_allclose(other.obsm["keyless_rna_coupling"].toarray(), expected.T)
    assert other.uns["keyless"]["rows"]["rna"].tolist() == list(rna.obs_names)


def test_all_tables_as_one_mudata(linked):
    pytest.importorskip("mudata", reason="mudata is not installed")
    rna, adt, links = linked
    made = to_mudata(links)
    assert list(made.mod) == ["rna", "adt"]
    assert list(made.obs_names) == list(rna.obs_names)
    assert made["adt"].n_obs == 7
    assert "r1" not in made["adt"].obs_names
    np.testing.assert_array_equal(made["adt"]["r0"].X.toarray(), adt["p3"].X.toarray())
    assert made["adt"].obs["adt_id"].tolist()[0] == "p3"
    assert type(made["adt"].X) is type(adt.X)
    aligned = made.obsp["keyless_adt"].toarray()
    for i in range(8):
        for k in range(8):
            expected = 0 if ROWS[k] < 0 else links.coupling("adt")[i, ROWS[k]]
            assert aligned[i, k] == pytest.approx(expected, abs=1e-4)


def test_tables_of_other_kinds_go_into_a_mudata_too(linked_by_hand):
    pytest.importorskip("mudata", reason="mudata is not installed")
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(6, 3)), columns=["x", "y", "z"], index=[f"q{i}" for i in range(6)])
    made = to_mudata(linked_by_hand({"a": rng.normal(size=(6, 4)), "b": frame}, [[1, 0, 2, 3, 4, -1]], rank=2))
    assert made["b"].obs["b_id"].tolist() == ["q1", "q0", "q2", "q3", "q4"]
    np.testing.assert_array_equal(made["b"]["0"].X.ravel(), frame.loc["q1"])


def test_equal_ids_are_no_mudata(linked_by_hand):
    pytest.importorskip("mudata", reason="mudata is not installed")
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(4, 3)), index=list("aabb")).rename(columns=str)
    with pytest.raises(InputError, match=r"^a: must have different row ids to become a MuData"):
        to_mudata(linked_by_hand({"a": frame, "b": rng.normal(size=(4, 2))}, [range(4)], rank=1))


@pytest.mark.slow
def test_counts_are_linked_and_come_back():
    rng = np.random.default_rng(0)
    latent = rng.normal(size=(150, 4))
    tables = {}
    order = rng.permutation(150)
    for name, width, rows in (("rna", 40, np.arange(150)), ("adt", 20, order)):
        counts = rng.poisson(np.exp(2.5 + 0.6 * latent[rows] @ rng.normal(size=(4, width))))
        obs = pd.DataFrame({"type": np.where(latent[rows, 0] > 0, "T", "B")}, index=[f"{name}-{i}" for i in range(150)])
        tables[name] = anndata.AnnData(sp.csr_matrix(counts.astype(np.float32)), obs=obs)
        tables[name].var_names = [f"{name}{k}" for k in range(width)]
    links = keyless.link(tables, random_state=0)
    assert links.evidence.verdict == "linked"
    types = links.transfer("adt", "type")
    assert (types["value"].to_numpy() == tables["rna"].obs["type"].to_numpy()).mean() > 0.9
    assert sp.issparse(links.completed["adt"].X)
