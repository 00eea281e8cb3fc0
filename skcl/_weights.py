"""The weights of rows: which rows count, and how much."""

from typing import Any

import numpy as np

# Weights reach the network in float32, where smaller ones would be lost.
SMALLEST = 1e-30


def check_sample_weight(
    sample_weight: Any, n: int, name: str = "sample_weight"
) -> tuple[slice | np.ndarray, np.ndarray | None]:
    """Return the rows that count, and their weights.

    A row of weight 0 counts as absent, and equal weights are no weights.

    Parameters
    ----------
    sample_weight : array-like of shape (n,), float or None
        Weights, not negative; a single number is that of all rows.
    n : int
        Number of rows.
    name : str, default="sample_weight"
        What messages call them.

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
    weight = _as_array(sample_weight, n)
    refused = ~((weight >= 0) & (weight < np.inf))
    if refused.any():
        row = int(np.argmax(refused))
        raise ValueError(
            f"{name}[{row}] is {weight[row]}: finite numbers from 0 on are allowed."
        )
    rows = np.flatnonzero(weight)
    if not len(rows):
        raise ValueError(f"{name} is zero for all rows: one above 0 is needed.")
    relative = weight / weight.max()
    lost = np.flatnonzero((weight > 0) & (relative < SMALLEST))
    if len(lost):
        raise ValueError(
            f"{name}[{lost[0]}] is {weight[lost[0]]}, which vanishes beside the "
            f"largest, {weight.max()}: at least {SMALLEST} of it is allowed, or 0 for "
            "a row to be left out."
        )
    relative = relative[rows]
    rows = slice(None) if len(rows) == n else rows
    if (relative == 1).all():
        return rows, None
    return rows, relative / relative.mean()


def given_weights(
    sample_weight: Any, n: int, rows: slice | np.ndarray
) -> np.ndarray | None:
    """Return the weights of some rows as they were given; None for none."""
    return None if sample_weight is None else _as_array(sample_weight, n)[rows]


def _as_array(sample_weight: Any, n: int) -> np.ndarray:
    try:
        weight = np.asarray(sample_weight, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"sample_weight must hold numbers: {error}.") from error
    if weight.ndim == 0:
        weight = np.full(n, weight)
    if weight.shape != (n,):
        raise ValueError(
            f"sample_weight is of shape {weight.shape}: ({n},), one a row, is allowed."
        )
    return weight
