"""The exact quantities of the theory, on a finite set of rows: arrays in, numbers out.

Row i has V views z_iv, unit vectors, and weight w_i, by default 1; the views of a row
weigh the same. With that measure the positive of an anchor is any view of its row, the
anchor itself included, and a negative is any view of any row. A partition y of the rows
into classes k of frequency π_k = Σ_{i in k} w_i / Σ_i w_i defines

- the positive means m_i = 1/V Σ_v z_iv,
- the class centers c_k, the means of m_i over class k, weighted by w_i,
- the internal discrepancy ‖m_i - c_{y_i}‖ of row i.

An integer weight is that many copies of the row; a row of weight 0 is absent, whatever
its values.

For InfoNCE at temperature t, with Δ₂² the (weighted) mean squared discrepancy,

    incurred_loss ≤ contrastive_loss + Δ₂² / t.

The ideas are those of "Internal Discrepancy for Contrastive Learning: Generalization
Bounds and Downstream Behaviors" (2026); the formulas are derived in this project.
"""

from collections.abc import Iterator

import numpy as np
from scipy.special import logsumexp

from skcl._weights import check_sample_weight

LOSSES = ("infonce", "supcon", "spectral", "logistic")

# Entries of one block of the matrix of all pairs: 32 MiB in float64.
_BLOCK_SIZE = 2**22


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
    weight, means, y = _rows_of_weight(sample_weight, means, y)
    means, y = np.asarray(means, dtype=np.float64), _check_codes(y)
    centers = np.full((n_classes, means.shape[1]), np.nan)
    for k in np.unique(y):
        of_k = y == k
        centers[k] = np.average(means[of_k], axis=0, weights=_take(weight, of_k))
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
    return np.linalg.norm(means - np.asarray(centers)[_check_codes(y)], axis=1)


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
    weight, means, y = _rows_of_weight(sample_weight, means, y)
    means = np.asarray(means, dtype=np.float64)
    # Of equal rows, the differences to one are 0; those to their mean need not be.
    moved = means - means[0]
    moved -= np.average(moved, axis=0, weights=weight)
    variance = np.average((moved**2).sum(axis=1), weights=weight)
    if variance <= rounding**2 * np.average((means**2).sum(axis=1), weights=weight):
        return 1.0
    squared = internal_discrepancy(means, centers, y) ** 2
    return float(np.average(squared, weights=weight) / variance)


def contrastive_loss(views, temperature, loss="infonce", y=None, *, sample_weight=None):
    """Return the contrastive loss over all rows, exactly, with the log of the mean.

    Parameters
    ----------
    views : array of shape (n, V, d)
        Unit vectors.
    temperature : float
        t > 0; ignored by the spectral loss.
    loss : {"infonce", "supcon", "spectral", "logistic"}, default="infonce"
        With a an anchor, p a positive, b a negative of the module's measure, each
        drawn with the weight of its row:

        - "infonce": -E z_a·z_p / t + E_a log E_b exp(z_a·z_b / t);
        - "supcon": the same, a positive being any view of any row of a's class;
        - "spectral": -2 E z_a·z_p + E (z_a·z_b)²;
        - "logistic": E log(1 + exp(-z_a·(z_p - z_b) / t)).
    y : array of int, of shape (n,), default=None
        Classes, for "supcon"; -1 marks an unlabelled row, whose positives are its own
        views.
    sample_weight : array of shape (n,), default=None
        w, not negative; None weighs the rows equally.

    Returns
    -------
    float
        The loss.

    Raises
    ------
    ValueError
        If the loss is unknown, or sample_weight is refused.

    Examples
    --------
    >>> import numpy as np
    >>> from skcl.theory import contrastive_loss
    >>> angles = np.radians([[0, 60], [90, 30], [180, 240]])
    >>> views = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    >>> round(contrastive_loss(views, temperature=0.5), 10)
    -0.497661758
    """
    _check_loss(loss)
    weight, views, y = _rows_of_weight(sample_weight, views, y)
    views = np.asarray(views, dtype=np.float64)
    means, of_anchors = views.mean(axis=1), _repeat(weight, views.shape[1])
    if loss == "spectral":
        positive = np.average((means**2).sum(axis=1), weights=weight)
        return float(-2 * positive + (_second_moment(views, of_anchors) ** 2).sum())
    if loss == "logistic":
        return _logistic_loss(views, temperature, of_anchors)
    targets = means
    if loss == "supcon" and y is not None:
        y = np.asarray(y)
        labelled = y >= 0
        targets = means.copy()
        if labelled.any():
            of_labelled = _take(weight, labelled)
            centers = class_centers(
                means[labelled], y[labelled], sample_weight=of_labelled
            )
            targets[labelled] = centers[y[labelled]]
    positive = np.average((means * targets).sum(axis=1), weights=weight) / temperature
    partition = _log_partition(views, temperature, of_anchors)
    return float(np.average(partition, weights=of_anchors) - positive)


