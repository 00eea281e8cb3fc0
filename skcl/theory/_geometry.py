"""The optimal geometry of the class centers, and when rare classes collapse in it.

Let K classes have frequencies π_k > 0, Σ_k π_k = 1, at temperature t, λ = 1 / t. For
class centers with the Gram matrix G, G_kj = c_k·c_j, the loss that InfoNCE incurs is at
least

    F(G) = Σ_k π_k [ -λ G_kk + log Σ_j π_j exp(λ G_kj) ],

by Jensen inside each class, and raising G_kk lowers F. So no encoder is below

    F*(π, t) = min { F(G) : G positive semidefinite, G_kk = 1 },

a convex problem with a single solution G*, of rank K - 1 at most: an encoder reaches it
by mapping all rows of a class to one point, in K - 1 dimensions or more.

The ideas are those of "Internal Discrepancy for Contrastive Learning: Generalization
Bounds and Downstream Behaviors" (2026); the formulas are derived in this project.
"""

from dataclasses import dataclass
from numbers import Real

import numpy as np
from scipy.optimize import brentq

from skcl.theory._measure import check_temperature
from skcl.theory._solver import gram_of, solve, value_and_gap

_EPS = np.finfo(np.float64).eps

# Colder, F + H(π) is 0 to rounding; hotter, F is too flat in G to find G* by it. There
# G* is near its limits for t → 0 and t → ∞.
_COLDEST, _HOTTEST = 1e-9, 1e4

# Temperatures at which collapse_temperature looks, so many to a decade.
_GRID_FROM, _GRID_TO, _PER_DECADE = 0.01, 100.0, 10


@dataclass(frozen=True, eq=False)
class OptimalGeometry:
    """The class centers of least incurred loss, as :func:`optimal_geometry` finds them.

    Attributes
    ----------
    priors : array of shape (K,)
        π, the class frequencies, of sum 1.
    temperature : float
        t.
    value : float
        F(gram), which is F* up to the gap.
    gram : array of shape (K, K)
        The cosines between the class centers; 1 on the diagonal.
    gap : float
        The dual certificate, rounding included: value - gap ≤ F* ≤ value.
    """

    priors: np.ndarray
    temperature: float
    value: float
    gram: np.ndarray
    gap: float

    @property
    def max_cosine(self):
        """The largest cosine between two class centers; NaN for a single class."""
        others = ~np.eye(len(self.gram), dtype=bool)
        return float(self.gram[others].max()) if others.any() else np.nan


def optimal_geometry(priors, temperature):
    """Return the class centers of least incurred loss, and that loss.

    F*(π, t) = min over G ⪰ 0, diag G = 1 of Σ_k π_k [ -λ + log Σ_j π_j exp(λ G_kj) ],
    λ = 1 / t. The loss that InfoNCE incurs is at least F*, for every encoder with these
    class frequencies; it is F* where each class is one point and the points have
    the cosines G*. The excess incurred_loss - F* is the encoder's optimality gap.

    F* does not fall with t. As t → 0, G* tends to the simplex,

        G*_kj = -1 / (K - 1) + t (mean of all log w - log w_kj) + O(t²),

    w_kj = π_k + π_j, k ≠ j: rare classes are the first to approach each other. Equal
    priors have the simplex at every t; two classes are always opposite; from
    :func:`collapse_threshold` on all classes but the largest coincide.

    Parameters
    ----------
    priors : array of shape (K,)
        π, the class frequencies: positive, of sum 1.
    temperature : float
        t > 0.

    Returns
    -------
    OptimalGeometry
        With `value`, F* to 1e-7 or better for K up to 100, `gram`, G*, and `gap`, an
        upper bound on value - F*. A single class has value 0. Below t = 1e-9 and above
        t = 1e4 the Gram matrix is that of 1e-9 and 1e4, unless it is known exactly.

    Raises
    ------
    ValueError
        If priors are not a vector of positive numbers of sum 1 (to 1e-6), or the
        temperature is not a finite positive number.

    See Also
    --------
    collapse_threshold : Where all classes but the largest coincide.
    collapse_temperature : Where two classes first come closer than a limit.

    Notes
    -----
    With G = ZZᵀ, Z of unit rows in K - 1 dimensions, L-BFGS minimizes
    log(F + H(π)), H the entropy: F itself is flat to rounding at low temperatures.
    Then it minimizes (F(G) - F(G₀)) / (F(G₀) + H(π)), G₀ what it has, written in
    G - G₀ such that little rounds. With g = ∇F and S = g - Diag(rowsum(g∘G)),
    any D > 0 gives, F being convex, the certificate

        F(G) - F* ≤ max(0, -λ_min(D^(-1/2) S D^(-1/2))) Σ_k D_k.

    References
    ----------
    "Internal Discrepancy for Contrastive Learning: Generalization Bounds and Downstream
    Behaviors" (2026) for the idea; the formulas are derived in this project.

    Examples
    --------
    >>> from skcl.theory import optimal_geometry
    >>> geometry = optimal_geometry([0.7, 0.2, 0.05, 0.05], temperature=0.5)
    >>> round(geometry.value, 7)
    -0.7413097
    >>> round(geometry.max_cosine, 4)  # between the two rarest classes
    0.1968
    >>> geometry.gap < 1e-7
    True
    """
    priors, temperature = _check_priors(priors), check_temperature(temperature)
    at = max(temperature, _COLDEST)
    gram = _closed_form(priors, at)
    if gram is None:
        gram = gram_of(solve(priors, 1 / min(at, _HOTTEST)))
    value, gap = value_and_gap(gram, priors, 1 / at)
    for array in (priors, gram):
        array.flags.writeable = False
    return OptimalGeometry(priors, temperature, value, gram, gap)


