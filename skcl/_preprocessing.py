"""From validated rows to the block of numbers and codes that the network sees."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from sklearn import config_context
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler

from skcl._table import Rows
from skcl.networks import FIRST_CATEGORY, MISSING, UNSEEN

# Activations' sums of squares must not overflow in float32.
MAX_DEVIATION = 1e15

# Quantiles of a column, from which views draw.
N_QUANTILES = 1000


class Preprocessor:
    """How each column enters the network, learned on the training rows.

    The block that it makes of rows, (n, d) and float32, has the table's columns in
    their order: numbers standardized, NaN where one is missing; categories as codes.

    Parameters
    ----------
    rows : Rows
        To learn from.
    weight : array of shape (n,) or None
        Their weights.
    categorical : sequence of int
        Positions of the categories.
    names : sequence
        Names or positions of the columns.

    Attributes
    ----------
    n_codes : tuple of int
        Number of codes of each column; 0 for numbers.
    missing_indicator : tuple of int
        Positions of the numbers that some training row lacks.
    empty : list of int
        Positions of the columns without any value in training.
    """

    def __init__(
        self,
        rows: Rows,
        weight: np.ndarray | None,
        categorical: Sequence[int],
        names: Sequence,
    ):
        self.names = names
        self.categorical = list(categorical)
        self.numeric = sorted(set(range(len(names))) - set(categorical))
        self.numbers = self.categories = None
        self.missing_indicator, n_codes = (), np.zeros(len(names), dtype=int)
        self.empty = [
            self.numeric[k] for k in np.flatnonzero(np.isnan(rows.numbers).all(axis=0))
        ]
        with config_context(transform_output="default"):
            if self.numeric:
                names_of_numbers = [names[j] for j in self.numeric]
                self.numbers = Numbers(rows.numbers, weight, names_of_numbers)
                lacking = self.numbers.imputer.indicator_.features_
                self.missing_indicator = tuple(self.numeric[k] for k in lacking)
            if self.categorical:
                names_of_categories = [names[j] for j in self.categorical]
                self.categories = Categories(rows.categories, names_of_categories)
                n_codes[self.categorical] = self.categories.n_codes
        self.n_codes = tuple(n_codes.tolist())

    def encode(self, rows: Rows, first_row: int = 0) -> np.ndarray:
        """Return the block of rows; errors count rows from first_row."""
        if not self.categories:
            return self.numbers.standardize(rows.numbers, first_row)
        x = np.empty((len(rows), len(self.n_codes)), dtype=np.float32)
        with config_context(transform_output="default"):
            if self.numbers:
                x[:, self.numeric] = self.numbers.standardize(rows.numbers, first_row)
            x[:, self.categorical] = self.categories.encode(rows.categories)
        return x

    def impute(self, rows: Rows, x: np.ndarray) -> np.ndarray:
        """Return the columns for other models: nothing missing, categories one-hot.

        x is the block of the rows. Numbers come first, then their indicators.
        """
        parts = []
        with config_context(transform_output="default"):
            if self.numbers:
                parts.append(self.numbers.imputer.transform(x[:, self.numeric]))
            if self.categories:
                parts.append(self.categories.one_hot.transform(rows.categories))
        return np.hstack(parts)

    @property
    def n_imputed(self) -> int:
        """Number of columns of :meth:`impute`."""
        return len(self.imputed_names([""] * len(self.n_codes)))

    def imputed_names(self, names: Sequence[str]) -> np.ndarray:
        """Return the names of the columns of :meth:`impute`."""
        parts = []
        if self.numbers:
            names_in = [names[j] for j in self.numeric]
            parts.append(self.numbers.imputer.get_feature_names_out(names_in))
        if self.categories:
            names_in = [names[j] for j in self.categorical]
            parts.append(self.categories.one_hot.get_feature_names_out(names_in))
        return np.concatenate(parts)

    def check_imputed_names(self) -> None:
        """Raise where two columns of :meth:`impute` would have one name."""
        check_unique(self.imputed_names([str(name) for name in self.names]))


def check_unique(names: np.ndarray) -> None:
    """Raise where a name occurs twice."""
    unique, counts = np.unique(names, return_counts=True)
    if (counts > 1).any():
        raise ValueError(
            f"passthrough=True gives two columns the name {unique[counts > 1][0]!r}: "
            "rename a column."
        )


class Numbers:
    """Standardization in float64, which lets missing values through."""

    def __init__(self, X: np.ndarray, weight: np.ndarray | None, names: Sequence):
        self.names = names
        self.scaler = self._fit_scaler(X, weight)
        # Slow to import, as it brings most of scikit-learn.
        from sklearn.impute import SimpleImputer

        self.imputer = SimpleImputer(
            strategy="constant",
            fill_value=0,  # of standardized numbers, the mean
            add_indicator=True,
            keep_empty_features=True,
        ).fit(X)

    def _fit_scaler(self, X: np.ndarray, weight: np.ndarray | None) -> Pipeline:
        """Learn mean and variance; refuse a column that this would lose.

        The mean goes first, alone: beside a large one StandardScaler takes a small
        variance for rounding error.
        """
        X = X.astype(np.float64, copy=False)
        with np.errstate(invalid="ignore"):  # of a column without any value
            if weight is None:
                center = StandardScaler(with_std=False).fit(X)
                spread = StandardScaler().fit(center.transform(X))
            else:
                # By StandardScaler itself weights go through a BLAS, whose bits depend
                # on its threads. It is given two rows of this mean and deviation.
                mean = _weighted_mean(X, weight)
                center = StandardScaler(with_std=False).fit([mean, mean])
                deviation = np.sqrt(_weighted_mean((X - mean) ** 2, weight))
                spread = StandardScaler().fit([-deviation, deviation])
        span = np.fmax.reduce(X) - np.fmin.reduce(X)
        lost = np.flatnonzero((spread.var_ == 0) & (span > 0))
        if len(lost):
            j = lost[0]
            raise ValueError(
                f"Column {self.names[j]!r} cannot be standardized: its values lie "
                f"within {span[j]:.3g}, and their variance vanishes in rounding. "
                "Rescale it."
            )
        return make_pipeline(center, spread)

    def standardize(self, X: np.ndarray, first_row: int) -> np.ndarray:
        """Return float32; refuse a value too large for the network."""
        center, spread = (scaler for _, scaler in self.scaler.steps)
        with np.errstate(over="ignore"):  # refused below
            # As scikit-learn would, without a check and a copy of each.
            scaled = X - center.mean_
            scaled -= spread.mean_
            scaled /= spread.scale_
        if np.fmax.reduce(np.abs(scaled), axis=None) >= MAX_DEVIATION:
            row, j = np.argwhere(np.abs(scaled) >= MAX_DEVIATION)[0]
            raise ValueError(
                f"Column {self.names[j]!r}, row {first_row + row}: {X[row, j]} lies "
                f"{abs(scaled[row, j]):.3g} standard deviations from the mean of the "
                f"training rows; below {MAX_DEVIATION:.0e} is allowed."
            )
        missing = np.isnan(scaled)
        if missing.any():
            scaled[missing] = np.nan  # of one sign: views are drawn by the bytes
        return scaled.astype(np.float32)


class Categories:
    """Codes of categories, and a column for each where a model needs that."""

    def __init__(self, X: np.ndarray, names: Sequence):
        self.names = names
        self.ordinal = OrdinalEncoder(
            handle_unknown="use_encoded_value",
            unknown_value=UNSEEN - FIRST_CATEGORY,
            encoded_missing_value=MISSING - FIRST_CATEGORY,
        ).fit(X)
        self.one_hot = OneHotEncoder(
            handle_unknown="ignore", sparse_output=False, dtype=np.float32
        ).fit(X)
        present = [
            categories[~pd.isna(categories)] for categories in self.ordinal.categories_
        ]
        self.n_codes = [FIRST_CATEGORY + len(c) for c in present]

    def encode(self, X: np.ndarray) -> np.ndarray:
        """Return the codes, from 0 on; refuse numbers for strings and the reverse.

        None of them would be seen: a file has been read with other types.
        """
        for name, column, categories in zip(
            self.names, X.T, self.ordinal.categories_, strict=True
        ):
            known, present = categories[~pd.isna(categories)], column[~pd.isna(column)]
            if len(known) and len(present):
                of_strings = isinstance(known[0], str)
                if all(isinstance(value, str) != of_strings for value in present):
                    held = "strings" if of_strings else "other values"
                    raise ValueError(
                        f"Column {name!r} holds {present[0]!r} and the like, where fit "
                        f"saw {held} such as {known[0]!r}. Convert it to the same type."
                    )
        return FIRST_CATEGORY + self.ordinal.transform(X)


def _weighted_mean(X: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Return the mean of each column's values that are not missing, (p,)."""
    w = np.where(np.isnan(X), 0.0, weight[:, None])
    return np.where(w > 0, w * X, 0.0).sum(axis=0) / w.sum(axis=0)


def marginal_table(x: np.ndarray, weight: np.ndarray | None = None) -> np.ndarray:
    """Return equally likely values of each column, (q, d): its marginal law.

    They are quantiles without interpolation, values of the column, so that a discrete
    column stays discrete and a missing value is one of them. q = N_QUANTILES;
    without weights, n at the most.
    """
    if weight is None:
        n, q = len(x), min(len(x), N_QUANTILES)
        # Sorting is faster along memory than across it.
        columns = np.sort(np.ascontiguousarray(x.T), axis=1)
        middle = (2 * np.arange(q) + 1) * n // (2 * q)
        return np.ascontiguousarray(columns[:, middle].T)
    order = np.argsort(x, axis=0)
    level = np.cumsum(weight[order], axis=0)  # (n, d)
    middle = (np.arange(N_QUANTILES) + 0.5) / N_QUANTILES
    rows = [
        order[np.searchsorted(column, middle * column[-1]), j]
        for j, column in enumerate(level.T)
    ]
    return np.take_along_axis(x, np.column_stack(rows), axis=0)
