"""Statistics of paired differences. Each takes the differences of one table by row."""

import numpy as np
from scipy.stats import rankdata, spearmanr, t, wilcoxon


def bootstrap_interval(differences, n_draws=10_000, confidence=0.95):
    """Return the interval of the mean over tables; cells are drawn within each table.

    Parameters
    ----------
    differences : list of arrays
        Of each table, the differences of its cells.
    """
    rng = np.random.RandomState(0)
    means = np.zeros(n_draws)
    for of_table in differences:
        drawn = rng.randint(len(of_table), size=(n_draws, len(of_table)))
        means += np.asarray(of_table)[drawn].mean(axis=1) / len(differences)
    tail = (1 - confidence) / 2
    return np.quantile(means, [tail, 1 - tail])


def corrected_interval(differences, test_to_train=1 / 4, confidence=0.95):
    """Return the corrected resampled t interval of the mean over folds.

    mean ± t_{J-1} √((1/J + test_to_train) s²) of J folds, s² the variance of their
    differences: the folds share training rows. NaN for one fold.

    References
    ----------
    Nadeau, Bengio: Inference for the generalization error (2003).
    """
    n_folds = len(differences)
    if n_folds < 2:
        return np.full(2, np.nan)
    variance = np.var(differences, ddof=1) * (1 / n_folds + test_to_train)
    half = t.ppf((1 + confidence) / 2, n_folds - 1) * variance**0.5
    return np.mean(differences) + half * np.array([-1, 1])


def mean_ranks(scores):
    """Return the mean rank of each column over the rows; 1 is the highest."""
    return rankdata(-np.asarray(scores), axis=1).mean(axis=0)


def signed_rank_p(differences):
    """Return the p-value of Wilcoxon's signed-rank test; NaN if all are zero."""
    return wilcoxon(differences).pvalue if np.any(differences) else np.nan


def rank_correlation(a, b):
    """Return Spearman's correlation; NaN of fewer than three pairs or a constant."""
    if len(a) < 3 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return np.nan
    return spearmanr(a, b).statistic