def collapse_threshold(priors):
    """Return the temperature from which all classes but the largest coincide.

    With M = max π and m = 1 - M, for K ≥ 3 classes,

        t* = -2 / log q*,  q* = [ -b + sqrt(b² + 8 m M²) ] / (2 M),
        b = (1 + m)(1 - 2 m),

    if M > 1/2, else infinity: for t ≥ t*, and for no other, the optimal centers of all
    other classes are one point, opposite to that of the largest. How m is split
    does not matter.

    Parameters
    ----------
    priors : array of shape (K,)
        π, the class frequencies: positive, of sum 1.

    Returns
    -------
    float
        t*; infinity if no class has more than half of the rows, and for one or two
        classes, which leave no two others to coincide.

    Raises
    ------
    ValueError
        If priors are not a vector of positive numbers of sum 1 (to 1e-6).

    See Also
    --------
    collapse_temperature : Where two classes first come closer than a limit.

    References
    ----------
    "Internal Discrepancy for Contrastive Learning: Generalization Bounds and Downstream
    Behaviors" (2026) for the idea; the formula is derived in this project.

    Examples
    --------
    >>> from skcl.theory import collapse_threshold
    >>> round(collapse_threshold([0.9, 0.06, 0.04]), 7)
    1.1425461
    >>> collapse_threshold([0.5, 0.3, 0.2])
    inf
    """
    priors = _check_priors(priors)
    if len(priors) <= 2:
        return np.inf
    largest = priors.argmax()
    M, m = priors[largest], np.delete(priors, largest).sum()
    if M - m <= 4 * _EPS:
        return np.inf
    b = (1 + m) * (M - m)
    # q* with the root in the denominator, where nothing cancels for small m.
    q = 4 * m * M / (b + np.sqrt(b**2 + 8 * m * M**2))
    return float(-2 / np.log(q))


