"""Entropic transport against its definition, the paper's own updates, other solvers, and the laws it obeys.

Tolerances follow from two facts. A rounding of the potentials by δ changes the coupling by the factor exp(δ/ε), and
potentials are about as large as the costs, so `rounding(cost, ε)` bounds what one update can lose. And an update is
non-expansive in the potentials, so that N updates lose at most N times that.
"""

import itertools
import warnings

import array_api_strict
import numpy as np
import ot
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from keyless import transport
from keyless.arrays import to_numpy
from keyless.errors import InputError
from keyless.transport import sinkhorn, sinkhorn_of_ones

NEVER = 1e-300  # a tolerance that no residual meets, to run exactly max_iter iterations
INF = np.inf


@pytest.fixture(params=["numpy", "torch", "strict"])
def library(request):
    if request.param == "torch":
        return pytest.importorskip("torch", reason="torch is not installed")
    return {"numpy": np, "strict": array_api_strict}[request.param]


@pytest.fixture
def builds(monkeypatch):
    """How often the kernel was built: once at the start, then once per absorption."""
    count = []
    build = transport._Scaling._build

    def counted(self):
        count.append(self.iterations)
        build(self)

    monkeypatch.setattr(transport._Scaling, "_build", counted)
    return count


def uniform(shape, seed=0):
    return np.random.default_rng(seed).random(shape)


def masses(rows, columns, seed=0):
    rng = np.random.default_rng(seed)
    row_mass, column_mass = rng.uniform(0.5, 2, rows), rng.uniform(0.5, 2, columns)
    return row_mass, column_mass * row_mass.sum() / column_mass.sum()


def soft_minimum(values, epsilon, axis):
    smallest = values.min(axis=axis, keepdims=True)
    sums = np.exp(-(values - smallest) / epsilon).sum(axis=axis)
    return np.squeeze(smallest, axis) - epsilon * np.log(sums)


def paper_loop(cost, epsilon, iterations, *, row_mass=1.0, column_mass=1.0, penalty=None, start=None):
    """The updates as the paper prints them; masses and the damping of unbalanced transport added."""
    alpha, beta = np.zeros(len(cost)), np.zeros(cost.shape[1]) if start is None else start
    damping = 1.0 if penalty is None else penalty / (penalty + epsilon)
    for _ in range(iterations):
        change = soft_minimum(cost - alpha[:, None] - beta, epsilon, 1)
        alpha = damping * (change + alpha + epsilon * np.log(row_mass) * np.ones(len(alpha)))
        change = soft_minimum(cost - alpha[:, None] - beta, epsilon, 0)
        beta = damping * (change + beta + epsilon * np.log(column_mass) * np.ones(len(beta)))
    return np.exp((alpha[:, None] + beta - cost) / epsilon), alpha, beta


def pot(cost, epsilon, row_mass, column_mass):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns of overflow now and then
        coupling, log = ot.bregman.sinkhorn_log(
            row_mass, column_mass, cost, epsilon, numItermax=10_000, stopThr=1e-13, log=True, warn=False
        )
    assert log["err"][-1] <= 1e-13
    return coupling


def rounding(cost, epsilon, dtype=np.float64):
    """What one update can lose: a few roundings of numbers as large as the costs, seen through exp(·/ε)."""
    finite = cost[np.isfinite(cost)]
    return 8 * np.finfo(dtype).eps * (np.abs(finite).max() / epsilon + sum(cost.shape))


def exactly(iterations, **options):
    return {"max_iter": iterations, "tolerance": NEVER, "check_every": 10**9, **options}


def assert_close(found, wanted, relative):
    """Entries so small that the kernel may have dropped them are held to an absolute bound."""
    np.testing.assert_allclose(found, wanted, rtol=relative, atol=1e-150)


# --- the same numbers as others get ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "fraction"),
    [
        ((20, 20), 1.0),
        ((20, 20), 0.1),
        ((12, 17), 0.1),
        ((17, 12), 0.1),
        ((5, 8), 0.01),
        ((8, 5), 0.01),
        ((3, 4), 1e-3),
    ],
)
def test_agrees_with_pot_once_both_have_converged(shape, fraction):
    cost = uniform(shape)
    epsilon = fraction * float(np.median(cost))
    row_mass, column_mass = masses(*shape)
    found = sinkhorn(cost, epsilon=epsilon, row_mass=row_mass, column_mass=column_mass, tolerance=1e-13)
    wanted = pot(cost, epsilon, row_mass, column_mass)
    assert found.status.converged
    np.testing.assert_allclose(found.coupling, wanted, rtol=0, atol=1e-9)


@pytest.mark.parametrize("fraction", [1.0, 0.01, 1e-3])
def test_agrees_with_pot_on_a_clear_matching(fraction):
    cost = uniform((6, 6)) + 3
    cost[np.arange(6), [3, 1, 5, 0, 2, 4]] -= 3
    epsilon = fraction * float(np.median(cost))
    found = sinkhorn(cost, epsilon=epsilon, tolerance=1e-13)
    wanted = pot(cost, epsilon, np.ones(6), np.ones(6))
    assert found.status.converged
    np.testing.assert_allclose(found.coupling, wanted, rtol=0, atol=1e-9)


