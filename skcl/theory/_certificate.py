"""A certificate: what held-out rows guarantee of the rows to come."""

from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Integral, Real
from typing import Any

import numpy as np
from scipy.spatial.distance import cdist
from scipy.special import logsumexp

from skcl.theory._discrepancy import class_centers
from skcl.theory._geometry import optimal_geometry
from skcl.theory._guarantee import (
    Guarantee,
    bernstein,
    clopper_pearson,
    make_guarantee,
    mcdiarmid,
)
from skcl.theory._measure import (
    Measure,
    check_temperature,
    log_mean_exp_of,
    read_classes,
    read_views,
)

METHODS = ("split", "mcdiarmid")

# Two pairs of rows in the second half, or there is no variance.
_FEWEST_ROWS = 8

# The share of the first half's views whose mean kernel lies below b_min.
_SHARE_BELOW = 0.02


@dataclass(frozen=True)
class Certificate:
    """Guarantees on an encoder's losses over the population of its rows.

    Each holds with the confidence by itself. Any m of them hold together with a
    confidence of 1 - m (1 - confidence) at least.

    Attributes
    ----------
    method : str
        Of the guarantees that are not called direct; these always split the rows.
    confidence : float
        The probability with which each guarantee holds.
    n_rows : int
        n.
    temperature : float
        t.
    contrastive_loss : Guarantee or None
        On L, with fresh views of the row as positives and those of other rows as
        negatives. It needs no labels, but two views of each row, else it is None. The
        trivial value is 0.
    incurred_loss : Guarantee or None
        On L + Δ₂² / t, and so on the supervised loss that L incurs. The trivial value
        is 0. None without labels, as are all that follow.
    squared_discrepancy : Guarantee or None
        On Δ₂². The trivial value is an estimate too: Δ₂² with all rows in one class.
        None also where a row has a single view.
    cross_entropy : Guarantee or None
        On the cross-entropy of the head z·c_k / t + log π_k, with the population's
        class means and frequencies: the incurred loss plus the entropy of the classes.
        So it is on that of the best linear head. The trivial value is the entropy.
    error : Guarantee or None
        On the error of that head's largest score, the cross-entropy over log 2. The
        trivial value is the error of always answering the largest class.
    direct_cross_entropy, direct_error : Guarantee or None
        The same from the labels alone, of the head that the first half's class means
        and frequencies make. The error is that of one view a row.
    floor : float or None
        The least cross-entropy that any encoder has at these class frequencies, over
        log 2: no guarantee on `error` can lie below. Often it is above the trivial
        value at a temperature near 1: then no encoder has one that says something.

    Notes
    -----
    Entropies and errors of trivial values, and the floor, are those of the class
    frequencies among the rows that the estimate is a mean over.
    """

    method: str
    confidence: float
    n_rows: int
    temperature: float
    contrastive_loss: Guarantee | None = None
    incurred_loss: Guarantee | None = None
    squared_discrepancy: Guarantee | None = None
    cross_entropy: Guarantee | None = None
    error: Guarantee | None = None
    direct_cross_entropy: Guarantee | None = None
    direct_error: Guarantee | None = None
    floor: float | None = None

    @property
    def vacuous(self):
        """Whether the incurred loss's guarantee, or else the contrastive one's, is."""
        return (self.incurred_loss or self.contrastive_loss).vacuous


