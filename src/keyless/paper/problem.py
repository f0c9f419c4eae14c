"""The problem the paper's solvers work on: one matrix, parts of which are in unknown order.

An `estimate` is a full matrix. Some of its entries are observed in a known place (the `reference`); the others come
from `blocks`, whose rows stand in unknown order. A problem knows how to split an estimate into the part that belongs
to the reference and one set of rows per block, and how to join them again. Everything else (costs, gradients,
placing) is the same for every kind of problem:

* `Problem`: tables side by side, the rows of all but the first in unknown order;
* `PatchProblem`: one matrix, some of whose equal-sized patches have been shuffled.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from keyless.arrays import Array, array_like, as_matrix, as_permutation, namespace
from keyless.block import Block
from keyless.errors import InputError
from keyless.tables.table_names import name_reference

__all__ = ["CorrespondenceProblem", "PatchProblem", "Problem", "pair_cost", "pair_gradient", "to_block", "to_problem"]


def _whole_numbers(values: Any, *, name: str, size: int | None = None) -> tuple[int, ...]:
    try:
        numbers = tuple(operator.index(value) for value in values)
    except TypeError as error:
        raise InputError(f"{name}: must be whole numbers; found {values!r}.") from error
    if size is not None and len(numbers) != size:
        raise InputError(f"{name}: must be {size} whole numbers; found {len(numbers)}.")
    return numbers


def pair_cost(rows: Array, block: Block) -> Array:
    """Return cost[i, j] = Σ_{k observed in row j of the block} (rows[i, k] − values[j, k])².

    Args:
        rows: n × k estimates.
        block: the m observed rows they are compared with.
    """
    xp = namespace(rows)
    cost = xp.concat([rows * rows, -2 * rows], axis=1) @ block._mask_over_values
    cost += block._squares[None, :]
    return cost


def pair_gradient(rows: Array, coupling: Array, block: Block) -> Array:
    """Return the gradient of ⟨coupling, pair_cost(rows, block)⟩ with respect to the rows.

    That is 2·(rows ∘ (coupling·mask) − coupling·(mask ∘ values)).
    """
    products = coupling @ block._mask_and_values
    width = rows.shape[1]
    return 2 * (rows * products[:, :width] - products[:, width:])


class CorrespondenceProblem(ABC):
    """What a solver needs to know: where things are, and how an estimate falls into parts.

    Attributes:
        reference: the entries whose place is known, in the layout of the first part of `split`.
        blocks: one table of rows in unknown order per correspondence sought.
    """

    reference: Block
    blocks: tuple[Block, ...]

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]:
        """Shape of an estimate."""

    @abstractmethod
    def split(self, estimate: Array) -> tuple[Array, tuple[Array, ...]]:
        """Return the reference part of an estimate, and for each block the rows it explains."""

    @abstractmethod
    def join(self, reference: Array, parts: Sequence[Array]) -> Array:
        """Undo `split`."""

    def costs(self, estimate: Array) -> tuple[Array, ...]:
        """Return one pairing cost per block; `cost[i, j]` is the price of putting its row j at place i."""
        _, parts = self.split(estimate)
        return tuple(pair_cost(part, block) for part, block in zip(parts, self.blocks, strict=True))

    def gradient(self, estimate: Array, couplings: Sequence[Array]) -> Array:
        """Return the gradient of ‖reference misfit‖² + Σ_l ⟨coupling_l, cost_l⟩ with respect to the estimate."""
        reference, parts = self.split(estimate)
        return self.join(
            2 * self.reference_residual(reference),
            [pair_gradient(part, c, block) for part, c, block in zip(parts, couplings, self.blocks, strict=True)],
        )

    def reference_residual(self, reference: Array) -> Array:
        """Return P_Ω(reference part − reference values)."""
        difference = reference - self.reference.values
        xp = namespace(difference)
        return xp.where(self.reference.mask, difference, xp.zeros_like(difference))

    def refilled(self, reference: Array) -> Array:
        """Return the reference part with the observed values put in."""
        return namespace(reference).where(self.reference.mask, self.reference.values, reference)

    def reference_misfit(self, reference: Array) -> float:
        """Return ‖P_Ω(reference part − reference values)‖²."""
        residual = self.reference_residual(reference)
        return float(namespace(residual).sum(residual * residual))

    def place(self, permutations: Sequence[Any]) -> Block:
        """Return the observed matrix with each block's rows put where its permutation says (−1: nothing there)."""
        if len(permutations) != len(self.blocks):
            raise InputError(f"permutations: must be one per table, {len(self.blocks)}; found {len(permutations)}.")
        xp = namespace(self.reference.values)
        values, masks = [], []
        for permutation, block, places in zip(permutations, self.blocks, self.places, strict=True):
            indices = as_permutation(permutation, name=f"{block.name}, permutation", columns=block.shape[0])
            if indices.shape != (places,):
                raise InputError(f"{block.name}, permutation: must hold {places} numbers; found {indices.size}.")
            take = array_like(np.maximum(indices, 0), block.values, dtype=xp.int64)
            found = array_like(indices >= 0, block.values, dtype=xp.bool)[:, None]
            mask = xp.take(block.mask, take, axis=0) & found
            masks.append(mask)
            rows = xp.take(block.values, take, axis=0)
            values.append(xp.where(mask, rows, xp.zeros_like(rows)))
        return Block(
            self.join(self.reference.values, values), self.join(self.reference.mask, masks), name="aligned tables"
        )

    @property
    @abstractmethod
    def places(self) -> tuple[int, ...]:
        """For each block, how many places its rows compete for."""

    def require_square(self) -> None:
        """Raise `InputError` unless every block has exactly one row per place."""
        for block, places in zip(self.blocks, self.places, strict=True):
            if block.shape[0] != places:
                raise InputError(
                    f"{block.name}: must have as many rows as the reference has, {places}; found {block.shape[0]}. "
                    "This solver pairs every row; drop or add rows first."
                )


