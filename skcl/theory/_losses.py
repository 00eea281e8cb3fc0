"""Contrastive losses over all rows, and the supervised losses that they incur."""

from typing import Any

import numpy as np
from scipy.special import logsumexp

from skcl.theory._discrepancy import check_centers, class_centers
from skcl.theory._measure import (
    Measure,
    blocks_of,
    check_codes,
    check_temperature,
    log_mean_exp,
    read_views,
    second_moment,
)

LOSSES = ("infonce", "supcon", "spectral", "logistic")


def contrastive_loss(views, temperature, loss="infonce", y=None, *, sample_weight=None):
    """Return the contrastive loss over all rows, exactly, with the log of the mean.

    Parameters
    ----------
    views : array of shape (n, V, d), or list of n arrays of shape (V_i, d)
        Unit vectors.
    temperature : float
        t > 0; ignored by the spectral loss.
    loss : {"infonce", "supcon", "spectral", "logistic"}, default="infonce"
        With a an anchor, p a positive, b a negative of the module's measure, each
        drawn with the weight of its row:

        - "infonce": -E z_a·z_p / t + E_a log E_b exp(z_a·z_b / t);
        - "supcon": the same, a positive being any view of any row of a's class, and b
          no view of an unlabelled row if a is labelled;
        - "spectral": -2 E z_a·z_p + E (z_a·z_b)²;
        - "logistic": E log(1 + exp(-z_a·(z_p - z_b) / t)).
    y : array of int, of shape (n,), default=None
        Classes, for "supcon"; -1 marks an unlabelled row, whose positives are its own
        views, and None are unlabelled rows all.
    sample_weight : array of shape (n,), default=None
        w, not negative; None weighs the rows equally.

    Returns
    -------
    float
        The loss.

    Raises
    ------
    ValueError
        If the loss is unknown, the temperature not positive, a view not a unit vector,
        or sample_weight is refused.

    Examples
    --------
    >>> import numpy as np
    >>> from skcl.theory import contrastive_loss
    >>> angles = np.radians([[0, 60], [90, 30], [180, 240]])
    >>> views = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    >>> round(contrastive_loss(views, temperature=0.5), 10)
    -0.497661758
    """
    temperature = check_loss(loss, temperature)
    measure, y = read_views(views, sample_weight, y)
    if y is not None and loss == "supcon":
        y = check_codes(y, unlabelled=True)
    return measure.average(contrastive_of_rows(measure, y, temperature, loss))


def incurred_loss(
    views, y, temperature, loss="infonce", *, centers=None, sample_weight=None
):
    """Return the supervised loss that a contrastive loss incurs.

    With scores s_k = z·c_k of the centers c_k and (weighted) class frequencies π_k:

    - "infonce" and "supcon": E [ -s_y / t + log Σ_k π_k exp(s_k / t) ];
    - "spectral": E [ -2 s_y + Σ_k π_k s_k² ];
    - "logistic": E Σ_k π_k log(1 + exp(-(s_y - s_k) / t)).

    Parameters
    ----------
    views : array of shape (n, V, d), or list of n arrays of shape (V_i, d)
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
        If the loss is unknown, the temperature not positive, a view not a unit vector,
        y holds a negative code, centers do not fit, or sample_weight is refused.

    Examples
    --------
    >>> import numpy as np
    >>> from skcl.theory import incurred_loss
    >>> angles = np.radians([[0, 60], [90, 30], [180, 240]])
    >>> views = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    >>> round(incurred_loss(views, [0, 0, 1], temperature=0.5), 10)
    -0.5784327465
    """
    temperature = check_loss(loss, temperature)
    measure, y = read_views(views, sample_weight, y)
    y = check_codes(y)
    if centers is None:
        centers = class_centers(measure.means, y, sample_weight=measure.weight)
    centers = check_centers(centers, y, measure.anchors.shape[1])
    return measure.average(incurred_of_rows(measure, y, centers, temperature, loss))


