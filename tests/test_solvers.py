"""Laws of the paper's solvers, checked against plain transcriptions, closed forms and exhaustive search."""

from __future__ import annotations

import importlib.util
import itertools
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from keyless.arrays import to_numpy
from keyless.block import Block
from keyless.datasets import make_shuffled_tables
from keyless.errors import InputError
from keyless.lowrank import nuclear_norm, project_rank, prox_nuclear, threshold_singular_values
from keyless.metrics import hamming
from keyless.paper import (
    M3O,
    Baseline,
    DecayingEntropy,
    Descending,
    Fixed,
    FixedEntropy,
    PenaltyPath,
    Printed,
    Released,
    UnlabeledSensing,
    search_omega,
)
from keyless.paper.problem import PatchProblem, Problem, to_problem
from keyless.paper.schedules import CouplingStatistics
from keyless.paper.soft_impute import soft_impute


def rivals():
    """The transcriptions kept beside the benchmarks."""
    path = Path(__file__).parents[1] / "benchmarks" / "rivals.py"
    spec = importlib.util.spec_from_file_location("rivals", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["rivals"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def shuffled():
    """Three tables of 15 rows with missing entries, and the answer."""
    return make_shuffled_tables(15, (6, 5, 4), rank=2, noise=0.1, observed=0.8, random_state=3)


@pytest.fixture
def problem(shuffled):
    return to_problem(shuffled.tables)


def truths(shuffled):
    names = list(shuffled.tables)[1:]
    return [shuffled.truth[name] for name in names]


def true_start(shuffled):
    """The noiseless matrix: every row in its place."""
    return shuffled.clean


class TestOneStep:
    @pytest.mark.parametrize("transcription", ["loop_step", "vectorised_step"])
    @pytest.mark.parametrize("share", [0.5, 0.01])
    def test_equals_a_plain_transcription(self, problem, transcription, share):
        start = np.random.default_rng(0).normal(size=problem.shape)
        epsilon = share * float(np.median(problem.costs(start)[0]))
        solver = M3O(
            penalty=0.7,
            prox_weight="printed",
            step_rule=Fixed(0.3),
            entropy=FixedEntropy(epsilon),
            sinkhorn_tolerance=1e-300,
            sinkhorn_max_iter=25,
        )
        new = solver.step(problem, solver.init(problem, start=start))
        reference, parts = problem.split(start)
        tables = (problem.reference, *problem.blocks)
        expected = getattr(rivals(), transcription)(
            (reference, *parts),
            [table.values for table in tables],
            [table.mask for table in tables],
            epsilon=epsilon,
            penalty=0.7,
            step_size=0.3,
            inner_iterations=25,
        )
        np.testing.assert_allclose(new.estimate, expected, atol=1e-10, rtol=0)

    def test_with_identity_coupling_is_a_soft_impute_step(self):
        """METHOD: coupling = I, ρ = ½ and prox weight λ make the step one of Soft-Impute."""
        made = make_shuffled_tables(12, (5, 4), rank=2, noise=0.0, observed=0.9, random_state=1)
        tables = {"reference": made.tables["reference"], "table1": made.tables["table1"][made.truth["table1"]]}
        problem = to_problem(tables)
        solver = M3O(penalty=0.4, prox_weight="printed", entropy=FixedEntropy(1e-3), sinkhorn_tolerance=1e-12)
        new = solver.step(problem, solver.init(problem, start=made.clean))
        np.testing.assert_allclose(new.couplings[0], np.eye(12), atol=1e-9)
        observed = np.hstack(list(tables.values()))
        expected = prox_nuclear(np.where(np.isnan(observed), made.clean, observed), 0.4)
        np.testing.assert_allclose(new.estimate, expected, atol=1e-8)

    @pytest.mark.parametrize(
        ("prox", "operator"),
        [
            ({"prox": "hard", "penalty": 1.5}, lambda matrix: threshold_singular_values(matrix, 1.5)),
            ({"prox": "rank", "rank": 2}, lambda matrix: project_rank(matrix, 2)),
            ({"penalty": 1.5}, lambda matrix: prox_nuclear(matrix, 0.2 * 1.5)),
            ({"penalty": 1.5, "prox_weight": "printed"}, lambda matrix: prox_nuclear(matrix, 1.5)),
        ],
    )
    def test_applies_the_named_operator_to_the_gradient_step(self, problem, prox, operator):
        start = np.random.default_rng(1).normal(size=problem.shape)
        solver = M3O(step_rule=Fixed(0.2), reference_update="step", **prox)
        new = solver.step(problem, solver.init(problem, start=start))
        expected = operator(start - 0.2 * problem.gradient(start, new.couplings))
        np.testing.assert_allclose(new.estimate, expected, atol=1e-10)

    def test_the_two_ways_with_the_reference_differ_unless_the_step_is_one_half(self, problem):
        start = np.random.default_rng(1).normal(size=problem.shape)

        def estimate(update, size):
            solver = M3O(penalty=0.5, step_rule=Fixed(size), reference_update=update)
            return solver.step(problem, solver.init(problem, start=start)).estimate

        np.testing.assert_allclose(estimate("refill", 0.5), estimate("step", 0.5), atol=1e-12)
        assert np.abs(estimate("refill", 0.2) - estimate("step", 0.2)).max() > 1e-3

    def test_refills_the_observed_entries_of_the_reference(self, problem):
        start = np.random.default_rng(1).normal(size=problem.shape)
        solver = M3O(prox="rank", rank=min(problem.shape), step_rule=Fixed(0.2))
        new = solver.step(problem, solver.init(problem, start=start))
        reference, _ = problem.split(new.estimate)
        mask = problem.reference.mask
        np.testing.assert_allclose(reference[mask], problem.reference.values[mask], atol=1e-10)
        np.testing.assert_allclose(reference[~mask], problem.split(start)[0][~mask], atol=1e-10)

    def test_records_what_the_paper_defines(self, problem):
        start = np.random.default_rng(1).normal(size=problem.shape)
        solver = M3O(penalty=0.5, step_rule="printed", prox_weight="printed", entropy=FixedEntropy(2.0))
        first = solver.step(problem, solver.init(problem, start=start))
        second = solver.step(problem, first)
        record = second.record
        assert record.iteration == 1
        for index, (old, new) in enumerate(zip(first.couplings, second.couplings, strict=True)):
            n = new.shape[0]
            assert record.changes[index] == pytest.approx(np.linalg.norm(old - new) ** 2 / (2 * n), rel=1e-12)
            diffuseness = np.abs(new.max(axis=1) - 1).sum() / n
            assert record.diffuseness[index] == pytest.approx(diffuseness, rel=1e-12)
            rho = min((1 - record.changes[index]) * (1 - diffuseness) ** 3, 0.5)
            assert record.step_sizes[index] == pytest.approx(rho, rel=1e-12)
        reference, _ = problem.split(first.estimate)
        misfit = ((reference - problem.reference.values)[problem.reference.mask] ** 2).sum()
        costs = problem.costs(first.estimate)
        plan = sum((cost * coupling).sum() for cost, coupling in zip(costs, second.couplings, strict=True))
        objective = misfit + plan + 0.5 * nuclear_norm(first.estimate)
        assert record.objective == pytest.approx(objective, rel=1e-10)
        entropy = sum((coupling * (np.log(coupling) - 1)).sum() for coupling in second.couplings)
        assert record.entropic_objective == pytest.approx(objective + 2.0 * entropy, rel=1e-10)


class TestDescent:
    @pytest.mark.parametrize("seed", range(5))
    @pytest.mark.parametrize("update", ["refill", "step"])
    def test_the_entropic_objective_never_rises_at_fixed_epsilon(self, seed, update):
        made = make_shuffled_tables(12, (5, 4, 3), rank=2, noise=0.3, observed=0.7, random_state=seed)
        problem = to_problem(made.tables)
        solver = M3O(
            penalty=0.8,
            entropy=FixedEntropy(3.0),
            reference_update=update,
            sinkhorn_tolerance=1e-12,
            max_iter=40,
        )
        history = solver.solve(problem, random_state=seed).history
        values = np.array([record.entropic_objective for record in history])
        assert len(values) == 40
        # The couplings are exact to about 1e-12, the objective to the rounding of its sums.
        assert np.all(np.diff(values) <= 1e-10 * np.abs(values[:-1]))
        assert values[-1] < values[0]

    def test_the_stated_gradient_is_that_of_the_entropic_value(self, problem):
        """Envelope theorem: the gradient at the optimal couplings is that of min_P ⟨C, P⟩ + ε H(P)."""
        generator = np.random.default_rng(0)
        estimate, direction = generator.normal(size=(2, *problem.shape))

        def entropic(matrix):
            solver = M3O(penalty=1e-300, entropy=FixedEntropy(1.5), sinkhorn_tolerance=1e-13, sinkhorn_max_iter=100_000)
            return solver.step(problem, solver.init(problem, start=matrix))

        here = entropic(estimate)
        step = 1e-5
        ahead, behind = (entropic(estimate + sign * step * direction).record for sign in (1, -1))
        numerical = (ahead.entropic_objective - behind.entropic_objective) / (2 * step)
        analytic = (problem.gradient(estimate, here.couplings) * direction).sum()
        assert numerical == pytest.approx(analytic, rel=1e-6)

    def test_baseline_never_raises_its_objective(self):
        for seed in range(5):
            made = make_shuffled_tables(12, (5, 4), rank=2, noise=0.3, observed=0.7, random_state=seed)
            history = Baseline(penalty=0.8).solve(to_problem(made.tables), random_state=seed).history
            values = np.array([record.objective for record in history])
            assert len(values) > 2
            assert np.all(np.diff(values) <= 1e-12 * np.abs(values[:-1]))


class TestRuns:
    @pytest.mark.parametrize(
        "solver",
        [
            M3O(max_iter=15),
            M3O(max_iter=15, prox="hard", penalty=2.0, step_rule="released"),
            Baseline(max_iter=15),
            UnlabeledSensing(penalty=0.5),
        ],
    )
    def test_relabelling_a_table_only_relabels_its_permutation(self, shuffled, solver):
        order = np.random.default_rng(5).permutation(15)
        relabelled = dict(shuffled.tables)
        relabelled["table2"] = relabelled["table2"][order]
        start = None if isinstance(solver, UnlabeledSensing) else np.random.default_rng(0).normal(size=(15, 15))
        one = solver.solve(to_problem(shuffled.tables), start=start)
        other = solver.solve(to_problem(relabelled), start=start)
        np.testing.assert_array_equal(one.permutations[0], other.permutations[0])
        if not isinstance(solver, UnlabeledSensing):
            # Unlabeled sensing takes the given order for its first guess, so it may change its mind.
            np.testing.assert_array_equal(one.permutations[1], order[other.permutations[1]])
            np.testing.assert_allclose(one.estimate, other.estimate, atol=1e-9)

    def test_by_hand_equals_solve(self, problem):
        solver = M3O(penalty=0.5, patience=3, entropy=DecayingEntropy(decays=3), tolerance=1e-3)
        solution = solver.solve(problem, random_state=0)
        state = solver.init(problem, random_state=0)
        records = []
        while solver.terminate(problem, state).reason == "running":
            state = solver.step(problem, state)
            records.append(state.record)
        assert tuple(records) == solution.history
        assert solution.status.converged
        np.testing.assert_array_equal(state.estimate, solution.estimate)

    def test_stays_at_the_truth(self, shuffled, problem):
        start = true_start(shuffled)
        solver = M3O(prox="rank", rank=2, entropy=FixedEntropy(0.05), max_iter=50)
        solution = solver.solve(problem, start=start)
        for found, truth in zip(solution.permutations, truths(shuffled), strict=True):
            assert hamming(found, truth) == 0
        baseline = Baseline(prox="rank", rank=2).solve(problem, start=start)
        for found, truth in zip(baseline.permutations, truths(shuffled), strict=True):
            assert hamming(found, truth) == 0

    def test_same_seed_same_answer_and_threads_change_nothing(self):
        made = make_shuffled_tables(450, (6, 5, 4), rank=2, random_state=0)
        problem = to_problem(made.tables)
        one = M3O(max_iter=3).solve(problem, random_state=7)
        two = M3O(max_iter=3, n_jobs=2).solve(problem, random_state=7)
        np.testing.assert_array_equal(one.estimate, two.estimate)
        assert one.history == two.history

    def test_warm_start_saves_iterations_and_keeps_the_answer(self, problem):
        tight = {"penalty": 0.5, "entropy": FixedEntropy(5.0), "sinkhorn_tolerance": 1e-12, "max_iter": 30}
        warm = M3O(warm_start=True, **tight).solve(problem, random_state=0)
        cold = M3O(warm_start=False, **tight).solve(problem, random_state=0)
        np.testing.assert_allclose(warm.estimate, cold.estimate, atol=1e-8)

        def inner(solution):
            return sum(sum(record.inner_iterations) for record in solution.history)

        assert inner(warm) < inner(cold)

    def test_entropy_and_penalty_walk_their_paths(self, problem):
        solver = M3O(
            penalty=PenaltyPath(3.0, stop=1.0, step=1.0),
            entropy=DecayingEntropy(initial=4.0, factor=0.5, decays=2),
            patience=2,
            tolerance=1e-2,
        )
        history = solver.solve(problem, random_state=0).history
        assert [key for key, _ in itertools.groupby(record.epsilon for record in history)] == [4.0, 2.0, 1.0]
        assert [key for key, _ in itertools.groupby(record.penalty for record in history)] == [3.0, 2.0, 1.0]

    def test_callback_max_iter_and_max_time(self, problem):
        seen = []
        solution = M3O(max_iter=4).solve(problem, random_state=0, callback=seen.append)
        assert [state.record.iteration for state in seen] == [0, 1, 2, 3]
        assert solution.status.reason == "max_iter"
        assert "max_iter" in solution.status.advice
        began = time.monotonic()
        timed = M3O(max_time=0.2, patience=10**6).solve(problem, random_state=0, callback=lambda _: time.sleep(0.02))
        assert timed.status.reason == "max_time"
        assert time.monotonic() - began < 2
        assert sorted(timed.permutations[0]) == list(range(15))

    def test_nothing_given_is_modified(self, shuffled):
        before = {name: table.copy() for name, table in shuffled.tables.items()}
        for table in shuffled.tables.values():
            table.flags.writeable = False
        start = np.ones((15, 15))
        start.flags.writeable = False
        for solver in (M3O(max_iter=3), Baseline(max_iter=3)):
            solver.solve(to_problem(shuffled.tables), start=start)
        UnlabeledSensing().solve(to_problem(shuffled.tables))
        for name, table in before.items():
            np.testing.assert_array_equal(table, shuffled.tables[name])

    @pytest.mark.parametrize("size", [1, 2])
    def test_tiny_problems(self, size):
        generator = np.random.default_rng(0)
        problem = to_problem([generator.normal(size=(size, 2)), generator.normal(size=(size, 3))])
        for solver in (M3O(max_iter=5), Baseline(max_iter=5)):
            solution = solver.solve(problem, random_state=0)
            assert sorted(solution.permutations[0]) == list(range(size))
        assert sorted(UnlabeledSensing().solve(problem).permutations[0]) == list(range(size))

    def test_constant_columns_duplicate_rows_and_missing_lines(self):
        table = np.ones((6, 3))
        table[:, 0] = [0, 0, 1, 1, 2, 2]
        table[3] = np.nan
        table[:, 2] = np.nan
        problem = to_problem([table, table[::-1]])
        solutions = [solver.solve(problem, random_state=0) for solver in (M3O(max_iter=5), Baseline(max_iter=5))]
        # This one fills with SoftImpute, which warns of columns that hold nothing.
        with pytest.warns(UserWarning, match="no entry of column 2"):
            solutions.append(UnlabeledSensing().solve(problem, random_state=0))
        for solution in solutions:
            assert np.all(np.isfinite(solution.estimate))
            assert sorted(solution.permutations[0]) == list(range(6))

    def test_float32_stays_float32(self, shuffled):
        tables = {name: table.astype(np.float32) for name, table in shuffled.tables.items()}
        for solver in (M3O(max_iter=5), Baseline(max_iter=5)):
            solution = solver.solve(to_problem(tables), random_state=0)
            assert solution.estimate.dtype == np.float32
            assert solution.couplings[0].dtype == np.float32


class TestOtherLibraries:
    @pytest.mark.parametrize("name", ["torch", "array_api_strict"])
    def test_the_answer_is_that_of_numpy(self, shuffled, name):
        convert = pytest.importorskip(name, reason=f"{name} is not installed").asarray
        kind = type(convert(0.0))
        start = np.random.default_rng(0).normal(size=(15, 15))
        for solver in (M3O(max_iter=5), M3O(max_iter=5, prox="hard", penalty=2.0, step_rule="printed"), Baseline()):
            ours = solver.solve(to_problem(shuffled.tables), start=start)
            tables = {name: convert(table) for name, table in shuffled.tables.items()}
            theirs = solver.solve(to_problem(tables), start=convert(start))
            assert isinstance(theirs.estimate, kind)
            assert isinstance(theirs.permutations[0], kind)
            np.testing.assert_allclose(to_numpy(theirs.estimate), ours.estimate, atol=1e-9)
            np.testing.assert_array_equal(to_numpy(theirs.permutations[1]), ours.permutations[1])


class TestPatches:
    @pytest.fixture
    def corrupted(self):
        generator = np.random.default_rng(0)
        image = np.outer(np.arange(1.0, 13), np.linspace(1, 3, 12)) + np.outer(np.sin(np.arange(12)), np.ones(12)) * 4
        shuffled = (0, 1, 2, 4)
        problem = PatchProblem(Block(image), (3, 4), shuffled)
        order = np.array([2, 0, 3, 1])
        scrambled = problem.place([order]).values
        mask = generator.random(image.shape) < 0.9
        # Content `order[i]` was put at place i; place order⁻¹ back.
        return PatchProblem(Block(scrambled, mask), (3, 4), shuffled), np.argsort(order), image

    def test_solvers_run_without_special_cases(self, corrupted):
        problem, truth, image = corrupted
        for solver in (M3O(prox="rank", rank=2, entropy=FixedEntropy(0.1), max_iter=20), Baseline(prox="rank", rank=2)):
            solution = solver.solve(problem, start=image)
            np.testing.assert_array_equal(solution.permutations[0], truth)
            assert solution.estimate.shape == image.shape

    def test_unlabeled_sensing_refuses_patches(self, corrupted):
        with pytest.raises(InputError, match="patches cannot be written as a regression"):
            UnlabeledSensing().solve(corrupted[0])


class TestUnlabeledSensing:
    @pytest.mark.parametrize("seed", range(4))
    def test_is_the_best_of_all_permutations(self, seed):
        generator = np.random.default_rng(seed)
        reference, table = generator.normal(size=(5, 3)), generator.normal(size=(5, 2))
        found = UnlabeledSensing().solve(to_problem([reference, table])).permutations[0]

        def weight(order):
            place = np.eye(5)[list(order)]
            return np.trace(place.T @ reference @ reference.T @ table @ table.T)

        best = max(itertools.permutations(range(5)), key=weight)
        np.testing.assert_array_equal(found, best)

    def test_undoes_a_few_swaps(self):
        """With orthogonal columns ⟨P, A Aᵀ B Bᵀ⟩ is largest at the truth: Σ xᵢᵀ S x_π(i) ≤ Σ xᵢᵀ S xᵢ for S ⪰ 0."""
        generator = np.random.default_rng(0)
        table = np.linalg.qr(generator.normal(size=(40, 5)))[0]
        reference = table @ generator.normal(size=(5, 12))
        order = np.arange(40)
        order[[3, 17]] = order[[17, 3]]
        solution = UnlabeledSensing().solve(to_problem([reference, table[order]]))
        np.testing.assert_array_equal(solution.permutations[0], np.argsort(order))

    def test_completes_the_aligned_tables(self, problem):
        solution = UnlabeledSensing(penalty=0.3).solve(problem)
        placed = problem.place(solution.permutations)
        np.testing.assert_array_equal(solution.estimate[placed.mask], placed.values[placed.mask])
        assert np.all(np.isfinite(solution.estimate))


class TestRules:
    statistics = CouplingStatistics(change=0.2, diffuseness=0.3, largest_change=0.4, mean_change=0.1)

    def test_formulas(self):
        assert Descending().step_size(self.statistics) == 0.5
        assert Fixed(0.01).step_size(self.statistics) == 0.01
        assert Printed(omega=2, cap=1).step_size(self.statistics) == pytest.approx(0.8 * 0.7**2)
        assert Printed(omega=0.5).step_size(self.statistics) == 0.5
        # clip((0.5·0.7^1.5 + 0.01)(1 − 0.4), 0.01, 0.5), halved because our gradient has the factor 2
        assert Released().step_size(self.statistics) == pytest.approx(0.5 * (0.5 * 0.7**1.5 + 0.01) * 0.6)
        assert Released(cap=0.15).step_size(self.statistics) == pytest.approx(0.5 * 0.15)
        still = CouplingStatistics(change=0.0, diffuseness=1.0, largest_change=1.0, mean_change=0.0)
        assert Released().step_size(still) == pytest.approx(0.5 * 0.01)

    def test_paths(self):
        assert DecayingEntropy(decays=2).path(8.0) == (8.0, 4.0, 2.0)
        assert DecayingEntropy(initial=1.0, factor=0.1, decays=1).path(8.0) == (1.0, 0.1)
        assert DecayingEntropy(decays=1).path(0.0) == (1.0, 0.5)
        assert FixedEntropy(0.3).path(8.0) == (0.3,)
        movielens = PenaltyPath(300, stop=10, step=10).path()
        assert (movielens[0], movielens[-1], len(movielens)) == (300, 10, 30)
        assert len(PenaltyPath(0.3, stop=0.1, step=0.1).path()) == 3

    def test_search_over_omega_stops_when_it_no_longer_helps(self, problem):
        solver = M3O(penalty=0.5, step_rule="printed", prox_weight="printed", max_iter=30)
        found = search_omega(solver, problem, omegas=(0.5, 1.0, 2.0, 3.0))
        tried = list(found.objectives)
        assert tried == [0.5, 1.0, 2.0, 3.0][: len(tried)]
        assert found.solution.objective == min(found.objectives.values()) == found.objectives[found.omega]
        values = list(found.objectives.values())
        # Every value tried improved, except possibly the last.
        assert all(later < earlier for earlier, later in itertools.pairwise(values[:-1]))
        if len(tried) < 4:
            assert values[-1] >= values[-2]
        again = replace(solver, step_rule=Printed(omega=found.omega)).solve(problem, random_state=0)
        assert again.objective == found.solution.objective


class TestBadInput:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"penalty": 0.0}, r"penalty: must be a positive number; found 0.0"),
            ({"penalty": -1.0}, r"penalty: must be a positive number"),
            ({"prox": "lasso"}, r"prox: must be 'soft', 'hard' or 'rank'; found 'lasso'"),
            ({"prox": "rank"}, r"rank: must be given with prox='rank'"),
            ({"rank": 3}, r"rank: must be given with prox='rank' and only then"),
            ({"prox": "rank", "rank": 0}, r"rank: must be a whole number of at least 1; found 0"),
            ({"prox": "hard", "prox_weight": "proximal"}, r"prox_weight: 'proximal' must go with prox='soft'"),
            ({"prox_weight": "heavy"}, r"prox_weight: must be 'proximal' or 'printed'; found 'heavy'"),
            ({"step_rule": "huge"}, r"step_rule: must be one of 'descending', 'printed', 'released'"),
            ({"reference_update": "drop"}, r"reference_update: must be 'refill' or 'step'"),
            ({"max_iter": 0}, r"max_iter: must be a whole number of at least 1; found 0"),
            ({"max_time": -1}, r"max_time: must be a positive number"),
            ({"patience": 2.5}, r"patience: must be a whole number; found 2.5"),
            ({"sinkhorn_tolerance": 0}, r"sinkhorn_tolerance: must be a positive number"),
        ],
    )
    def test_options_of_m3o(self, options, message):
        with pytest.raises(InputError, match=message):
            M3O(**options)

    def test_schedules(self):
        with pytest.raises(InputError, match="epsilon: must be a positive number; found -1"):
            FixedEntropy(-1)
        with pytest.raises(InputError, match="epsilon: must be a positive number; found 0"):
            DecayingEntropy(initial=0)
        with pytest.raises(InputError, match="factor: must lie between 0 and 1; found 1"):
            DecayingEntropy(factor=1)
        with pytest.raises(InputError, match="penalty path: must fall from start to stop"):
            PenaltyPath(1, stop=2, step=1)
        with pytest.raises(InputError, match="step size: must be a positive number"):
            Fixed(0)

    def test_problem_and_start(self, problem):
        with pytest.raises(InputError, match=r"rank: must be at most 15; found 16"):
            M3O(prox="rank", rank=16).solve(problem)
        with pytest.raises(InputError, match=r"start: must have shape \(15, 15\), as the estimate; found \(2, 2\)"):
            M3O().solve(problem, start=np.ones((2, 2)))
        with pytest.raises(InputError, match="start, row 0, column 0: must be a finite number; found NaN"):
            Baseline().solve(problem, start=np.full((15, 15), np.nan))
        with pytest.raises(InputError, match="start: must be left out"):
            UnlabeledSensing().solve(problem, start=np.ones((15, 15)))
        with pytest.raises(InputError, match="random_state: must be None, a whole number"):
            M3O().solve(problem, random_state="seven")
        with pytest.raises(InputError, match="step_rule: must be 'printed' or 'released', which have an omega"):
            search_omega(M3O(), problem)
        with pytest.raises(InputError, match="omegas: must be at least one value, in rising order"):
            search_omega(M3O(step_rule="printed"), problem, omegas=(2.0, 1.0))

    @pytest.mark.parametrize("solver", [M3O(), Baseline(), UnlabeledSensing()])
    def test_different_row_counts(self, solver):
        problem = Problem(Block(np.ones((3, 2)), name="clinic"), (Block(np.ones((4, 2)), name="lab"),))
        with pytest.raises(InputError, match="lab: must have as many rows as the reference has, 3; found 4"):
            solver.solve(problem)


