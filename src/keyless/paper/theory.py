"""What is known about joining tables by rank and nuclear norm: the paper's bounds as functions.

Throughout, `reference` (A, n × m_A) and `table` (B, n × m_B) have their rows in the true order, M = [A, B] is the two
side by side, and `permutation` shuffles the table: `table[permutation]` is the paper's P·B. Rows count from 0.
Singular values up to `tolerance` times the largest count as zero; None leaves room for rounding only.

All of it holds except what has `printed` in its name. Theorem 1 is not true as printed: its second lemma drops the
cross terms ⟨u_i, P u_j⟩ and the sign of ⟨u_i, P u_i⟩. `counterexamples` refute both; `polar_norm` is, exactly, the
quantity that the lemma tries to bound.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from keyless.arrays import Array, as_matrix, check_count, check_nonnegative, check_positive, namespace, to_numpy
from keyless.errors import InputError

# fmt: off
__all__ = [
    "AssumptionConstants", "Counterexample", "ExactMinimum", "NuclearNormBounds", "PrintedTheorem",
    "assumption_constants", "counterexamples", "cycle_number", "cycles", "displacement", "generic_rank",
    "minimise_nuclear_norm", "minimise_rank", "nuclear_norm_bounds", "polar_norm", "predicted_nuclear_increase",
    "printed_lemma_bound", "printed_theorem_bound", "rank_bound",
]
# fmt: on

Floats: TypeAlias = NDArray[np.float64]
Rows: TypeAlias = NDArray[np.intp]
MAX_ROWS = 8


def cycles(permutation: Array) -> tuple[tuple[int, ...], ...]:
    """Return the cycle decomposition of `permutation`, rows that stay in place included.

    A cycle (a, b, c) means permutation[a] = b, permutation[b] = c, permutation[c] = a. Each cycle begins with its
    smallest row, and cycles come in the order of their first rows.

    Example:
        >>> cycles([2, 0, 1, 4, 3, 5])  # the paper's (132)(45)(6), counted from 0
        ((0, 2, 1), (3, 4), (5,))
    """
    successor = _as_permutation(permutation).tolist()
    seen: set[int] = set()
    found = []
    for start in range(len(successor)):
        cycle = []
        row = start
        while row not in seen:
            seen.add(row)
            cycle.append(row)
            row = successor[row]
        if cycle:
            found.append(tuple(cycle))
    return tuple(found)


def cycle_number(permutation: Array) -> int:
    """Return C(π), the number of cycles of `permutation` with more than one row.

    Example:
        >>> cycle_number([2, 0, 1, 4, 3, 5])
        2
    """
    return sum(len(cycle) > 1 for cycle in cycles(permutation))


def displacement(permutation: Array) -> int:
    """Return H(π), the number of rows that `permutation` does not leave in place.

    Example:
        >>> displacement([2, 0, 1, 4, 3, 5])
        5
    """
    order = _as_permutation(permutation)
    return int(np.count_nonzero(order != np.arange(order.size)))


def rank_bound(rank: int, permutations: Sequence[Array], *, block_ranks: Sequence[int], columns: Sequence[int]) -> int:
    """Return the paper's upper bound on the rank of [A, P₁B₁, …, P_dB_d] (Proposition 1; its Corollary for d > 1).

        min{ n, m, r_A + Σ r_B, r + Σ (H(π) − C(π)) },  where H − C = rank(P − I) = n − number of all cycles

    Args:
        rank: r, the rank of [A, B₁, …, B_d] in the true order.
        permutations: one permutation per table, all of the same length n.
        block_ranks: the rank of the reference, then that of each table.
        columns: the number of columns of the reference, then that of each table; m is their sum.

    Example:
        >>> rank_bound(2, [[1, 0, 2, 3, 4, 5]], block_ranks=[2, 2], columns=[4, 3])
        3
    """
    orders: list[Rows] = []
    for index, permutation in enumerate(permutations):
        known = orders[0].size if orders else None
        orders.append(_as_permutation(permutation, name=f"permutations[{index}]", rows=known))
    ranks, widths = _counts(block_ranks, name="block_ranks"), _counts(columns, name="columns")
    if not orders or {len(ranks), len(widths)} != {len(orders) + 1}:
        raise InputError(
            "block_ranks, columns: must each have an entry for the reference, then one per permutation (at least one); "
            f"found {len(ranks)} and {len(widths)} entries for {len(orders)} permutations."
        )
    length, total = orders[0].size, check_count(rank, name="rank")
    fits = all(block_rank <= min(total, width) for block_rank, width in zip(ranks, widths, strict=True))
    if not fits or total > min(length, sum(ranks)):
        raise InputError(
            "block_ranks: each must be at most the rank and at most the columns of its table, together they must be at "
            "least the rank, and the rank must be at most the number of rows; "
            f"found {ranks} for rank {total}, {length} rows and {widths} columns."
        )
    return min(length, sum(widths), sum(ranks), total + sum(order.size - len(cycles(order)) for order in orders))


def generic_rank(rank: int, permutation: Array, *, columns: tuple[int, int] | None = None) -> int:
    """Return the rank that [A, P·B] has with probability one when [A, B] is a random matrix of rank `rank`.

        min{ 2r, r + H(π) − C(π) }        (Proposition 2)

    It holds for [A, B] = R·E with independent entries of an absolutely continuous distribution in R (n × r) and E,
    if r ≤ min{ √(n/2), m_A, m_B }; a larger rank raises `InputError`. (The paper calls the density absolutely
    continuous; the distribution is meant.) `columns` is (m_A, m_B); without it each is taken to be at least r.

    Example:
        >>> generic_rank(2, [1, 0, 2, 3, 4, 5, 6, 7]), generic_rank(2, [1, 2, 3, 4, 5, 6, 7, 0])
        (3, 4)
    """
    order = _as_permutation(permutation)
    true_rank = check_count(rank, name="rank")
    widths = [true_rank, true_rank] if columns is None else _counts(columns, name="columns")
    if len(widths) != 2:
        raise InputError(f"columns: must be two numbers, of the reference and of the table; found {len(widths)}.")
    if 2 * true_rank**2 > order.size or true_rank > min(widths):
        raise InputError(
            f"rank: must be at most √(n/2) = {math.sqrt(order.size / 2):.4g} for {order.size} rows and at most the "
            f"number of columns of each table; found {true_rank}. Proposition 2 says nothing there; use rank_bound."
        )
    return min(2 * true_rank, true_rank + order.size - len(cycles(order)))


@dataclass(frozen=True)
class NuclearNormBounds:
    """What a shuffle does to the nuclear norm, and what it can do at most."""

    original: float  # ‖[A, B]‖*, in the true order
    permuted: float  # ‖[A, P·B]‖*, after the shuffle
    upper: float  # ‖A‖* + ‖B‖* ≥ permuted
    lower: float  # (‖A‖* + ‖B‖*) / polar_norm ≤ permuted
    lowest: float  # (‖A‖* + ‖B‖*) / √2 ≤ lower
    polar_norm: float  # ‖[U_A V_Aᵀ, P U_B V_Bᵀ]‖, between 1 and √2
    change: float  # (‖[A, P·B]‖* − ‖[A, B]‖*) / ‖[A, B]‖*
    change_limit: float  # Z/N = min{‖A‖*, ‖B‖*} / max{‖A‖*, ‖B‖*} ≥ |change|


def nuclear_norm_bounds(
    reference: Array, table: Array, permutation: Array, *, tolerance: float | None = None
) -> NuclearNormBounds:
    """Return the nuclear norm before and after a shuffle, with the paper's bounds on it, which always hold.

        −Z/N ≤ (‖[A, PB]‖* − ‖M‖*) / ‖M‖* ≤ Z/N
        ‖A‖* + ‖B‖* ≥ ‖[A, PB]‖* ≥ (‖A‖* + ‖B‖*) / ‖[U_A V_Aᵀ, P U_B V_Bᵀ]‖ ≥ (‖A‖* + ‖B‖*) / √2

    Example:
        >>> bounds = nuclear_norm_bounds([[3.0], [4.0]], [[3.0], [4.0]], [1, 0])
        >>> round(bounds.original, 4), round(bounds.permuted, 4), round(bounds.upper, 4)
        (7.0711, 8.0, 10.0)
    """
    left, right, _ = _pair(reference, table, tolerance)
    order = _as_permutation(permutation, rows=len(left.matrix))
    shuffled = right.matrix[order]
    original, permuted = (float(np.linalg.norm(np.hstack([left.matrix, b]), "nuc")) for b in (right.matrix, shuffled))
    cosines = np.linalg.svd(left.vectors.T @ right.vectors[order], compute_uv=False)
    polar = math.sqrt(1 + min(1.0, float(np.max(cosines, initial=0.0))))
    norms = float(left.values.sum()), float(right.values.sum())
    return NuclearNormBounds(
        original=original,
        permuted=permuted,
        upper=sum(norms),
        lower=sum(norms) / polar,
        lowest=sum(norms) / math.sqrt(2),
        polar_norm=polar,
        change=(permuted - original) / original,
        change_limit=min(norms) / max(norms),
    )


def polar_norm(reference: Array, table: Array, permutation: Array, *, tolerance: float | None = None) -> float:
    """Return the spectral norm ‖[U_A V_Aᵀ, P U_B V_Bᵀ]‖ = √(1 + ‖U_Aᵀ P U_B‖) exactly.

    ‖U_Aᵀ P U_B‖ is the cosine of the smallest angle between the column spaces of A and P·B: the norm is √2 where they
    share a direction, 1 where they are orthogonal. The smaller it is, the larger the nuclear norm must be.

    Example:
        >>> round(polar_norm([[3.0], [4.0]], [[3.0], [4.0]], [1, 0]), 4)  # √(1 + 24/25)
        1.4
    """
    return nuclear_norm_bounds(reference, table, permutation, tolerance=tolerance).polar_norm


def predicted_nuclear_increase(displacement: float, rows: int) -> float:
    """Return (1 − H/2n)^(−1/2), the order of ‖[A, P·B]‖* / ‖M‖* that the paper's Remark 2 expects.

    H is the number of displaced rows of n: 1 for none, √2 for all. It is `lower` / `original` of `nuclear_norm_bounds`
    for equal tables with U_AᵀPU_A = (1 − H/n)·I, so between its ends the ratio itself lies above it.

    Example:
        >>> predicted_nuclear_increase(0, 100), round(predicted_nuclear_increase(100, 100), 4)
        (1.0, 1.4142)
    """
    count = check_count(rows, name="rows")
    moved = check_nonnegative(displacement, name="displacement")
    if moved > count:
        raise InputError(f"displacement: must be at most the number of rows, {count}; found {displacement!r}.")
    return 1 / math.sqrt(1 - moved / (2 * count))


@dataclass(frozen=True)
class AssumptionConstants:
    """The constants of Assumptions 1–3 and what Theorem 1 needs besides."""

    singular_value_gap: float  # ε₁ = max |σ_A^i − σ_B^i|, the missing ones counted as zero
    singular_vector_gap: float  # ε₂ = max ‖u_A^i − u_B^i‖ over i ≤ T; zero if T = 0
    entry_gap: float  # ε₃ = min |u(i) − u(j)|, i ≠ j, over the 2T left singular vectors; infinite if there is none
    rank: int  # r, the rank of [A, B]
    common_rank: int  # T = min{r_A, r_B}
    nuclear_sum: float  # D = ‖A‖* + ‖B‖*
    nuclear_larger: float  # N = max{‖A‖*, ‖B‖*}
    size: int  # L = max{n, m_A + m_B}


def assumption_constants(reference: Array, table: Array, *, tolerance: float | None = None) -> AssumptionConstants:
    """Return the smallest ε₁ and ε₂ and the largest ε₃ with which Assumptions 1–3 hold for [A, B].

    Singular vectors are paired in the order of their singular values, largest with largest. The paper passes over
    their signs, which are arbitrary: here each u_B^i takes the sign that brings it nearest to u_A^i. Where a table
    has equal singular values its vectors are any basis of their space, and ε₂ and ε₃ are those of the basis that the
    decomposition happens to return. An entry gap within rounding counts as zero.

    Example:
        >>> constants = assumption_constants([[3.0], [4.0]], [[-3.0], [-4.0]])
        >>> constants.singular_value_gap, constants.singular_vector_gap, round(constants.entry_gap, 4)
        (0.0, 0.0, 0.2)
    """
    left, right, limit = _pair(reference, table, tolerance)
    common, width = sorted((left.values.size, right.values.size))
    values = [np.pad(side.values, (0, width - side.values.size)) for side in (left, right)]
    vectors = [side.vectors[:, :common] for side in (left, right)]
    distances = np.minimum(*(np.linalg.norm(vectors[0] + sign * vectors[1], axis=0) for sign in (-1, 1)))
    entry_gap = float(np.min(np.diff(np.sort(np.hstack(vectors), axis=0), axis=0), initial=math.inf))
    joint = np.hstack([left.matrix, right.matrix])
    norms = float(left.values.sum()), float(right.values.sum())
    return AssumptionConstants(
        singular_value_gap=float(np.max(np.abs(values[0] - values[1]))),
        singular_vector_gap=float(np.max(distances, initial=0.0)),
        entry_gap=entry_gap if entry_gap > len(joint) * np.finfo(np.float64).eps else 0.0,
        rank=int(np.linalg.matrix_rank(joint, rtol=limit)),
        common_rank=common,
        nuclear_sum=sum(norms),
        nuclear_larger=max(norms),
        size=max(joint.shape),
    )


@dataclass(frozen=True)
class PrintedTheorem:
    """Theorem 1 as printed, which is not true; see `printed_theorem_bound`."""

    bound: float  # on the number of wrongly placed rows; it claims something only if conditions_met
    probability: float  # with which the bound is said to hold
    unmet: tuple[str, ...]  # the conditions that fail, in words

    @property
    def conditions_met(self) -> bool:
        """Whether the printed conditions all hold."""
        return not self.unmet


def printed_theorem_bound(constants: AssumptionConstants, *, noise: float) -> PrintedTheorem:
    """Return conditions, bound and probability of Theorem 1 as printed, for study only: THE THEOREM IS NOT TRUE.

        d_H ≤ (2/ε₃²) · (2 − (√2·D / (D + (√2+2)ε₁r + √2·ε₂N + 2√(2DLσ)) − √T·ε₂)²)
        with probability at least 1 − 2·exp(−D / 8Lσ), if
        ε₁ ≤ D/4r,  ε₂ ≤ min{1/(2√(2T)), √2·D/2N},  ε₃ > 0  and  σ ≤ D/16L²

    Its proof rests on `printed_lemma_bound`, which is false; `counterexamples` meet all conditions and break the
    bound. Never use it as a guarantee. Slips mended here: the conditions and the proof write M, a matrix, where
    D = ‖A‖* + ‖B‖* is meant; the proof has ε₃ for ε₃² once, and once √T·ε₂ under the root, where the theorem's own
    display is followed; of Assumption 3's "ε₃ ≥ 0" and "ε₃ > 0" the second is taken. `noise` is σ, the standard
    deviation of the noise on every entry.

    Example:
        >>> rows = [[1.0], [-1.0]]  # a swap goes unseen, yet the printed bound says that no row can be wrong
        >>> claim = printed_theorem_bound(assumption_constants(rows, rows), noise=0.0)
        >>> claim.conditions_met, abs(round(claim.bound, 9)), claim.probability
        (True, 0.0, 1.0)
    """
    sigma = check_nonnegative(noise, name="noise")
    total = check_positive(constants.nuclear_sum, name="nuclear_sum")
    rank, size = check_count(constants.rank, name="rank"), check_count(constants.size, name="size")
    larger = check_positive(constants.nuclear_larger, name="nuclear_larger")
    common = constants.common_rank
    first, second, third = constants.singular_value_gap, constants.singular_vector_gap, constants.entry_gap
    limits = (
        ("ε₁", first, "D/4r", total / (4 * rank)),
        ("ε₂", second, "1/(2√(2T))", 1 / (2 * math.sqrt(2 * common)) if common else math.inf),
        ("ε₂", second, "√2·D/2N", math.sqrt(2) * total / (2 * larger)),
        ("noise", sigma, "D/16L²", total / (16 * size**2)),
    )
    unmet = [f"{name} must be at most {text} = {y:.4g}; found {x:.4g}." for name, x, text, y in limits if x > y]
    if not third > 0:
        unmet.append(f"ε₃ must be above 0; found {third:.4g}: a singular vector has two equal entries.")
    spread = (math.sqrt(2) + 2) * first * rank + math.sqrt(2) * second * larger
    inner = math.sqrt(2) * total / (total + spread + 2 * math.sqrt(2 * total * size * sigma))
    inner -= math.sqrt(common) * second
    return PrintedTheorem(
        bound=2 * (2 - inner**2) / third / third if third > 0 else math.inf,
        probability=1 - 2 * math.exp(-total / (8 * size * sigma)) if sigma > 0 else 1.0,
        unmet=tuple(unmet),
    )


def printed_lemma_bound(constants: AssumptionConstants, displacement: int) -> float:
    """Return √(2 − H·ε₃²/2) + √T·ε₂, which the paper's second lemma claims to bound `polar_norm`. IT DOES NOT.

    It drops the cross terms ⟨u_i, P u_j⟩ and the sign of ⟨u_i, P u_i⟩; see `counterexamples`. H counts displaced rows.

    Example:
        >>> rows = [[1.0], [-1.0]]
        >>> printed = printed_lemma_bound(assumption_constants(rows, rows), displacement=2)
        >>> printed < 1e-6, round(polar_norm(rows, rows, [1, 0]), 6)
        (True, 1.414214)
    """
    moved = check_nonnegative(displacement, name="displacement")
    drop = moved * constants.entry_gap**2 / 2 if moved else 0.0
    # ‖u − Pu‖² ≤ 4 keeps the root real, up to rounding.
    return math.sqrt(max(0.0, 2 - drop)) + math.sqrt(constants.common_rank) * constants.singular_vector_gap


@dataclass(frozen=True, eq=False)
class Counterexample:
    """Tables in their true order, a shuffle against which a printed claim fails, and why the proof does not hold."""

    reference: Floats
    table: Floats
    permutation: Rows
    reason: str


def counterexamples() -> tuple[Counterexample, ...]:
    """Return tables that meet every condition of Theorem 1, each with a shuffle that breaks what is printed.

    1. A = B = (1, −1)ᵀ, rows swapped: the nuclear norm is unchanged, the printed bound is 0.
    2. u₁ ∝ (1, 2, 4, −½) and u₂ = P·u₁ with P = (12)(34), singular values 1.0001 and 1 in both tables (unequal, so
       that the singular vectors are unique): P maps the column space onto itself, so `polar_norm` is √2 although
       four rows are displaced, and noise of 10⁻⁶ hides which order is the true one.
    3. A = (1, −0.99)ᵀ, B = (1, −1.01)ᵀ, rows swapped: the wrong order has the strictly smaller nuclear norm.

    Example:
        >>> def lemma_holds(example):
        ...     constants = assumption_constants(example.reference, example.table)
        ...     exact = polar_norm(example.reference, example.table, example.permutation)
        ...     return exact <= printed_lemma_bound(constants, displacement(example.permutation))
        >>> [lemma_holds(example) for example in counterexamples()]
        [False, False, False]
    """
    swap, pairs = np.array([1, 0], dtype=np.intp), np.array([1, 0, 3, 2], dtype=np.intp)
    sign, first = np.array([[1.0], [-1.0]]), np.array([1.0, 2.0, 4.0, -0.5])
    cross = np.column_stack([1.0001 * first, first[pairs]]) / np.linalg.norm(first)
    near, far = np.array([[1.0], [-0.99]]), np.array([[1.0], [-1.01]])
    return (
        Counterexample(sign, sign.copy(), swap, "The sign: u₁ᵀPu₁ = −1, so P·B spans the same line as A."),
        Counterexample(cross, cross.copy(), pairs, "The cross terms: u₁ᵀPu₁ = u₂ᵀPu₂ = 0, but u₁ᵀPu₂ = 1."),
        Counterexample(near, far, swap, "The sign: u_AᵀPu_B is nearer to −1 than u_Aᵀu_B is to 1."),
    )


@dataclass(frozen=True, eq=False)
class ExactMinimum:
    """The minimum over all orders of a table's rows."""

    value: float  # the smallest rank (a whole number) or nuclear norm
    permutations: Rows  # all orders that attain it, one per row, sorted; table[permutations[k]] fits the reference

    @property
    def permutation(self) -> Rows:
        """The first order that attains the minimum."""
        return np.asarray(self.permutations[0])


