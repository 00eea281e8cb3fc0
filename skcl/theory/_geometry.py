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
from scipy.linalg import helmert
from scipy.optimize import brentq, minimize
from scipy.special import log_expit, logsumexp

from skcl.theory._measure import check_temperature

_EPS = np.finfo(np.float64).eps

# The share of F + H(π) at which the certificate ends the search, for λ ≥ 1.
_TOLERANCE = 1e-12

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
        gram = _gram(_solve(priors, min(at, _HOTTEST)))
    value, gap = _value_and_gap(gram, priors, 1 / at)
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
        t*; infinity if no class has more than half of the rows. 0 for one or two
        classes, whose other classes, one at most, cannot but coincide.

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
        return 0.0
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
    if temperature >= collapse_threshold(priors):
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
        centers = _solve(priors, temperature, start)
        gram = _gram(centers)
    return gram[~np.eye(len(gram), dtype=bool)].max(), centers


def _solve(
    priors: np.ndarray, temperature: float, start: np.ndarray | None = None
) -> np.ndarray:
    """Return centers of an optimal Gram matrix, unit vectors (K, K - 1)."""
    log_priors, rate = np.log(priors), 1 / temperature
    centers = _perturbed_simplex(len(priors), temperature) if start is None else start
    centers = _descend(centers, log_priors, rate)
    # Where λ is small, F varies by λ² only.
    tolerance = _TOLERANCE * min(1.0, rate) ** 2
    for _ in range(4):
        centers = _polish(centers, log_priors, rate)
        if _relative_gap(_gram(centers), log_priors, rate)[0] <= tolerance:
            break
    return centers


def _perturbed_simplex(K: int, temperature: float) -> np.ndarray:
    simplex = helmert(K).T * np.sqrt(K / (K - 1))  # (K, K - 1)
    noise = np.random.RandomState(0).standard_normal(simplex.shape)
    return _normalized(simplex + 0.01 * min(temperature, 1.0) * noise)