@dataclass(frozen=True, eq=False)
class Problem(CorrespondenceProblem):
    """Tables side by side: the reference, and blocks whose rows are in unknown order.

    Example:
        >>> import numpy as np
        >>> table = np.array([[1.0, 2.0], [3.0, 4.0]])
        >>> problem = Problem(Block(table), (Block(table[::-1]),))
        >>> problem.place([[1, 0]]).values
        array([[1., 2., 1., 2.],
               [3., 4., 3., 4.]])
    """

    reference: Block
    blocks: tuple[Block, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "blocks", tuple(self.blocks))
        if not self.blocks:
            raise InputError("blocks: must hold at least one table besides the reference; found none.")
        wanted = self.reference.values
        for block in self.blocks:
            if type(block.values) is not type(wanted) or block.values.dtype != wanted.dtype:
                raise InputError(
                    f"{block.name}: must be of the same kind as {self.reference.name} "
                    f"({type(wanted).__name__}, {wanted.dtype}); found {type(block.values).__name__}, "
                    f"{block.values.dtype}. Convert one of them."
                )

    @property
    def shape(self) -> tuple[int, int]:
        """Rows of the reference, and columns of all tables together."""
        return self.reference.shape[0], self.reference.shape[1] + sum(block.shape[1] for block in self.blocks)

    @property
    def places(self) -> tuple[int, ...]:
        """Every table's rows compete for the rows of the reference."""
        return (self.reference.shape[0],) * len(self.blocks)

    def split(self, estimate: Array) -> tuple[Array, tuple[Array, ...]]:
        """Cut the estimate into the columns of each table."""
        reference, *parts = [estimate[:, left:right] for left, right in self._edges]
        return reference, tuple(parts)

    @cached_property
    def _edges(self) -> list[tuple[int, int]]:
        widths = [table.shape[1] for table in (self.reference, *self.blocks)]
        return list(pairwise(accumulate(widths, initial=0)))

    def join(self, reference: Array, parts: Sequence[Array]) -> Array:
        """Put the columns side by side."""
        return namespace(reference).concat([reference, *parts], axis=1)


