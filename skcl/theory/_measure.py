"""The measure that all exact quantities refer to: rows of views, and their weights."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from math import isqrt
from numbers import Real
from typing import Any

import numpy as np

from skcl._weights import check_sample_weight

# The relative rounding of single precision, in which most views come.
SINGLE = 2.0**-23

# How far the norm of a view may be from 1: the rounding of half precision.
_TOLERANCE = 2e-3

# Entries of one block of the matrix of all pairs: 2 MiB.
_BLOCK_SIZE = 2**18


@dataclass(frozen=True, eq=False)
class Measure:
    """Views of rows. A row has its weight, and its views share it equally."""

    anchors: np.ndarray  # (N, d), the views of all rows, row after row
    counts: np.ndarray  # (n,), views of each row
    weight: np.ndarray | None = None  # (n,), of mean 1; None weighs rows equally
    rounding: float = SINGLE  # of the views, as they were given

    @property
    def n_rows(self) -> int:
        """Return n."""
        return len(self.counts)

    @cached_property
    def n_views(self) -> int | None:
        """Return V; None if it differs between rows."""
        first = int(self.counts[0])
        return first if (self.counts == first).all() else None

    @property
    def filled_weight(self) -> np.ndarray:
        """Return the weight of each row, (n,), of mean 1, also where all are equal."""
        return np.ones(self.n_rows) if self.weight is None else self.weight

    @cached_property
    def row(self) -> np.ndarray:
        """Return the row of each view, (N,)."""
        return np.repeat(np.arange(self.n_rows), self.counts)

    @cached_property
    def mass(self) -> np.ndarray | None:
        """Return the weight of each view, (N,), of mean 1; None weighs them equally."""
        if self.n_views is None:
            weight = self.filled_weight / self.counts
            return np.repeat(weight * self.counts.mean(), self.counts)
        return None if self.weight is None else np.repeat(self.weight, self.n_views)

    @cached_property
    def means(self) -> np.ndarray:
        """Return the positive mean of each row, (n, d)."""
        return self.of_rows(self.anchors)

    def of_rows(self, values: np.ndarray) -> np.ndarray:
        """Return the mean over each row's views of values (N, ...), (n, ...)."""
        if self.n_views is not None:
            shape = (self.n_rows, self.n_views, *values.shape[1:])
            return values.reshape(shape).mean(axis=1)
        starts = np.cumsum(self.counts) - self.counts
        counts = self.counts.reshape(-1, *[1] * (values.ndim - 1))
        return np.add.reduceat(values, starts, axis=0) / counts

    def average(self, values: np.ndarray) -> float:
        """Return the mean over the rows of values (n,)."""
        return float(np.average(values, weights=self.weight))

    def take(self, rows: np.ndarray) -> "Measure":
        """Return the measure of some rows (m,), an index."""
        if self.n_views is not None:
            views = self.anchors.reshape(self.n_rows, self.n_views, -1)[rows]
            anchors = views.reshape(-1, views.shape[2])
        else:
            ends = np.cumsum(self.counts)
            views = [self.anchors[ends[i] - self.counts[i] : ends[i]] for i in rows]
            anchors = np.concatenate(views)
        weight = None
        if self.weight is not None:
            weight = self.weight[rows] / self.weight[rows].mean()
        return Measure(anchors, self.counts[rows], weight, self.rounding)


def read_views(views: Any, sample_weight: Any = None, y: Any = None) -> tuple:
    """Return the measure of views, and the labels, of the rows that have a weight.

    Views are an array (n, V, d), or a sequence of n arrays (V_i, d). Their rounding is
    removed: the measure's have the norm 1.
    """
    views = _as_views(views)
    rows, weight = check_sample_weight(sample_weight, len(views))
    y = _take_labels(y, rows, len(views))
    return _normalize(_flatten(views, rows, weight)), y


def check_temperature(temperature: Any) -> float:
    """Return the temperature, or raise."""
    if not (isinstance(temperature, Real) and 1e-300 <= temperature <= 1e300):
        raise ValueError(
            f"temperature={temperature!r}: a finite number above 0, from 1e-300 to "
            "1e300, is allowed."
        )
    return float(temperature)


