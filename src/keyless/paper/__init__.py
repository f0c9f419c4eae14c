"""The paper: its algorithms, its theory, and its experiments run again.

The paper is Tang, Chang, Ye and Zha, *Low-rank matrix recovery with unknown correspondence* (2021). Its algorithms run
on any `CorrespondenceProblem`; `PatchArranger` is ours, for patches of an image. Every solver has the same interface:
`solve(problem)` runs it; `init`, `step` and `terminate` let the caller drive it step by step. `theory` has the paper's
bounds as functions. `experiments` has its figures and tables; it draws, so it is imported by its own name.

This package uses keyless. keyless does not use it, but for the command `keyless reproduce`.
"""

from keyless.paper import theory
from keyless.paper.baseline import Baseline
from keyless.paper.m3o import M3O
from keyless.paper.omega import search_omega
from keyless.paper.patches import PatchArranger
from keyless.paper.problem import CorrespondenceProblem, PatchProblem, Problem, to_problem
from keyless.paper.schedules import (
    DecayingEntropy,
    Descending,
    Fixed,
    FixedEntropy,
    PenaltyPath,
    Printed,
    Released,
)
from keyless.paper.solver import Record, Solution, Solver
from keyless.paper.unlabeled_sensing import UnlabeledSensing

__all__ = [
    "M3O",
    "Baseline",
    "CorrespondenceProblem",
    "DecayingEntropy",
    "Descending",
    "Fixed",
    "FixedEntropy",
    "PatchArranger",
    "PatchProblem",
    "PenaltyPath",
    "Printed",
    "Problem",
    "Record",
    "Released",
    "Solution",
    "Solver",
    "UnlabeledSensing",
    "search_omega",
    "theory",
    "to_problem",
]