def test_all_paper_objectives_agree_at_the_soft_impute_solution():
    """With the order known and fixed, M³O's minimiser is that of Soft-Impute with half the penalty."""
    made = make_shuffled_tables(12, (5, 4), rank=2, noise=0.05, observed=0.9, random_state=2)
    # Blown up so that rows are far apart against ε: the coupling is the identity to rounding.
    tables = [100 * made.tables["reference"], 100 * made.tables["table1"][made.truth["table1"]]]
    solver = M3O(penalty=20.0, entropy=FixedEntropy(1.0), patience=50, tolerance=1e-13)
    solution = solver.solve(to_problem(tables), start=100 * made.clean)
    np.testing.assert_allclose(solution.couplings[0], np.eye(12), atol=1e-12)
    observed = np.hstack(tables)
    expected = soft_impute(np.nan_to_num(observed), ~np.isnan(observed), 10.0, tolerance=1e-13, max_iter=5000)
    # Both objectives are flat to 1e-13 of their value (about 1e4) there: estimates agree to its root.
    np.testing.assert_allclose(solution.estimate, expected.estimate(), atol=1e-3)


def test_a_solution_shows_itself_briefly(problem):
    solution = Baseline(max_iter=3).solve(problem, random_state=0)
    said = repr(solution)
    assert len(said) < 200
    assert said.startswith(f"Solution: {solution.status.reason} after {len(solution.history)} steps; objective ")
    assert said.endswith(f"{problem.shape[0]} × {problem.shape[1]}, {len(solution.permutations)} permutations")
