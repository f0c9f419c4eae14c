"""The only room that knows array libraries.

Everything numerical in the core is written once against the Python array API standard and runs on numpy, torch and
any other conforming library. The kind of array, its dtype and its device go through unchanged: float32 in, float32
out; a torch tensor in, a torch tensor on the same device out.
"""

from __future__ import annotations

import importlib
import math
import operator
from collections.abc import Iterator
from functools import cache, lru_cache
from math import isfinite
from typing import Any, TypeAlias

import array_api_compat
import numpy as np
import scipy.linalg
from numpy.typing import NDArray
from scipy import sparse

from keyless.errors import InputError
from keyless.progress import check_time

__all__ = [
    "Array",
    "BoolArray",
    "FloatArray",
    "IntArray",
    "NumpyArray",
    "RandomState",
    "SingleArray",
    "array_like",
    "as_cost",
    "as_float",
    "as_matrix",
    "as_permutation",
    "batches",
    "check_count",
    "check_finite",
    "check_nonnegative",
    "check_positive",
    "eigenpairs_above",
    "exp_in_place",
    "find_device",
    "is_array",
    "is_finite",
    "is_numpy",
    "is_sparse",
    "namespace",
    "on_cpu",
    "on_device",
    "random_generator",
    "safe_unit",
    "smallest",
    "some_of",
    "to_numpy",
]

Array: TypeAlias = Any
"""An array of any library that follows the array API standard."""

FloatArray: TypeAlias = NDArray[np.float64]
IntArray: TypeAlias = NDArray[np.int64]
BoolArray: TypeAlias = NDArray[np.bool_]
NumpyArray: TypeAlias = NDArray[Any]
SingleArray: TypeAlias = NDArray[np.float32]
"""Numbers of many rows, in single precision."""

RandomState: TypeAlias = int | np.random.Generator | np.random.RandomState | None
"""What a random generator is made from."""

_NUMPY = array_api_compat.array_namespace(np.empty(0))

_SMALL_EIGENPROBLEM = 50
"""Rows up to which all eigenvectors take no longer than a few of them."""

_FEW_EIGENVECTORS = 1 / 8
"""Share of all eigenvectors up to which computing these alone is faster: 1.7 times at 100 rows, three times at 930."""

_BLOCK_VECTORS = 12
"""Vectors that the power iteration carries at most; more of them are better found by LAPACK."""

_BLOCK_ROUNDS = 3
"""Rounds of six products and a look; one is enough where the others are below a hundredth of the wanted eigenvalues."""

_BLOCK = 64
"""Work space of LAPACK for each row or vector, in numbers: as many as its largest blocks need."""

_SAFE = 2.0**200
"""Numbers between 1 / so much and so much, about 1.6e60, have squares and fourth powers that double precision holds."""


def some_of(rows: IntArray, most: int) -> IntArray:
    """Return at most so many of some rows, in order, drawn at random but always the same."""
    return rows if rows.size <= most else np.sort(np.random.default_rng(0).choice(rows, most, replace=False))


