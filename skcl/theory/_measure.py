"""The measure that all exact quantities refer to: rows of views, and their weights."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import isqrt
from numbers import Real
from typing import Any

import numpy as np

from skcl._weights import check_sample_weight

# How far the norm of a view may be from 1: the rounding of half precision.
_TOLERANCE = 2e-3

# Entries of one block of the matrix of all pairs: 2 MiB.
_BLOCK_SIZE = 2**18


@dataclass(frozen=True)
class Measure:
    """Views of rows. A row has its weight, and its views share it equally."""

    anchors: np.ndarray  # (N, d), the views of all rows, row after row
    counts: np.ndarray  # (n,), views of each row
    weight: np.ndarray | None = None  # (n,), of mean 1; None weighs rows equally
    rounding: float = 2.0**-23  # of the views, as they were given

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
        """Return the measure of some rows (m,), an index, without weights."""
        if self.n_views is not None:
            views = self.anchors.reshape(self.n_rows, self.n_views, -1)[rows]
            return Measure(views.reshape(-1, views.shape[2]), self.counts[rows])
        ends = np.cumsum(self.counts)
        views = [self.anchors[ends[i] - self.counts[i] : ends[i]] for i in rows]
        return Measure(np.concatenate(views), self.counts[rows])


def read_views(views: Any, sample_weight: Any = None, *labels: Any) -> tuple:
    """Return the measure of views, and the labels, of the rows that have a weight.

    Views are an array (n, V, d), or a sequence of n arrays (V_i, d).
    """
    views = _as_views(views)
    rows, weight = check_sample_weight(sample_weight, len(views))
    labels = [_take_labels(y, rows, len(views)) for y in labels]
    measure = _flatten(views, rows, weight)
    _check_unit(measure)
    return measure, *labels


def check_temperature(temperature: Any) -> float:
    """Return the temperature, or raise."""
    if not (isinstance(temperature, Real) and 0 < temperature < np.inf):
        raise ValueError(
            f"temperature={temperature!r}: a finite number above 0 is allowed."
        )
    return float(temperature)


def read_classes(y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the classes, sorted, and the code of each row."""
    if y.dtype.kind in "iuf":
        check_codes(y)
    return np.unique(y, return_inverse=True)


def check_codes(y: np.ndarray) -> np.ndarray:
    """Return the codes of classes, or raise."""
    y = np.asarray(y)
    if y.min() < 0:
        raise ValueError(
            f"y holds {y.min()}: classes are 0 … K - 1. Leave unlabelled rows out."
        )
    return y


def log_mean_exp(measure: Measure, temperature: float) -> np.ndarray:
    """Return log E_b exp(z_a·z_b / t) over the measure, for each of its views a, (N,).

    Every view is one of its own negatives, so that the largest exponent, c, is known
    beforehand. The matrix is symmetric: each tile serves its rows and its columns.
    """
    z, mass = measure.anchors / np.sqrt(temperature), measure.mass
    c = np.einsum("ij,ij->i", z, z).max()
    ones = np.ones((len(z), 1))
    left, right = np.hstack([z, ones]), np.hstack([z, -c * ones])
    total, tile = np.zeros(len(z)), isqrt(_BLOCK_SIZE)
    blocks = [slice(start, start + tile) for start in range(0, len(z), tile)]
    for i, rows in enumerate(blocks):
        for columns in blocks[i:]:
            kernel = left[rows] @ right[columns].T  # (z_a·z_b) / t - c
            np.exp(kernel, out=kernel)
            total[rows] += _sum(kernel, mass, columns)
            if columns != rows:
                total[columns] += _sum(kernel.T, mass, rows)
    return c + np.log(total / len(z))


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
    if not isinstance(views, np.ndarray):
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
        counts = np.full(len(views), views.shape[1])
        anchors = views.reshape(-1, views.shape[2])
    else:
        views = views if isinstance(rows, slice) else [views[i] for i in rows]
        counts = np.array([len(row) for row in views])
        anchors = np.concatenate(views)
    if not anchors.size or not counts.all():
        raise ValueError(
            "views has no rows, no dimensions, or a row without a view: at least one "
            "of each is needed."
        )
    is_float = np.issubdtype(anchors.dtype, np.floating)
    rounding = max(np.finfo(anchors.dtype).eps if is_float else 0, Measure.rounding)
    return Measure(np.asarray(anchors, dtype=np.float64), counts, weight, rounding)


def _check_unit(measure: Measure) -> None:
    norms = np.sqrt(np.einsum("ij,ij->i", measure.anchors, measure.anchors))
    refused = ~(np.abs(norms - 1) <= _TOLERANCE)
    if refused.any():
        first = int(np.argmax(refused))
        row = int(measure.row[first])
        raise ValueError(
            f"views has a vector of norm {norms[first]} in row {row}: unit vectors are "
            "allowed."
        )


def _take_labels(y: Any, rows: slice | np.ndarray, n: int) -> np.ndarray | None:
    if y is None:
        return None
    y = np.asarray(y)
    if y.shape != (n,):
        raise ValueError(f"y is of shape {y.shape}: ({n},), one a row, is allowed.")
    return y[rows]