def incurred_loss(
    views, y, temperature, loss="infonce", centers=None, sample_weight=None
):
    """Return the supervised loss that a contrastive loss incurs.

    With scores s_k = z·c_k of the centers c_k and (weighted) class frequencies π_k:

    - "infonce" and "supcon": E [ -s_y / t + log Σ_k π_k exp(s_k / t) ];
    - "spectral": E [ -2 s_y + Σ_k π_k s_k² ];
    - "logistic": E Σ_k π_k log(1 + exp(-(s_y - s_k) / t)).

    Parameters
    ----------
    views : array of shape (n, V, d)
        Unit vectors.
    y : array of int, of shape (n,)
        Classes, 0 … K - 1.
    temperature : float
        t > 0; ignored by the spectral loss.
    loss : {"infonce", "supcon", "spectral", "logistic"}, default="infonce"
        The contrastive loss.
    centers : array of shape (K, d), default=None
        None are the weighted means of the classes, of which the bounds speak.
    sample_weight : array of shape (n,), default=None
        w, not negative; None weighs the rows equally.

    Returns
    -------
    float
        The loss. For "infonce", -log K at the least and 0 for a constant encoder.

    Raises
    ------
    ValueError
        If the loss is unknown, y holds a negative code, or sample_weight is refused.

    Examples
    --------
    >>> import numpy as np
    >>> from skcl.theory import incurred_loss
    >>> angles = np.radians([[0, 60], [90, 30], [180, 240]])
    >>> views = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    >>> round(incurred_loss(views, [0, 0, 1], temperature=0.5), 10)
    -0.5784327465
    """
    _check_loss(loss)
    weight, views, y = _rows_of_weight(sample_weight, views, y)
    views, y = np.asarray(views, dtype=np.float64), _check_codes(y)
    if centers is None:
        centers = class_centers(views.mean(axis=1), y, sample_weight=weight)
    priors = np.bincount(y, weights=weight, minlength=len(centers)) / len(y)
    present = priors > 0  # a class without rows may have no center
    scores = views @ np.where(present[:, None], centers, 0.0).T  # (n, V, K)
    own = np.take_along_axis(scores, y[:, None, None], axis=2)  # (n, V, 1)
    if loss == "spectral":
        losses = -2 * own[..., 0] + scores**2 @ priors
    elif loss == "logistic":
        losses = np.logaddexp(0, (scores - own) / temperature) @ priors
    else:
        partition = logsumexp(scores / temperature, b=priors, axis=2)
        losses = partition - own[..., 0] / temperature
    of_anchors = _repeat(weight, views.shape[1])
    return float(np.average(losses.ravel(), weights=of_anchors))