def check_loss(loss: Any, temperature: float | None) -> float | None:
    """Return the temperature that the loss has, or raise."""
    if not (isinstance(loss, str) and loss in LOSSES):
        raise ValueError(f"loss={loss!r}: {LOSSES} are allowed.")
    return None if loss == "spectral" else check_temperature(temperature)


def contrastive_of_rows(
    measure: Measure,
    y: np.ndarray | None,
    temperature: float | None,
    loss: str,
    uniformity: np.ndarray | None = None,
) -> np.ndarray:
    """Return the contrastive loss of each row, (n,), from its uniformity, if known."""
    if loss == "logistic":
        return _logistic_of_rows(measure, temperature)
    if uniformity is None:
        uniformity = uniformity_of_rows(measure, temperature, loss)
    targets = measure.means
    if loss == "supcon" and y is not None:
        targets = _targets(measure, y)
        labelled = np.flatnonzero(y >= 0)
        if 0 < len(labelled) < len(y):
            uniformity = uniformity.copy()
            among = measure.take(labelled)
            uniformity[labelled] = uniformity_of_rows(among, temperature, loss)
    positive = np.einsum("ij,ij->i", measure.means, targets)
    return uniformity - positive * (2 if loss == "spectral" else 1 / temperature)


def uniformity_of_rows(
    measure: Measure, temperature: float | None, loss: str
) -> np.ndarray:
    """Return the part of a loss that negatives have, of each row, (n,)."""
    if loss == "spectral":
        z = measure.anchors
        products = np.einsum("ij,ij->i", z @ second_moment(measure), z)
        return measure.of_rows(products)
    return measure.of_rows(log_mean_exp(measure, temperature))


def incurred_of_rows(
    measure: Measure,
    y: np.ndarray,
    centers: np.ndarray,
    temperature: float | None,
    loss: str,
) -> np.ndarray:
    """Return the incurred loss of each row's views, (n,)."""
    priors = np.bincount(y, measure.weight, len(centers)) / len(y)
    # A class without rows may have no center.
    centers = np.where(priors[:, None] > 0, centers, 0.0)
    losses, own = np.empty(len(measure.anchors)), y[measure.row]
    for block in blocks_of(losses, len(centers)):
        scores = measure.anchors[block] @ centers.T
        losses[block] = _incurred(scores, own[block], priors, temperature, loss)
    return measure.of_rows(losses)


def _incurred(
    scores: np.ndarray,
    y: np.ndarray,
    priors: np.ndarray,
    temperature: float | None,
    loss: str,
) -> np.ndarray:
    """Return the incurred loss of scores z·c_k (m, K), (m,)."""
    own = scores[np.arange(len(scores)), y]
    if loss == "spectral":
        return -2 * own + scores**2 @ priors
    if loss == "logistic":
        return np.logaddexp(0, (scores - own[:, None]) / temperature) @ priors
    return logsumexp(scores / temperature, b=priors, axis=1) - own / temperature


def _targets(measure: Measure, y: np.ndarray) -> np.ndarray:
    """Return the mean positive of each row: of its class, or its own if unlabelled."""
    labelled = y >= 0
    targets = measure.means.copy()
    if labelled.any():
        weight = None if measure.weight is None else measure.weight[labelled]
        means, y = measure.means[labelled], y[labelled]
        targets[labelled] = class_centers(means, y, sample_weight=weight)[y]
    return targets


def _logistic_of_rows(measure: Measure, temperature: float) -> np.ndarray:
    z, counts, row = measure.anchors, measure.counts, measure.row
    first = (np.cumsum(counts) - counts)[row]
    total = np.zeros(len(z))
    for block in blocks_of(z, len(z)):
        negatives = z[block] @ z.T
        for v in range(counts.max()):
            has = v < counts[row[block]]  # rows of fewer views have no v-th
            partners = z[np.where(has, first[block] + v, 0)]
            positive = np.einsum("ij,ij->i", z[block], partners)
            losses = np.logaddexp(0, (negatives - positive[:, None]) / temperature)
            total[block] += has * np.average(losses, axis=1, weights=measure.mass)
    return measure.of_rows(total / counts[row])
