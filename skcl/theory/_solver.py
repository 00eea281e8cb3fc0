"""How the optimal geometry is found, and the certificate of what was found.

λ = 1 / t is the rate, H(π) the entropy of the frequencies π. The method is that of the
notes of :func:`skcl.theory.optimal_geometry`.
"""

import numpy as np
from scipy.linalg import helmert
from scipy.optimize import minimize
from scipy.special import entr, log_expit, logsumexp

_EPS = np.finfo(np.float64).eps

# The share of F + H(π) at which the certificate ends the search, for λ ≥ 1.
_TOLERANCE = 1e-12


def solve(
    priors: np.ndarray, rate: float, start: np.ndarray | None = None
) -> np.ndarray:
    """Return centers of an optimal Gram matrix, unit vectors (K, K - 1)."""
    log_priors = np.log(priors)
    centers = _perturbed_simplex(len(priors), rate) if start is None else start
    centers = _descend(centers, log_priors, rate)
    # Where λ is small, F varies by λ² only.
    tolerance = _TOLERANCE * min(1.0, rate) ** 2
    for _ in range(4):
        centers = _polish(centers, log_priors, rate)
        if relative_gap(gram_of(centers), log_priors, rate)[0] <= tolerance:
            break
    return centers


def gram_of(centers: np.ndarray) -> np.ndarray:
    """Return the cosines between centers, unit vectors (K, d), within [-1, 1]."""
    gram = np.clip(centers @ centers.T, -1, 1)
    np.fill_diagonal(gram, 1)
    return gram


def value_and_gap(
    gram: np.ndarray, priors: np.ndarray, rate: float
) -> tuple[float, float]:
    """Return F(G), and the certificate: an upper bound on F(G) - F*."""
    if len(priors) == 1:
        return 0.0, 0.0
    log_priors = np.log(priors)
    relative, log_excess = relative_gap(gram, log_priors, rate)
    excess, entropy = np.exp(log_excess), entr(priors).sum()
    rounding = 16 * _EPS * (1 + entropy + rate * excess)
    return float(excess - entropy), float(relative * excess + rounding)


def relative_gap(
    gram: np.ndarray, log_priors: np.ndarray, rate: float
) -> tuple[float, float]:
    """Return the gap of value_and_gap as a share of F + H(π), and log(F + H(π))."""
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


def _perturbed_simplex(K: int, rate: float) -> np.ndarray:
    simplex = helmert(K).T * np.sqrt(K / (K - 1))  # (K, K - 1)
    noise = np.random.RandomState(0).standard_normal(simplex.shape)
    return _normalized(simplex + 0.01 * min(1 / rate, 1.0) * noise)


def _normalized(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


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
    _, A, share, softmax = _log_excess(gram_of(centers), log_priors, rate)
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
