"""Many runs of M³O at a time, benchmarks/m3o_on_card.py, against the solver that takes one."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from keyless.datasets import make_shuffled_tables
from keyless.paper import M3O
from keyless.paper.experiments.base import ExperimentRun
from keyless.paper.experiments.released_data import script_starts, script_tables
from keyless.paper.experiments.synthetic import draw_released, m3o_run
from keyless.paper.experiments.table1 import SETTINGS
from keyless.paper.problem import to_problem
from keyless.transport import sinkhorn_of_ones

torch = pytest.importorskip("torch")

STEPS = 300  # trajectories part later, when differences of rounding have grown


@pytest.fixture(scope="module", autouse=True)
def _benchmarks():
    """Let the benchmarks import each other, as they do when they are run."""
    folder = str(Path(__file__).parents[1] / "benchmarks")
    sys.path.insert(0, folder)
    yield
    sys.path.remove(folder)


def small_tables(rows, columns, rank, seed):
    made = make_shuffled_tables(rows, columns, rank=rank, observed=0.8, missing="per_table", random_state=seed)
    # Of the size that the presets expect: λ lies among the singular values, and ε is halved within the steps taken.
    return {name: table * 1.4 / max(rows, sum(columns)) for name, table in made.tables.items()}


def start_of(tables, seed, solver, **changes):
    from m3o_card_batch import Rule, Start
    from m3o_card_problems import rule

    tables = list(tables.values())
    shape = (len(tables[0]), sum(table.shape[1] for table in tables))
    found = replace(Rule(**rule(solver, shape[0])), **changes)
    return Start(tables, np.random.default_rng(seed).standard_normal(shape), found)


def compare(cases, steps):
    """Take steps of all cases in one batch, and of each alone by the solver; return how often ε was halved."""
    from m3o_card_batch import begin, step_

    # The printed rule counts any fall as progress. Once the objective is at rest, rounding decides when ε is halved.
    least = {place: max(solver.tolerance, 1e-9) for place, (_, _, solver) in enumerate(cases)}
    starts = [start_of(*case, tolerance=least[place]) for place, case in enumerate(cases)]
    cases = [(tables, seed, replace(solver, tolerance=least[k])) for k, (tables, seed, solver) in enumerate(cases)]
    batch = begin(starts, "cpu")
    problems = [to_problem(tables) for tables, _, _ in cases]
    states = [
        solver.init(problem, random_state=seed) for (_, seed, solver), problem in zip(cases, problems, strict=True)
    ]
    for _ in range(steps):
        epsilons = batch.epsilon().tolist()
        step_(batch)
        for place, (_, _, solver) in enumerate(cases):
            states[place] = solver.step(problems[place], states[place])
            record = states[place].record
            assert epsilons[place] == record.epsilon
            assert float(batch.objective[place]) == pytest.approx(record.objective, rel=0, abs=1e-9)
            sizes = batch.step_sizes[place, : len(record.step_sizes)].numpy()
            np.testing.assert_allclose(sizes, record.step_sizes, rtol=0, atol=1e-9)
            iterations = batch.iterations[place, : len(record.step_sizes)].tolist()
            assert iterations == list(record.inner_iterations)
    return batch.stage.tolist()


class TestSteps:
    def test_small_problems_of_different_shapes_follow_both_presets(self):
        first, second = small_tables(24, (12, 6, 6), 3, 1), small_tables(24, (16, 10), 2, 2)
        cases = [
            (first, 0, M3O.released()),
            (first, 1, M3O.printed()),
            (second, 0, M3O.released(penalty=0.4)),
            (second, 1, M3O.printed()),
        ]
        assert min(compare(cases, STEPS)) >= 1

    @pytest.mark.slow
    def test_a_problem_of_the_paper_follows_both_presets(self):
        tables = draw_released(0, **SETTINGS["(100; 40, 30, 30), 40%"][1]).tables
        assert min(compare([(tables, 0, M3O.released()), (tables, 0, M3O.printed())], STEPS)) >= 1

    @pytest.mark.parametrize(
        ("name", "end"),
        [
            pytest.param("released", "patience", marks=pytest.mark.soak),
            ("released", "give_up"),
            ("printed", "max_iter"),
        ],
    )
    def test_runs_end_when_those_of_the_solver_do(self, name, end):
        from m3o_card_batch import begin, settled, step_

        tables, preset = small_tables(24, (12, 6, 6), 3, 1), getattr(M3O, name)()
        changes = {"patience": {"patience": 4}, "give_up": {"give_up": 30}, "max_iter": {"max_iter": 57}}[end]
        found = replace(preset, **changes).solve(to_problem(tables), random_state=0)
        batch = begin([start_of(tables, 0, preset, **changes)], "cpu")
        for _ in range(len(found.history) + 20):
            step_(batch)
        assert bool(batch.frozen.all())
        assert batch.steps.tolist() == [len(found.history)]
        assert settled(batch).tolist() == [found.status.converged]
        np.testing.assert_allclose(batch.reference[0].numpy(), found.estimate[:, :12], rtol=0, atol=1e-9)
        np.testing.assert_allclose(batch.parts[0, 1].numpy(), found.estimate[:, 18:], rtol=0, atol=1e-9)

    def test_a_step_of_the_printed_rule_counts_any_fall(self):
        from m3o_card_batch import begin, step_

        tables = small_tables(24, (12, 6, 6), 3, 1)
        batch = begin([start_of(tables, 0, M3O.printed())], "cpu")
        for _ in range(3):
            step_(batch)
        best = batch.best_objective.clone()
        # The next objective is lower by far; a best just above it is progress, too, and one just below it is not.
        for shift, stalled in ((1e-12, 0), (-1e-12, 1)):
            ahead = replace(
                batch, **{name: value.clone() for name, value in vars(batch).items() if torch.is_tensor(value)}
            )
            step_(ahead)
            again = replace(
                batch, **{name: value.clone() for name, value in vars(batch).items() if torch.is_tensor(value)}
            )
            again.best_objective = ahead.objective + shift
            step_(again)
            assert ahead.objective < best
            assert again.stalled.tolist() == [stalled]

    @pytest.mark.parametrize("epsilon", [1e-1, 1e-3, 1e-6])
    def test_couplings_are_those_of_the_package_when_kernels_vanish(self, rng, epsilon):
        from m3o_card_steps import DIFFUSENESS, ENTROPIC_COST, couple_

        cost = rng.random((2, 20, 20)) * rng.random((1, 1, 20))
        coupling = torch.zeros(2, 20, 20, dtype=torch.float64)
        numbers = {"dtype": torch.float64}
        statistics, iterations = couple_(
            torch.tensor(cost),
            torch.full((2,), epsilon, **numbers),
            torch.full((2,), 1e-3, **numbers),
            torch.tensor([True, False]),
            coupling,
            max_iter=205,
        )
        wanted = sinkhorn_of_ones(cost[0], epsilon=epsilon, tolerance=1e-3, max_iter=205)
        np.testing.assert_allclose(coupling[0].numpy(), wanted.coupling, rtol=0, atol=1e-12)
        assert iterations.tolist() == [wanted.iterations, 0]
        assert not coupling[1].any()
        assert float(statistics[0, ENTROPIC_COST]) == pytest.approx(wanted.entropic_cost, rel=1e-12)
        diffuseness = np.abs(wanted.coupling.max(axis=1) - 1).mean()
        assert float(statistics[0, DIFFUSENESS]) == pytest.approx(diffuseness, rel=1e-12)


@pytest.mark.slow
def test_results_become_the_cells_that_the_experiment_would_make(tmp_path, monkeypatch):
    """The whole way, with few steps: problems to a file, all runs in a batch, results to cells."""
    import m3o_card_problems
    import m3o_on_card

    def short(preset="released", *, penalty=None, quick=False):  # noqa: ARG001
        made = getattr(M3O, preset)
        return replace(made() if penalty is None else made(penalty=penalty), max_iter=60)

    monkeypatch.setattr(m3o_card_problems, "CHECKED", 2)
    m3o_card_problems.prepare(1, tmp_path / "problems.npz")
    problems = m3o_on_card.Problems(tmp_path / "problems.npz")
    m3o_on_card.check(problems, "cpu")
    problems.rules = {name: replace(rule, max_iter=60) for name, rule in problems.rules.items()}
    runs = [run for run in problems.runs if run["setting"] == 0]
    assert [run["method"] for run in runs] == [
        "released, λ = 0.55",
        *(f"released, λ = {x}" for x in (0.4, 0.5, 0.6)),
        "printed",
    ]
    results = m3o_on_card.Results(problems, runs, tmp_path / "results", "processor")
    batch = m3o_on_card.begin([problems.start(run) for run in runs], "cpu")
    for ended, _ in m3o_on_card.advance(batch, 600.0):
        results.add(ended)
    results.save()
    assert len(json.loads((tmp_path / "results" / "finished.json").read_text())["runs"]) == len(runs)

    m3o_card_problems.collect([tmp_path / "results"], tmp_path)
    monkeypatch.setattr("keyless.paper.experiments.synthetic.m3o", short)
    made = draw_released(0, **SETTINGS["(100; 40, 30, 30), 40%"][1])
    kept = ExperimentRun(tmp_path, "table1")
    for run in runs[0], runs[-1]:
        preset, penalty = m3o_card_problems.m3o_methods("(100; 40, 30, 30), 40%")[run["method"]]
        wanted = m3o_run(made, 0, preset=preset, penalty=penalty)
        cell = kept.cell(run["key"], lambda: pytest.fail("the cell is not there"))
        assert cell.pop("device") == "processor"
        assert cell.pop("objective") == pytest.approx(wanted.pop("objective"), rel=1e-9)
        assert cell == wanted
        assert (cell["steps"], cell["converged"]) == (60, False)


def test_runs_whose_rotations_did_not_settle_are_left_to_the_processor(tmp_path, capsys):
    import m3o_card_problems

    sure, unsure = m3o_card_problems.planned(10)[:2]
    made = draw_released(0, **SETTINGS["(100; 40, 30, 30), 40%"][1])
    shape = (100, sum(table.shape[1] for table in made.tables.values()))
    estimates = {run["key"]: np.random.default_rng(0).standard_normal(shape) for run in (sure, unsure)}
    np.savez(tmp_path / "estimates-0.npz", **estimates)
    result = {"steps": 9, "converged": True, "nuclear_norm": 1.0, "epsilon": 0.1, "device": "a card"}
    found = {sure["key"]: result | {"troubles": 0}, unsure["key"]: result | {"troubles": 2}}
    (tmp_path / "finished.json").write_text(json.dumps({"runs": found}))
    m3o_card_problems.collect([tmp_path], tmp_path)
    assert f"{unsure['key']} (2 of 9 steps)" in capsys.readouterr().out
    kept = ExperimentRun(tmp_path, "table1")
    assert kept.cell(sure["key"], lambda: pytest.fail("the cell is not there"))["device"] == "a card"
    assert kept.cell(unsure["key"], lambda: "taken on the processor") == "taken on the processor"


def test_the_card_begins_where_the_script_begins(tmp_path, monkeypatch):
    """Every start of the script, and λ, as `bench_m3o_script.py` hands them over; results must be there for all."""
    import bench_m3o_script
    import m3o_on_card
    from m3o_card_batch import first_estimate

    monkeypatch.setattr(bench_m3o_script, "CHECKED", 1)
    monkeypatch.setattr(bench_m3o_script, "STARTS", 2)
    bench_m3o_script.prepare(tmp_path / "problems.npz")
    problems = m3o_on_card.Problems(tmp_path / "problems.npz")
    m3o_on_card.check(problems, "cpu")
    assert len(problems.runs) == 5 * 8 * 2
    made = script_tables((20, 40, 40), 0.4)
    starts = script_starts(made, count=2)
    for run in problems.runs:
        if run["setting"] == 1:
            start = problems.start(run)
            wanted = starts[run["start"]].copy()
            wanted[:, :20] = np.nan_to_num(made.tables["reference"])
            np.testing.assert_allclose(first_estimate(start), wanted, rtol=1e-15, atol=0)
            assert f"released, λ = {start.rule.penalty}" == run["method"]
            assert start.rule.released
            for table, own in zip(start.tables, made.tables.values(), strict=True):
                np.testing.assert_array_equal(table, own)
    (tmp_path / "finished.json").write_text(json.dumps({"runs": {}}))
    with pytest.raises(SystemExit, match="80 runs have not ended"):
        bench_m3o_script.collected([tmp_path])