@dataclass(frozen=True, eq=False)
class PatchProblem(CorrespondenceProblem):
    """One matrix, some of whose equal-sized patches have been shuffled among their places.

    Patches are numbered row by row over the grid. `permutation[i] = j` says that what now stands at the j-th shuffled
    place belongs to the i-th shuffled place.

    Attributes:
        image: the matrix as observed, shuffled patches included.
        patch_shape: height and width of a patch; they must divide the matrix.
        shuffled: numbers of the patches that were shuffled.
    """

    image: Block
    patch_shape: tuple[int, int]
    shuffled: tuple[int, ...]
    reference: Block = field(init=False)
    blocks: tuple[Block, ...] = field(init=False)
    _cells: Array = field(init=False, repr=False)
    _source: Array = field(init=False, repr=False)

    def __post_init__(self) -> None:
        height, width = self.image.shape
        patch_height, patch_width = _whole_numbers(self.patch_shape, name="patch_shape", size=2)
        if patch_height < 1 or patch_width < 1 or height % patch_height or width % patch_width:
            raise InputError(
                f"patch_shape: must divide the matrix, {height} × {width}; found {patch_height} × {patch_width}."
            )
        grid = (height // patch_height) * (width // patch_width)
        shuffled = _whole_numbers(self.shuffled, name="shuffled")
        if not shuffled or len(set(shuffled)) != len(shuffled) or not all(0 <= number < grid for number in shuffled):
            raise InputError(
                f"shuffled: must be different patch numbers from 0 to {grid - 1}, at least one; found {shuffled}."
            )
        numbers = np.arange(height * width).reshape(height, width)
        patches = (
            numbers.reshape(height // patch_height, patch_height, width // patch_width, patch_width)
            .swapaxes(1, 2)
            .reshape(grid, patch_height * patch_width)
        )
        cells = patches[list(shuffled)]
        # Joining is a gather from [all pixels of the reference part, all pixels of the patches].
        source = numbers.ravel().copy()
        source[cells.ravel()] = numbers.size + np.arange(cells.size)
        known = np.ones(height * width, dtype=bool)
        known[cells.ravel()] = False

        values, mask = self.image.values, self.image.mask
        xp = namespace(values)
        as_index = {"dtype": xp.int64}
        set_field = object.__setattr__
        set_field(self, "patch_shape", (patch_height, patch_width))
        set_field(self, "shuffled", shuffled)
        set_field(self, "_cells", array_like(cells.ravel(), values, **as_index))
        set_field(self, "_source", array_like(source, values, **as_index))
        known_mask = mask & array_like(known.reshape(height, width), values, dtype=xp.bool)
        set_field(self, "reference", Block(values, known_mask, name=self.image.name))
        set_field(self, "blocks", (Block(self._patches(values), self._patches(mask), name="patches"),))

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the matrix."""
        return self.image.shape

    @property
    def places(self) -> tuple[int, ...]:
        """The shuffled patches compete for the shuffled places."""
        return (len(self.shuffled),)

    def split(self, estimate: Array) -> tuple[Array, tuple[Array, ...]]:
        """Return the whole matrix, and the shuffled places as one row of pixels each."""
        return estimate, (self._patches(estimate),)

    def join(self, reference: Array, parts: Sequence[Array]) -> Array:
        """Put the patches over the matrix."""
        xp = namespace(reference)
        pixels = xp.concat([xp.reshape(reference, (-1,)), xp.reshape(parts[0], (-1,))])
        return xp.reshape(xp.take(pixels, self._source, axis=0), self.shape)

    def _patches(self, matrix: Array) -> Array:
        xp = namespace(matrix)
        return xp.reshape(xp.take(xp.reshape(matrix, (-1,)), self._cells, axis=0), (len(self.shuffled), -1))


def to_block(table: Any, *, name: str = "table") -> Block:
    """Return a table of numbers as a `Block`: NaN becomes a False in the mask.

    Example:
        >>> to_block([[1.0, float("nan")]]).mask
        array([[ True, False]])
    """
    values = as_matrix(table, name=name, allow_missing=True)
    return Block(values, ~namespace(values).isnan(values), name=name)


def to_problem(tables: Mapping[str, Any] | Iterable[Any], *, reference: str | None = None) -> Problem:
    """Return tables of numbers as a `Problem`.

    Args:
        tables: at least two tables, by name or in order; NaN is missing.
        reference: name of the table whose row order the answer is given in; the first unless given.

    Example:
        >>> problem = to_problem({"clinic": [[1.0, 2.0], [3.0, 4.0]], "lab": [[5.0], [6.0]]})
        >>> problem.shape
        (2, 3)
    """
    tables, reference = name_reference(tables, reference)
    blocks = {name: to_block(table, name=name) for name, table in tables.items()}
    like = blocks[reference].values
    for name, block in blocks.items():
        kind, wanted = type(block.values), type(like)
        if kind is not wanted:
            raise InputError(
                f"{name}: must be of the same kind as {reference}, {wanted.__module__}.{wanted.__name__}; "
                f"found {kind.__module__}.{kind.__name__}. Convert one of them."
            )
    xp = namespace(like)
    common = xp.result_type(*(block.values.dtype for block in blocks.values()))
    for name, block in blocks.items():
        if block.values.dtype != common:
            blocks[name] = Block(array_like(block.values, like, dtype=common), block.mask, name=name)
    others = tuple(block for name, block in blocks.items() if name != reference)
    return Problem(blocks[reference], others)