def certificate(
    views, y, temperature, confidence=0.95, method="split", random_state=None
):
    """Return what held-out rows guarantee of an encoder's InfoNCE and what it incurs.

    The rows are a sample of a population, and the guarantees are upper bounds on what
    the encoder has there. **They hold for held-out rows only**: the encoder, and all
    that was chosen with it, must have been fixed before these rows were drawn. On rows
    that it was trained or selected on they guarantee nothing.

    The bounds are wide. They say something at temperatures near 1 and with thousands of
    rows; at t = 0.2 that on the incurred loss is vacuous unless views and classes are
    very tight, and at t = 0.1 nearly always. The direct ones are mostly far tighter;
    the others tell what the contrastive loss, which needs no labels, and the
    discrepancy have in it.

    Time grows with the square of the number of views; memory does not.

    Parameters
    ----------
    views : array of shape (n, V, d), or list of n arrays of shape (V_i, d)
        Unit vectors, of independent views of independently drawn rows; their rounding
        is removed. Rows weigh the same, however many views they have. At least 8 rows.
    y : array of shape (n,) or None
        Classes, of any type that can be sorted; they count as all there are. No -1:
        leave unlabelled rows out. None bounds the contrastive loss alone, and needs two
        views of each row.
    temperature : float
        t > 0.
    confidence : float, default=0.95
        The probability with which each guarantee holds, between 0 and 1. Their joint
        one is lower; see :class:`Certificate`.
    method : {"split", "mcdiarmid"}, default="split"
        "split" fixes class means and more on half of the rows and averages over the
        other half, by an empirical Bernstein inequality. "mcdiarmid" averages over all
        rows; its deviation knows no variance and is larger in most cases.
    random_state : int, RandomState instance or None, default=None
        How the rows are split. None draws from numpy's global generator. To try several
        and keep the best is a choice on these rows: the guarantee is then lost.

    Returns
    -------
    Certificate
        The guarantees, as attributes.

    Raises
    ------
    ValueError
        If a parameter is out of its range, a view not a unit vector, the rows are too
        few, y holds -1 or is of another length, or y is None and a row has one view.

    Notes
    -----
    With λ = 1 / t, δ = 1 - confidence and m_i the mean of row i's views. "split": on
    the first half, a_k are the class means of the views, ρ the largest of their
    norms, b₁(z) is the mean over views z' of exp(λ z·z'), b_min its quantile at 2 % of
    the views, and b = max(b₁, b_min). The second half is paired into M pairs (i, j),

        k(i, j) = mean over views z of i, z' of j of exp(λ z·z') / b(z) + log b(z) - 1,
        q_i = λ (‖a_{y_i}‖² - 2 m_i·a_{y_i}),
        X = [k(i, j) + k(j, i) + q_i + q_j] / 2,

    and with probability 1 - δ, s² being the variance of the X and R their range,

        L + λ Δ₂² ≤ mean X + √(2 s² log(2/δ) / M) + 7 R log(2/δ) / (3 (M - 1)),
        R = (exp(λ) - exp(-λ)) / b_min + 4 λ ρ.

    For log u ≤ u / b + log b - 1 for every b, and Δ₂² ≤ E‖μ - a_y‖² for all centers a.
    Without labels q_i is -λ U_i, U_i = (V_i ‖m_i‖² - 1) / (V_i - 1), of range
    λ (1 + 1 / (V - 1)), V the fewest views of a row; Δ₂² alone has U_i + q_i / λ, of
    range (1 + ρ)² + 1 / (V - 1), over rows. For the cross-entropy, q_i has
    -log π̂_{y_i} besides, and R log(max π̂ / min π̂), π̂_k = (n_k + 1) / (n₁ + K) on the
    n₁ rows of the first half: its mean is no less than the entropy. A class that
    the first half lacks has the mean of all its views as a_k. Any choices that the
    first half determines keep the guarantee.

    "mcdiarmid": with P̂ the mean over anchors of the log of the mean over the other
    rows' views of exp(λ z·z'), ĉ_k and π̂_k the class means and frequencies of all rows
    and Q̂ = Σ_k π̂_k ‖ĉ_k‖²,

        L + λ Δ₂² ≤ P̂ - λ Q̂ + b_P + λ K / n + (p + 4 λ) √(log(1/δ) / (2 n)),
        p = 2 λ + (n - 1) log(1 + (exp(2λ) - 1) / (n - 1)),
        b_P = min([(2λ - 1) exp(2λ) + 1] / (4 (n - 1)), 2 log cosh λ).

    Without labels, -λ times the mean of U_i, of range λ (1 + 1 / (V - 1)), takes the
    place of -λ Q̂; Δ₂² alone has mean U - Q̂ + K / n and the range 4 + 1 / (V - 1); and
    the entropy is at most H(π̂) + log(1 + (K - 1) / n), of range
    n log n - (n - 1) log(n - 1).

    Direct are the head λ z·a_k + log π̂_k of the first half, its cross-entropy on the
    second by the same inequality, of range λ max ‖a_j - a_k‖ - log min π̂, and the upper
    limit of Clopper and Pearson on its error, on the first view of each row.

    References
    ----------
    "Internal Discrepancy for Contrastive Learning: Generalization Bounds and Downstream
    Behaviors" (2026), for the discrepancy and its place in a bound. Maurer, Pontil:
    Empirical Bernstein bounds and sample variance penalization (COLT 2009), Theorem 4.
    McDiarmid: On the method of bounded differences (Surveys in Combinatorics, 1989).
    Clopper, Pearson: The use of confidence or fiducial limits illustrated in the case
    of the binomial (Biometrika 26, 1934).

    Examples
    --------
    >>> import numpy as np
    >>> from skcl.theory import certificate
    >>> rng = np.random.RandomState(0)
    >>> y = rng.choice(3, size=2000, p=[0.7, 0.2, 0.1])
    >>> views = np.eye(3)[y][:, None] + 0.1 * rng.standard_normal((2000, 2, 3))
    >>> views /= np.linalg.norm(views, axis=2, keepdims=True)
    >>> held_out = certificate(views, y, temperature=1.0, random_state=0)
    >>> held_out.vacuous
    False
    >>> held_out.incurred_loss.estimate <= held_out.incurred_loss.bound < 0
    True
    >>> certificate(views, y, temperature=0.1, random_state=0).vacuous
    True
    """
    temperature = check_temperature(temperature)
    _check_options(method, confidence)
    measure, y = read_views(views, None, y)
    measure, y = _normalized(measure), None if y is None else read_classes(y)[1]
    _check_rows(measure, y)
    first, second = _split(measure.n_rows, random_state)
    # λ overflows, to infinite bounds, at temperatures of 1e-150 and below.
    with np.errstate(over="ignore", invalid="ignore"):
        guarantees = _guarantees(
            measure, y, first, second, temperature, 1 - confidence, method
        )
    return Certificate(
        method, float(confidence), measure.n_rows, temperature, **guarantees
    )