def batches(size: int, step: int) -> Iterator[slice]:
    """Yield slices that cover `size` rows, `step` at a time and at least one, so that what is made of them stays small.

    Each begins with a look at the time, see `progress.check_time`.

    Example:
        >>> list(batches(5, 2))
        [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    step = max(step, 1)
    for start in range(0, size, step):
        check_time()
        yield slice(start, min(start + step, size))


def namespace(*arrays: Array) -> Any:
    """Return the array-API namespace that all `arrays` share."""
    if len(arrays) == 1 and type(arrays[0]) is np.ndarray:
        return _NUMPY  # the usual case; looking it up takes as long as adding a thousand numbers
    return array_api_compat.array_namespace(*arrays)


def is_array(value: Any) -> bool:
    """Tell whether `value` is an array of a library that follows the standard."""
    return bool(array_api_compat.is_array_api_obj(value))


def is_numpy(array: Array) -> bool:
    """Tell whether `array` is a numpy array."""
    return type(array) is np.ndarray or bool(array_api_compat.is_numpy_array(array))


def is_sparse(value: Any) -> bool:
    """Tell whether something is a sparse matrix or array of scipy."""
    return bool(sparse.issparse(value))


def on_cpu(array: Array) -> bool:
    """Tell whether `array` lives in main memory."""
    if is_numpy(array):
        return True
    return "cpu" in str(array_api_compat.device(array)).lower()


def to_numpy(array: Array) -> NumpyArray:
    """Return `array` as a numpy array, copied to main memory if it lives elsewhere."""
    if array_api_compat.is_torch_array(array):
        array = array.detach().cpu()
        # numpy has no bfloat16.
        return np.asarray(array.float() if str(array.dtype) == "torch.bfloat16" else array)
    if is_numpy(array) or not hasattr(array, "__dlpack__"):
        return np.asarray(array)
    return np.asarray(np.from_dlpack(array))


def find_device(name: str) -> Any:
    """Return the device that is called so: None for `cpu`, on which numpy computes; PyTorch's for `cuda`.

    Args:
        name: `cpu` or `cuda`.
    """
    if name == "cpu":
        return None
    try:
        torch = importlib.import_module("torch")
    except ImportError as error:
        raise InputError("device: 'cuda' needs PyTorch, which is not installed. Run: pip install torch") from error
    if not torch.cuda.is_available():
        raise InputError("device: 'cuda' needs a graphics card that PyTorch sees; it sees none. Use 'cpu'.")
    return torch.device("cuda")


def on_device(values: Any, device: Any) -> Array:
    """Return an array of numpy as a tensor of PyTorch on a device, always a copy.

    Args:
        values: the array.
        device: what `find_device` returned.
    """
    return importlib.import_module("torch").tensor(values, device=device)


def array_like(values: Any, like: Array, *, dtype: Any = None) -> Array:
    """Return `values` in the library and on the device of `like`, with its dtype unless `dtype` is given."""
    xp = namespace(like)
    return xp.asarray(values, dtype=like.dtype if dtype is None else dtype, device=array_api_compat.device(like))


def smallest(values: Array, count: int) -> tuple[Array, Array]:
    """Return the `count` smallest entries along the last axis, the smallest first, and their places.

    Args:
        values: of any library; at least `count` along the last axis.
        count: how many.

    Example:
        >>> smallest(np.array([[3.0, 1.0, 2.0]]), 2)
        (array([[1., 2.]]), array([[1, 2]]))
    """
    xp = namespace(values)
    if count == 1:
        place = xp.argmin(values, axis=-1, keepdims=True)
        return xp.take_along_axis(values, place, axis=-1), place
    if array_api_compat.is_torch_array(values):
        # The standard has no such function.
        found, place = values.topk(count, dim=-1, largest=False, sorted=True)
        return found, place
    place = np.argpartition(values, count - 1, axis=-1)[..., :count]
    place = np.take_along_axis(place, np.argsort(np.take_along_axis(values, place, axis=-1), axis=-1), axis=-1)
    return np.take_along_axis(values, place, axis=-1), place


def as_float(values: Any, *, name: str) -> Array:
    """Return `values` as a real floating array; integers and booleans become the library's default float.

    Args:
        values: an array of any library, or nested sequences of numbers.
        name: what to call the array in an error message.
    """
    if np.ma.is_masked(values):
        raise InputError(
            f"{name}: must not be a masked array; its mask would be lost. Give the values and the mask as two arrays."
        )
    if is_numpy(values) or not is_array(values):
        try:
            values = np.asarray(values)
        except ValueError as error:
            raise InputError(f"{name}: must be an array of numbers; its rows have different lengths.") from error
        if values.dtype.kind == "O":
            values = _numbers(values, name)
    xp = namespace(values)
    if xp.isdtype(values.dtype, "real floating"):
        # Half precision cannot carry the sums taken here.
        return xp.astype(values, xp.float32) if xp.finfo(values.dtype).bits < 32 else values
    if xp.isdtype(values.dtype, ("bool", "integral")):
        return xp.astype(values, xp.__array_namespace_info__().default_dtypes()["real floating"])
    raise InputError(f"{name}: must hold real numbers; found dtype {values.dtype}. Convert it to floats first.")


def _numbers(objects: NumpyArray, name: str) -> FloatArray:
    """Return an array of Python objects as floats; text is no number, even where it reads like one."""
    try:
        if any(isinstance(entry, (str, bytes)) for entry in objects.flat):
            raise TypeError("found text")
        return objects.astype(np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(
            f"{name}: must hold real numbers; found dtype object with entries that are not numbers ({error}). "
            "Encode or drop them first."
        ) from error


def as_matrix(values: Any, *, name: str, allow_infinite: bool = False, allow_missing: bool = False) -> Array:
    """Return `values` as a non-empty 2-D floating array, or say what is wrong with it.

    Args:
        values: the array to check; it is never modified.
        name: what to call it in an error message.
        allow_infinite: let infinities pass.
        allow_missing: let NaN pass.
    """
    matrix = as_float(values, name=name)
    if matrix.ndim != 2:
        raise InputError(
            f"{name}: must be a table with rows and columns (2-D); found {matrix.ndim}-D of shape "
            f"{tuple(matrix.shape)}. Reshape it."
        )
    if 0 in matrix.shape:
        raise InputError(
            f"{name}: must have at least one row and one column; found shape {tuple(matrix.shape)}. It is empty."
        )
    if is_finite(matrix):
        return matrix
    xp = namespace(matrix)
    if not allow_missing:
        _refuse_first(xp.isnan(matrix), name, "NaN", "Replace it by a number or mark it missing.")
    if not allow_infinite:
        _refuse_first(xp.isinf(matrix), name, "an infinity", "Replace it by a number or mark it missing.")
    return matrix


def is_finite(matrix: Array) -> bool:
    """Tell whether a non-empty array holds neither NaN nor infinities, in two passes that allocate nothing."""
    xp = namespace(matrix)
    return isfinite(float(xp.min(matrix))) and isfinite(float(xp.max(matrix)))


def as_cost(values: Any, *, name: str) -> Array:
    """Return `values` as a matrix of costs, where plus infinity forbids a pair, or say what is wrong with it."""
    cost = as_matrix(values, name=name, allow_infinite=True)
    xp = namespace(cost)
    if float(xp.min(cost)) > -xp.inf:
        return cost
    negative = cost == -xp.inf
    _refuse_first(negative, name, "minus infinity", "Use a finite cost to favour a pair.", must="a number or +infinity")
    return cost


def as_permutation(values: Any, *, name: str, columns: int | None = None) -> IntArray:
    """Return `values` as a 1-D numpy array of column numbers, −1 for none, or say what is wrong with it.

    Args:
        values: one whole number per row.
        name: what to call it in an error message.
        columns: how many columns there are; as many as rows unless given.
    """
    try:
        permutation = to_numpy(values)
    except ValueError as error:
        raise InputError(f"{name}: must be a 1-D array of whole numbers; its rows have different lengths.") from error
    if permutation.ndim != 1 or (permutation.size and permutation.dtype.kind not in "iu"):
        raise InputError(
            f"{name}: must be a 1-D array of whole numbers; found {permutation.ndim}-D of dtype {permutation.dtype}. "
            "Give one number per row, -1 for no partner."
        )
    columns = permutation.size if columns is None else columns
    for position in np.flatnonzero((permutation < -1) | (permutation >= columns))[:1]:
        raise InputError(
            f"{name}, position {position}: must be from 0 to {columns - 1}, or -1 for no partner; "
            f"found {permutation[position]}."
        )
    return permutation.astype(np.int64)


def _refuse_first(bad: Array, name: str, what: str, advice: str, *, must: str = "a finite number") -> None:
    xp = namespace(bad)
    if bool(xp.any(bad)):
        row, column = (int(index[0]) for index in np.nonzero(to_numpy(bad)))
        raise InputError(f"{name}, row {row}, column {column}: must be {must}; found {what}. {advice}")


def safe_unit(largest: float) -> float:
    """Return what to divide numbers by so that they can be squared and summed: 1 for numbers of ordinary size.

    It is a power of 4, so that dividing by it or by its root rounds nothing that matters.

    Args:
        largest: the largest absolute value of the numbers.

    Example:
        >>> safe_unit(1e9), safe_unit(2.0**600) == 2.0**600
        (1.0, True)
    """
    if not isfinite(largest) or largest == 0 or 1 / _SAFE <= largest <= _SAFE:
        return 1.0
    return math.ldexp(1.0, 2 * ((math.frexp(largest)[1] - 1) // 2))


def check_finite(value: Any, *, name: str) -> float:
    """Return `value` as a finite float, or say that it is not one."""
    number = _as_number(value, name)
    if not abs(number) < float("inf"):
        raise InputError(f"{name}: must be a finite number; found {value!r}.")
    return number


def check_positive(value: Any, *, name: str) -> float:
    """Return `value` as a float above zero, or say that it is not one."""
    number = _as_number(value, name)
    if not 0 < number < float("inf"):
        raise InputError(f"{name}: must be a positive number; found {value!r}.")
    return number


def check_nonnegative(value: Any, *, name: str) -> float:
    """Return `value` as a float not below zero, or say that it is not one."""
    number = _as_number(value, name)
    if not 0 <= number < float("inf"):
        raise InputError(f"{name}: must be zero or a positive number; found {value!r}.")
    return number


def check_count(value: Any, *, name: str, maximum: int | None = None) -> int:
    """Return `value` as a whole number of at least one, or say that it is not one."""
    try:
        count = operator.index(value)
    except TypeError as error:
        raise InputError(f"{name}: must be a whole number; found {value!r}.") from error
    if isinstance(value, bool) or count < 1:
        raise InputError(f"{name}: must be a whole number of at least 1; found {value!r}.")
    if maximum is not None and count > maximum:
        raise InputError(f"{name}: must be at most {maximum}; found {value!r}. Lower it.")
    return count


def _as_number(value: Any, name: str) -> float:
    if isinstance(value, (bool, str)):
        raise InputError(f"{name}: must be a number; found {value!r}.")
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name}: must be a number; found {value!r}.") from error
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def eigenpairs_above(matrix: Array, threshold: float, *, most: int | None = None) -> tuple[Array, Array]:
    """Return the eigenvalues of a symmetric matrix above a threshold, largest first, with their vectors as columns.

    Args:
        matrix: symmetric, of any library.
        threshold: eigenvalues up to this are left out.
        most: the largest so many are enough. None: all above the threshold.
    """
    if is_numpy(matrix) and len(matrix) > _SMALL_EIGENPROBLEM:
        return _dominant_eigenpairs(matrix, threshold, most) or _few_eigenpairs(matrix, threshold, most)
    xp = namespace(matrix)
    values, vectors = xp.linalg.eigh(matrix)
    count = min(int(xp.count_nonzero(values > threshold)), len(values) if most is None else most)
    return xp.flip(values)[:count], xp.flip(vectors, axis=1)[:, :count]


def _dominant_eigenpairs(matrix: Array, threshold: float, most: int | None) -> tuple[Array, Array] | None:
    """Do the same where the wanted eigenvalues stand far above all others; None where they do not, or are many.

    A block of vectors is multiplied by the matrix and made orthonormal by turns. The pairs found are those of the
    matrix to rounding error, and there are no others: the squares of the other eigenvalues add up to what the squares
    of the matrix's entries leave.
    """
    size = len(matrix)
    kind = matrix.dtype.char
    block = _first_vectors(size, min(_BLOCK_VECTORS, int(_FEW_EIGENVECTORS * size)), kind)
    most = size if most is None else most
    limits = np.finfo(matrix.dtype)
    precision = float(limits.eps)
    squares = float(np.vdot(matrix, matrix))
    if not float(limits.smallest_normal) ** 0.25 < squares**0.5 < float(limits.max) ** 0.25:
        return None  # three products in a row could overflow or underflow
    for _ in range(_BLOCK_ROUNDS):
        for _ in range(2):
            block = _orthonormal(matrix @ (matrix @ (matrix @ block)), kind)
        image = matrix @ block
        values, turns = np.linalg.eigh(block.T @ image)
        count = min(int(np.count_nonzero(values > threshold)), most)
        if not 0 < count < len(values):
            return None
        values, turns = values[: -count - 1 : -1], turns[:, : -count - 1 : -1]
        lowest = float(values[-1]) if count == most else threshold
        rest = squares - float(values @ values) + precision**0.5 * squares
        if lowest <= 0 or rest >= lowest * lowest:
            return None
        vectors = block @ turns
        gap = image @ turns - vectors * values
        if float(np.vdot(gap, gap)) <= size * precision**2 * squares:
            return values, vectors
    return None


@lru_cache(maxsize=16)
def _first_vectors(size: int, width: int, kind: str) -> Array:
    return np.random.default_rng(0).standard_normal((size, width)).astype(kind)


def _orthonormal(block: Array, kind: str) -> Array:
    decompose, collect = _lapack(kind)
    work = _BLOCK * block.shape[1]
    reflectors, scales, _, _ = decompose(block, lwork=work)
    return collect(reflectors, scales, lwork=work)[0]


def _few_eigenpairs(matrix: Array, threshold: float, most: int | None) -> tuple[Array, Array]:
    """Do the same by LAPACK, which computes the wanted vectors alone."""
    size = len(matrix)
    most = size if most is None else most
    if most <= _FEW_EIGENVECTORS * size:
        values, vectors = scipy.linalg.eigh(matrix, subset_by_index=(size - most, size - 1), check_finite=False)
    else:
        values, vectors = scipy.linalg.eigh(matrix, subset_by_value=(threshold, np.inf), check_finite=False)
    count = min(int(np.count_nonzero(values > threshold)), most)
    return values[::-1][:count], vectors[:, ::-1][:, :count]


@cache
def _lapack(kind: str) -> list[Any]:
    return [scipy.linalg.get_lapack_funcs(name, dtype=np.dtype(kind)) for name in ("geqrf", "orgqr")]


def exp_in_place(array: Array) -> Array:
    """Return exp(array), reusing its memory where the library can."""
    if is_numpy(array):
        with np.errstate(over="ignore"):
            return np.exp(array, out=array)
    if array_api_compat.is_torch_array(array):
        return array.exp_()
    return namespace(array).exp(array)


def random_generator(random_state: RandomState) -> np.random.Generator:
    """Return the one random generator of a run, made from a seed, a generator (also numpy's old one) or None."""
    if isinstance(random_state, np.random.RandomState):
        random_state = int(random_state.randint(2**31 - 1))
    try:
        return np.random.default_rng(random_state)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"random_state: must be None, a whole number or a numpy Generator; found {random_state!r}."
        ) from error
