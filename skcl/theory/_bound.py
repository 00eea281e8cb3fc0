"""The discrepancy-aware bound on the supervised loss that a contrastive loss incurs."""

from dataclasses import dataclass, field
from math import exp, log, log1p, tanh
from typing import Any

import numpy as np

from skcl.theory._discrepancy import (
    class_centers,
    rows_of_weight,
    summarize,
    unbiased_of_classes,
)
from skcl.theory._losses import (
    check_loss,
    contrastive_of_rows,
    incurred_of_rows,
    uniformity_of_rows,
)
from skcl.theory._measure import SINGLE, Measure, read_classes, read_views

# What each loss incurs of an encoder that maps all rows to one point.
CONSTANT_LOSS = {
    "infonce": 0.0,
    "supcon": 0.0,
    "spectral": -1.0,
    "logistic": log(2),
}


@dataclass(frozen=True, eq=False)
class DiscrepancyBound:
    """The terms of the bound, over all rows and class by class.

    Attributes
    ----------
    contrastive_loss : float
        L.
    incurred_loss : float
        The supervised loss that it incurs, with the classes' means as centers.
    lower_bound, upper_bound : float
        What L and the discrepancy say of the incurred loss.
    discrepancy : float
        Δ₁, the mean distance of positive means to their class's center.
    squared_discrepancy : float
        Δ₂², the mean of its square.
    unbiased_squared_discrepancy : float
        An unbiased estimate of Δ₂² for the population that rows and views were drawn
        from. It may be negative. Classes of one row are left out; NaN where no class
        has two, or a row has a single view. Here, and for "collapsed", weights are
        those of rows drawn once each: an integer one is no copies.
    relative_discrepancy : float
        Δ₂² as a share of the variance of the positive means; 1 for a constant encoder.
    alignment : float
        E z_a·z_p, the mean similarity of positives; 1 at best. The mean squared
        distance of Wang and Isola (2020) is 2 - 2 times it.
    uniformity : float
        What the negatives add to the loss: E_a log E_b exp(z_a·z_b / t), or for
        "spectral" E (z_a·z_b)². InfoNCE is ``-alignment / t + uniformity``, the
        spectral loss ``-2 * alignment + uniformity``.
    vacuous : bool
        Whether the upper bound says nothing; see :func:`is_vacuous`.
    per_class : dict of str to array of shape (K,)
        The same of each class: means over its rows, with negatives, frequencies and
        centers of all. Each class has its own bound. The relative discrepancy of a
        class is its Δ₂² as a share of its rows' mean squared distance to the nearest
        other center. Besides, "n_rows"; "prior", the frequency; and "collapsed",
        whether its center cannot be told from another one's: their squared distance is
        within two standard deviations of what sampling makes of equal ones, given both
        classes' spreads. Of one row, a class is taken to spread as the others do.
    classes : array of shape (K,)
        The classes, sorted.
    centers : array of shape (K, d)
        Their means.
    loss : str
        The contrastive loss.
    temperature : float or None
        t; None for "spectral".
    """

    contrastive_loss: float
    incurred_loss: float
    lower_bound: float
    upper_bound: float
    discrepancy: float
    squared_discrepancy: float
    unbiased_squared_discrepancy: float
    relative_discrepancy: float
    alignment: float
    uniformity: float
    vacuous: bool
    per_class: dict[str, np.ndarray] = field(repr=False)
    classes: np.ndarray = field(repr=False)
    centers: np.ndarray = field(repr=False)
    loss: str
    temperature: float | None