@pytest.mark.parametrize("iterations", [1, 2, 3, 7, 50])
@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (5, 1), (2, 2), (9, 9), (6, 11), (11, 6)])
@pytest.mark.parametrize("epsilon", [1.0, 0.02, 1e-3, 1e-5])
def test_is_the_papers_loop_after_exactly_n_iterations(shape, epsilon, iterations):
    cost = 10 * uniform(shape)
    row_mass, column_mass = masses(*shape)
    found = sinkhorn(cost, epsilon=epsilon, row_mass=row_mass, column_mass=column_mass, **exactly(iterations))
    coupling, alpha, beta = paper_loop(cost, epsilon, iterations, row_mass=row_mass, column_mass=column_mass)
    bound = (iterations + 1) * rounding(cost, epsilon)
    assert found.iterations == iterations
    assert_close(found.coupling, coupling, bound)
    np.testing.assert_allclose(found.potentials[0], alpha, rtol=0, atol=bound * epsilon)
    np.testing.assert_allclose(found.potentials[1], beta, rtol=0, atol=bound * epsilon)


@pytest.mark.parametrize("iterations", [1, 2, 3, 7, 50, 300])
def test_absorbs_scalings_without_leaving_the_papers_loop(iterations, builds):
    """Costs that range over 10⁶ ε: a plain kernel is all zeros, and the scalings overflow at once."""
    cost = 1e3 * uniform((15, 15)) + 200.0 * np.arange(15)
    epsilon = 1e-3
    found = sinkhorn(cost, epsilon=epsilon, **exactly(iterations))
    assert len(builds) > 1
    coupling, _, _ = paper_loop(cost, epsilon, iterations)
    # The ladder makes potentials several times larger than the uniform part; the bound knows it through the cost.
    assert_close(found.coupling, coupling, (iterations + 1) * rounding(cost, epsilon))


def test_absorbs_late_when_scalings_grow_slowly(builds):
    """Masses that the allowed pairs cannot carry drive the potentials apart for ever, a factor at a time."""
    cost = np.array([[0.0, INF, INF], [0.0, INF, INF], [0.0, 0.0, 0.0]])
    found = sinkhorn(cost, epsilon=0.5, **exactly(2000))
    assert max(builds) > 100
    coupling, _, _ = paper_loop(cost, 0.5, 2000)
    # Here the potentials grow with the iterations, and so does what rounding them costs.
    size = np.abs(found.potentials[1]).max() / 0.5
    assert size > 100
    assert_close(found.coupling, coupling, 2000 * 8 * np.finfo(float).eps * size)


def test_the_median_cost_may_be_zero():
    cost = np.zeros((4, 4))
    np.testing.assert_allclose(sinkhorn(cost, epsilon=0.1).coupling, np.full((4, 4), 0.25), rtol=1e-15)


@pytest.mark.parametrize("size", [2, 10, 50])
@pytest.mark.parametrize("seed", range(3))
def test_small_epsilon_agrees_with_linear_sum_assignment(size, seed):
    cost = uniform((size, size), seed)
    rows, columns = linear_sum_assignment(cost)
    best = cost[rows, columns].sum()
    potentials = None
    for epsilon in 0.5 ** np.arange(1, 15):
        found = sinkhorn(cost, epsilon=epsilon, potentials=potentials, tolerance=1e-4, max_iter=20_000)
        potentials = found.potentials
        assert found.status.converged
        # Entropy costs at most ε·n·log n; a row sum that is off by δ moves at most √n·n·δ of cost (all costs are ≤ 1).
        slack = size**1.5 * 1e-4
        assert -slack <= found.transport_cost - best <= epsilon * size * np.log(size) + slack
    np.testing.assert_array_equal(np.argmax(found.coupling, axis=1), columns)


# --- optimality ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("shape", "epsilon"), [((7, 7), 0.1), ((5, 9), 0.05), ((9, 5), 1.0), ((3, 4), 0.005)])
def test_primal_meets_dual_and_marginals_are_met(shape, epsilon):
    cost = uniform(shape, 3) - 0.3
    row_mass, column_mass = masses(*shape, seed=4)
    gaps = []
    for tolerance in (1e-2, 1e-5, 1e-12):
        found = sinkhorn(cost, epsilon=epsilon, row_mass=row_mass, column_mass=column_mass, tolerance=tolerance)
        assert found.status.converged
        assert found.status.advice == ""
        sums = found.coupling.sum(axis=1)
        residual = np.sqrt(np.mean((sums - row_mass) ** 2))
        assert residual <= tolerance
        assert found.residual == pytest.approx(residual, abs=1e-14 + 1e-3 * residual)
        np.testing.assert_allclose(found.coupling.sum(axis=0), column_mass, rtol=rounding(cost, epsilon))
        primal = found.transport_cost + epsilon * found.negative_entropy
        gaps.append(abs(primal - found.dual_objective))
        # primal − dual = ⟨P·1 − row_mass, α⟩, once the columns are exact.
        assert gaps[-1] <= np.sqrt(shape[0]) * residual * np.linalg.norm(found.potentials[0]) + 1e-12
    assert gaps[-1] <= 1e-10


def test_objectives_are_what_they_say():
    cost = uniform((3, 4))
    cost[0, 1] = INF
    found = sinkhorn(cost, epsilon=0.3)
    pairs = [(i, j) for i, j in itertools.product(range(3), range(4)) if (i, j) != (0, 1)]
    coupling, (alpha, beta) = found.coupling, found.potentials
    assert found.transport_cost == pytest.approx(sum(cost[p] * coupling[p] for p in pairs), rel=1e-14)
    wanted = sum(coupling[p] * (np.log(coupling[p]) - 1) for p in pairs)
    assert found.negative_entropy == pytest.approx(wanted, rel=1e-14)
    dual = (
        alpha.sum()
        + (3 / 4) * beta.sum()
        - 0.3 * sum(np.exp((alpha[i] + beta[j] - cost[i, j]) / 0.3) for i, j in pairs)
    )
    assert found.dual_objective == pytest.approx(dual, rel=1e-13)
    assert found.epsilon == 0.3