def _guarantees(
    measure: Measure,
    y: np.ndarray | None,
    first: np.ndarray,
    second: np.ndarray,
    temperature: float,
    delta: float,
    method: str,
) -> dict[str, Any]:
    """Return the guarantees, and the floor, given the rows of both halves."""
    if y is None and method == "mcdiarmid":
        return _by_mcdiarmid(measure, None, 1 / temperature, delta)
    half = _first_half(measure, y, first, 1 / temperature)
    held_out, y2 = measure.take(second), None if y is None else y[second]
    if method == "split":
        guarantees, counted = _by_split(half, held_out, y2, delta), y2
    else:
        guarantees, counted = _by_mcdiarmid(measure, y, half.scale, delta), y
    if y is None:
        return guarantees
    guarantees |= _error(guarantees["cross_entropy"], counted, temperature)
    return guarantees | _direct(half, held_out, y2, delta)


@dataclass(frozen=True)
class _FirstHalf:
    """What the first half of the rows determines, besides λ and V."""

    measure: Measure
    scale: float  # λ
    fewest: int  # V, of both halves
    mean: np.ndarray  # (d,), of all views
    centers: np.ndarray | None = None  # (K, d), a_k
    log_priors: np.ndarray | None = None  # (K,), log π̂_k

    @cached_property
    def log_smallest(self) -> float:
        """Return log b_min."""
        log_mean = log_mean_exp_of(self.measure.anchors, self.measure, self.scale)
        return float(np.quantile(log_mean, _SHARE_BELOW))

    def log_kernel_mean(self, z: np.ndarray) -> np.ndarray:
        """Return log b of views z (N, d), (N,)."""
        log_mean = log_mean_exp_of(z, self.measure, self.scale)
        return np.maximum(log_mean, self.log_smallest)

    @property
    def largest_norm(self) -> float:
        """Return ρ."""
        return float(np.linalg.norm(self.centers, axis=1).max())

    @property
    def kernel_range(self) -> float:
        """Return (exp(λ) - exp(-λ)) / b_min, the range of k."""
        return -np.exp(self.scale - self.log_smallest) * np.expm1(-2 * self.scale)


