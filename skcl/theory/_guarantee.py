"""Upper bounds that hold with a given confidence, and the inequalities behind them."""

from dataclasses import dataclass

import numpy as np
from scipy.special import betaincinv


@dataclass(frozen=True)
class Guarantee:
    """An upper bound that holds with a given confidence, term by term.

    Attributes
    ----------
    estimate : float
        The mean over the rows.
    deviation : float
        What chance adds: the variance term of Bernstein's inequality, the deviation of
        McDiarmid's, or the distance to the limit of Clopper and Pearson.
    correction : float
        What else has to be added: the range term of Bernstein's inequality, or the bias
        of an estimate that all rows entered; else 0.
    trivial : float
        The value from which on the bound says nothing, as an encoder that maps all rows
        to one point has it.
    """

    estimate: float
    deviation: float
    correction: float
    trivial: float

    @property
    def bound(self):
        """Estimate, deviation and correction together."""
        return self.estimate + self.deviation + self.correction

    @property
    def vacuous(self):
        """Whether the bound is no lower than the trivial value."""
        return not self.bound < self.trivial


def bernstein(
    values: np.ndarray, width: float, trivial: float, delta: float
) -> Guarantee:
    """Return the guarantee on the mean of independent values (M,) of a range."""
    M, log_term = len(values), np.log(2 / delta)
    unit = np.ptp(values) or 1.0  # at the lowest temperatures, a square overflows
    deviation = unit * (values / unit).std(ddof=1) * np.sqrt(2 * log_term / M)
    correction = 7 * width * log_term / (3 * (M - 1))
    return make_guarantee(values.mean(), deviation, correction, trivial)


def mcdiarmid(
    estimate: float, bias: float, width: float, trivial: float, n: int, delta: float
) -> Guarantee:
    """Return the guarantee on what a statistic, up to a bias, is in expectation.

    The width is n times what one of the n rows can change in it.
    """
    deviation = width * np.sqrt(-np.log(delta) / (2 * n))
    return make_guarantee(estimate, deviation, bias, trivial)


def make_guarantee(*terms: float) -> Guarantee:
    """Return the guarantee of these terms, in Python's numbers."""
    return Guarantee(*map(float, terms))


def clopper_pearson(errors: int, n: int, delta: float) -> float:
    """Return the largest error rate not refuted by so few errors in n, at level δ."""
    return 1.0 if errors == n else float(betaincinv(errors + 1, n - errors, 1 - delta))
