"""Where matched rows of two tables lie on the factors that both tables see."""

from __future__ import annotations

import numpy as np

from keyless.arrays import FloatArray
from keyless.block import Block
from keyless.model.factor_model import posterior
from keyless.model.joint_model import JointModel

__all__ = ["shared_positions"]


def shared_positions(
    model: JointModel, reference: Block, table: Block, *, number: int
) -> tuple[FloatArray, FloatArray]:
    """Place rows of two tables on the two directions u that maximise the covariance of partners, uᵀ·cov(z, z′)·u.

    z is where a row's own table puts its entity among the model's factors, z′ where the other table puts it. Neither
    table has seen the other's row.

    Args:
        model: the joint model of all tables.
        reference: rows of the reference.
        table: their partners in the other table, in the same order.
        number: number of the other table among those of the model.

    Returns:
        The positions of both, pairs × 2; 0 in the second column where the model has one factor.
    """
    ours = posterior(model.information(0, reference))[0]
    theirs = posterior(model.information(number, table))[0]
    cross = (ours - ours.mean(axis=0)).T @ (theirs - theirs.mean(axis=0))
    _, directions = np.linalg.eigh(cross + cross.T)
    best = directions[:, ::-1][:, :2]
    # The sign of an eigenvector is arbitrary: the largest entry is made positive.
    best = best * np.sign(best[np.abs(best).argmax(axis=0), np.arange(best.shape[1])])
    best = np.pad(best, ((0, 0), (0, 2 - best.shape[1])))
    return ours @ best, theirs @ best