def collapse_temperature(priors, max_cosine):
    """Return the lowest temperature at which two classes come closer than a limit.

    inf { t > 0 : max_{k≠j} G*_kj(t) > max_cosine }, as seen on a grid: from t = 0,
    where G* is the simplex, over ten temperatures a decade from 0.01 to 100, or to
    :func:`collapse_threshold` if that is finite; the first crossing is then refined
    to 8 digits.

    Below this temperature the optimum keeps all classes apart, as far as the grid
    shows. Above, it need not bring them closer: the largest cosine is not monotone
    in t in general. For K = 20, π_k ∝ 100^(-k/19), it is .201 at t = .2 but .122 at
    t = .5.

    Parameters
    ----------
    priors : array of shape (K,)
        π, the class frequencies: positive, of sum 1.
    max_cosine : float
        The limit, in [-1, 1).

    Returns
    -------
    float
        The temperature; 0 if the simplex, the limit for t → 0, is already closer than
        max_cosine, and infinity if the grid never is.

    Raises
    ------
    ValueError
        If priors are not a vector of positive numbers of sum 1 (to 1e-6), or max_cosine
        is not in [-1, 1).

    See Also
    --------
    optimal_geometry : The optimal centers at a temperature.

    References
    ----------
    "Internal Discrepancy for Contrastive Learning: Generalization Bounds and Downstream
    Behaviors" (2026) for the idea; the method is this project's.

    Examples
    --------
    >>> from skcl.theory import collapse_temperature
    >>> round(collapse_temperature([0.9, 0.06, 0.03, 0.01], max_cosine=0.5), 4)
    0.5598
    >>> collapse_temperature([0.25, 0.25, 0.25, 0.25], max_cosine=0.5)
    inf
    """
    priors, max_cosine = _check_priors(priors), _check_cosine(max_cosine)
    K = len(priors)
    if K <= 2 or _is_balanced(priors):
        # The simplex at every temperature.
        return 0.0 if K > 1 and max_cosine < -1 / (K - 1) else np.inf
    if max_cosine <= -1 / (K - 1):
        return 0.0
    low, low_centers = 0.0, None
    for high in _temperature_grid(priors):
        cosine, centers = _largest_cosine(priors, high, low_centers)
        if cosine > max_cosine:
            break
        low, low_centers = high, centers
    else:
        return np.inf

    def excess(temperature):
        if temperature == 0:
            return -1 / (K - 1) - max_cosine
        return _largest_cosine(priors, temperature, low_centers)[0] - max_cosine

    return float(brentq(excess, low, high, xtol=1e-300, rtol=1e-8))


def _check_priors(priors) -> np.ndarray:
    given, priors = priors, np.asarray(priors, dtype=np.float64)
    if priors.ndim != 1 or len(priors) == 0:
        raise ValueError(
            f"priors is of shape {priors.shape}: (n_classes,), one frequency a class, "
            "is allowed."
        )
    if not (np.isfinite(priors).all() and (priors > 0).all()):
        raise ValueError(
            f"priors={given!r}: finite numbers above 0 are allowed. Leave classes "
            "without rows out."
        )
    total = priors.sum()
    if abs(total - 1) > 1e-6:
        raise ValueError(
            f"priors={given!r} has the sum {total:.9g}: 1, to 1e-6, is allowed. Divide "
            "counts by their sum."
        )
    return priors / total


def _check_cosine(max_cosine) -> float:
    if not (isinstance(max_cosine, Real) and -1 <= max_cosine < 1):
        raise ValueError(
            f"max_cosine={max_cosine!r}: a number from -1 on and below 1, which a "
            "cosine can exceed, is allowed."
        )
    return float(max_cosine)


def _is_balanced(priors: np.ndarray) -> bool:
    return bool(np.ptp(priors) <= 4 * _EPS * priors.max())


def _closed_form(priors: np.ndarray, temperature: float) -> np.ndarray | None:
    """Return the optimal Gram matrix where it is known, else None."""
    K = len(priors)
    if K <= 2 or temperature >= collapse_threshold(priors):
        sign = np.ones(K)
        sign[priors.argmax()] = -1
        return np.outer(sign, sign)
    if _is_balanced(priors):
        gram = np.full((K, K), -1 / (K - 1))
        np.fill_diagonal(gram, 1)
        return gram
    return None


def _temperature_grid(priors: np.ndarray) -> np.ndarray:
    threshold = collapse_threshold(priors)
    highest = threshold if threshold < np.inf else _GRID_TO
    lowest = min(_GRID_FROM, highest / 10)
    n_steps = int(np.ceil(_PER_DECADE * np.log10(highest / lowest)))
    return np.append(np.geomspace(lowest, highest, n_steps + 1)[:-1], highest)


def _largest_cosine(
    priors: np.ndarray, temperature: float, start: np.ndarray | None = None
) -> tuple[float, np.ndarray | None]:
    """Return the largest cosine between two optimal centers, and the centers."""
    gram, centers = _closed_form(priors, temperature), None
    if gram is None:
        centers = solve(priors, 1 / temperature, start)
        gram = gram_of(centers)
    return gram[~np.eye(len(gram), dtype=bool)].max(), centers
