"""What callers give to `link`: tables in any arrangement, options in the wrong place, numbers as text; the view."""

import inspect
import io
import subprocess
import sys
import types
import warnings

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

import keyless
import keyless.paper.soft_impute
from keyless.datasets import make_shuffled_tables
from keyless.errors import InputError
from keyless.linker import check_no_options, gathered, warn_of_text_numbers
from keyless.progress import shown as live
from keyless.tables import Reading, read_table


@pytest.fixture(scope="module")
def data():
    return make_shuffled_tables(40, (12, 10), rank=3, random_state=1)


def quick(*tables, **options):
    return keyless.link(*tables, effort="quick", **options)


# --- arrangements ----------------------------------------------------------------------------------------------------


def test_tables_one_after_the_other_are_as_good_as_a_list(data):
    a, b = data.tables.values()
    one, two = quick(a, b, random_state=0), quick([a, b], random_state=0)
    assert [table.name for table in one.tables] == ["reference", "table1"]
    np.testing.assert_array_equal(one.permutations["table1"], two.permutations["table1"])
    np.testing.assert_array_equal(one.permutations["table1"], data.truth["table1"])


def test_a_list_of_rows_is_one_table():
    rows = [{"x": 1.0, "y": 2.0}, {"x": 2.0, "y": 1.0}]
    numbers = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
    assert gathered(rows, [numbers]) == [rows, numbers]
    assert gathered([rows, numbers], []) == [rows, numbers]


@pytest.mark.parametrize(
    "pairs", [[(0, 1), (2, 3)], (("a", 1),), pd.DataFrame({"reference_id": [1], "row_id": [2], "probability": [0.9]})]
)
def test_pairs_among_the_tables_are_explained(data, pairs):
    a, b = data.tables.values()
    for tables in ([a, b, pairs], [[a, b], pairs], [{"a": a, "b": b}, pairs]):
        with pytest.raises(InputError, match=r"^tables: .* link\(\.\.\., known_pairs=pairs\)\."):
            keyless.link(*tables)


def test_two_arrangements_at_once_are_refused(data):
    a, b = data.tables.values()
    with pytest.raises(InputError, match=r"^tables: must be given all in one mapping or list, or one after the other"):
        keyless.link({"a": a, "b": b}, a)
    with pytest.raises(InputError, match=r"^tables: must be given all in one mapping or list, or one after the other"):
        keyless.link([a, b], a)


@pytest.mark.parametrize("nothing", [None, 3, True])
def test_what_is_no_table_is_named(data, nothing):
    a, _ = data.tables.values()
    with pytest.raises(InputError, match=rf"^table1: must be a table or the path of a file; found {nothing}\.$"):
        keyless.link(a, nothing)
    with pytest.raises(InputError, match=rf"^lab: must be a table or the path of a file; found {nothing}\.$"):
        keyless.link({"clinic": a, "lab": nothing})


def test_one_array_is_one_table(data):
    a, _ = data.tables.values()
    for one in (a, sparse.csr_array(a), pd.DataFrame(a)):
        with pytest.raises(InputError, match=r"^tables: must be two or more, in a list or by name; found one "):
            keyless.link(one)


def test_an_option_among_the_tables_is_explained(data):
    a, b = data.tables.values()
    with pytest.raises(
        InputError, match=r"^tables: must be tables by name; 'known_pairs' is an option\. Give it beside"
    ):
        keyless.link({"a": a, "b": b, "known_pairs": [(0, 0)]})
    check_no_options({"a": a, "reference": b})  # a table may be called that


@pytest.mark.parametrize(
    ("option", "successor"),
    [
        ("method", "effort="), ("null_searches", "effort="), ("strangers", "partners="), ("n_jobs", "all cores"),
        ("verbose", "callback="), ("progress", "callback="), ("refiner", "keyless.paper.M3O"),
        ("options", "by its own name"), ("missingness", "Reading(missingness=True)"),
    ],
)  # fmt: skip
def test_an_option_of_earlier_versions_names_its_successor(data, option, successor):
    with pytest.raises(InputError, match=rf"^{option}: is an option of earlier versions\. ") as refused:
        keyless.link(data.tables, **{option: 1})
    assert successor in str(refused.value)
    named = successor.removesuffix("=")
    assert not successor.endswith("=") or named in inspect.signature(keyless.link).parameters


def test_an_option_that_never_was_is_refused_by_python(data):
    with pytest.raises(TypeError, match="unexpected keyword argument 'metod'"):
        keyless.link(data.tables, metod="joint")
    assert "effort" in inspect.signature(keyless.link).parameters


def test_a_warning_points_at_the_line_that_called(data):
    a, b = (pd.DataFrame(table) for table in data.tables.values())
    a["iron"] = [f"{value:.2f}" for value in np.linspace(0, 9, len(a))]
    for call in (
        lambda: keyless.link({"a": a, "b": b}, max_time=0.1, effort="quick"),
        lambda: keyless.TableLinker(max_time=0.1, effort="quick").fit({"a": a, "b": b}),
    ):
        with pytest.warns(UserWarning, match="holds numbers as text") as seen:
            call()
        assert [one.filename for one in seen] == [__file__]