def _split(n: int, random_state: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of two halves, at random. Neighbours in the second are pairs."""
    order = _generator(random_state).permutation(n)
    n_second = n // 4 * 2
    return order[n_second:], order[:n_second]


def _first_half(
    measure: Measure, y: np.ndarray | None, rows: np.ndarray, scale: float
) -> _FirstHalf:
    fewest, measure = _fewest(measure), measure.take(rows)
    mean = measure.means.mean(axis=0)
    half = _FirstHalf(measure, scale, fewest, mean)
    if y is None:
        return half
    K, y = y.max() + 1, y[rows]
    centers = class_centers(measure.means, y, K)
    centers[np.isnan(centers).any(axis=1)] = mean
    log_priors = np.log((np.bincount(y, minlength=K) + 1) / (len(y) + K))
    return replace(half, centers=centers, log_priors=log_priors)


def _by_split(
    half: _FirstHalf, measure: Measure, y: np.ndarray | None, delta: float
) -> dict[str, Guarantee]:
    """Return the guarantees of the empirical Bernstein inequality on the second half.

    A term of two rows is the mean of both, so that its range is that of one.
    """
    kernels, guarantees = _kernels_of_pairs(half, measure), {}
    if half.fewest > 1:
        contrastive = kernels - half.scale * _of_pairs(_squared_norms(measure))
        width = half.kernel_range + half.scale * (1 + 1 / (half.fewest - 1))
        guarantees["contrastive_loss"] = bernstein(contrastive, width, delta)
    if y is None:
        return guarantees
    incurred = kernels + half.scale * _of_pairs(_fit(measure.means, half.centers[y]))
    width = half.kernel_range + 4 * half.scale * half.largest_norm
    guarantees["incurred_loss"] = bernstein(incurred, width, delta)
    incurred -= _of_pairs(half.log_priors[y])
    width += np.ptp(half.log_priors)
    guarantees["cross_entropy"] = bernstein(incurred, width, delta, _entropy(y))
    if half.fewest > 1:
        guarantees["squared_discrepancy"] = _discrepancy(half, measure, y, delta)
    return guarantees


def _discrepancy(
    half: _FirstHalf, measure: Measure, y: np.ndarray, delta: float
) -> Guarantee:
    """Return the guarantee on Δ₂² of the second half, whose rows need no pairing."""
    squared = _squared_norms(measure)
    to_mean = squared + _fit(measure.means, half.mean)
    to_centers = squared + _fit(measure.means, half.centers[y])
    width = (1 + half.largest_norm) ** 2 + 1 / (half.fewest - 1)
    return bernstein(to_centers, width, delta, trivial=to_mean.mean())


def _by_mcdiarmid(
    measure: Measure, y: np.ndarray | None, scale: float, delta: float
) -> dict[str, Guarantee]:
    """Return the guarantees of McDiarmid's inequality on all rows.

    The width of a statistic is n times what one row, replaced, can change in it.
    """
    n, fewest, means = measure.n_rows, _fewest(measure), measure.means
    guarantees = {}
    log_mean = log_mean_exp_of(measure.anchors, measure, scale, measure.row)
    partition = measure.of_rows(log_mean).mean()
    bias, width = _partition_bias(scale, n), _partition_width(scale, n)
    if fewest > 1:
        squared, spread = _squared_norms(measure).mean(), 1 + 1 / (fewest - 1)
        terms = partition - scale * squared, bias, width + scale * spread
        guarantees["contrastive_loss"] = mcdiarmid(*terms, n, delta)
    if y is None:
        return guarantees
    K, fitted = y.max() + 1, _squared_norm_of_centers(means, y)
    terms = partition - scale * fitted, bias + scale * K / n, width + 4 * scale
    guarantees["incurred_loss"] = mcdiarmid(*terms, n, delta)
    of_entropy = _entropy(y), np.log1p((K - 1) / n), _entropy_width(n)
    terms = np.add(terms, of_entropy)
    guarantees["cross_entropy"] = mcdiarmid(*terms, n, delta, _entropy(y))
    if fewest > 1:
        terms = squared - fitted, K / n, 3 + spread
        variance = squared - _squared_norm_of_centers(means, np.zeros_like(y))
        guarantees["squared_discrepancy"] = mcdiarmid(*terms, n, delta, variance)
    return guarantees


def _direct(
    half: _FirstHalf, measure: Measure, y: np.ndarray, delta: float
) -> dict[str, Guarantee]:
    """Return the guarantees on the head that the first half makes."""
    scores = half.scale * measure.anchors @ half.centers.T + half.log_priors  # (N, K)
    own = scores[np.arange(len(scores)), y[measure.row]]
    losses = measure.of_rows(logsumexp(scores, axis=1) - own)
    diameter = cdist(half.centers, half.centers).max()
    width = half.scale * diameter - half.log_priors.min()
    first_views = np.cumsum(measure.counts) - measure.counts
    errors = int((scores[first_views].argmax(axis=1) != y).sum())
    share, limit = errors / len(y), clopper_pearson(errors, len(y), delta)
    return {
        "direct_cross_entropy": bernstein(losses, width, delta, _entropy(y)),
        "direct_error": make_guarantee(share, limit - share, 0.0, _least_error(y)),
    }


def _error(
    cross_entropy: Guarantee, y: np.ndarray, temperature: float
) -> dict[str, Any]:
    """Return the guarantee on the error, and its floor: each error costs log 2."""
    priors = np.bincount(y) / len(y)
    least = optimal_geometry(priors[priors > 0], temperature).value + _entropy(y)
    terms = cross_entropy.estimate, cross_entropy.deviation, cross_entropy.correction
    error = make_guarantee(*(term / np.log(2) for term in terms), _least_error(y))
    return {"error": error, "floor": float(least / np.log(2))}


def _kernels_of_pairs(half: _FirstHalf, measure: Measure) -> np.ndarray:
    """Return [k(i, j) + k(j, i)] / 2 of each pair of rows, (M,)."""
    log_b = half.log_kernel_mean(measure.anchors)
    kernels = measure.of_rows(log_b).reshape(-1, 2).mean(axis=1) - 1
    ends = np.cumsum(measure.counts)[:-1]
    z, log_b = np.split(measure.anchors, ends), np.split(log_b, ends)
    for pair in range(len(kernels)):
        i, j = 2 * pair, 2 * pair + 1
        exponents = half.scale * (z[i] @ z[j].T)
        ratio = np.exp(exponents - log_b[i][:, None]) + np.exp(exponents - log_b[j])
        kernels[pair] += ratio.mean() / 2
    return kernels


def _squared_norms(measure: Measure) -> np.ndarray:
    """Return U_i, an unbiased estimate of a row's ‖μ‖² from its sampled views, (n,)."""
    V = measure.counts
    return (V * (measure.means**2).sum(axis=1) - 1) / (V - 1)


def _fit(means: np.ndarray, centers: np.ndarray) -> np.ndarray:
    """Return ‖m_i - a_i‖² - ‖m_i‖², (n,)."""
    return (centers**2).sum(axis=-1) - 2 * (means * centers).sum(axis=1)


def _squared_norm_of_centers(means: np.ndarray, y: np.ndarray) -> float:
    """Return Q̂ = Σ_k π̂_k ‖ĉ_k‖²."""
    squared_norms = (class_centers(means, y) ** 2).sum(axis=1)
    return float(squared_norms @ np.bincount(y) / len(y))


def _of_pairs(values: np.ndarray) -> np.ndarray:
    """Return the mean of each pair of rows' values (2M,), (M,)."""
    return values.reshape(-1, 2).mean(axis=1)


def _fewest(measure: Measure) -> int:
    """Return V, the fewest views of a row."""
    return int(measure.counts.min())


def _partition_bias(scale: float, n: int) -> float:
    """Return b_P, what the log of a mean over n - 1 rows lacks at most.

    By the variance it is φ(r) sinh² λ / (n - 1), r = exp(-2λ), as
    -log x ≤ 1 - x + φ(r) (1 - x)² for x ≥ r, φ(r) = (r - 1 - log r) / (1 - r)²; by the
    range it is Kantorovich's inequality.
    """
    by_variance = np.exp(2 * scale) * (2 * scale + np.expm1(-2 * scale)) / 4 / (n - 1)
    by_range = 2 * (scale + np.log1p(np.exp(-2 * scale)) - np.log(2))
    return min(by_variance, by_range)


def _partition_width(scale: float, n: int) -> float:
    """Return n times what one row can change in P̂.

    Its own anchors by 2λ; among the n - 1 negatives of another, one kernel from exp(-λ)
    to exp(λ) beside others of exp(-λ) at least.
    """
    log_ratio = 2 * scale + np.log(-np.expm1(-2 * scale)) - np.log(n - 1)
    return 2 * scale + (n - 1) * np.logaddexp(0, log_ratio)


def _entropy_width(n: int) -> float:
    """Return n times what one row can change in H(π̂): it leaves the only class."""
    return n * np.log(n) - (n - 1) * np.log(n - 1)


def _entropy(y: np.ndarray) -> float:
    """Return H(π̂) of the classes' frequencies."""
    counts = np.bincount(y)
    frequencies = counts[counts > 0] / len(y)
    return float(-(frequencies * np.log(frequencies)).sum())


def _least_error(y: np.ndarray) -> float:
    return float(1 - np.bincount(y).max() / len(y))


def _normalized(measure: Measure) -> Measure:
    """Return the measure with views of norm 1, as the ranges need them."""
    norms = np.linalg.norm(measure.anchors, axis=1, keepdims=True)
    return Measure(measure.anchors / norms, measure.counts)


def _generator(random_state: Any) -> np.random.RandomState:
    """Return the generator that a random_state stands for, as scikit-learn reads it."""
    if random_state is None:
        return np.random.mtrand._rand
    if isinstance(random_state, np.random.RandomState):
        return random_state
    if isinstance(random_state, Integral) and 0 <= random_state < 2**32:
        return np.random.RandomState(random_state)
    raise ValueError(
        f"random_state={random_state!r}: an int from 0 to 2**32 - 1, a RandomState or "
        "None is allowed."
    )


def _check_options(method: Any, confidence: Any) -> None:
    if not (isinstance(method, str) and method in METHODS):
        raise ValueError(f"method={method!r}: allowed are {METHODS}.")
    if not (isinstance(confidence, Real) and 0 < confidence < 1):
        raise ValueError(
            f"confidence={confidence!r}: a number above 0 and below 1 is allowed."
        )


def _check_rows(measure: Measure, y: np.ndarray | None) -> None:
    if measure.n_rows < _FEWEST_ROWS:
        raise ValueError(
            f"views has {measure.n_rows} rows: at least {_FEWEST_ROWS} are needed, for "
            "two pairs in one half."
        )
    single = np.flatnonzero(measure.counts == 1)
    if y is None and len(single):
        raise ValueError(
            f"views has a single view of row {single[0]}: without labels, y=None, at "
            "least two views of each row are needed."
        )