def upper_bound(
    contrastive, discrepancy, temperature, loss="infonce", sample_weight=None
):
    """Return the upper bound on the incurred loss.

    With Δ₁ and Δ₂² the (weighted) means of the discrepancy and of its square, L the
    contrastive loss over the same rows, views and weights:

    - "infonce": L + Δ₂² / t;
    - "spectral": L + 2 Δ₂²;
    - "logistic": L + (Δ₁ + Δ₂²) / (2 t);
    - "supcon": L.

    Parameters
    ----------
    contrastive : float
        L, from :func:`contrastive_loss`.
    discrepancy : array of shape (n,)
        From :func:`internal_discrepancy`.
    temperature : float
        t > 0.
    loss : {"infonce", "supcon", "spectral", "logistic"}, default="infonce"
        The contrastive loss.
    sample_weight : array of shape (n,), default=None
        w, not negative; None weighs the rows equally.

    Returns
    -------
    float
        The bound.

    Raises
    ------
    ValueError
        If the loss is unknown, or sample_weight is refused.

    Examples
    --------
    >>> from skcl.theory import upper_bound
    >>> upper_bound(-0.5, [0.1, 0.3], temperature=0.5)
    -0.4
    """
    _check_loss(loss)
    weight, discrepancy = _rows_of_weight(sample_weight, discrepancy)
    discrepancy = np.asarray(discrepancy, dtype=np.float64)
    first = np.average(discrepancy, weights=weight)
    second = np.average(discrepancy**2, weights=weight)
    slack = {
        "infonce": second / temperature,
        "spectral": 2 * second,
        "logistic": (first + second) / (2 * temperature),
        "supcon": 0.0,
    }
    return float(contrastive + slack[loss])


def _check_loss(loss: str) -> None:
    if loss not in LOSSES:
        raise ValueError(f"loss={loss!r}: allowed are {LOSSES}.")


def _check_codes(y: np.ndarray) -> np.ndarray:
    y = np.asarray(y)
    if y.min() < 0:
        raise ValueError(
            f"y holds {y.min()}: classes are 0 … K - 1. Leave unlabelled rows out."
        )
    return y


def _rows_of_weight(sample_weight, *arrays):
    """Return the weights, of mean 1, and the arrays, without the rows of weight 0."""
    if sample_weight is None:
        return None, *arrays
    rows, weight = check_sample_weight(sample_weight, len(arrays[0]))
    return weight, *(_take(array, rows) for array in arrays)


def _take(array, rows: slice | np.ndarray) -> np.ndarray | None:
    return None if array is None else np.asarray(array)[rows]


def _repeat(weight: np.ndarray | None, V: int) -> np.ndarray | None:
    """Give each view the weight of its row, (nV,)."""
    return None if weight is None else np.repeat(weight, V)


def _anchor_blocks(anchors: np.ndarray) -> Iterator[np.ndarray]:
    """Yield anchors so few at a time that their products with all stay small."""
    n_rows = max(_BLOCK_SIZE // len(anchors), 1)
    for start in range(0, len(anchors), n_rows):
        yield anchors[start : start + n_rows]


def _second_moment(views: np.ndarray, weight: np.ndarray | None) -> np.ndarray:
    """Return E z_a z_aᵀ over the anchors a, (d, d)."""
    anchors = views.reshape(-1, views.shape[2])
    weighted = anchors if weight is None else anchors * weight[:, None]
    return anchors.T @ weighted / len(anchors)


def _log_partition(
    views: np.ndarray, temperature: float, weight: np.ndarray | None
) -> np.ndarray:
    """Return log E_b exp(z_a·z_b / t) of each anchor, (nV,)."""
    anchors = views.reshape(-1, views.shape[2])
    parts = []
    for block in _anchor_blocks(anchors):
        similarity = block @ anchors.T
        similarity /= temperature
        if weight is not None:
            similarity += np.log(weight)
        largest = similarity.max(axis=1)
        similarity -= largest[:, None]
        np.exp(similarity, out=similarity)
        parts.append(largest + np.log(similarity.mean(axis=1)))
    return np.concatenate(parts)


def _logistic_loss(
    views: np.ndarray, temperature: float, weight: np.ndarray | None
) -> float:
    anchors = views.reshape(-1, views.shape[2])
    V = views.shape[1]
    positives = (views @ views.transpose(0, 2, 1)).reshape(-1, V)  # (nV, V)
    total, start = 0.0, 0
    for block in _anchor_blocks(anchors):
        rows = slice(start, start + len(block))
        negatives = block @ anchors.T
        for v in range(V):
            losses = np.logaddexp(
                0, (negatives - positives[rows, v, None]) / temperature
            )
            if weight is not None:
                losses *= weight
                losses *= weight[rows, None]
            total += losses.sum()
        start += len(block)
    return float(total / (len(anchors) ** 2 * V))
