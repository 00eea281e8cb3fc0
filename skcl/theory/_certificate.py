"""A certificate: what held-out rows guarantee of the rows to come."""

from dataclasses import dataclass, field, replace
from functools import cached_property
from numbers import Real
from typing import Any

import numpy as np
from scipy.spatial.distance import cdist
from scipy.special import entr, logsumexp
from sklearn.utils import check_random_state

from skcl.theory._bound import largest_jensen_gap
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
FEWEST_ROWS = 8

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
    priors : tuple of K floats, or None
        The class frequencies among the rows that `cross_entropy` is a mean over.

    Notes
    -----
    Entropies and errors of trivial values are those of the class frequencies among the
    rows that the estimate is a mean over.
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
    priors: tuple[float, ...] | None = field(default=None, repr=False)

    @property
    def vacuous(self):
        """Whether the incurred loss's guarantee, or else the contrastive one's, is."""
        return (self.incurred_loss or self.contrastive_loss).vacuous

    @cached_property
    def floor(self):
        """The least cross-entropy of any encoder at these priors, over log 2, or None.

        No guarantee on `error` can lie below. Often it is above the trivial value at a
        temperature near 1: then no encoder has one that says something. It is solved
        for when it is first asked for, which takes seconds for 100 classes.
        """
        if self.priors is None:
            return None
        least = optimal_geometry(self.priors, self.temperature).value
        return max(0.0, float((least + entr(self.priors).sum()) / np.log(2)))


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

    Time grows with the square of the number of views, memory with the number.

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
        b_P = min([(2λ - 1) exp(2λ) + 1] / (4 (n - 1)), h(λ)),
        h(λ) = λ coth λ - 1 + log(sinh λ / λ).

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
    y = None if y is None else read_classes(y)[1]
    _check_rows(measure, y)
    first, second = _split(measure.n_rows, random_state)
    half = _first_half(measure, y, first, 1 / temperature)
    held_out, y2 = measure.take(second), None if y is None else y[second]
    delta = 1 - confidence
    if method == "split":
        found, counted = _by_split(half, held_out, y2, delta), y2
    else:
        found, counted = _by_mcdiarmid(measure, y, 1 / temperature, delta), y
    if y is not None:
        found["error"] = _error(found["cross_entropy"], counted)
        found |= _direct(half, held_out, y2, delta)
        found["priors"] = tuple(_frequencies(counted).tolist())
    return Certificate(method, float(confidence), measure.n_rows, temperature, **found)


@dataclass(frozen=True, eq=False)
class _FirstHalf:
    """What the first half of the rows determines, besides λ and V."""

    measure: Measure
    rate: float  # λ
    fewest: int  # V, of both halves
    mean: np.ndarray  # (d,), of all views
    centers: np.ndarray | None = None  # (K, d), a_k
    log_priors: np.ndarray | None = None  # (K,), log π̂_k

    @cached_property
    def log_smallest(self) -> float:
        """Return log b_min.

        Each view is in its own mean, so no b₁ is below exp(λ) / (n₁ max V_i): but by
        rounding, which a large λ multiplies.
        """
        log_mean = log_mean_exp_of(self.measure.anchors, self.measure, self.rate)
        least = self.rate - np.log(self.measure.n_rows * self.measure.counts.max())
        return float(max(np.quantile(log_mean, _SHARE_BELOW), least))

    def log_kernel_mean(self, z: np.ndarray) -> np.ndarray:
        """Return log b of views z (N, d), (N,)."""
        log_mean = log_mean_exp_of(z, self.measure, self.rate)
        return np.maximum(log_mean, self.log_smallest)

    @property
    def largest_norm(self) -> float:
        """Return ρ."""
        return float(np.linalg.norm(self.centers, axis=1).max())

    @property
    def kernel_range(self) -> float:
        """Return (exp(λ) - exp(-λ)) / b_min, the range of k."""
        return -np.exp(self.rate - self.log_smallest) * np.expm1(-2 * self.rate)


