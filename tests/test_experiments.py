"""The paper's experiments in tiny forms, against what must come out."""

from __future__ import annotations

import csv
import hashlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from keyless.datasets import make_shuffled_tables
from keyless.errors import InputError
from keyless.paper import M3O, experiments
from keyless.paper.experiments import Experiment, ExperimentRun, Outcome, base, drawing, markdown, run_experiment
from keyless.paper.experiments.ablation import aligned, jointly
from keyless.paper.experiments.applications import ratings, records, sensors, tracks
from keyless.paper.experiments.figure1 import VARIANTS, trace
from keyless.paper.experiments.nuclear_norm import increase, moved
from keyless.paper.experiments.sinkhorn import iterations_needed
from keyless.paper.experiments.synthetic import draw, keyless_wrong, m3o_run, oracle_wrong, spread
from keyless.paper.experiments.theory import is_broken, ranks, theorem
from keyless.paper.problem import to_problem

ROOT = Path(__file__).parents[1]
OURS = [name for name in experiments.NAMES if name not in ("movielens", "faces")]
SMALL = {"n_rows": 40, "column_counts": (24, 16), "rank": 3}


def counting(calls, *, fail_at=None):
    """An experiment of four cells that notes which ones were made, and may be killed in one of them."""

    def make(number):
        if number == fail_at:
            raise KeyboardInterrupt
        calls.append(number)
        return {"square": np.float64(number**2), "all": np.arange(number)}

    def run(context):
        found = context.cells([(f"number={k}", lambda k=k: make(k)) for k in range(4)])
        (ax,) = drawing.panels(1)
        ax.plot([found[f"number={k}"]["square"] for k in range(4)])
        table = [{"setting": f"{k}", "keyless": found[f"number={k}"]["square"]} for k in range(4)]
        figure = ax.get_figure(root=True)
        return Outcome(table=table, rows=table, figure=figure, settings={"numbers": 4}, notes=["A note."])

    return Experiment(name="squares", title="Squares", run=run, paper="None.")


# --- the frame -------------------------------------------------------------------------------------------------------


def test_all_files_are_written_and_say_the_same(tmp_path):
    text = run_experiment(counting([]), tmp_path, quick=True, seeds=3)
    assert {path.suffix for path in tmp_path.glob("squares.*")} == {".png", ".svg", ".csv", ".json", ".md"}
    assert "| 3 | – | – | 9 | – |" in text
    assert text == (tmp_path / "squares.md").read_text(encoding="utf-8")
    kept = json.loads((tmp_path / "squares.json").read_text(encoding="utf-8"))
    assert kept["quick"] is True
    assert kept["seeds"] == 3
    assert kept["settings"] == {"numbers": 4}
    assert {"python", "numpy", "scipy"} <= set(kept["versions"])
    assert len(kept["seconds"]["cells"]) == 4
    with (tmp_path / "squares.csv").open(encoding="utf-8") as file:
        assert [float(row["keyless"]) for row in csv.DictReader(file)] == [0, 1, 4, 9]
    assert (tmp_path / "squares.png").read_bytes().startswith(b"\x89PNG")


def test_a_killed_run_goes_on_where_it_stopped(tmp_path):
    calls: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        run_experiment(counting(calls, fail_at=2), tmp_path)
    assert calls == [0, 1]
    resumed = run_experiment(counting(calls), tmp_path)
    assert calls == [0, 1, 2, 3]
    assert run_experiment(counting(calls), tmp_path) == resumed
    assert calls == [0, 1, 2, 3]
    assert json.loads((tmp_path / "squares.json").read_text())["cells"] == {"all": 4, "kept from before": 4}
    assert resumed == run_experiment(counting([]), tmp_path / "afresh")


def test_quick_cells_and_those_of_another_version_are_not_taken_for_full_ones(tmp_path, monkeypatch):
    calls: list[int] = []
    run_experiment(counting(calls), tmp_path, quick=True)
    run_experiment(counting(calls), tmp_path)
    assert len(calls) == 8
    monkeypatch.setattr(base.keyless, "__version__", "another")
    run_experiment(counting(calls), tmp_path)
    assert len(calls) == 12


def test_half_written_cells_are_made_again(tmp_path):
    calls: list[int] = []
    run_experiment(counting(calls), tmp_path)
    cell = next((tmp_path / "cells" / "squares").glob("*number=1.json"))
    cell.write_text(cell.read_text()[:10])
    run_experiment(counting(calls), tmp_path)
    assert calls == [0, 1, 2, 3, 1]