def test_no_other_coupling_is_better():
    cost, epsilon = uniform((5, 6)), 0.2
    found = sinkhorn(cost, epsilon=epsilon, tolerance=1e-14)

    def objective(coupling):
        return (cost * coupling).sum() + epsilon * (coupling * (np.log(coupling) - 1)).sum()

    rng = np.random.default_rng(1)
    for _ in range(50):
        step = rng.standard_normal((5, 6))
        step -= step.mean(axis=1, keepdims=True)
        step -= step.mean(axis=0, keepdims=True)  # the marginals stay
        step *= 0.5 * (found.coupling / np.abs(step)).min()
        assert objective(found.coupling + step) > objective(found.coupling)


def test_unless_given_the_masses_are_even():
    found = sinkhorn(uniform((4, 6)), epsilon=0.3, tolerance=1e-12)
    np.testing.assert_allclose(found.coupling.sum(axis=1), 1, rtol=1e-11)
    np.testing.assert_allclose(found.coupling.sum(axis=0), 4 / 6, rtol=1e-14)
    found = sinkhorn(uniform((4, 6)), epsilon=0.3, row_mass=[1, 2, 3, 6], tolerance=1e-12)
    np.testing.assert_allclose(found.column_mass, 2, rtol=1e-15)
    found = sinkhorn(uniform((4, 6)), epsilon=0.3, marginal_penalty=1.0)
    np.testing.assert_array_equal(found.row_mass, np.ones(4))
    np.testing.assert_array_equal(found.column_mass, np.ones(6))


# --- unbalanced ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("epsilon", "penalty"), [(0.5, 1.0), (0.1, 0.3), (0.05, 2.0), (1.0, 0.01), (0.02, 0.02)])
@pytest.mark.parametrize("shape", [(6, 6), (4, 9), (9, 4), (1, 3), (1, 1)])
def test_unbalanced_agrees_with_pot_and_meets_its_optimality_conditions(shape, epsilon, penalty):
    cost = uniform(shape)
    row_mass, column_mass = np.random.default_rng(1).uniform(0.3, 3, shape[0]), uniform(shape[1], 2) + 0.2
    options = {"row_mass": row_mass, "column_mass": column_mass, "marginal_penalty": penalty}
    found = sinkhorn(cost, epsilon=epsilon, tolerance=1e-14, **options)
    assert found.status.converged
    # One more update changes less than 1e-14, and an update contracts by κ² or better; 2/(1 − κ) ≤ 100 here.
    with pytest.warns(UserWarning, match="matrix c is overwritten by the one matrix"):
        wanted = ot.unbalanced.sinkhorn_unbalanced(
            row_mass, column_mass, cost, epsilon, penalty, reg_type="entropy", numItermax=20_000, stopThr=1e-15
        )
    np.testing.assert_allclose(found.coupling, wanted, rtol=1e-10)
    # The gradient of ⟨C, P⟩ + ε Σ P (log P − 1) + τ KL(P·1 | row_mass) + τ KL(Pᵀ·1 | column_mass) vanishes.
    gradient = (
        cost
        + epsilon * np.log(found.coupling)
        + penalty * np.log(found.coupling.sum(axis=1) / row_mass)[:, None]
        + penalty * np.log(found.coupling.sum(axis=0) / column_mass)
    )
    np.testing.assert_allclose(gradient, 0, atol=1e-11)


@pytest.mark.parametrize("iterations", [1, 2, 3, 7, 50])
@pytest.mark.parametrize("penalty", [1e-3, 0.1, 1.0, 1e3])
@pytest.mark.parametrize("epsilon", [1.0, 1e-2, 1e-4])
@pytest.mark.parametrize("scale", [1.0, 1e2, 1e4])
def test_unbalanced_is_the_damped_loop_after_exactly_n_iterations(scale, epsilon, penalty, iterations):
    """Rows far from everything lose their mass, down to what no number can hold; the potentials must survive it."""
    cost = scale * (uniform((6, 8)) + 0.1)
    found = sinkhorn(cost, epsilon=epsilon, marginal_penalty=penalty, **exactly(iterations))
    coupling, alpha, beta = paper_loop(cost, epsilon, iterations, penalty=penalty)
    bound = (iterations + 1) * rounding(cost, epsilon)
    assert_close(found.coupling, coupling, bound)
    np.testing.assert_allclose(found.potentials[0], alpha, rtol=0, atol=bound * epsilon)
    np.testing.assert_allclose(found.potentials[1], beta, rtol=0, atol=bound * epsilon)
    # The residual is the mass times the factor by which the next update divides each row, less one.
    _, following, _ = paper_loop(cost, epsilon, 1, penalty=penalty, start=beta)
    wanted = np.sqrt(np.mean(np.expm1(np.clip((alpha - following) / epsilon, None, 300)) ** 2))
    enough = 1e50  # beyond, it only has to be large
    assert min(found.residual, enough) == pytest.approx(min(wanted, enough), rel=1e-3, abs=10 * bound)


def test_unbalanced_gives_up_a_row_that_fits_nowhere(library):
    cost = np.array([[0.0, 5.0, 5.0], [5.0, 0.0, 5.0], [4e3, 4e3, 4e3]])
    found = sinkhorn(library.asarray(cost), epsilon=0.05, marginal_penalty=1.0)
    assert found.status.converged
    coupling = to_numpy(found.coupling)
    np.testing.assert_allclose(np.diag(coupling)[:2], 1, atol=0.05)
    assert coupling[2].max() < 1e-300
    assert all(np.isfinite(to_numpy(potential)).all() for potential in found.potentials)


