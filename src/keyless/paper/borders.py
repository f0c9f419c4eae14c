"""How well two patches of an image continue each other across a common border.

The problem: patch b stands to the right of patch a, or it does not; how many nats say so? Pixels just beyond a border
are predicted from the last three columns before it, with a scale that grows with the local contrast and heavy tails.
The prediction is learned inside patches: each is cut in half, and the halves are known to be neighbours. Nothing but
the image itself is used.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.linalg import spsolve
from scipy.special import gammaln

from keyless.arrays import BoolArray, FloatArray
from keyless.errors import InputError

__all__ = ["Borders", "border_evidence", "inpaint", "neighbours"]

_DEGREES = 4.0  # of the Student law of prediction errors
_LEAST = 6  # pixels: half a patch must have the three columns a prediction looks at
_FLOOR = 2e-3  # of the scale of errors, as a share of the range of the image


@dataclass(frozen=True, eq=False)
class Borders:
    """Evidence for neighbourhoods, in nats: log-likelihood ratio of "neighbours" against "strangers".

    Attributes:
        right: `right[a, b]` for patch b just right of patch a.
        below: `below[a, b]` for patch b just below patch a.
    """

    right: FloatArray
    below: FloatArray


def neighbours(rows: int, columns: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the pairs of places beside each other (left, right) and above each other (upper, lower) in a grid."""
    places = np.arange(rows * columns).reshape(rows, columns)
    beside = np.stack([places[:, :-1].ravel(), places[:, 1:].ravel()], axis=1)
    above = np.stack([places[:-1].ravel(), places[1:].ravel()], axis=1)
    return beside, above


@lru_cache(maxsize=8)  # a patch, its halves both ways, the whole image; and the next image's
def _roughness(height: int, width: int) -> Any:
    """Return the matrix of the quadratic form: squared second differences and a little of the first."""

    def first(size: int) -> Any:
        return sparse.eye_array(size - 1, size, k=1) - sparse.eye_array(size - 1, size)

    def second(size: int) -> Any:
        return first(size - 1) @ first(size) if size > 2 else sparse.csr_array((0, size))

    rows, columns = sparse.eye_array(height), sparse.eye_array(width)
    parts = [
        (1.0, sparse.kron(second(height), columns)),
        (1.0, sparse.kron(rows, second(width))),
        (2.0, sparse.kron(first(height), first(width))),
        (0.09, sparse.kron(first(height), columns)),
        (0.09, sparse.kron(rows, first(width))),
    ]
    form = sum(weight * (part.T @ part) for weight, part in parts)
    return sparse.csc_array(form + 1e-9 * sparse.eye_array(height * width))


def inpaint(image: FloatArray, mask: BoolArray) -> FloatArray:
    """Return the smoothest image that agrees with the observed pixels: argmin Σ (second differences)², nearly.

    Args:
        image: height × width, at least 2 × 2; or a stack of such.
        mask: True where observed. An image without observed pixels is left as it is.

    Example:
        >>> import numpy as np
        >>> ramp = np.add.outer(np.arange(4.0), np.arange(4.0))
        >>> mask = np.ones((4, 4), dtype=bool)
        >>> mask[1, 2] = False
        >>> round(float(inpaint(np.where(mask, ramp, 0.0), mask)[1, 2]), 2)
        3.0
    """
    if image.ndim == 3:
        return np.stack([inpaint(one, seen) for one, seen in zip(image, mask, strict=True)])
    if mask.all() or not mask.any():
        return image.copy()
    form = _roughness(*image.shape)
    unknown, known = np.flatnonzero(~mask.ravel()), np.flatnonzero(mask.ravel())
    filled = image.ravel().copy()
    rows = form[unknown]
    filled[unknown] = spsolve(sparse.csc_array(rows[:, unknown]), -(rows[:, known] @ filled[known]))
    return filled.reshape(image.shape)


def border_evidence(patches: FloatArray, mask: BoolArray) -> Borders:
    """Return for all pairs of patches how much says that one stands right of, or below, the other.

    Args:
        patches: number × height × width, values 0 where not observed.
        mask: True where observed.

    Example:
        >>> import numpy as np
        >>> image = np.sin(np.add.outer(np.arange(8) / 3, np.arange(24) ** 2 / 90))
        >>> patches = np.stack(np.split(image, 3, axis=1))
        >>> border_evidence(patches, np.ones(patches.shape, dtype=bool)).right.argmax(axis=1)[:2]
        array([1, 2])
    """
    height, width = patches.shape[1:]
    if min(height, width) < _LEAST:
        raise InputError(
            f"patch_shape: must be at least {_LEAST} × {_LEAST} to compare borders; found {(height, width)}."
        )
    filled = inpaint(patches, mask)
    return Borders(
        right=_beside(patches, mask, filled),
        below=_beside(_turned(patches), _turned(mask), _turned(filled)),
    )