def test_a_request_to_stop_is_heard_and_what_is_done_is_kept(tmp_path):
    calls: list[int] = []
    told: list[tuple[str, int, int]] = []

    def callback(stage, step, total, _objective):
        told.append((stage, step, total))
        return step == 2

    with pytest.raises(KeyboardInterrupt, match="goes on from there"):
        run_experiment(counting(calls), tmp_path, callback=callback)
    assert told == [("squares: cells", k, 4) for k in range(3)]
    assert len(list((tmp_path / "cells" / "squares").glob("*.json"))) == 2


@pytest.mark.soak
def test_jobs_do_not_change_the_numbers(tmp_path):
    tasks = [(f"seed={seed}", lambda seed=seed: ranks(seed)) for seed in range(3)]
    assert ExperimentRun(tmp_path / "a", "x", jobs=2).cells(tasks) == ExperimentRun(tmp_path / "b", "x").cells(tasks)


def test_cells_need_different_keys(tmp_path):
    with pytest.raises(InputError, match="different keys"):
        ExperimentRun(tmp_path, "x").cells([("a", int), ("a", int)])


def test_sizes(tmp_path):
    assert ExperimentRun(tmp_path, "x").count(10, 2) == 10
    assert ExperimentRun(tmp_path, "x", quick=True).count(10, 2) == 2
    assert ExperimentRun(tmp_path, "x", quick=True, seeds=7).count(10, 2) == 7
    with pytest.raises(InputError, match="seeds"):
        ExperimentRun(tmp_path, "x", seeds=0)


def test_markdown_leaves_no_cell_open():
    assert markdown([{"a": "x|y", "b": None}], ["a", "b", "c"]).splitlines()[-1] == "| x\\|y | – | – |"


@pytest.mark.parametrize("name", OURS)
def test_every_experiment_is_there(name):
    found = experiments.get(name)
    assert found.name == name
    assert found.title
    assert len(set(found.columns)) == len(found.columns)


def test_a_wrong_name_is_answered_with_the_right_ones():
    with pytest.raises(InputError, match="figure1"):
        experiments.get("figure2")


def test_the_command_line(tmp_path, capsys):
    from keyless.cli import main

    with pytest.raises(SystemExit) as done:
        main(["reproduce", "sinkhorn", "--quick", "--seeds", "1", "--out", str(tmp_path)])
    assert done.value.code == 0
    assert capsys.readouterr().out.startswith("## Sinkhorn iterations against ε")
    for wrong in (["reproduce"], ["reproduce", "sinkhorn", "--all"], ["reproduce", "nothing"]):
        with pytest.raises(SystemExit) as done:
            main([*wrong, "--out", str(tmp_path)])
        assert done.value.code == 2


@pytest.mark.slow
def test_the_page_is_what_the_results_say():
    code = "import make_paper_page; assert make_paper_page.page() == make_paper_page.PAGE.read_text(encoding='utf-8')"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT / "docs", capture_output=True, text=True, check=False)
    assert done.returncode == 0, "run `python docs/make_paper_page.py`: " + done.stderr


@pytest.mark.parametrize("name", sorted(path.stem for path in (ROOT / "docs" / "paper").glob("*.json")))
def test_every_number_on_the_page_is_one_of_the_stored_ones(name):
    text = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
    stored = (ROOT / "docs" / "paper" / f"{name}.json").read_bytes()
    assert f"paper/{name}.json), SHA-256 {hashlib.sha256(stored).hexdigest()[:16]}." in text
    kept = json.loads(stored)
    for row in kept["table"]:
        cells = [row[column] for column in kept["columns"] if row.get(column) is not None]
        shown = [f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in cells]
        lines = [line for line in text.splitlines() if line.startswith(f"| {shown[0]} |")]
        assert any(all(f" {cell} |" in line for cell in shown) for line in lines), f"{name}: {shown}"


# --- the experiments -------------------------------------------------------------------------------------------------


def test_keyless_and_the_oracle_are_right_where_it_is_easy():
    made = draw(3, **SMALL)
    assert keyless_wrong(made, 0) == 0
    assert oracle_wrong(made) == 0


@pytest.mark.slow
def test_m3o_sees_the_tables_alone():
    """The answer may be anything without changing what M³O finds: only the count of wrong rows changes."""
    made = draw(3, **SMALL)
    found = M3O(penalty=0.55, prox="hard", max_iter=5).solve(to_problem(made.tables), random_state=0).permutations[0]
    assert found.shape == (40,)
    run = m3o_run(made, 0, quick=True)
    assert 0 <= run["wrong"] <= 40
    assert run["converged"]  # a run that is stopped while ε is large says nothing about M³O