def test_unbalanced_recovers_from_a_bad_start():
    cost = uniform((4, 5))
    wanted = sinkhorn(cost, epsilon=0.1, marginal_penalty=0.5, tolerance=1e-13)
    for value in (1e4, -1e4):
        start = (np.zeros(4), np.full(5, value))
        found = sinkhorn(cost, epsilon=0.1, marginal_penalty=0.5, potentials=start, tolerance=1e-13)
        assert found.status.converged
        np.testing.assert_allclose(found.coupling, wanted.coupling, rtol=1e-11)


def test_a_large_marginal_penalty_gives_the_balanced_coupling():
    cost = uniform((5, 5))
    balanced = sinkhorn(cost, epsilon=0.5, tolerance=1e-13).coupling
    nearly = sinkhorn(cost, epsilon=0.5, marginal_penalty=1e3, tolerance=1e-10, max_iter=100_000).coupling
    # Row sums are exp(−α/τ), and |α| ≤ max cost + ε log n < 2; column sums alike.
    np.testing.assert_allclose(nearly.sum(axis=1), 1, atol=2 / 1e3)
    np.testing.assert_allclose(nearly.sum(axis=0), 1, atol=2 / 1e3)
    np.testing.assert_allclose(nearly, balanced, atol=4 / 1e3)
    assert np.abs(nearly - balanced).max() > 1e-6


# --- starting and stopping -------------------------------------------------------------------------------------------


def test_warm_start_from_the_answer_changes_nothing(library):
    cost = library.asarray(uniform((8, 10)))
    for options in ({}, {"marginal_penalty": 0.5}):
        first = sinkhorn(cost, epsilon=0.02, tolerance=1e-12, **options)
        again = sinkhorn(cost, epsilon=0.02, tolerance=1e-12, potentials=first.potentials, **options)
        assert first.iterations > 10
        assert again.iterations <= 10
        assert again.status.converged
        # The first answer is within tolerance/(1 − rate) of the limit, and the rate leaves more than a hundredth.
        np.testing.assert_allclose(to_numpy(again.coupling), to_numpy(first.coupling), rtol=0, atol=1e-9)
        once = sinkhorn(cost, epsilon=0.02, tolerance=1e-11, potentials=first.potentials, check_every=1, **options)
        assert once.iterations == 1


def test_warm_start_continues_where_the_first_run_stopped():
    cost, epsilon = 10 * uniform((7, 9)), 0.01
    part = sinkhorn(cost, epsilon=epsilon, **exactly(5))
    rest = sinkhorn(cost, epsilon=epsilon, potentials=part.potentials, **exactly(8))
    whole = sinkhorn(cost, epsilon=epsilon, **exactly(13))
    assert_close(rest.coupling, whole.coupling, 14 * rounding(cost, epsilon))


def test_warm_start_forgets_the_row_potentials_and_takes_lists():
    cost = uniform((3, 4))
    columns = [0.1, -0.2, 0.3, 0.0]
    found = [
        sinkhorn(cost, epsilon=0.1, potentials=(rows, columns)) for rows in ([0, 0, 0], np.array([9.0, -9.0, 1.0]))
    ]
    np.testing.assert_array_equal(found[0].coupling, found[1].coupling)


def test_max_iter_is_a_status_with_advice():
    cost = uniform((8, 8))
    found = sinkhorn(cost, epsilon=1e-3, max_iter=7)
    assert (found.status.reason, found.status.converged, found.iterations) == ("max_iter", False, 7)
    assert found.residual > 1e-6
    for word in ("7 iterations", f"{found.residual:.2g}", "1e-06", "Raise max_iter", "raise epsilon"):
        assert word in found.status.advice
    assert "allow more pairs" not in found.status.advice
    np.testing.assert_allclose(found.coupling.sum(axis=0), 1, rtol=rounding(cost, 1e-3))
    actual = np.sqrt(np.mean((found.coupling.sum(axis=1) - 1) ** 2))
    assert found.residual == pytest.approx(actual, rel=1e-9)


