"""The weights of rows: which rows count, and how much."""

from numbers import Number
from typing import Any

import numpy as np
from sklearn.utils import check_array

# Weights reach the network in float32, where smaller ones would be lost.
SMALLEST = 1e-30


def weigh(sample_weight: Any, n: int) -> tuple[slice | np.ndarray, np.ndarray | None]:
    """Return the rows that count, and their weights.

    A row of weight 0 counts as absent, and equal weights are no weights.

    Parameters
    ----------
    sample_weight : array-like of shape (n,) or None
        Weights, not negative.
    n : int
        Number of rows.

    Returns
    -------
    rows : slice or array of int
        Index of the rows with a weight; a slice if these are all rows.
    weight : array of float64 or None
        Their weights, of mean 1; None if they are all equal.

    Raises
    ------
    ValueError
        If a weight is negative, missing, infinite or vanishes beside the largest, all
        are zero, or their number is not n.
    """
    if sample_weight is None:
        return slice(None), None
    if isinstance(sample_weight, Number):
        sample_weight = np.full(n, sample_weight)
    weight = check_array(
        sample_weight,
        ensure_2d=False,
        dtype=np.float64,
        copy=True,
        input_name="sample_weight",
    )
    if weight.shape != (n,):
        raise ValueError(
            f"sample_weight is of shape {weight.shape}; ({n},), one a row, is allowed."
        )
    if (weight < 0).any():
        row = int(np.argmax(weight < 0))
        raise ValueError(
            f"sample_weight[{row}] is {weight[row]}: Negative values in data passed to "
            "`sample_weight`; 0 and above are allowed."
        )
    rows = np.flatnonzero(weight)
    if not len(rows):
        raise ValueError("sample_weight is zero for all rows; one above 0 is needed.")
    lost = np.flatnonzero((weight > 0) & (weight < SMALLEST * weight.max()))
    if len(lost):
        raise ValueError(
            f"sample_weight[{lost[0]}] is {weight[lost[0]]}, which vanishes beside the "
            f"largest, {weight.max()}: at least {SMALLEST} of it is allowed, or 0 for "
            "a row to be left out."
        )
    weight = weight[rows]
    rows = slice(None) if len(rows) == n else rows
    if (weight == weight[0]).all():
        return rows, None
    weight /= weight.max()
    return rows, weight / weight.mean()
