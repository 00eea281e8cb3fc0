"""The internal discrepancy: class centers, and how far rows lie from them."""

import numpy as np

from skcl._weights import check_sample_weight
from skcl.theory._measure import Measure, check_codes


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
    n_classes = np.max(y) + 1 if n_classes is None else n_classes
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
    means = np.asarray(means, dtype=np.float64)
    return np.linalg.norm(means - np.asarray(centers)[check_codes(y)], axis=1)


def relative_discrepancy(means, centers, y, rounding=2.0**-23, *, sample_weight=None):
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
    rounding : float, default=2**-23
        Relative rounding error of the means, within which they count as constant; the
        default is that of float32.
    sample_weight : array of shape (n,), default=None
        w, not negative; None weighs the rows equally.

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


def discrepancy_terms(means, y, *, sample_weight=None, rounding=2.0**-23):
    """Return what a representation tells of the discrepancy, over all and by class.

    Parameters
    ----------
    means : array of shape (n, d)
        Positive means, or a representation, each row of which is its own.
    y : array of int, of shape (n,)
        Classes, 0 … K - 1, each of which has a row.
    sample_weight : array of shape (n,), default=None
        w, not negative; None weighs the rows equally.
    rounding : float, default=2**-23
        Relative rounding error of the means.

    Returns
    -------
    overall : dict of str to float
        "discrepancy", "squared_discrepancy", "relative_discrepancy"; see
        :class:`DiscrepancyBound`.
    per_class : dict of str to array of shape (K,)
        The same of each class, with "n_rows", "prior" and "collapsed".

    Raises
    ------
    ValueError
        If y holds a negative code, or sample_weight is refused.

    Examples
    --------
    >>> from skcl.theory import discrepancy_terms
    >>> means = [[0.0], [2.0], [5.0], [5.0]]
    >>> overall, per_class = discrepancy_terms(means, [0, 0, 1, 1])
    >>> overall["discrepancy"], per_class["discrepancy"].tolist()
    (0.5, [1.0, 0.0])
    """
    weight, means, y = rows_of_weight(sample_weight, means, y)
    means, y = np.asarray(means, dtype=np.float64), check_codes(y)
    measure = Measure(means, np.ones(len(means), dtype=int), weight, rounding)
    centers = class_centers(means, y, sample_weight=weight)
    discrepancy = internal_discrepancy(means, centers, y)
    rows = {"discrepancy": discrepancy, "squared_discrepancy": discrepancy**2}
    overall = {name: measure.average(values) for name, values in rows.items()}
    per_class = {
        name: mean_of_classes(values, measure, y) for name, values in rows.items()
    }
    overall["relative_discrepancy"] = relative_discrepancy(
        means, centers, y, rounding, sample_weight=weight
    )
    return overall, per_class | terms_of_classes(measure, y, centers)


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
    K = len(centers)
    w = measure.filled_weight
    squared = internal_discrepancy(measure.means, centers, y) ** 2
    deviations = measure.anchors - np.repeat(measure.means, measure.counts, axis=0)
    variance = measure.of_rows((deviations**2).sum(axis=1))
    with np.errstate(divide="ignore", invalid="ignore"):
        noise = variance / (measure.counts - 1)  # σ_i² / V_i
        u = w * (1 - w / np.bincount(y, w, K)[y])
        total = np.bincount(y, w * squared, K) - np.bincount(y, u * noise, K)
        estimate = total / np.bincount(y, u, K)
    estimate[np.bincount(y, minlength=K) < 2] = np.nan
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
    apart = other > measure.rounding**2
    return np.where(apart, own / np.where(apart, other, 1.0), 1.0)


def collapsed_classes(
    measure: Measure, y: np.ndarray, centers: np.ndarray
) -> np.ndarray:
    """Return which classes' centers cannot be told from another one's, (K,) of bool.

    Were two centers equal, the squared distance of their estimates would have the mean
    tr(Σ) ν and the deviation √(2 tr(Σ²)) ν, with Σ the covariance within classes and
    ν = 1/n_k + 1/n_j, n the number of rows, or what unequal weights leave of it. A
    class counts as collapsed up to two deviations above that mean.
    """
    K = len(centers)
    w = measure.filled_weight
    moved = measure.means - centers[y]
    covariance = (moved * w[:, None]).T @ moved / max(len(y) - K, 1)
    spread = np.trace(covariance) + 2 * np.sqrt(2 * (covariance**2).sum())
    inverse_n = np.bincount(y, w**2, K) / np.bincount(y, w, K) ** 2
    noise = spread * (inverse_n[:, None] + inverse_n)
    return (_squared_between(centers) <= noise + measure.rounding**2).any(axis=1)


def mean_of_classes(values: np.ndarray, measure: Measure, y: np.ndarray) -> np.ndarray:
    """Return the weighted mean of values (n,) over the rows of each class, (K,)."""
    w = measure.filled_weight
    return np.bincount(y, w * values) / np.bincount(y, w)


def _squared_between(centers: np.ndarray) -> np.ndarray:
    """Return the squared distances between centers, (K, K), infinite to themselves."""
    squared = ((centers[:, None] - centers) ** 2).sum(axis=2)
    np.fill_diagonal(squared, np.inf)
    return squared


def rows_of_weight(sample_weight, *arrays):
    """Return the weights, of mean 1, and the arrays, without the rows of weight 0."""
    if sample_weight is None:
        return None, *arrays
    rows, weight = check_sample_weight(sample_weight, len(arrays[0]))
    return weight, *(np.asarray(array)[rows] for array in arrays)