def test_the_oracle_is_the_best_assignment_where_one_factor_is_known_exactly():
    """With one factor and almost no noise, rows match in the order of their latent."""
    made = make_shuffled_tables(12, (3, 2), rank=1, noise=1e-6, random_state=0)
    assert oracle_wrong(made) == 0


def test_spread_is_the_papers():
    assert spread([1.0, 2.0, 6.0]) == "3.00±2.65 (1.00)"
    assert spread([4.0]) == "4.00±0.00 (4.00)"


@pytest.mark.parametrize("observed", [1.0, 0.5])
def test_the_identity_leaves_the_nuclear_norm(observed):
    found = increase(0.0, observed, 1, n_rows=20, columns=(8, 6), rank=2)
    assert found["nuclear norm"] == 1
    assert found["lower bound"] == 1
    assert found["predicted"] == 1


def test_a_shuffle_raises_the_nuclear_norm_within_its_bounds():
    found = increase(1.0, 1.0, 0)
    assert found["displaced"] == 1
    assert 1 < found["lower bound"] < 2**0.5
    assert 1 < found["nuclear norm"] < 2**0.5 + 1e-9


@pytest.mark.parametrize("displaced", [0, 2, 7])
def test_as_many_rows_move_as_asked(displaced):
    order = moved(7, displaced, np.random.default_rng(0))
    assert sorted(order) == list(range(7))
    assert (order != np.arange(7)).sum() == displaced


def test_a_warm_start_needs_no_more_iterations():
    for seed in range(2):
        found = iterations_needed([0.1 * 0.5**k for k in range(6)], seed)
        assert found["warm"][0] == found["cold"][0]
        assert all(warm <= cold for warm, cold in zip(found["warm"], found["cold"], strict=True))
        assert found["cold"][-1] > found["cold"][0]


def test_propositions_hold_and_the_theorem_does_not():
    drawn = [ranks(seed) for seed in range(20)]
    assert all(entry["rank"] <= entry["bound"] for entry in drawn)
    assert all(entry["rank"] == min(8, 4 + entry["H"] - entry["C"]) == entry["predicted"] for entry in drawn)
    entry = theorem(0, n_rows=4)
    assert entry["least wrong"] <= entry["most wrong"] <= 4
    claim = {"conditions met": True, "bound": 0.5}
    assert is_broken(claim | {"least wrong": 1})
    assert not is_broken(claim | {"least wrong": 0})


@pytest.mark.slow
def test_the_theorem_is_broken_in_the_table(tmp_path):
    run_experiment(experiments.get("theory"), tmp_path, quick=True, seeds=4)
    kept = json.loads((tmp_path / "theory.json").read_text())
    by_kind = [row for row in kept["rows"] if row["what"] == "counterexample"]
    assert len(by_kind) == 3
    assert by_kind[2]["broken"] == 4
    assert all(row["exact"] > row["lemma"] for row in by_kind)
    assert all(row["exact"] == pytest.approx(2**0.5, abs=1e-3) for row in by_kind)


@pytest.mark.parametrize("name", ["Baseline", "MUS", "M³O-DE-1"])
def test_traces_end_with_the_solution(name):
    made = draw(0, **SMALL)
    found = trace(name, made, 0, quick=True)
    assert len({len(found[key]) for key in ("iteration", "objective", "wrong rows")}) == 1
    assert found["iteration"][-1] == found["steps"]
    assert all(0 <= wrong <= 40 for wrong in found["wrong rows"])
    assert found["iteration"] == sorted(found["iteration"])
    assert name in VARIANTS


@pytest.mark.soak
def test_parts_of_keyless_can_be_left_out():
    made = draw(0, n_rows=60)
    assert aligned(made) == 0
    assert aligned(made, signatures=False) > 0
    assert 0 <= aligned(made, likelihood=False) <= 60
    three = draw(0, **(SMALL | {"column_counts": (14, 13, 13)}))
    assert jointly(three) == 0
    assert 0 <= jointly(three, together=False) <= 40


@pytest.mark.parametrize(("make", "rank"), [(tracks, 4), (sensors, 7), (ratings, None), (records, None)])
def test_the_applications_come_with_their_answer(make, rank):
    first, second, truth = make(0, 50)
    again = make(0, 50)
    assert sorted(truth) == list(range(50))
    for one, other in zip((first, second), again[:2], strict=True):
        np.testing.assert_array_equal(one, other)
    assert (truth != np.arange(50)).any()
    if rank is not None:
        whole = np.hstack([first, second[truth]])
        whole = np.where(np.isnan(whole), np.nanmean(whole, axis=0), whole)
        if not np.isnan(first).any():
            values = np.linalg.svd(whole, compute_uv=False)
            assert values[rank] < 0.2 * values[rank - 1]
