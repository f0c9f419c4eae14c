"""The paper's experiments, and some beside it: `get("table1")` is one, `NAMES` are all.

Each module has one `EXPERIMENT`; it is imported when it is asked for.
"""

from __future__ import annotations

import importlib

from keyless.errors import InputError
from keyless.paper.experiments.base import Experiment, ExperimentRun, Outcome, markdown, run_experiment, show

__all__ = ["NAMES", "Experiment", "ExperimentRun", "Outcome", "get", "markdown", "run_experiment", "show"]

_MODULES = {
    "nuclear-norm": "nuclear_norm",
    "figure1": "figure1",
    "sweeps": "sweeps",
    "table1": "table1",
    "movielens": "movielens",
    "faces": "faces",
    "sinkhorn": "sinkhorn",
    "theory": "theory",
    "ablation": "ablation",
    "applications": "applications",
}

NAMES = tuple(_MODULES)
"""All experiments, in the paper's order, then those beside it."""


def get(name: str) -> Experiment:
    """Return an experiment by its name.

    Args:
        name: one of `NAMES`.

    Example:
        >>> get("sinkhorn").title
        'Sinkhorn iterations against ε'
    """
    if name not in _MODULES:
        raise InputError(f"{name}: there is no such experiment. Choose one of {', '.join(NAMES)}.")
    found: Experiment = importlib.import_module(f"keyless.paper.experiments.{_MODULES[name]}").EXPERIMENT
    return found