@pytest.mark.parametrize("check_every", [1, 3, 10, 1000])
def test_stops_at_the_first_check_that_meets_the_tolerance(check_every):
    cost = uniform((8, 8))
    found = sinkhorn(cost, epsilon=0.05, tolerance=1e-4, check_every=check_every, max_iter=500)
    assert found.status.converged
    residuals = []
    for iterations in range(1, 60):
        coupling, _, _ = paper_loop(cost, 0.05, iterations)
        residuals.append(np.sqrt(np.mean((coupling.sum(axis=1) - 1) ** 2)))
    first = next(i for i, residual in enumerate(residuals, 1) if residual <= 1e-4)
    assert 1 < first < 50
    assert found.iterations == min(500, -(-first // check_every) * check_every)


def test_converging_at_the_very_last_iteration_counts():
    cost = np.eye(3)
    found = sinkhorn(cost, epsilon=1.0, max_iter=1, tolerance=0.5)
    assert found.iterations == 1
    assert found.status.converged


# --- forbidden pairs -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [1.0, 0.05, 1e-3])
@pytest.mark.parametrize("penalty", [None, 0.5])
def test_infinite_costs_forbid_pairs(library, epsilon, penalty):
    cost = uniform((7, 7))
    forbidden = uniform((7, 7), 1) < 0.4
    np.fill_diagonal(forbidden, False)
    cost[forbidden] = INF
    found = sinkhorn(library.asarray(cost), epsilon=epsilon, marginal_penalty=penalty, **exactly(40))
    coupling = to_numpy(found.coupling)
    assert (coupling[forbidden] == 0).all()
    wanted, _, _ = paper_loop(cost, epsilon, 40, penalty=penalty)
    assert_close(coupling, wanted, 41 * rounding(cost, epsilon))
    assert all(np.isfinite([found.transport_cost, found.negative_entropy, found.dual_objective, found.residual]))


def test_only_one_matching_is_left():
    order = [2, 0, 3, 1]
    cost = np.full((4, 4), INF)
    cost[np.arange(4), order] = [5.0, -3.0, 1e6, 0.0]
    found = sinkhorn(cost, epsilon=1e-3)
    assert found.status.converged
    np.testing.assert_allclose(found.coupling, np.eye(4)[order], rtol=1e-6)  # 10⁶/ε has roundings of 10⁻⁷


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("epsilon", [1.0, 1e-2])
@pytest.mark.parametrize(
    "cost",
    [
        np.array([[0.0, INF, INF], [1.0, INF, INF], [0.0, 2.0, 0.0]]),  # two rows want the same column
        np.array([[0.0, 3.0, 1.0], [INF, INF, 1.0], [INF, INF, 0.0]]),  # and two columns the same row
    ],
)
def test_masses_that_the_pairs_cannot_carry_are_a_status_never_nan(cost, epsilon, dtype, library):
    found = sinkhorn(library.asarray(cost.astype(dtype)), epsilon=epsilon, max_iter=1000)
    assert found.status.reason == "max_iter"
    assert "max_iter" in found.status.advice
    assert "allow more pairs" in found.status.advice
    coupling = to_numpy(found.coupling)
    assert np.isfinite(coupling).all()
    assert (coupling[np.isinf(cost)] == 0).all()
    assert all(np.isfinite(to_numpy(potential)).all() for potential in found.potentials)
    # Whatever the pairs carry, one side of the marginals lacks a whole unit somewhere.
    assert found.residual > 0.5
    # Potentials of float32 grow with every iteration, and rounding them costs 2⁻²³ of what they are over ε.
    size = max(float(np.abs(to_numpy(potential)).max()) for potential in found.potentials) / epsilon
    np.testing.assert_allclose(coupling.sum(axis=0), 1, rtol=8 * np.finfo(dtype).eps * (size + 10))


# --- laws ------------------------------------------------------------------------------------------------------------

problems = st.tuples(st.integers(1, 7), st.integers(1, 7), st.integers(0, 2**32 - 1), st.sampled_from([1.0, 0.3, 0.1]))
law = settings(max_examples=30)


def draw(problem):
    rows, columns, seed, epsilon = problem
    rng = np.random.default_rng(seed)
    row_mass, column_mass = masses(rows, columns, seed)
    # Costs below one and ε from a tenth: updates contract by tanh²(2·range/4ε) < 1 − 2e-4, in practice far more.
    return rng, rng.random((rows, columns)), {"epsilon": epsilon, "row_mass": row_mass, "column_mass": column_mass}


@law
@given(problems)
def test_relabelling_rows_and_columns_relabels_the_coupling(problem):
    rng, cost, options = draw(problem)
    rows, columns = rng.permutation(cost.shape[0]), rng.permutation(cost.shape[1])
    moved = {
        "epsilon": options["epsilon"],
        "row_mass": options["row_mass"][rows],
        "column_mass": options["column_mass"][columns],
    }
    found = sinkhorn(cost[np.ix_(rows, columns)], **moved, **exactly(25))
    wanted = sinkhorn(cost, **options, **exactly(25)).coupling[np.ix_(rows, columns)]
    assert_close(found.coupling, wanted, 26 * rounding(cost, options["epsilon"]))


@law
@given(problems)
def test_constants_on_rows_and_columns_leave_the_coupling_alone(problem):
    rng, cost, options = draw(problem)
    shifted = cost + 5 * rng.standard_normal((cost.shape[0], 1)) + 5 * rng.standard_normal(cost.shape[1])
    found = sinkhorn(shifted, **options, tolerance=1e-13, max_iter=100_000)
    wanted = sinkhorn(cost, **options, tolerance=1e-13, max_iter=100_000)
    assert found.status.converged
    assert wanted.status.converged
    np.testing.assert_allclose(found.coupling, wanted.coupling, rtol=0, atol=1e-9)


@law
@given(problems, st.integers(-40, 40))
def test_scaling_cost_and_epsilon_together_changes_nothing(problem, power):
    """Powers of two are exact, so the very same numbers must come out."""
    _, cost, options = draw(problem)
    factor = 2.0**power
    found = sinkhorn(factor * cost, **{**options, "epsilon": factor * options["epsilon"]})
    wanted = sinkhorn(cost, **options)
    np.testing.assert_array_equal(found.coupling, wanted.coupling)
    np.testing.assert_array_equal(found.potentials[0], factor * wanted.potentials[0])
    assert found.iterations == wanted.iterations


@law
@given(problems, st.booleans())
def test_transposing_the_cost_transposes_the_coupling(problem, balanced):
    _, cost, options = draw(problem)
    turned = {**options, "row_mass": options["column_mass"], "column_mass": options["row_mass"]}
    penalty = None if balanced else 0.7
    settled = {"tolerance": 1e-13, "max_iter": 100_000, "marginal_penalty": penalty}
    found, wanted = sinkhorn(cost.T, **turned, **settled), sinkhorn(cost, **options, **settled)
    assert found.status.converged
    assert wanted.status.converged
    np.testing.assert_allclose(found.coupling, wanted.coupling.T, rtol=0, atol=1e-9)


@law
@given(problems, st.floats(1e-3, 1e3))
def test_scaling_all_masses_scales_the_coupling(problem, factor):
    _, cost, options = draw(problem)
    more = {**options, "row_mass": factor * options["row_mass"], "column_mass": factor * options["column_mass"]}
    found = sinkhorn(cost, **more, **exactly(25))
    wanted = sinkhorn(cost, **options, **exactly(25))
    assert_close(found.coupling, factor * wanted.coupling, 26 * rounding(cost, options["epsilon"]) + 1e-13)


# --- kinds of numbers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("penalty", [None, 0.5])
@pytest.mark.parametrize("epsilon", [1.0, 0.03, 1e-3])
def test_every_library_gives_the_numbers_of_numpy_in_its_own_kind(library, dtype, penalty, epsilon):
    cost = (3 * uniform((6, 9)) - 1).astype(dtype)
    row_mass, column_mass = masses(6, 9)
    options = {"epsilon": epsilon, "marginal_penalty": penalty, **exactly(30)}
    wanted = sinkhorn(cost, row_mass=row_mass, column_mass=column_mass, **options)
    given_cost = library.asarray(cost)
    found = sinkhorn(
        given_cost, row_mass=library.asarray(row_mass), column_mass=library.asarray(column_mass), **options
    )
    bound = float(31 * rounding(cost, epsilon, dtype))
    for array in (found.coupling, *found.potentials, found.row_mass, found.column_mass):
        assert type(array) is type(given_cost)
        assert array.dtype == given_cost.dtype
    np.testing.assert_allclose(to_numpy(found.coupling), wanted.coupling, rtol=bound, atol=1e-30)
    for ours, theirs in zip(found.potentials, wanted.potentials, strict=True):
        np.testing.assert_allclose(to_numpy(ours), theirs, rtol=0, atol=bound * epsilon)
    assert found.transport_cost == pytest.approx(wanted.transport_cost, rel=bound, abs=bound)
    assert isinstance(found.residual, float)
    assert isinstance(found.transport_cost, float)


@pytest.mark.parametrize(("scale", "epsilon"), [(1.0, 0.5), (1.0, 0.02), (100.0, 0.5), (1e3, 0.1)])
def test_float32_loses_only_what_float32_must(scale, epsilon):
    cost = (scale * uniform((30, 30))).astype(np.float32)
    found = sinkhorn(cost, epsilon=epsilon, **exactly(60))
    wanted = sinkhorn(cost.astype(np.float64), epsilon=epsilon, **exactly(60))
    # Each absorption rounds potentials as large as the costs once; scalings are rounded relative to one.
    bound = 61 * rounding(cost, epsilon, np.float32)
    assert found.coupling.dtype == np.float32
    np.testing.assert_allclose(found.coupling, wanted.coupling, rtol=bound, atol=1e-12)


def test_float32_absorbs_too(builds):
    cost = (1e3 * uniform((10, 10))).astype(np.float32)
    found = sinkhorn(cost, epsilon=0.5, max_iter=200)
    assert len(builds) > 1
    assert np.isfinite(found.coupling).all()
    np.testing.assert_allclose(found.coupling.sum(axis=0), 1, rtol=rounding(cost, 0.5, np.float32))


@pytest.mark.parametrize("size", [1, 2, 30, 300])
def test_float32_reaches_the_default_tolerance(size):
    found = sinkhorn(uniform((size, size)).astype(np.float32), epsilon=0.1)
    assert found.status.converged


def test_takes_integers_lists_views_and_read_only_arrays_and_modifies_none():
    base = np.array([[3, 1, 4], [1, 5, 9], [2, 6, 5]])
    wanted = sinkhorn(base.astype(float), epsilon=0.7)
    read_only = base.astype(float)
    read_only.flags.writeable = False
    wide = np.zeros((6, 6))
    wide[::2, ::2] = base
    for cost in (base, base.tolist(), base.astype(np.uint8), read_only, wide[::2, ::2], np.asfortranarray(base * 1.0)):
        before = np.array(cost)
        found = sinkhorn(cost, epsilon=0.7)
        assert found.coupling.dtype == np.float64
        np.testing.assert_allclose(found.coupling, wanted.coupling, rtol=1e-13)
        np.testing.assert_array_equal(np.array(cost), before)
    assert sinkhorn(base[::-1, ::-1].T * 1.0, epsilon=0.7).status.converged


def test_modifies_nothing_it_was_given(library):
    arrays = [uniform((4, 5)), *masses(4, 5), uniform(4), uniform(5)]
    cost, row_mass, column_mass, rows, columns = given_arrays = [library.asarray(array.copy()) for array in arrays]
    found = sinkhorn(cost, epsilon=1e-3, row_mass=row_mass, column_mass=column_mass, potentials=(rows, columns))
    for array, before in zip(given_arrays, arrays, strict=True):
        np.testing.assert_array_equal(to_numpy(array), before)
    coupling = to_numpy(found.coupling).copy()
    sinkhorn(cost, epsilon=1e-3, potentials=found.potentials, max_iter=3)
    np.testing.assert_array_equal(to_numpy(found.coupling), coupling)


@pytest.mark.parametrize("shape", [(1, 1), (1, 4), (4, 1)])
@pytest.mark.parametrize("epsilon", [10.0, 1e-4])
def test_a_single_row_or_column_has_only_one_answer(shape, epsilon):
    row_mass, column_mass = masses(*shape)
    found = sinkhorn(100 * uniform(shape) - 50, epsilon=epsilon, row_mass=row_mass, column_mass=column_mass)
    assert found.status.converged
    wanted = np.outer(row_mass, column_mass) / row_mass.sum()
    np.testing.assert_allclose(found.coupling, wanted, rtol=rounding(np.full(shape, 50.0), epsilon))


def test_two_by_two_by_hand():
    """P = [[p, 1−p], [1−p, p]] with log(p/(1−p)) = (c₀₁ + c₁₀ − c₀₀ − c₁₁)/2ε."""
    cost, epsilon = np.array([[0.2, 1.0], [0.7, -0.4]]), 0.35
    p = 1 / (1 + np.exp(-(1.0 + 0.7 - 0.2 + 0.4) / (2 * epsilon)))
    found = sinkhorn(cost, epsilon=epsilon, tolerance=1e-15)
    np.testing.assert_allclose(found.coupling, [[p, 1 - p], [1 - p, p]], rtol=1e-13)


def test_masses_over_many_magnitudes():
    """Masses this different make the scalings jump by more in one iteration than a look now and then would notice."""
    cost = 100 * uniform((6, 6))
    row_mass = 10.0 ** -np.arange(0, 240, 40)
    found = sinkhorn(cost, epsilon=0.01, row_mass=row_mass, column_mass=row_mass[::-1].copy(), **exactly(25))
    wanted, _, _ = paper_loop(cost, 0.01, 25, row_mass=row_mass, column_mass=row_mass[::-1])
    np.testing.assert_allclose(found.coupling, wanted, rtol=26 * rounding(cost, 0.01), atol=1e-300)


# --- what cannot be used ---------------------------------------------------------------------------------------------

NAN_COST = np.array([[0.0, 1.0], [np.nan, 2.0]])


@pytest.mark.parametrize(
    ("cost", "message"),
    [
        (NAN_COST, r"cost, row 1, column 0: must be a finite number; found NaN"),
        (np.array([[0.0, 1.0, -INF]]), r"cost, row 0, column 2: must be .*; found minus infinity\. Use a finite cost"),
        (np.zeros((0, 3)), r"cost: must have at least one row and one column; found shape \(0, 3\)"),
        (np.zeros((3, 0)), r"cost: must have at least one row and one column; found shape \(3, 0\)"),
        ([], r"cost: must be a table with rows and columns \(2-D\); found 1-D"),
        (np.zeros(3), r"cost: must be a table with rows and columns \(2-D\); found 1-D of shape \(3,\)"),
        (np.zeros((2, 2, 2)), r"cost: must be a table .* found 3-D of shape \(2, 2, 2\)"),
        (np.array([[0.0, 1.0], [INF, INF]]), r"cost, row 1: must allow at least one pair; every cost is infinite"),
        (np.array([[0.0, INF, 1.0]] * 2), r"cost, column 1: must allow at least one pair; every cost is infinite"),
        (np.ones((2, 2)) * 1j, r"cost: must hold real numbers; found dtype complex128"),
        (np.array([["a", "b"]]), r"cost: must hold real numbers; found dtype <U1"),
        (np.array([[object(), 1.0]]), r"cost: must hold real numbers; found dtype object with entries"),
        ([[1.0, 2.0], [3.0]], r"cost: must be an array of numbers; its rows have different lengths"),
        (np.array([[0.0, 1e300]]), r"epsilon: must not be this small for float64 costs up to 1e\+300; found 1e-10"),
        (np.zeros((2, 2), np.float32) + 1e35, r"epsilon: must not be this small"),
    ],
)
def test_refuses_a_cost_that_is_none(cost, message):
    with pytest.raises(InputError, match=message):
        sinkhorn(cost, epsilon=1e-10)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epsilon": 0}, r"epsilon: must be a positive number; found 0"),
        ({"epsilon": -0.1}, r"epsilon: must be a positive number; found -0\.1"),
        ({"epsilon": np.nan}, r"epsilon: must be a positive number; found nan"),
        ({"epsilon": INF}, r"epsilon: must be a positive number; found inf"),
        ({"epsilon": "small"}, r"epsilon: must be a number; found 'small'"),
        ({"epsilon": None}, r"epsilon: must be a number; found None"),
        ({"tolerance": 0}, r"tolerance: must be a positive number; found 0"),
        ({"max_iter": 0}, r"max_iter: must be a whole number of at least 1; found 0"),
        ({"max_iter": 2.5}, r"max_iter: must be a whole number; found 2\.5"),
        ({"check_every": 0}, r"check_every: must be a whole number of at least 1; found 0"),
        ({"marginal_penalty": 0}, r"marginal_penalty: must be a positive number; found 0"),
        ({"marginal_penalty": INF}, r"marginal_penalty: must be a positive number; found inf"),
        ({"row_mass": [1.0]}, r"row_mass: must have 2 entries, as the cost does; found shape \(1,\)"),
        ({"row_mass": 1.0}, r"row_mass: must have 2 entries, as the cost does; found shape \(\)"),
        ({"column_mass": np.ones((3, 1))}, r"column_mass: must have 3 entries.*found shape \(3, 1\)"),
        ({"row_mass": [1.0, 0.0]}, r"row_mass, entry 1: must be positive and finite; found 0\.0"),
        ({"column_mass": [1.0, 1.0, -1.0]}, r"column_mass, entry 2: must be positive and finite; found -1\.0"),
        ({"column_mass": [np.nan, 1.0, 1.0]}, r"column_mass, entry 0: must be positive and finite; found nan"),
        ({"row_mass": [INF, 1.0]}, r"row_mass, entry 0: must be positive and finite; found inf"),
        ({"row_mass": ["a", "b"]}, r"row_mass: must hold real numbers"),
        (
            {"column_mass": [1.0, 1.0, 1.0]},
            r"must have the same total; found 2\.0 and 3\.0\. Rescale.*marginal_penalty",
        ),
        ({"row_mass": [1.0, 2.0], "column_mass": [1.0, 1.0, 1.000001]}, r"same total; found 3\.0 and 3\.000001"),
        ({"potentials": (np.zeros(3), np.zeros(3))}, r"potentials, rows: must have 2 entries.*found shape \(3,\)"),
        ({"potentials": (np.zeros(2), np.zeros(2))}, r"potentials, columns: must have 3 entries.*shape \(2,\)"),
        ({"potentials": (np.zeros(2), np.zeros((3, 1)))}, r"potentials, columns: must have 3 entries"),
        ({"potentials": (np.zeros(2),)}, r"potentials: must be a pair \(rows, columns\)"),
        ({"potentials": 3.0}, r"potentials: must be a pair \(rows, columns\)"),
        ({"potentials": (np.zeros(2), [0.0, np.nan, 0.0])}, r"potentials, columns: must be finite"),
        ({"potentials": ([INF, 0.0], np.zeros(3))}, r"potentials, rows: must be finite"),
        ({"potentials": (["a", "b"], np.zeros(3))}, r"potentials, rows: must hold real numbers"),
    ],
)
def test_refuses_options_that_make_no_sense(options, message):
    with pytest.raises(InputError, match=message):
        sinkhorn(np.ones((2, 3)), **{"epsilon": 0.1, **options})