def _split(n: int, random_state: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of two halves, at random. Neighbours in the second are pairs."""
    order = check_random_state(random_state).permutation(n)
    n_second = n // 4 * 2
    return order[n_second:], order[:n_second]


def _first_half(
    measure: Measure, y: np.ndarray | None, rows: np.ndarray, rate: float
) -> _FirstHalf:
    fewest, measure = _fewest(measure), measure.take(rows)
    mean = measure.means.mean(axis=0)
    half = _FirstHalf(measure, rate, fewest, mean)
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
    """Return the guarantees of Bernstein's inequality on the second half."""
    terms = _split_terms(half, measure, y)
    return {name: bernstein(*of_name, delta) for name, of_name in terms.items()}


def _split_terms(
    half: _FirstHalf, measure: Measure, y: np.ndarray | None
) -> dict[str, tuple[np.ndarray, float, float]]:
    """Return independent values of the second half, their range and the trivial value.

    A term of two rows is the mean of both, so that its range is that of one.
    """
    rate, kernels, terms = half.rate, _kernels_of_pairs(half, measure), {}
    if half.fewest > 1:
        contrastive = kernels - rate * _of_pairs(_squared_norms(measure))
        width = half.kernel_range + rate * _spread(half.fewest)
        terms["contrastive_loss"] = contrastive, width, 0.0
    if y is not None:
        incurred = kernels + rate * _of_pairs(_fit(measure.means, half.centers[y]))
        width = half.kernel_range + 4 * rate * half.largest_norm
        terms["incurred_loss"] = incurred, width, 0.0
        cross_entropy = incurred - _of_pairs(half.log_priors[y])
        wider = width + np.ptp(half.log_priors)
        terms["cross_entropy"] = cross_entropy, wider, _entropy(y)
    if y is not None and half.fewest > 1:
        terms["squared_discrepancy"] = _discrepancy_terms(half, measure, y)
    return terms


def _discrepancy_terms(
    half: _FirstHalf, measure: Measure, y: np.ndarray
) -> tuple[np.ndarray, float, float]:
    """Return the same of Δ₂², whose rows need no pairing."""
    squared = _squared_norms(measure)
    to_mean = squared + _fit(measure.means, half.mean)
    to_centers = squared + _fit(measure.means, half.centers[y])
    width = (1 + half.largest_norm) ** 2 + _spread(half.fewest) - 1
    return to_centers, width, to_mean.mean()


def _by_mcdiarmid(
    measure: Measure, y: np.ndarray | None, rate: float, delta: float
) -> dict[str, Guarantee]:
    """Return the guarantees of McDiarmid's inequality on all rows."""
    terms, n = _mcdiarmid_terms(measure, y, rate), measure.n_rows
    return {name: mcdiarmid(*of_name, n, delta) for name, of_name in terms.items()}


def _mcdiarmid_terms(
    measure: Measure, y: np.ndarray | None, rate: float
) -> dict[str, tuple[float, float, float, float]]:
    """Return statistics of all rows, their bias, their width and the trivial value.

    The width of a statistic is n times what one row, replaced, can change in it.
    """
    n, fewest, terms = measure.n_rows, _fewest(measure), {}
    log_mean = log_mean_exp_of(measure.anchors, measure, rate, measure.row)
    partition = measure.of_rows(log_mean).mean()
    bias, width = _partition_bias(rate, n), _partition_width(rate, n)
    if fewest > 1:
        contrastive = partition - rate * _squared_norms(measure).mean()
        wider = width + rate * _spread(fewest)
        terms["contrastive_loss"] = contrastive, bias, wider, 0.0
    if y is not None:
        K, fitted = y.max() + 1, _squared_norm_of_centers(measure.means, y)
        incurred = partition - rate * fitted
        larger, wider = bias + rate * K / n, width + 4 * rate
        terms["incurred_loss"] = incurred, larger, wider, 0.0
        terms["cross_entropy"] = (
            incurred + _entropy(y),
            larger + np.log1p((K - 1) / n),
            wider + _entropy_width(n),
            _entropy(y),
        )
    if y is not None and fewest > 1:
        squared = _squared_norms(measure).mean()
        variance = squared - _squared_norm_of_centers(measure.means, np.zeros_like(y))
        within = squared - fitted
        terms["squared_discrepancy"] = within, K / n, 3 + _spread(fewest), variance
    return terms


def _direct(
    half: _FirstHalf, measure: Measure, y: np.ndarray, delta: float
) -> dict[str, Guarantee]:
    """Return the guarantees on the head that the first half makes."""
    terms = _direct_terms(half, measure, y)
    guarantees = {name: bernstein(*of_name, delta) for name, of_name in terms.items()}
    first_views = np.cumsum(measure.counts) - measure.counts
    predicted = _scores(half, measure.anchors[first_views]).argmax(axis=1)
    errors = int((predicted != y).sum())
    share, limit = errors / len(y), clopper_pearson(errors, len(y), delta)
    error = make_guarantee(share, limit - share, 0.0, _least_error(y))
    return guarantees | {"direct_error": error}


def _direct_terms(
    half: _FirstHalf, measure: Measure, y: np.ndarray
) -> dict[str, tuple[np.ndarray, float, float]]:
    """Return the head's loss on each row, its range and the trivial value."""
    scores = _scores(half, measure.anchors)
    own = scores[np.arange(len(scores)), y[measure.row]]
    losses = measure.of_rows(logsumexp(scores, axis=1) - own)
    diameter = cdist(half.centers, half.centers).max()
    width = half.rate * diameter - half.log_priors.min()
    return {"direct_cross_entropy": (losses, width, _entropy(y))}


def _scores(half: _FirstHalf, z: np.ndarray) -> np.ndarray:
    """Return λ z·a_k + log π̂_k of views z (N, d), (N, K)."""
    return half.rate * z @ half.centers.T + half.log_priors


def _error(cross_entropy: Guarantee, y: np.ndarray) -> Guarantee:
    """Return the guarantee on the error: each costs log 2."""
    terms = cross_entropy.estimate, cross_entropy.deviation, cross_entropy.correction
    return make_guarantee(*(term / np.log(2) for term in terms), _least_error(y))


def _kernels_of_pairs(half: _FirstHalf, measure: Measure) -> np.ndarray:
    """Return [k(i, j) + k(j, i)] / 2 of each pair of rows, (M,)."""
    log_b = half.log_kernel_mean(measure.anchors)
    kernels = measure.of_rows(log_b).reshape(-1, 2).mean(axis=1) - 1
    ends = np.cumsum(measure.counts)[:-1]
    z, log_b = np.split(measure.anchors, ends), np.split(log_b, ends)
    for pair in range(len(kernels)):
        i, j = 2 * pair, 2 * pair + 1
        exponents = half.rate * np.minimum(z[i] @ z[j].T, 1)  # above 1 by rounding
        ratio = np.exp(exponents - log_b[i][:, None]) + np.exp(exponents - log_b[j])
        kernels[pair] += ratio.mean() / 2
    return kernels


def _spread(fewest: int) -> float:
    """Return V / (V - 1), the range of U_i."""
    return fewest / (fewest - 1)


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


def _partition_bias(rate: float, n: int) -> float:
    """Return b_P, what the log of a mean over n - 1 rows lacks at most.

    By the variance it is φ(r) sinh² λ / (n - 1), r = exp(-2λ), as
    -log x ≤ 1 - x + φ(r) (1 - x)² for x ≥ r, φ(r) = (r - 1 - log r) / (1 - r)²; by the
    range, h(λ): E log x is no further below log E x for any x from exp(-λ) to exp(λ).
    """
    with np.errstate(over="ignore"):  # where it does, the range has less
        by_variance = np.exp(2 * rate) * (2 * rate + np.expm1(-2 * rate)) / 4 / (n - 1)
    return min(by_variance, largest_jensen_gap(1 / rate, "infonce"))


def _partition_width(rate: float, n: int) -> float:
    """Return n times what one row can change in P̂.

    Its own anchors by 2λ; among the n - 1 negatives of another, one kernel from exp(-λ)
    to exp(λ) beside others of exp(-λ) at least.
    """
    log_ratio = 2 * rate + np.log(-np.expm1(-2 * rate)) - np.log(n - 1)
    return 2 * rate + (n - 1) * np.logaddexp(0, log_ratio)


def _entropy_width(n: int) -> float:
    """Return n times what one row can change in H(π̂): it leaves the only class."""
    return n * np.log(n) - (n - 1) * np.log(n - 1)


def _frequencies(y: np.ndarray) -> np.ndarray:
    """Return π̂_k of the classes that rows have."""
    counts = np.bincount(y)
    return counts[counts > 0] / len(y)


def _entropy(y: np.ndarray) -> float:
    """Return H(π̂)."""
    return float(entr(_frequencies(y)).sum())


def _least_error(y: np.ndarray) -> float:
    """Return 1 - max π̂."""
    return float(1 - _frequencies(y).max())


def _check_options(method: Any, confidence: Any) -> None:
    if not (isinstance(method, str) and method in METHODS):
        raise ValueError(f"method={method!r}: allowed are {METHODS}.")
    if not (isinstance(confidence, Real) and 0 < confidence < 1):
        raise ValueError(
            f"confidence={confidence!r}: a number above 0 and below 1 is allowed."
        )


def _check_rows(measure: Measure, y: np.ndarray | None) -> None:
    if measure.n_rows < FEWEST_ROWS:
        raise ValueError(
            f"views has {measure.n_rows} rows: at least {FEWEST_ROWS} are needed, for "
            "two pairs in one half."
        )
    single = np.flatnonzero(measure.counts == 1)
    if y is None and len(single):
        raise ValueError(
            f"views has a single view of row {single[0]}: without labels, y=None, at "
            "least two views of each row are needed."
        )