def discrepancy_bound(views, y, temperature, loss="infonce", *, sample_weight=None):
    """Return what the bound says of rows' views, term by term.

    lower_bound ≤ incurred_loss ≤ upper_bound, exactly, for any unit vectors and any
    classes; see :func:`upper_bound` and :func:`lower_bound`. Time grows with the square
    of the number of views, memory with the number.

    Parameters
    ----------
    views : array of shape (n, V, d), or list of n arrays of shape (V_i, d)
        Unit vectors. Rows weigh the same, however many views they have.
    y : array of shape (n,)
        Classes, of any type that can be sorted, or clusters. No -1: leave unlabelled
        rows out.
    temperature : float
        t > 0; ignored by the spectral loss.
    loss : {"infonce", "supcon", "spectral", "logistic"}, default="infonce"
        The contrastive loss; see :func:`contrastive_loss`.
    sample_weight : array of shape (n,), default=None
        w, not negative; None weighs the rows equally.

    Returns
    -------
    DiscrepancyBound
        The terms, as attributes.

    Raises
    ------
    ValueError
        If the loss is unknown, the temperature not positive, a view not a unit vector,
        y holds -1 or is of another length, or sample_weight is refused.

    References
    ----------
    "Internal Discrepancy for Contrastive Learning: Generalization Bounds and Downstream
    Behaviors" (2026), for the discrepancy and its place in a bound. Wang, Isola:
    Understanding contrastive representation learning through alignment and uniformity
    on the hypersphere (ICML 2020).

    Examples
    --------
    >>> import numpy as np
    >>> from skcl.theory import discrepancy_bound
    >>> angles = np.radians([[0, 60], [90, 30], [180, 240]])
    >>> views = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    >>> bound = discrepancy_bound(views, ["a", "a", "b"], temperature=0.5)
    >>> round(bound.incurred_loss, 6), round(bound.upper_bound, 6)
    (-0.578433, -0.430674)
    >>> bound.per_class["squared_discrepancy"].round(6)
    array([0.05024, 0.     ])
    """
    temperature = check_loss(loss, temperature)
    measure, y = read_views(views, sample_weight, y)
    classes, y = read_classes(y)
    centers = class_centers(measure.means, y, sample_weight=measure.weight)
    losses = _losses_of_rows(measure, y, centers, temperature, loss)
    overall, per_class = summarize(measure, y, centers, losses)
    for of in (overall, per_class):
        of["lower_bound"], of["upper_bound"] = _interval(of, temperature, loss)
    unbiased = unbiased_of_classes(measure, y, centers)
    per_class["unbiased_squared_discrepancy"] = unbiased
    overall["unbiased_squared_discrepancy"] = _mean_of_defined(
        unbiased, per_class["prior"]
    )
    return DiscrepancyBound(
        **overall,
        vacuous=is_vacuous(overall["upper_bound"], temperature, loss),
        per_class=per_class,
        classes=classes,
        centers=centers,
        loss=loss,
        temperature=temperature,
    )


def is_vacuous(bound, temperature, loss="infonce"):
    """Return whether an upper bound on the incurred loss says nothing.

    Parameters
    ----------
    bound : float
        From :func:`upper_bound`.
    temperature : float
        t > 0; ignored by the spectral loss.
    loss : {"infonce", "supcon", "spectral", "logistic"}, default="infonce"
        The contrastive loss.

    Returns
    -------
    bool
        Whether the bound is no less than what an encoder incurs that maps all rows to
        one point, ``CONSTANT_LOSS[loss]``, up to the rounding of single precision.

    Raises
    ------
    ValueError
        If the loss is unknown, or the temperature not positive.

    Examples
    --------
    >>> from skcl.theory import is_vacuous
    >>> is_vacuous(0.1, temperature=0.5), is_vacuous(-0.1, temperature=0.5)
    (True, False)
    """
    temperature = check_loss(loss, temperature)
    rate = 1.0 if loss == "spectral" else min(1.0, 1 / temperature)
    return not bound < CONSTANT_LOSS[loss] - 8 * SINGLE * rate


