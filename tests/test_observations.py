"""AnnData in, AnnData back: nothing is lost, sparse stays sparse, both sides' barcodes are there; MuData out."""

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

import keyless
from keyless.errors import InputError
from keyless.saved.archive import read_archive, write_archive
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


def same(one, two):
    """The two are of the same kind and content, all the way down."""
    if isinstance(one, dict):
        assert isinstance(two, dict)
        assert list(one) == list(two)
        for key in one:
            same(one[key], two[key])
    elif sp.issparse(one):
        assert type(one) is type(two)
        assert one.dtype == two.dtype
        np.testing.assert_array_equal(one.toarray(), two.toarray())
    elif isinstance(one, pd.DataFrame):
        pd.testing.assert_frame_equal(one, two)
    elif isinstance(one, list | tuple):
        assert type(one) is type(two)
        for first, second in zip(one, two, strict=True):
            same(first, second)
    elif isinstance(one, np.ndarray):
        assert type(one) is type(two)
        assert one.dtype == two.dtype
        assert one.shape == two.shape
        np.testing.assert_array_equal(one, two)
    else:
        assert type(one) is type(two)
        assert one == two


@pytest.mark.parametrize("dense", [False, True])
def test_a_saved_anndata_comes_back_whole(linked_by_hand, tmp_path, dense):
    rng = np.random.default_rng(5)
    rna = cells("r")
    if dense:
        rna.X = rna.X.toarray()
    rna.varm["signs"] = np.array([["a", "b"]] * 5)
    rna.obsm["texts"] = np.array([["x", None]] * 8, dtype=object)
    rna.uns |= {
        "log1p": {"base": None, "done": True, "pseudocount": 1.0},
        "neighbors": {"params": {"n_neighbors": 15, "method": "umap"}, "sizes": np.arange(3, dtype=np.int8)},
        "ranks": np.rec.fromarrays(
            [np.array(["g1", "g2"], dtype=object), np.array([1.5, 2.5], dtype=np.float32)], names=["names", "scores"]
        ),
        "colours": np.array(["#ff0000", "grün"], dtype=object),
        "empty": {},
        "scalar": np.float32(2.5),
        "no axes": np.array(7),
        "nested": [1, "two", np.array([3.0]), ("four", None)],
        "frame": pd.DataFrame({"p": [0.1, 0.2], "kind": pd.Categorical(["a", "b"])}, index=["u", "v"]),
        "graph": sp.coo_matrix(rng.random((3, 4)) > 0.5),
    }
    links = linked_by_hand({"rna": rna, "adt": cells("p", seed=1)}, [ROWS], rank=2)
    links.save(tmp_path / "run.keyless")
    again = keyless.load(tmp_path / "run.keyless")
    for before, after in (
        (links.tables[0].native, again.tables[0].native),
        (links.completed["adt"], again.completed["adt"]),
    ):
        same(before.X, after.X)
        pd.testing.assert_frame_equal(before.obs, after.obs)
        pd.testing.assert_frame_equal(before.var, after.var)
        same(dict(before.uns), dict(after.uns))
        for part in ("layers", "obsm", "varm", "obsp", "varp"):
            same(dict(getattr(before, part).items()), dict(getattr(after, part).items()))
        same(before.raw.X, after.raw.X)
        pd.testing.assert_frame_equal(before.raw.var, after.raw.var)
        same(dict(before.raw.varm.items()), dict(after.raw.varm.items()))


def test_what_cannot_be_saved_is_named(linked_by_hand, tmp_path):
    rna = cells("r")
    rna.uns["model"] = {"fit": object(), "rank": 3}
    rna.uns["moments"] = np.array(["2020-01-01"], dtype="datetime64[D]")
    links = linked_by_hand({"rna": rna, "adt": cells("p", seed=1)}, [ROWS], rank=2)
    with pytest.warns(UserWarning, match="is not saved") as told:
        links.save(tmp_path / "run.keyless")
    said = [str(one.message) for one in told]
    assert [text.split(" is not saved; ")[0] for text in said] == ["rna: uns['model']['fit']", "rna: uns['moments']"]
    assert all("\n" not in text and len(text) < 250 for text in said)
    assert keyless.load(tmp_path / "run.keyless").tables[0].native.uns["model"] == {"rank": 3}


@pytest.mark.parametrize(
    "change",
    [
        lambda parts: parts["obsp"]["named"]["near"]["matrix"].update(shape=[8, 10**15]),
        lambda parts: parts["obsp"]["named"]["near"]["matrix"].update(shape=[8, 9]),
        lambda parts: parts["obsm"]["named"]["X_pca"].update(shape=[4, 4]),
        lambda parts: parts["uns"]["named"]["version"].update(plain=1, own="x") or parts.update(uns={"code": "1"}),
        lambda parts: parts["layers"]["named"]["raw"].update(own="part999."),
    ],
)
def test_a_changed_file_is_refused_in_one_line(linked, tmp_path, change):
    _, _, links = linked
    links.save(tmp_path / "run.keyless")
    document, arrays, files = read_archive(tmp_path / "run.keyless")
    change(document["tables"][0]["anndata"])
    write_archive(tmp_path / "other.keyless", document, arrays, files)
    with pytest.raises(InputError, match=r"other\.keyless: must be a saved keyless result"):
        keyless.load(tmp_path / "other.keyless")