def _turned(stack: Any) -> Any:
    return stack.swapaxes(1, 2)


def _mirrored(stack: Any) -> Any:
    return stack[:, :, ::-1]


def _beside(patches: FloatArray, mask: BoolArray, filled: FloatArray) -> FloatArray:
    half = patches.shape[2] // 2
    # Halves are filled each alone: a border must not have been smoothed over.
    left, right = inpaint(patches[:, :, :half], mask[:, :, :half]), inpaint(patches[:, :, half:], mask[:, :, half:])
    model = _Prediction.learn(
        [(left, right[:, :, 0], mask[:, :, half]), (_mirrored(right), left[:, :, -1], mask[:, :, half - 1])]
    )
    forward = model.evidence(filled, filled[:, :, 0], mask[:, :, 0])
    backward = model.evidence(_mirrored(filled), filled[:, :, -1], mask[:, :, -1])
    return forward + backward.T


def _looks(stack: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return what a pixel beyond the last column is predicted from, and the contrast there."""
    last = np.pad(stack[:, :, -3:], ((0, 0), (1, 1), (0, 0)), mode="edge")
    up, here, down = last[:, :-2], last[:, 1:-1], last[:, 2:]
    looks = [here[..., 2], here[..., 1], here[..., 0], up[..., 2], down[..., 2], up[..., 1], down[..., 1]]
    contrast = np.abs(here[..., 2] - here[..., 1]) + np.abs(here[..., 1] - here[..., 0])
    contrast += 0.5 * np.abs(up[..., 2] - down[..., 2])
    return np.stack([*looks, np.ones_like(looks[0])], axis=-1), contrast


def _log_student(error: FloatArray, scale: FloatArray | float) -> FloatArray:
    constant = gammaln((_DEGREES + 1) / 2) - gammaln(_DEGREES / 2) - 0.5 * np.log(_DEGREES * np.pi)
    squares = (error / scale) ** 2
    return np.asarray(constant - np.log(scale) - (_DEGREES + 1) / 2 * np.log1p(squares / _DEGREES))


@dataclass(frozen=True, eq=False)
class _Prediction:
    """Pixel beyond a border = looks · weights + error; the error's scale is a + b · contrast."""

    weights: FloatArray
    scale: FloatArray
    level: float
    spread: float

    @classmethod
    def learn(cls, examples: list[tuple[FloatArray, FloatArray, BoolArray]]) -> _Prediction:
        """Fit weights and scale by turns to examples (columns before, column beyond, mask); outliers count less."""
        looks, contrast, target = [], [], []
        for before, beyond, seen in examples:
            see, vary = _looks(before)
            looks.append(see[seen])
            contrast.append(vary[seen])
            target.append(beyond[seen])
        see, vary, wanted = np.concatenate(looks), np.concatenate(contrast), np.concatenate(target)
        size = see.shape[1]
        if len(wanted) <= size:
            raise InputError(
                f"image: must have more than {size} observed pixels along the middle lines of its patches, from "
                f"which it is learnt what continues across a border; found {len(wanted)}."
            )
        spread = max(float(wanted.std()), 1e-6)
        floor = _FLOOR * max(float(np.ptp(wanted)), 1e-6)
        scales, trust = np.full(len(wanted), spread), np.ones(len(wanted))
        prior = np.eye(size)[0]  # a pixel is like the one beside it
        weights, scale = prior, np.array([spread, 0.0])
        regressors = np.stack([np.ones_like(vary), vary], axis=1)
        for _ in range(10):
            weighted = see * (trust / scales**2)[:, None]
            normal = weighted.T @ see
            normal += 1e-3 * np.trace(normal) / size * np.eye(size)
            weights = prior + np.linalg.solve(normal, weighted.T @ (wanted - see @ prior))
            error = wanted - see @ weights
            scale = np.linalg.lstsq(regressors / scales[:, None], np.abs(error) / scales, rcond=None)[0]
            scale = np.maximum(scale, [floor, 0.0])
            scales = regressors @ scale
            trust = (_DEGREES + 1) / (_DEGREES + (error / scales) ** 2)
        return cls(weights, scale, float(wanted.mean()), spread + floor)

    def evidence(self, before: FloatArray, beyond: FloatArray, seen: BoolArray) -> FloatArray:
        """Return evidence[a, b] that the column `beyond[b]` follows the last columns of `before[a]`."""
        looks, contrast = _looks(before)
        predicted, scale = looks @ self.weights, self.scale[0] + self.scale[1] * contrast
        stranger = np.where(seen, _log_student(beyond - self.level, self.spread), 0.0).sum(axis=1)
        found = np.empty((len(before), len(beyond)))
        for a in range(len(before)):
            same = _log_student(beyond - predicted[a], np.broadcast_to(scale[a], beyond.shape))
            found[a] = np.where(seen, same, 0.0).sum(axis=1) - stranger
        return found