def test_options_are_keyword_only_and_epsilon_is_asked_for():
    with pytest.raises(TypeError):
        sinkhorn(np.ones((2, 2)), 0.1)
    with pytest.raises(TypeError):
        sinkhorn(np.ones((2, 2)))


def test_masses_may_differ_by_rounding():
    tenths = np.full(3, 0.1)
    assert tenths.sum() != 0.3
    assert sinkhorn(uniform((3, 1)), epsilon=0.1, row_mass=tenths, column_mass=[0.3]).status.converged
    thirds = np.full(300, 1 / 3, dtype=np.float32)
    found = sinkhorn(uniform((300, 1)).astype(np.float32), epsilon=0.1, row_mass=thirds, column_mass=[100.0])
    assert found.status.converged


def test_epsilon_that_vanishes_in_the_precision_of_the_cost():
    with pytest.raises(InputError, match=r"epsilon: must not be this small for float32"):
        sinkhorn(np.zeros((2, 2), dtype=np.float32), epsilon=1e-50)
    np.testing.assert_allclose(sinkhorn(np.zeros((2, 2)), epsilon=1e-50).coupling, 0.5)


def test_unbalanced_mass_that_no_number_can_hold():
    with pytest.raises(InputError, match=r"cost: must not be this far below zero for marginal_penalty 1\.0.*Raise"):
        sinkhorn(np.full((2, 2), -1e4), epsilon=0.1, marginal_penalty=1.0)
    # Attractive costs are fine as long as the answer can be written down.
    cost = -100 * uniform((4, 4))
    found = sinkhorn(cost, epsilon=0.5, marginal_penalty=1.0, tolerance=1e-13)
    wanted, _, _ = paper_loop(cost, 0.5, 200, penalty=1.0)
    np.testing.assert_allclose(found.coupling, wanted, rtol=201 * rounding(cost, 0.5))


