"""The internal discrepancy: class centers, and how far rows lie from them."""

from typing import Any

import numpy as np
from scipy.spatial.distance import cdist

from skcl._weights import check_sample_weight
from skcl.theory._measure import SINGLE, Measure, check_codes


def class_centers(means, y, n_classes=None, *, sample_weight=None):
    """Return the mean of each class, c_k = Σ_{i in k} w_i m_i / Σ_{i in k} w_i.

    Parameters
    ----------
    means : array of shape (n, d)
        Positive means.
    y : array of int, of shape (n,)
        Classes, 0 … K - 1.
    n_classes : int, default=None
        K; None is the largest class plus one.
    sample_weight : array of shape (n,), default=None
        w, not negative; None weighs the rows equally.

    Returns
    -------
    array of shape (K, d)
        The centers; NaN for a class without rows, or without weight.

    Raises
    ------
    ValueError
        If y holds a negative code, or sample_weight is refused.

    Examples
    --------
    >>> from skcl.theory import class_centers
    >>> class_centers([[0.0], [2.0], [5.0]], [0, 0, 1])
    array([[1.],
           [5.]])
    """
    n_classes = int(np.max(y)) + 1 if n_classes is None else n_classes
    weight, means, y = rows_of_weight(sample_weight, means, y)
    means, y = np.asarray(means, dtype=np.float64), check_codes(y)
    centers = np.full((n_classes, means.shape[1]), np.nan)
    for k in np.unique(y):
        of_k = y == k
        centers[k] = np.average(
            means[of_k], axis=0, weights=None if weight is None else weight[of_k]
        )
    return centers


def internal_discrepancy(means, centers, y):
    """Return ‖m_i - c_{y_i}‖, the distance of each row's positive mean to its center.

    Parameters
    ----------
    means : array of shape (n, d)
        Positive means.
    centers : array of shape (K, d)
        Class or cluster centers.
    y : array of int, of shape (n,)
        The center of each row.

    Returns
    -------
    array of shape (n,)
        The discrepancies; between 0 and 2 for means of unit vectors.

    Raises
    ------
    ValueError
        If y holds a negative code.

    Examples
    --------
    >>> from skcl.theory import internal_discrepancy
    >>> internal_discrepancy([[0.0], [2.0], [5.0]], [[1.0], [5.0]], [0, 0, 1])
    array([1., 1., 0.])
    """
    means, y = np.asarray(means, dtype=np.float64), check_codes(y)
    return np.linalg.norm(means - check_centers(centers, y, means.shape[1])[y], axis=1)


def check_centers(centers: Any, y: np.ndarray, d: int) -> np.ndarray:
    """Return the centers (K, d), finite for each class of y, or raise."""
    centers = np.asarray(centers, dtype=np.float64)
    if centers.ndim != 2 or centers.shape[1] != d or len(centers) <= y.max():
        raise ValueError(
            f"centers is of shape {centers.shape}: (n_classes, {d}), with n_classes "
            f"above the largest code, {y.max()}, is allowed."
        )
    return centers


def relative_discrepancy(means, centers, y, *, sample_weight=None, rounding=SINGLE):
    """Return the squared discrepancy as a share of the variance of the means.

    Δ₂² / mean_i ‖m_i - m̄‖², m̄ the mean of the m_i, all means weighted. With
    the classes' own means as centers it lies in [0, 1]. It is 1 for a constant
    embedding, whose plain discrepancy of 0 looks perfect.

    Parameters
    ----------
    means : array of shape (n, d)
        Positive means.
    centers : array of shape (K, d)
        Class or cluster centers.
    y : array of int, of shape (n,)
        The center of each row.
    sample_weight : array of shape (n,), default=None
        w, not negative; None weighs the rows equally.
    rounding : float, default=2**-23
        Relative rounding error of the means, within which they count as constant; the
        default is that of float32.

    Returns
    -------
    float
        The share; lower is better.

    Raises
    ------
    ValueError
        If y holds a negative code, or sample_weight is refused.

    Examples
    --------
    >>> from skcl.theory import relative_discrepancy
    >>> relative_discrepancy([[1.0], [1.0]], [[1.0]], [0, 0])
    1.0
    """
    weight, means, y = rows_of_weight(sample_weight, means, y)
    means = np.asarray(means, dtype=np.float64)
    # Of equal rows, the differences to one are 0; those to their mean need not be.
    moved = means - means[0]
    moved -= np.average(moved, axis=0, weights=weight)
    variance = np.average((moved**2).sum(axis=1), weights=weight)
    if variance <= rounding**2 * np.average((means**2).sum(axis=1), weights=weight):
        return 1.0
    squared = internal_discrepancy(means, centers, y) ** 2
    return float(np.average(squared, weights=weight) / variance)


