"""One table of numbers: values, and which of them were observed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from keyless.arrays import Array, array_like, as_matrix, batches, is_array, is_numpy, namespace
from keyless.errors import InputError

__all__ = ["Block"]


_CELLS_AT_A_TIME = 2**22


@dataclass(frozen=True, eq=False)
class Block:
    """A table: values, and which of them were observed.

    Attributes:
        values: n × k numbers; what stands at unobserved places is ignored and stored as 0.
        mask: True where observed. None: everything is.
        name: what to call the table in messages and results.
        columns: one name per column.
        row_ids: one label per row; a `range` stays one, so that numbers of many rows take no memory.

    A numpy array that cannot be written to is used where it is, and need not fit in memory twice: that is how large
    tables and files mapped into memory are given. Its mask is then used where it is, too, and may be one True for all
    entries, `numpy.broadcast_to(True, shape)`.
    """

    values: Array
    mask: Array = None
    name: str = "table"
    columns: tuple[str, ...] | None = None
    row_ids: Sequence[Any] | None = None

    def __repr__(self) -> str:
        rows, columns = self.shape
        return f"Block {self.name!r}: {rows:,} × {columns:,}"

    def __post_init__(self) -> None:
        values, mask = self.values, self.mask
        values = as_matrix(values, name=self.name, allow_infinite=mask is not None, allow_missing=mask is not None)
        xp = namespace(values)
        if mask is None:
            mask = xp.ones(values.shape, dtype=xp.bool, device=values.device)
        else:
            mask = array_like(_checked_mask(mask, self.name), values, dtype=xp.bool)
            if mask.shape != values.shape:
                raise InputError(
                    f"{self.name}, mask: must have the shape of the values, {tuple(values.shape)}; "
                    f"found {tuple(mask.shape)}."
                )
            if not _is_settled(values, mask):
                values = xp.where(mask, values, xp.zeros_like(values))
            as_matrix(values, name=self.name)
        for attribute, size in (("columns", values.shape[1]), ("row_ids", values.shape[0])):
            labels = getattr(self, attribute)
            if labels is not None:
                labels = labels if isinstance(labels, range) else tuple(labels)
                object.__setattr__(self, attribute, labels)
                if len(labels) != size:
                    raise InputError(f"{self.name}, {attribute}: must hold {size} labels; found {len(labels)}.")
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "mask", mask)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return int(self.values.shape[0]), int(self.values.shape[1])

    @cached_property
    def _mask_and_values(self) -> Array:
        """[mask, values] side by side: costs and gradients then take one matrix product each."""
        xp = namespace(self.values)
        return xp.concat([xp.astype(self.mask, self.values.dtype), self.values], axis=1)

    @cached_property
    def _mask_over_values(self) -> Array:
        """The same, transposed in memory, too: the product is then twice as fast at 100 rows."""
        xp = namespace(self.values)
        return xp.concat([xp.astype(self.mask, self.values.dtype).T, self.values.T], axis=0)

    @cached_property
    def _squares(self) -> Array:
        return namespace(self.values).sum(self.values * self.values, axis=1)


def _is_settled(values: Array, mask: Array) -> bool:
    """Tell whether values can be used where they are: nobody may write to them, and what is not observed is 0."""
    if not is_numpy(values) or values.flags.writeable:
        return False
    if not any(mask.strides):
        return bool(mask[:1, :1].all())
    # Some rows at a time: what is compared is as large as the values.
    parts = batches(values.shape[0], _CELLS_AT_A_TIME // values.shape[1])
    return not any(np.any(values[part], where=~mask[part]) for part in parts)


def _checked_mask(mask: Any, name: str) -> Array:
    if not is_array(mask):
        try:
            mask = np.asarray(mask)
        except ValueError as error:
            raise InputError(f"{name}, mask: must be an array; its rows have different lengths.") from error
    if not namespace(mask).isdtype(mask.dtype, "bool"):
        raise InputError(f"{name}, mask: must hold True and False; found dtype {mask.dtype}. Write `mask != 0`.")
    return mask