def minimise_rank(reference: Array, table: Array, *, tolerance: float | None = None) -> ExactMinimum:
    """Return argmin over π of rank([reference, table[π]]), by trying all orders of at most 8 rows.

    Example:
        >>> result = minimise_rank([[1.0], [2.0], [4.0]], [[8.0], [2.0], [4.0]])
        >>> result.value, result.permutations.tolist()
        (1, [[1, 2, 0]])
    """
    orders, spectra, limit = _all_orders(reference, table, tolerance)
    ranks = np.count_nonzero(spectra > limit * spectra[:, :1], axis=1)
    value = int(ranks.min())
    return ExactMinimum(value, orders[ranks == value])


def minimise_nuclear_norm(reference: Array, table: Array, *, tolerance: float = 1e-12) -> ExactMinimum:
    """Return argmin over π of ‖[reference, table[π]]‖*, by trying all orders of at most 8 rows.

    Here `tolerance` says what a tie is: a nuclear norm above the smallest by at most this share of it.

    Example:
        >>> result = minimise_nuclear_norm([[1.0], [2.0], [4.0]], [[8.1], [2.0], [3.9]])
        >>> result.permutations.tolist()
        [[1, 2, 0]]
    """
    share = check_nonnegative(tolerance, name="tolerance")
    orders, spectra, _ = _all_orders(reference, table, None)
    norms = spectra.sum(axis=1)
    value = float(norms.min())
    return ExactMinimum(value, orders[norms <= value * (1 + share)])