def test_numpys_old_generator_is_taken(data):
    one = quick(data.tables, random_state=np.random.RandomState(3))
    two = quick(data.tables, random_state=np.random.RandomState(3))
    assert one.seed == two.seed
    np.testing.assert_array_equal(one.permutations["table1"], two.permutations["table1"])
    filled = keyless.SoftImpute(random_state=np.random.RandomState(0)).fit_transform(
        [[1.0, 2.0], [2.0, np.nan], [3.0, 6.0]]
    )
    assert np.isfinite(filled).all()


# --- numbers as text -------------------------------------------------------------------------------------------------


def warned(frame, **options):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_text_numbers([read_table(frame, name="lab", **options)])
    return [str(one.message) for one in caught]


def test_python_warns_of_numbers_as_text():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.normal(size=30), "iron": [f"{v:.2f}" for v in rng.normal(size=30)]})
    (said,) = warned(frame)
    assert said.startswith("lab: column 'iron' holds numbers as text (")
    assert "as_number='iron'" in said
    assert warned(frame, reading=Reading(as_number="iron")) == []
    assert warned(frame, reading=Reading(drop="iron")) == []
    frame["iron"] = frame["iron"].str.replace(".", ",")
    assert len(warned(frame)) == 1


def test_ids_and_words_are_no_numbers():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.normal(size=30)})
    assert warned(frame.assign(patient_id=[f"{i:05}" for i in range(30)])) == []
    assert warned(frame.assign(code=[str(7 * i) for i in range(30)])) == []
    assert warned(frame.assign(note=[f"seen at {i}" for i in range(30)])) == []


# --- progress --------------------------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_is_shown_in_a_terminal_and_nowhere_else(data, monkeypatch, capsys):
    quick(data.tables, random_state=0)
    assert capsys.readouterr() == ("", "")
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    quick(data.tables, random_state=0)
    assert "stage" in screen.getvalue()
    for options in ({"callback": lambda *_: None},):
        silent = Terminal()
        monkeypatch.setattr(sys, "stderr", silent)
        quick(data.tables, random_state=0, **options)
        assert silent.getvalue() == ""


def test_progress_is_shown_in_a_notebook(data, monkeypatch):
    shown = []

    class Handle:
        def update(self, page):
            shown.append(page)

    def display(page, **_options):
        shown.append(page)
        return Handle()

    shell = types.SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "IPython.display", types.SimpleNamespace(HTML=str, display=display))
    quick(data.tables, random_state=0)
    assert "Done in" in shown[-1]
    shell.kernel = None  # IPython in a terminal
    with live.usual_view() as stages:
        assert stages is None


# --- what objects say ------------------------------------------------------------------------------------------------


def test_every_object_has_a_short_repr(data):
    links = quick(data.tables, random_state=0)
    table = links.tables[0]
    objects = [
        links, links.completed, links.filled, links.standard_errors, links.found, links.tables, table, table.block,
        links.evidence, links.status, links.explain(), links.explain(3), links.threshold(),
        links.score_against(data.truth["table1"]), data, keyless.paper.to_problem(data.tables),
        keyless.paper.soft_impute.soft_impute(data.complete["reference"], np.ones((40, 12), bool), 1.0),
        keyless.transport.sinkhorn(np.ones((40, 40)), epsilon=0.1),
    ]  # fmt: skip
    for thing in objects:
        assert len(repr(thing)) < 1500, type(thing)
        assert "array(" not in repr(thing), type(thing)
    assert repr(links.completed) == "{'reference': 40 × 12, 'table1': 40 × 10}, rows × columns; made when asked for"
    assert repr(table) == "Table 'reference': 40 rows, 12 of 12 columns used"


def test_a_plot_is_a_picture_when_it_is_the_last_expression(data):
    links = quick(data.tables, random_state=0)
    for plot in (links.plot_evidence, links.plot_certainty, links.plot_coverage, links.plot_correlations):
        assert plot()._repr_png_().startswith(b"\x89PNG")


# --- warnings --------------------------------------------------------------------------------------------------------


def test_products_of_matrices_do_not_warn_and_all_else_does():
    """The filter is set at import, so a new process shows what users see."""
    code = """
import warnings
import keyless
for where in ("keyless.maps.canonical", "elsewhere"):
    for what in ("matmul", "divide"):
        warnings.warn_explicit(f"invalid value encountered in {what}", RuntimeWarning, where, 1, module=where)
"""
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stderr
    lines = [line for line in shown.splitlines() if "RuntimeWarning" in line]
    assert [line.split(":")[0] + " " + line.split()[-1] for line in lines] == [
        "keyless.maps.canonical divide",
        "elsewhere matmul",
        "elsewhere divide",
    ]
