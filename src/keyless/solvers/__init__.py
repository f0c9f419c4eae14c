"""The paper's algorithms, on any `CorrespondenceProblem`; and `PatchArranger`, for patches of an image.

Every solver has the same interface: `solve(problem)` runs it; `init`, `step` and `terminate` let the caller drive it
step by step.
"""

from keyless.solvers.base import Record, Solution, Solver
from keyless.solvers.baseline import Baseline
from keyless.solvers.m3o import M3O, search_omega
from keyless.solvers.patches import PatchArranger
from keyless.solvers.schedules import (
    DecayingEntropy,
    Descending,
    Fixed,
    FixedEntropy,
    PenaltyPath,
    Printed,
    Released,
)
from keyless.solvers.unlabeled_sensing import UnlabeledSensing

__all__ = [
    "M3O",
    "Baseline",
    "DecayingEntropy",
    "Descending",
    "Fixed",
    "FixedEntropy",
    "PatchArranger",
    "PenaltyPath",
    "Printed",
    "Record",
    "Released",
    "Solution",
    "Solver",
    "UnlabeledSensing",
    "search_omega",
]