def _normalized(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def _gram(centers: np.ndarray) -> np.ndarray:
    gram = np.clip(centers @ centers.T, -1, 1)
    np.fill_diagonal(gram, 1)
    return gram


def _lengths(log_priors: np.ndarray) -> np.ndarray:
    """Return the norms at which the rows are stored, (K, 1).

    F curves along row k about as π_k; in a row of squared norm ∝ π_k, all curve alike.
    """
    return np.exp((log_priors - log_priors.max()) / 2)[:, None]


def _log_excess(
    gram: np.ndarray, log_priors: np.ndarray, rate: float
) -> tuple[float, np.ndarray, np.ndarray, np.ndarray]:
    """Return log(F + H(π)) and what its derivatives are made of.

    F + H(π) = Σ_k π_k log(1 + exp A_k), A_k = log Σ_{j≠k} (π_j/π_k) exp(λ(G_kj - 1)).
    Beside its logarithm: A; the share π_k σ(A_k) / (F + H(π)), σ the logistic function;
    and the softmax of the terms of A_k over j, (K, K). The derivative by G_kj is
    λ · share_k · softmax_kj.
    """
    terms = log_priors - log_priors[:, None] + rate * (gram - 1)
    np.fill_diagonal(terms, -np.inf)
    A = logsumexp(terms, axis=1)
    # log(1 + exp A) is exp A to rounding below -37.
    log_losses = np.where(A < -37, A, np.log(np.logaddexp(0, np.maximum(A, -37))))
    value = logsumexp(log_priors + log_losses)
    share = np.exp(log_priors + log_expit(A) - value)
    return value, A, share, np.exp(terms - A[:, None])


def _descend(centers: np.ndarray, log_priors: np.ndarray, rate: float) -> np.ndarray:
    """Minimize log(F + H(π)) from the given centers on."""

    def objective(flat):
        rows = flat.reshape(centers.shape)
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        unit = rows / norms
        value, _, share, softmax = _log_excess(unit @ unit.T, log_priors, rate)
        slope = _tangent(rate * share[:, None] * softmax, unit)
        return value, (slope / norms).ravel()

    found = _minimize(objective, _lengths(log_priors) * centers)
    return _normalized(found.reshape(centers.shape))


def _polish(centers: np.ndarray, log_priors: np.ndarray, rate: float) -> np.ndarray:
    """Minimize (F(G) - F(G₀)) / (F(G₀) + H(π)), G₀ the Gram matrix of the centers.

    With y_k = Σ_j softmax_kj expm1(λ(G - G₀)_kj) and σ_k = σ(A_k), both but G at G₀,
    it is Σ_k share_k log(1 + σ_k y_k) / σ_k.
    """
    _, A, share, softmax = _log_excess(_gram(centers), log_priors, rate)
    log_logistic = log_expit(A)
    lengths = _lengths(log_priors)
    slope = _tangent(rate * share[:, None] * softmax, centers) / lengths
    # L-BFGS begins with a step of length 1; in this unit, of the length of the slope.
    unit = np.linalg.norm(slope)
    if unit == 0:
        return centers

    def objective(flat):
        step = unit * flat.reshape(centers.shape) / lengths
        moved, change = _move(centers, step)
        growth = np.expm1(np.minimum(rate * change, 100.0))
        y = (softmax * growth).sum(axis=1)
        losses, factor = _log1p_ratio(log_logistic, y)
        pull = rate * (share * factor)[:, None] * softmax * (1 + growth)
        norms = np.linalg.norm(centers + step, axis=1, keepdims=True)
        slope = _tangent(pull, moved) / (norms * lengths)
        return share @ losses / unit**2, slope.ravel() / unit

    found = _minimize(objective, np.zeros_like(centers)).reshape(centers.shape)
    return _normalized(centers + unit * found / lengths)


def _move(centers: np.ndarray, step: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the normalized centers + step and the change of the Gram matrix.

    The change is formed of differences, so that it is exact to a share of itself.
    """
    norms = np.linalg.norm(centers + step, axis=1, keepdims=True)
    longer = ((2 * centers + step) * step).sum(axis=1, keepdims=True) / (norms + 1)
    shift = (step - longer * centers) / norms
    change = shift @ centers.T
    return centers + shift, change + change.T + shift @ shift.T


def _log1p_ratio(
    log_logistic: np.ndarray, y: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return log(1 + σ y) / σ and its derivative by y; σ may be 0 to rounding."""
    logistic = np.exp(log_logistic)
    small = np.abs(logistic * y) < 1e-9
    exact = np.log1p(logistic * y) / np.where(small, 1.0, logistic)
    losses = np.where(small, y * (1 - logistic * y / 2), exact)
    return losses, 1 / (1 + logistic * y)


def _tangent(pull: np.ndarray, unit: np.ndarray) -> np.ndarray:
    """Return the gradient along the sphere, of which pull is that by G, unsymmetric."""
    slope = (pull + pull.T) @ unit
    return slope - (slope * unit).sum(axis=1, keepdims=True) * unit


def _minimize(objective, start: np.ndarray) -> np.ndarray:
    return minimize(
        objective,
        start.ravel(),
        jac=True,
        method="L-BFGS-B",
        options={
            "maxiter": 2000,
            "maxfun": 4000,
            "ftol": 0,  # to rounding
            "gtol": 0,
            "maxcor": 20,
        },
    ).x


def _relative_gap(
    gram: np.ndarray, log_priors: np.ndarray, rate: float
) -> tuple[float, float]:
    """Return the certificate as a share of F + H(π), and log(F + H(π))."""
    value, _, share, softmax = _log_excess(gram, log_priors, rate)
    gradient = rate * share[:, None] * softmax
    gradient = (gradient + gradient.T) / 2
    S = gradient - np.diag((gradient * gram).sum(axis=1))
    # A feasible dual point each; which is best depends on where S is least accurate.
    candidates = (np.ones(len(gram)), _lengths(log_priors)[:, 0], np.exp(log_priors))
    return min(_dual_gap(S, D) for D in candidates), value


def _dual_gap(S: np.ndarray, D: np.ndarray) -> float:
    scale = 1 / np.sqrt(D)
    eigenvalues = np.linalg.eigvalsh(scale[:, None] * S * scale)
    rounding = len(S) * _EPS * np.abs(eigenvalues).max()
    return float((max(0.0, -eigenvalues[0]) + rounding) * D.sum())


def _value_and_gap(
    gram: np.ndarray, priors: np.ndarray, rate: float
) -> tuple[float, float]:
    if len(priors) == 1:
        return 0.0, 0.0
    log_priors = np.log(priors)
    relative, log_excess = _relative_gap(gram, log_priors, rate)
    excess, entropy = np.exp(log_excess), -(priors @ log_priors)
    rounding = 16 * _EPS * (1 + entropy + rate * excess)
    return float(excess - entropy), float(relative * excess + rounding)