def terms_of_representation(
    means: np.ndarray, y: np.ndarray, sample_weight: Any, rounding: float
) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """Return what means alone tell, over all rows and by class, as `DiscrepancyBound`.

    The means (n, d) have any scale; each of the classes y, 0 … K - 1, has a row.
    """
    weight, means, y = rows_of_weight(sample_weight, means, y)
    counts = np.ones(len(means), dtype=int)
    measure = Measure(means.astype(np.float64), counts, weight, rounding)
    centers = class_centers(measure.means, y, sample_weight=weight)
    return summarize(measure, y, centers, {})


def summarize(
    measure: Measure, y: np.ndarray, centers: np.ndarray, others: dict[str, np.ndarray]
) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """Return the discrepancy's terms, and means of other terms of rows (n,).

    First over all rows, then of each class.
    """
    discrepancy = internal_discrepancy(measure.means, centers, y)
    rows = {"discrepancy": discrepancy, "squared_discrepancy": discrepancy**2} | others
    overall = {name: measure.average(values) for name, values in rows.items()}
    overall["relative_discrepancy"] = relative_to_classes(measure, y, centers)
    per_class = {
        name: mean_of_classes(values, measure, y) for name, values in rows.items()
    }
    return overall, per_class | terms_of_classes(measure, y, centers)


def relative_to_classes(measure: Measure, y: np.ndarray, centers: np.ndarray) -> float:
    """Return the relative discrepancy to the classes' own centers, at most 1."""
    if len(centers) == 1:
        return 1.0
    relative = relative_discrepancy(
        measure.means,
        centers,
        y,
        sample_weight=measure.weight,
        rounding=measure.rounding,
    )
    return min(relative, 1.0)


def terms_of_classes(
    measure: Measure, y: np.ndarray, centers: np.ndarray
) -> dict[str, np.ndarray]:
    """Return what is no mean over rows, of each class, (K,)."""
    return {
        "n_rows": np.bincount(y),
        "prior": np.bincount(y, measure.weight) / len(y),
        "relative_discrepancy": relative_of_classes(measure, y, centers),
        "collapsed": collapsed_classes(measure, y, centers),
    }


def unbiased_of_classes(
    measure: Measure, y: np.ndarray, centers: np.ndarray
) -> np.ndarray:
    """Return an unbiased estimate of each class's squared discrepancy, (K,).

    The plain one counts the noise of a positive mean of few views, and leaves out that
    of a center of few rows. One-way analysis of variance mends both:
    Σ w_i ‖m_i - c‖² less Σ u_i σ_i² / V_i, over Σ u_i, with u_i = w_i (1 - w_i / W), W
    the class's weight and σ_i² the variance of the row's views, with V_i - 1 as
    divisor. It may be negative; NaN for a class of one row, or with a row of one view.
    """
    K, w = len(centers), measure.filled_weight
    squared = internal_discrepancy(measure.means, centers, y) ** 2
    variance = 1 - (measure.means**2).sum(axis=1)  # of unit vectors
    with np.errstate(divide="ignore", invalid="ignore"):
        noise = variance / (measure.counts - 1)  # σ_i² / V_i
        u = w * (1 - w / np.bincount(y, w, K)[y])
        total = np.bincount(y, w * squared, K) - np.bincount(y, u * noise, K)
        estimate = total / np.bincount(y, u, K)
    undefined = np.bincount(y, measure.counts < 2, K) > 0
    estimate[undefined | (np.bincount(y, minlength=K) < 2)] = np.nan
    return estimate