def test_no_warning_escapes():
    """Also when the caller asks numpy to raise on everything but underflow, which is meant here."""
    with warnings.catch_warnings(), np.errstate(divide="raise", invalid="raise", over="raise"):
        warnings.simplefilter("error")
        for epsilon in (1.0, 1e-3, 1e-6):
            for penalty in (None, 1.0):
                found = sinkhorn(1e3 * uniform((6, 6)), epsilon=epsilon, marginal_penalty=penalty, max_iter=50)
                assert np.isfinite(found.coupling).all()


# --- the short way in ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [1.0, 0.01, pytest.param(1e-5, marks=pytest.mark.slow)])
def test_sinkhorn_of_ones_is_sinkhorn(library, epsilon):
    cost = library.asarray(uniform((12, 12)))
    wanted = sinkhorn(cost, epsilon=epsilon, tolerance=1e-4)
    found = sinkhorn_of_ones(cost, epsilon=epsilon, tolerance=1e-4)
    assert (found.iterations, found.residual) == (wanted.iterations, wanted.residual)
    np.testing.assert_array_equal(to_numpy(found.coupling), to_numpy(wanted.coupling))
    again = sinkhorn_of_ones(cost, epsilon=epsilon, tolerance=1e-4, potentials=found.potentials)
    assert again.iterations <= found.iterations


def test_sinkhorn_of_ones_refuses_an_epsilon_that_overflows():
    with pytest.raises(InputError, match="epsilon"):
        sinkhorn_of_ones(uniform((3, 3)), epsilon=1e-308)


@pytest.mark.parametrize("epsilon", [1.0, 0.05, 1e-3])
def test_entropic_cost_is_its_definition(epsilon):
    cost = uniform((9, 9))
    cost[2, 5] = INF
    found = sinkhorn(cost, epsilon=epsilon, tolerance=1e-3)
    wanted = found.transport_cost + epsilon * found.negative_entropy
    assert found.entropic_cost == pytest.approx(wanted, rel=1e-10)


def test_a_first_leap_that_overflows_is_taken_back():
    """A column far from every row has a kernel of zeros until it is absorbed."""
    cost = uniform((30, 30))
    cost[:, 3] += 1e4
    found = sinkhorn(cost, epsilon=0.05, tolerance=1e-9)
    careful = sinkhorn(cost - 1e4 * (np.arange(30) == 3), epsilon=0.05, tolerance=1e-9)
    assert found.status.converged
    np.testing.assert_allclose(found.coupling, careful.coupling, atol=1e-7)