def read_classes(y: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Return the classes, sorted, and the code of each row, or raise."""
    if y is None:
        raise ValueError("y=None: a class for each row is needed.")
    # Missing labels: None, and what differs from itself, as NaN and NaT do.
    if np.any(np.equal(y, None)) or np.any(y != y):
        raise ValueError("y holds a missing label. Leave unlabelled rows out.")
    try:
        classes, codes = np.unique(y, return_inverse=True)
    except TypeError as error:
        raise ValueError(
            f"y holds labels of several types: labels of one are allowed ({error}). "
            "Leave unlabelled rows out."
        ) from error
    if -1 in classes.tolist():
        raise ValueError("y holds -1, an unlabelled row. Leave unlabelled rows out.")
    return classes, codes


def check_codes(y: Any, unlabelled: bool = False) -> np.ndarray:
    """Return the codes of classes, int64, or raise; -1 among them if allowed."""
    given, y = np.asarray(y), np.asarray(y)
    if y.dtype.kind == "b" or (y.dtype.kind == "f" and (y == np.floor(y)).all()):
        y = y.astype(np.int64)
    if y.dtype.kind not in "iu":
        raise ValueError(
            f"y is of dtype {given.dtype}: whole numbers, the codes 0 … K - 1 of "
            "classes, are allowed."
        )
    if len(y) and y.min() < (-1 if unlabelled else 0):
        raise ValueError(
            f"y holds {y.min()}: classes are 0 … K - 1. Leave unlabelled rows out."
        )
    return y.astype(np.int64)


def log_mean_exp(measure: Measure, temperature: float) -> np.ndarray:
    """Return log E_b exp(z_a·z_b / t) over the measure, for each of its views a, (N,).

    Every view is one of its own negatives, so that the largest exponent, 1 / t, is
    known beforehand. The matrix is symmetric: each tile serves rows and columns.
    """
    z, mass = measure.anchors / np.sqrt(temperature), measure.mass
    ones = np.ones((len(z), 1))
    left, right = np.hstack([z, ones]), np.hstack([z, -ones / temperature])
    total, tile = np.zeros(len(z)), isqrt(_BLOCK_SIZE)
    blocks = [slice(start, start + tile) for start in range(0, len(z), tile)]
    for i, rows in enumerate(blocks):
        for columns in blocks[i:]:
            kernel = left[rows] @ right[columns].T  # (z_a·z_b - 1) / t
            np.minimum(kernel, 0, out=kernel)  # but for rounding
            if columns == rows:
                np.fill_diagonal(kernel, 0)
            np.exp(kernel, out=kernel)
            total[rows] += _sum(kernel, mass, columns)
            if columns != rows:
                total[columns] += _sum(kernel.T, mass, rows)
    return 1 / temperature + np.log(total / len(z))


def log_mean_exp_of(
    z: np.ndarray, measure: Measure, scale: float, row: np.ndarray | None = None
) -> np.ndarray:
    """Return log E_b exp(λ z·z_b) over the measure, for each of the views z, (N,).

    With the row of each, over the views of other rows. The largest exponent of each is
    taken out, so that nothing is lost at a large λ.
    """
    columns, n = measure.anchors, measure.n_rows
    mass = np.ones(len(columns)) if measure.mass is None else measure.mass
    log_total = np.empty(len(z))
    for block in blocks_of(z, len(columns)):
        similarity = z[block] @ columns.T
        if row is not None:
            similarity[row[block, None] == measure.row] = -np.inf
        largest = similarity.max(axis=1)
        similarity -= largest[:, None]
        similarity *= scale
        kernel = np.exp(similarity, out=similarity)
        log_total[block] = np.log(np.einsum("ij,j->i", kernel, mass)) + scale * largest
    share = 1 if row is None else (n - 1) / n
    return log_total - np.log(len(columns) * share)


def blocks_of(anchors: np.ndarray, n_columns: int) -> Iterator[slice]:
    """Yield slices of the anchors, whose products with so many vectors are a block."""
    step = max(_BLOCK_SIZE // n_columns, 1)
    for start in range(0, len(anchors), step):
        yield slice(start, start + step)


def second_moment(measure: Measure) -> np.ndarray:
    """Return E z_a z_aᵀ, (d, d)."""
    z, mass = measure.anchors, measure.mass
    return z.T @ (z if mass is None else z * mass[:, None]) / len(z)


def _sum(kernel: np.ndarray, mass: np.ndarray | None, columns: slice) -> np.ndarray:
    """Return the sums over columns, weighted, without a thread-dependent product."""
    if mass is None:
        return kernel.sum(axis=1)
    return np.einsum("ij,j->i", kernel, mass[columns])


def _as_views(views: Any) -> np.ndarray | list[np.ndarray]:
    """Return an array (n, V, d), or where the rows differ in V a list of them."""
    if not isinstance(views, np.ndarray) or views.dtype == object:
        views = [np.asarray(row) for row in views]
        if len({row.shape for row in views}) <= 1:
            views = np.array(views)
    is_array = isinstance(views, np.ndarray)
    shapes = [views.shape[1:]] if is_array else [row.shape for row in views]
    if {len(shape) for shape in shapes} != {2} or len({d for _, d in shapes}) > 1:
        raise ValueError(
            f"views has rows of shape {', '.join(map(str, sorted(set(shapes))))}: "
            "(n_views, n_dimensions) is allowed, with one number of dimensions."
        )
    return views


def _flatten(
    views: np.ndarray | list[np.ndarray],
    rows: slice | np.ndarray,
    weight: np.ndarray | None,
) -> Measure:
    if isinstance(views, np.ndarray):
        views = views[rows]
        if not views.size:
            raise ValueError(
                f"views is of shape {views.shape}: at least one row, view and "
                "dimension are needed."
            )
        counts = np.full(len(views), views.shape[1])
        anchors = views.reshape(-1, views.shape[2])
    else:
        views = views if isinstance(rows, slice) else [views[i] for i in rows]
        counts = np.array([len(row) for row in views])
        anchors = np.concatenate(views)
    if not counts.all():
        row = int(np.argmin(counts))
        raise ValueError(f"views has no view of row {row}: at least one is needed.")
    is_float = np.issubdtype(anchors.dtype, np.floating)
    rounding = max(np.finfo(anchors.dtype).eps if is_float else 0, SINGLE)
    return Measure(np.asarray(anchors, dtype=np.float64), counts, weight, rounding)


def _normalize(measure: Measure) -> Measure:
    """Return the measure with views of norm 1, or raise if they are not nearly so."""
    norms = np.linalg.norm(measure.anchors, axis=1)
    refused = ~(np.abs(norms - 1) <= _TOLERANCE)
    if refused.any():
        first = int(np.argmax(refused))
        row = int(measure.row[first])
        raise ValueError(
            f"views has a vector of norm {norms[first]} in row {row}: unit vectors are "
            "allowed."
        )
    return replace(measure, anchors=measure.anchors / norms[:, None])


def _take_labels(y: Any, rows: slice | np.ndarray, n: int) -> np.ndarray | None:
    if y is None:
        return None
    y = np.asarray(y)
    if y.shape != (n,):
        raise ValueError(f"y is of shape {y.shape}: ({n},), one a row, is allowed.")
    return y[rows]
