"""How step size, entropy and penalty change during a run of M³O.

A step-size rule maps what is known of the couplings to ρ, where a step is `estimate − ρ · gradient` and the gradient
is that of the squared misfit (with its factor 2). Rules and schedules are small frozen values; the ablations of the
paper are settings of them:

| paper | step rule | entropy |
|---|---|---|
| M³O-AS-DE | `Printed(omega=3)` | `DecayingEntropy(initial=0.1)` |
| M³O-AS | `Printed(omega=3)` | `FixedEntropy(0.0005)` |
| M³O-DE-1, M³O-DE-2 | `Fixed(0.5)`, `Fixed(0.01)` | `DecayingEntropy(initial=0.1)` |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from keyless.arrays import check_count, check_nonnegative, check_positive
from keyless.errors import InputError

__all__ = [
    "CouplingStatistics",
    "DecayingEntropy",
    "Descending",
    "Entropy",
    "Fixed",
    "FixedEntropy",
    "PenaltyPath",
    "Printed",
    "Released",
    "StepRule",
    "step_rule_named",
]


@dataclass(frozen=True)
class CouplingStatistics:
    """What a step rule may look at.

    Attributes:
        change: δ = ‖P_new − P_old‖² / 2n, how fast the coupling moves.
        diffuseness: c = Σ_i |max_j P[i, j] − 1| / n, how far it is from a permutation.
        largest_change: max |P_new − P_old|.
        mean_change: mean |P_new − P_old|.
    """

    change: float
    diffuseness: float
    largest_change: float
    mean_change: float


class StepRule(Protocol):
    """Chooses the step size of one table from its coupling."""

    def step_size(self, statistics: CouplingStatistics) -> float:
        """Return ρ."""
        ...


@dataclass(frozen=True)
class Descending:
    """ρ = ½, the inverse of the gradient's Lipschitz constant.

    For a fixed coupling the misfit is a quadratic with curvature at most 2 (rows of the coupling sum to one), and it
    lies above the entropic objective, touching it at the current estimate. So a proximal step of ½ with weight ρ·λ
    never raises the entropic objective at fixed ε and λ.
    """

    def step_size(self, statistics: CouplingStatistics) -> float:  # noqa: ARG002
        """Return ½."""
        return 0.5


@dataclass(frozen=True)
class Fixed:
    """ρ = `size` at every step."""

    size: float

    def __post_init__(self) -> None:
        check_positive(self.size, name="step size")

    def step_size(self, statistics: CouplingStatistics) -> float:  # noqa: ARG002
        """Return the fixed size."""
        return self.size


@dataclass(frozen=True)
class Printed:
    """ρ = (1 − δ)(1 − c)^ω as printed in Remark 4, capped.

    As printed ρ tends to 1, where a step reflects about the target instead of reaching it; the supplement speaks of
    "the upper bound 0.5", which is the default cap here. `cap=1` gives the formula as it stands.
    """

    omega: float = 3.0
    cap: float = 0.5

    def __post_init__(self) -> None:
        check_nonnegative(self.omega, name="omega")
        check_positive(self.cap, name="cap")

    def step_size(self, statistics: CouplingStatistics) -> float:
        """Return (1 − δ)(1 − c)^ω, at most the cap."""
        # Couplings meet their row sums only to the Sinkhorn tolerance, so δ and c can leave [0, 1] by a hair.
        change = min(max(statistics.change, 0.0), 1.0)
        diffuseness = min(max(statistics.diffuseness, 0.0), 1.0)
        return float(min((1 - change) * (1 - diffuseness) ** self.omega, self.cap))


@dataclass(frozen=True)
class Released:
    """The authors' released rule: clip((½(1 − c)^ω + 0.01)(1 − max|ΔP|), 0.01, cap), halved.

    Their gradient leaves out the factor 2, ours has it, hence the halving. They use a cap of 0.5 on synthetic data
    and 0.15 on MovieLens.
    """

    omega: float = 1.5
    cap: float = 0.5

    def __post_init__(self) -> None:
        check_nonnegative(self.omega, name="omega")
        check_positive(self.cap, name="cap")

    def step_size(self, statistics: CouplingStatistics) -> float:
        """Return the clipped product, in our units."""
        diffuseness = min(max(statistics.diffuseness, 0.0), 1.0)
        raw = (0.5 * (1 - diffuseness) ** self.omega + 0.01) * (1 - statistics.largest_change)
        return float(0.5 * min(max(raw, 0.01), self.cap))


_RULES: dict[str, type[Descending] | type[Printed] | type[Released]] = {
    "descending": Descending,
    "printed": Printed,
    "released": Released,
}


def step_rule_named(rule: str | StepRule) -> StepRule:
    """Return a rule given by name (with its defaults) or as it is."""
    if isinstance(rule, str):
        if rule not in _RULES:
            raise InputError(f"step_rule: must be one of {', '.join(map(repr, _RULES))} or a rule; found {rule!r}.")
        return _RULES[rule]()
    return rule


class Entropy(Protocol):
    """Chooses the values ε takes; the solver moves on to the next one whenever the objective has stalled."""

    def path(self, median_cost: float) -> tuple[float, ...]:
        """Return all values of ε in turn, given the median cost at the start."""
        ...


@dataclass(frozen=True)
class FixedEntropy:
    """ε stays as it is."""

    epsilon: float

    def __post_init__(self) -> None:
        check_positive(self.epsilon, name="epsilon")

    def path(self, median_cost: float) -> tuple[float, ...]:  # noqa: ARG002
        """Return the one value."""
        return (self.epsilon,)


@dataclass(frozen=True)
class DecayingEntropy:
    """ε is multiplied by `factor` each time the objective stalls, `decays` times at most (Remark 3, Algorithm 2).

    Attributes:
        initial: the first ε, in units of the cost; None: the median cost at the start.
        factor: what ε is multiplied by.
        decays: how often at most.
    """

    initial: float | None = None
    factor: float = 0.5
    decays: int = 10

    def __post_init__(self) -> None:
        if self.initial is not None:
            check_positive(self.initial, name="epsilon")
        if not 0 < self.factor < 1:
            raise InputError(f"factor: must lie between 0 and 1; found {self.factor!r}.")
        check_count(self.decays, name="decays")

    def path(self, median_cost: float) -> tuple[float, ...]:
        """Return the geometric sequence."""
        # A median of zero (constant tables) says nothing about the scale; one is as good as any.
        first = self.initial if self.initial is not None else (median_cost if median_cost > 0 else 1.0)
        return tuple(first * self.factor**i for i in range(self.decays + 1))


@dataclass(frozen=True)
class PenaltyPath:
    """λ starts large and falls by `step` each time the objective stalls, down to `stop` (Remark 6).

    The paper's MovieLens runs use `PenaltyPath(300, stop=10, step=10)`.
    """

    start: float
    stop: float
    step: float

    def __post_init__(self) -> None:
        check_positive(self.start, name="penalty start")
        check_positive(self.stop, name="penalty stop")
        check_positive(self.step, name="penalty step")
        if self.stop > self.start:
            raise InputError(
                f"penalty path: must fall from start to stop; found start {self.start!r} below stop {self.stop!r}."
            )

    def path(self) -> tuple[float, ...]:
        """Return the arithmetic sequence."""
        # A hair of slack, so that rounding does not drop the last value.
        count = int((self.start - self.stop) / self.step + 1e-9) + 1
        return tuple(self.start - i * self.step for i in range(count))