def relative_of_classes(
    measure: Measure, y: np.ndarray, centers: np.ndarray
) -> np.ndarray:
    """Return each class's relative discrepancy, (K,), between 0 and 1.

    Its squared discrepancy as a share of its rows' mean squared distance to the nearest
    other center: 1 where they lie as near to that one as to their own.
    """
    own = internal_discrepancy(measure.means, centers, y) ** 2
    own = mean_of_classes(own, measure, y)
    nearest = _squared_between(centers).min(axis=1)
    other = own + np.where(np.isinf(nearest), 0.0, nearest)
    apart = other > _resolution(measure)
    return np.where(apart, own / np.where(apart, other, 1.0), 1.0)


def collapsed_classes(
    measure: Measure, y: np.ndarray, centers: np.ndarray
) -> np.ndarray:
    """Return which classes' centers cannot be told from another one's, (K,) of bool.

    The difference of two centers' estimates has the covariance C = C_k + C_j, the
    classes' covariances over their numbers of rows, or what unequal weights leave of
    these. Were the centers equal, its square would have the mean tr C and, for normal
    means, the deviation √(2 tr C²). A class counts as collapsed up to two deviations
    above that mean.
    """
    of_centers = _covariances_of_centers(measure, y, centers)  # (K, d, d)
    traces = np.trace(of_centers, axis1=1, axis2=2)
    flat = of_centers.reshape(len(centers), -1)
    products = flat @ flat.T  # tr(C_k C_j)
    squares = np.diag(products)
    of_square = squares[:, None] + squares + 2 * products  # tr((C_k + C_j)²)
    largest = traces[:, None] + traces + 2 * np.sqrt(2 * of_square)
    return (_squared_between(centers) <= largest + _resolution(measure)).any(axis=1)


def _covariances_of_centers(
    measure: Measure, y: np.ndarray, centers: np.ndarray
) -> np.ndarray:
    """Return the covariance of each class's mean, as an estimate, (K, d, d).

    A class of one row has the covariance that the classes have together. Where all
    have a single row nothing is known, and it is 0.
    """
    K, w = len(centers), measure.filled_weight
    moved = (measure.means - centers[y]) * np.sqrt(w)[:, None]
    scatter = np.stack([moved[y == k].T @ moved[y == k] for k in range(K)])
    weight = np.bincount(y, w, K)
    inverse_n = np.bincount(y, w**2, K) / weight**2
    free = weight * (1 - inverse_n)  # n - 1, of equal weights
    single = np.bincount(y, minlength=K) < 2
    free[single] = 0
    pooled = scatter.sum(axis=0) / free.sum() if free.any() else 0.0
    scatter[single], free[single] = pooled, 1
    return scatter * (inverse_n / free)[:, None, None]


def mean_of_classes(values: np.ndarray, measure: Measure, y: np.ndarray) -> np.ndarray:
    """Return the weighted mean of values (n,) over the rows of each class, (K,)."""
    w = measure.filled_weight
    return np.bincount(y, w * values) / np.bincount(y, w)


def _resolution(measure: Measure) -> float:
    """Return the square of a distance that may be rounding."""
    return measure.rounding**2 * measure.average((measure.means**2).sum(axis=1))


def _squared_between(centers: np.ndarray) -> np.ndarray:
    """Return the squared distances between centers, (K, K), infinite to themselves."""
    squared = cdist(centers, centers, "sqeuclidean")
    np.fill_diagonal(squared, np.inf)
    return squared


def rows_of_weight(sample_weight: Any, *arrays: Any) -> tuple:
    """Return the weights, of mean 1, and the arrays, without the rows of weight 0."""
    if sample_weight is None:
        return None, *arrays
    rows, weight = check_sample_weight(sample_weight, len(arrays[0]))
    return weight, *(np.asarray(array)[rows] for array in arrays)