def _all_orders(reference: Array, table: Array, tolerance: float | None) -> tuple[Rows, Floats, float]:
    """Return all orders, the singular values of [reference, table[order]] for each, and what share counts as zero."""
    left, right, limit = _matrices(reference, table, tolerance)
    rows = len(left)
    if rows > MAX_ROWS:
        raise InputError(f"reference: must have at most {MAX_ROWS} rows to try all orders; found {rows}. Take fewer.")
    # A rotation of the columns, the same for every row order, leaves at most n of them.
    left, right = (np.linalg.qr(matrix.T)[1].T if matrix.shape[1] > rows else matrix for matrix in (left, right))
    orders: Rows = np.array(list(itertools.permutations(range(rows))), dtype=np.intp)
    joint = np.concatenate([np.broadcast_to(left, (len(orders), *left.shape)), right[orders]], axis=2)
    return orders, np.linalg.svd(joint, compute_uv=False), limit


@dataclass(frozen=True, eq=False)
class _Decomposed:
    """A table, its non-zero singular values and their left singular vectors."""

    matrix: Floats
    values: Floats
    vectors: Floats


def _pair(reference: Array, table: Array, tolerance: float | None) -> tuple[_Decomposed, _Decomposed, float]:
    *matrices, limit = _matrices(reference, table, tolerance)
    if not any(matrix.any() for matrix in matrices):
        raise InputError("reference, table: must not both be zero; found only zeros. There is nothing to compare.")
    sides = []
    for matrix in matrices:
        vectors, values, _ = np.linalg.svd(matrix, full_matrices=False)
        kept = values > limit * values[0]
        sides.append(_Decomposed(matrix, values[kept], vectors[:, kept]))
    return sides[0], sides[1], limit


