"""M³O as its authors released it and as they print it: a stored trajectory, the rule of progress, the named options."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from keyless.block import Block
from keyless.datasets import make_shuffled_tables
from keyless.errors import InputError
from keyless.paper import M3O, DecayingEntropy, FixedEntropy
from keyless.paper.m3o import M3OState
from keyless.paper.problem import Problem, to_problem
from keyless.paper.solver import Record

TRAJECTORY = Path(__file__).parent / "data" / "m3o_released.npz"


def block(table):
    return Block(np.nan_to_num(table), ~np.isnan(table))


@pytest.fixture(scope="module")
def stored():
    """What the transcription in benchmarks/released_m3o.py wrote."""
    with np.load(TRAJECTORY) as found:
        return dict(found)


@pytest.fixture(scope="module")
def stored_problem(stored):
    return Problem(block(stored["reference"]), (block(stored["table1"]), block(stored["table2"])))


@pytest.fixture(scope="module")
def stored_start(stored):
    return np.hstack([np.zeros_like(stored["reference"]), stored["first1"], stored["first2"]])


@pytest.fixture
def problem():
    return to_problem(make_shuffled_tables(15, (6, 5, 4), rank=2, observed=0.8, random_state=3).tables)


def records(solver, problem, start, steps):
    state = solver.init(problem, start=start)
    found = []
    for _ in range(steps):
        state = solver.step(problem, state)
        found.append(state.record)
    return found


class TestReleased:
    def test_follows_the_transcription_of_the_released_rule(self, stored, stored_problem, stored_start):
        found = records(M3O.released(), stored_problem, stored_start, 300)
        np.testing.assert_array_equal([record.epsilon for record in found], stored["epsilon"])
        np.testing.assert_allclose([record.objective for record in found], stored["objective"], rtol=0, atol=1e-9)
        # Their gradient leaves out the factor 2, so that their step sizes are twice ours.
        sizes = 2 * np.array([record.step_sizes for record in found])
        np.testing.assert_allclose(sizes, stored["step_sizes"], rtol=0, atol=1e-9)

    @pytest.mark.parametrize(
        "change",
        [
            {"diffuseness_tolerance": None},
            {"objective": "transport"},
            {"patience": 100},
            {"first_estimate": "gaussian"},
            {"step_rule": "printed"},
            {"prox": "soft", "prox_weight": "printed"},
        ],
    )
    def test_each_difference_shows_in_the_trajectory(self, stored, stored_problem, stored_start, change):
        found = records(replace(M3O.released(), **change), stored_problem, stored_start, 300)
        same_epsilon = [record.epsilon for record in found] == list(stored["epsilon"])
        gap = np.abs(np.array([record.objective for record in found]) - stored["objective"]).max()
        assert not same_epsilon or gap > 1e-9

    def test_begins_with_the_reference_refilled_and_singular_values_cut(self, problem):
        start = np.random.default_rng(0).normal(size=problem.shape)
        state = M3O.released(penalty=2.0).init(problem, start=start)
        reference, parts = problem.split(start)
        filled = np.where(problem.reference.mask, problem.reference.values, reference)
        left, values, right = np.linalg.svd(np.hstack([filled, *parts]), full_matrices=False)
        kept = values > 2.0
        assert 0 < kept.sum() < len(values)
        np.testing.assert_allclose(state.estimate, (left[:, kept] * values[kept]) @ right[kept], atol=1e-12)

    def test_draws_zero_in_the_reference_and_the_mean_size_in_the_tables(self):
        problem = to_problem(make_shuffled_tables(200, (40, 60), rank=2, observed=0.5, random_state=0).tables)
        # λ is so small that the operator changes nothing.
        estimate = M3O.released(penalty=1e-9).init(problem, random_state=0).estimate
        reference, (part,) = problem.split(estimate)
        np.testing.assert_allclose(reference, problem.reference.values, atol=1e-9)
        tables = (problem.reference, *problem.blocks)
        mean_size = np.mean(np.concatenate([np.abs(table.values[table.mask]) for table in tables]))
        assert part.std() == pytest.approx(mean_size, rel=0.03)

    def test_reads_each_rows_largest_weight(self, problem):
        solution = replace(M3O.released(), entropy=FixedEntropy(50.0), max_iter=3).solve(problem, random_state=0)
        for permutation, coupling in zip(solution.permutations, solution.couplings, strict=True):
            np.testing.assert_array_equal(permutation, coupling.argmax(axis=1))
        assert any(len(set(permutation)) < 15 for permutation in map(list, solution.permutations))

    def test_stops_sinkhorn_by_the_norm_of_all_row_sums(self, problem):
        start = np.random.default_rng(0).normal(size=problem.shape)

        def residual(name):
            options = {"sinkhorn_tolerance": 0.5, "sinkhorn_residual": name, "warm_start": False}
            solver = M3O(penalty=0.5, entropy=FixedEntropy(0.02), **options)
            state = solver.step(problem, solver.init(problem, start=start))
            return max(np.linalg.norm(coupling.sum(axis=1) - 1) for coupling in state.couplings)

        assert residual("total") <= 0.5 < residual("mean") <= 0.5 * 15**0.5

    def test_halves_epsilon_down_to_a_millionth(self):
        path = M3O.released().entropy.path(1.0)
        assert path[0] == 0.1
        assert path[-1] >= 1e-6 > path[-1] / 2


class TestPrinted:
    def test_has_the_printed_settings(self):
        solver = M3O.printed(penalty=0.4)
        assert (solver.penalty, solver.prox, solver.prox_weight) == (0.4, "soft", "printed")
        assert (solver.step_rule.omega, solver.patience, solver.entropy.initial) == (3.0, 100, 0.1)
        assert (solver.sinkhorn_tolerance, solver.sinkhorn_max_iter) == (0.01, 10_000)

    def test_counts_progress_by_the_printed_objective_with_the_entropy(self, problem):
        found = records(replace(M3O.printed(), entropy=FixedEntropy(2.0)), problem, None, 3)
        for record in found:
            assert record.objective == record.entropic_objective
        estimate = M3O.printed().init(problem, random_state=0)
        assert np.isfinite(estimate.estimate).all()


def state_with(**values):
    return M3OState(np.zeros((1, 1)), 0.0, epsilons=(0.4, 0.2), penalties=(1.0,), **values)


def record_of(objective, diffuseness=0.9):
    return Record(iteration=0, objective=objective, entropic_objective=objective, diffuseness=(diffuseness,))


class TestProgress:
    def test_a_slow_but_steady_fall_keeps_epsilon(self):
        """Each step lowers the objective by less than the tolerance, and patience steps by much more."""
        solver = M3O(patience=10, tolerance=1e-2)
        state = state_with()
        for step in range(100):
            state = solver._count_progress(state, record_of(0.998**step))
        assert len(state.epsilons) == 2

    def test_a_fall_below_the_tolerance_over_all_of_patience_moves_epsilon_on(self):
        solver = M3O(patience=10, tolerance=1e-2)
        state = state_with()
        for step in range(12):
            state = solver._count_progress(state, record_of(0.9995**step))
        assert state.epsilons == (0.2,)

    def test_a_slow_fall_in_a_real_run_keeps_epsilon(self):
        """Small fixed steps lower the objective by less than the tolerance each, and never stop doing so."""
        made = make_shuffled_tables(20, (8, 6), rank=2, observed=0.9, random_state=0)
        solver = M3O(
            penalty=0.05,
            step_rule=_Small(),
            entropy=DecayingEntropy(initial=5.0),
            patience=5,
            tolerance=0.02,
            max_iter=60,
        )
        history = solver.solve(to_problem(made.tables), random_state=0).history
        assert {record.epsilon for record in history} == {5.0}
        values = np.array([record.objective for record in history])
        falls = -np.diff(values) / values[:-1]
        slow = int(np.argmax(falls < 0.02))
        assert np.all(falls[slow : slow + 12] < 0.02)
        assert np.all(values[slow : slow + 6] - values[slow + 6 : slow + 12] > 0.02 * values[slow : slow + 6])

    def test_a_sharper_coupling_counts_only_when_asked_for(self):
        for tolerance, epsilons in ((None, (0.2,)), (1e-4, (0.4, 0.2))):
            solver = M3O(patience=5, diffuseness_tolerance=tolerance)
            state = state_with()
            for step in range(6):
                state = solver._count_progress(state, record_of(1.0, 0.9 - 0.01 * step))
            assert state.epsilons == epsilons

    def test_gives_up_after_steps_without_progress_whatever_epsilon(self, problem):
        solver = M3O(patience=2, give_up=5)
        state = replace(state_with(), epsilons=tuple(1.0 / 2**k for k in range(9)))
        steps = 0
        while solver.terminate(problem, state).reason == "running":
            state = solver._count_progress(state, record_of(1.0))
            steps += 1
        assert steps == 6  # the first value always counts
        assert len(state.epsilons) > 1

    def test_the_entropic_objective_is_not_compared_across_epsilon(self):
        solver = M3O(patience=1, objective="entropic")
        state = solver._count_progress(state_with(), record_of(-5.0))
        state = solver._count_progress(state, record_of(-5.0))
        assert state.epsilons == (0.2,)
        assert solver._count_progress(state, record_of(-3.0)).best_objective == -3.0


class _Small:
    """Steps of a hundredth."""

    def step_size(self, statistics):  # noqa: ARG002
        return 0.01


@pytest.mark.parametrize(
    "options",
    [
        {"objective": "printed"},
        {"first_estimate": "zero"},
        {"sinkhorn_residual": "rows"},
        {"reading": "argmax"},
        {"diffuseness_tolerance": -1},
        {"give_up": 0},
    ],
)
def test_options_are_checked(options):
    with pytest.raises(InputError, match=next(iter(options))):
        M3O(**options)