def upper_bound(
    contrastive, discrepancy, temperature, loss="infonce", *, sample_weight=None
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
        t > 0; ignored by the spectral loss.
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
        If the loss is unknown, the temperature not positive, or sample_weight is
        refused.

    Examples
    --------
    >>> from skcl.theory import upper_bound
    >>> upper_bound(-0.5, [0.1, 0.3], temperature=0.5)
    -0.4
    """
    return _bound_of(contrastive, discrepancy, temperature, loss, sample_weight)[1]


def lower_bound(
    contrastive, discrepancy, temperature, loss="infonce", *, sample_weight=None
):
    """Return the lower bound on the incurred loss.

    With λ = 1 / t, h(λ) = λ coth λ - 1 + log(sinh λ / λ), and L, Δ₁ and Δ₂² as in
    :func:`upper_bound`:

    - "infonce": L + λ Δ₂² - h(λ);
    - "spectral": L + 2 Δ₂² - 1;
    - "logistic": L - λ (Δ₁ - Δ₂²) / 2 - log cosh λ;
    - "supcon": L - h(λ).

    Parameters
    ----------
    contrastive : float
        L, from :func:`contrastive_loss`.
    discrepancy : array of shape (n,)
        From :func:`internal_discrepancy`.
    temperature : float
        t > 0; ignored by the spectral loss.
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
        If the loss is unknown, the temperature not positive, or sample_weight is
        refused.

    Examples
    --------
    >>> from skcl.theory import lower_bound
    >>> round(lower_bound(-0.5, [0.1, 0.3], temperature=0.5), 6)
    -2.06985
    """
    return _bound_of(contrastive, discrepancy, temperature, loss, sample_weight)[0]


def _bound_of(
    contrastive: float,
    discrepancy: Any,
    temperature: float | None,
    loss: str,
    sample_weight: Any,
) -> tuple[float, float]:
    temperature = check_loss(loss, temperature)
    weight, discrepancy = rows_of_weight(sample_weight, discrepancy)
    discrepancy = np.asarray(discrepancy, dtype=np.float64)
    refused = ~(discrepancy >= 0)
    if refused.any() or not discrepancy.size:
        found = discrepancy[refused][:1].tolist() or "nothing"
        raise ValueError(f"discrepancy holds {found}: distances are needed.")
    terms = {
        "contrastive_loss": contrastive,
        "discrepancy": np.average(discrepancy, weights=weight),
        "squared_discrepancy": np.average(discrepancy**2, weights=weight),
    }
    lower, upper = _interval(terms, temperature, loss)
    return float(lower), float(upper)


def _mean_of_defined(values: np.ndarray, weight: np.ndarray) -> float:
    defined = ~np.isnan(values)
    if not defined.any():
        return np.nan
    return float(np.average(values[defined], weights=weight[defined]))


def _interval(terms: dict[str, Any], temperature: float | None, loss: str) -> tuple:
    """Return the lower and the upper bound, of numbers or of arrays."""
    contrastive = terms["contrastive_loss"]
    first, second = terms["discrepancy"], terms["squared_discrepancy"]
    gap = largest_jensen_gap(temperature, loss)
    match loss:
        case "infonce":
            below = above = second / temperature
        case "spectral":
            below = above = 2 * second
        case "logistic":
            below = (second - first) / (2 * temperature)
            above = (second + first) / (2 * temperature)
        case "supcon":
            below = above = 0.0
    return contrastive + below - gap, contrastive + above


def largest_jensen_gap(temperature: float | None, loss: str) -> float:
    """Return by how much a class's mean can differ from its views in the negatives."""
    if loss == "spectral":
        return 1.0
    rate = 1 / temperature
    if rate < 1e-4:
        return rate**2 / 2  # to rounding, and no less
    # cosh and sinh overflow; their logarithms do not.
    if loss == "logistic":
        return rate + log1p(exp(-2 * rate)) - log(2)
    log_sinh = rate + log1p(-exp(-2 * rate)) - log(2)
    return rate / tanh(rate) - 1 + log_sinh - log(rate)


def _losses_of_rows(
    measure: Measure,
    y: np.ndarray,
    centers: np.ndarray,
    temperature: float | None,
    loss: str,
) -> dict[str, np.ndarray]:
    """Return the losses and their parts, of each row, (n,)."""
    uniformity = uniformity_of_rows(measure, temperature, loss)
    return {
        "contrastive_loss": contrastive_of_rows(
            measure, y, temperature, loss, uniformity
        ),
        "incurred_loss": incurred_of_rows(measure, y, centers, temperature, loss),
        "alignment": (measure.means**2).sum(axis=1),
        "uniformity": uniformity,
    }