def _matrices(reference: Array, table: Array, tolerance: float | None) -> tuple[Floats, Floats, float]:
    """Return both tables in double precision, and the share of the largest singular value that counts as zero."""
    given = [as_matrix(values, name=name) for name, values in (("reference", reference), ("table", table))]
    left, right = (to_numpy(matrix).astype(np.float64) for matrix in given)
    if len(left) != len(right):
        raise InputError(f"table: must have the {len(left)} rows of the reference; found {len(right)}. Drop the rest.")
    if tolerance is not None:
        return left, right, check_nonnegative(tolerance, name="tolerance")
    rounding = max(float(namespace(matrix).finfo(matrix.dtype).eps) for matrix in given)
    return left, right, rounding * max(len(left), left.shape[1] + right.shape[1])


def _as_permutation(values: Any, *, name: str = "permutation", rows: int | None = None) -> Rows:
    try:
        order = to_numpy(values)
    except ValueError as error:
        raise InputError(f"{name}: must be a 1-D array of row numbers; found rows of unequal length.") from error
    if order.ndim != 1:
        raise InputError(f"{name}: must be a 1-D array of row numbers; found shape {order.shape}. Pass one per table.")
    if order.size and order.dtype.kind not in "iu":
        raise InputError(f"{name}: must hold whole numbers; found dtype {order.dtype}. Convert it to integers.")
    if rows is not None and order.size != rows:
        raise InputError(f"{name}: must have one entry per row, {rows}; found {order.size}.")
    order = order.astype(np.intp)
    new = np.zeros(order.size, dtype=bool)
    new[np.unique(order, return_index=True)[1]] = True
    for position in np.flatnonzero(~new | (order < 0) | (order >= order.size))[:1]:
        raise InputError(
            f"{name}, position {position}: must name each row from 0 to {order.size - 1} once; found "
            f"{order[position]}{'' if new[position] else ' again'}. Leave out rows that have no partner."
        )
    return order


def _counts(values: Any, *, name: str) -> list[int]:
    try:
        return [check_count(value, name=f"{name}[{index}]") for index, value in enumerate(values)]
    except TypeError as error:
        raise InputError(f"{name}: must be a list of whole numbers, reference first; found {values!r}.") from error
