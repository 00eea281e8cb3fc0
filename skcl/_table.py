"""From a frame or an array to the standardized block that the network sees."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from pandas.api.types import is_bool_dtype, is_numeric_dtype, is_object_dtype
from sklearn import config_context
from sklearn.base import BaseEstimator
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.validation import validate_data

# Sums of squares must not overflow in float64, nor, of activations, in float32.
MAX_VALUE = 1e150
MAX_DEVIATION = 1e15


def forget_fit(estimator: BaseEstimator) -> None:
    """Delete what an earlier fit has set: the attributes whose names end in "_"."""
    for name in [name for name in vars(estimator) if name.endswith("_")]:
        delattr(estimator, name)


def check_table(
    estimator: BaseEstimator, X: Any, *, reset: bool, min_samples: int = 1
) -> np.ndarray:
    """Validate numeric input with scikit-learn, and name the column that fails.

    Parameters
    ----------
    estimator : BaseEstimator
        Whose n_features_in_ and feature_names_in_ are set, or compared with.
    X : array-like of shape (n, d)
        Numbers or booleans, all finite.
    reset : bool
        True in fit.
    min_samples : int, default=1
        The fewest rows.

    Returns
    -------
    array of shape (n, d)
        Of type float32 or float64.

    Raises
    ------
    ValueError, TypeError
        As scikit-learn has them, followed by the column and the value.
    """
    unsupported = next(_unsupported_columns(X), None)
    if unsupported is not None:
        name, kind = unsupported
        raise ValueError(
            f"Column {name!r} holds {kind} values; {type(estimator).__name__} takes "
            "numbers and booleans. Encode it first, with OneHotEncoder in a "
            "ColumnTransformer, or with skrub's TableVectorizer."
        )
    try:
        array = validate_data(
            estimator,
            X,
            reset=reset,
            dtype=[np.float64, np.float32],
            ensure_min_samples=min_samples,
        )
    except (ValueError, TypeError, OverflowError) as error:
        culprit = _first_bad_cell(X)
        if culprit is None:
            raise
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{error}\n{culprit}") from error
    if max(float(array.max()), -float(array.min())) >= MAX_VALUE:
        row, j = np.argwhere(np.abs(array) >= MAX_VALUE)[0]
        raise ValueError(
            f"Column {column_names(estimator)[j]!r}, row {row}: {array[row, j]} is "
            f"too large to be squared; below {MAX_VALUE:.0e} is allowed. Rescale it."
        )
    return array


def column_names(estimator: BaseEstimator) -> Sequence:
    """Return the names of the columns of fit, or their positions."""
    positions = range(estimator.n_features_in_)
    return getattr(estimator, "feature_names_in_", positions)


def fit_scaler(X: np.ndarray, names: Sequence) -> Pipeline:
    """Learn mean and variance, in float64; refuse a column that this would lose.

    The mean goes first, alone: beside a large one StandardScaler takes a small variance
    for rounding error.
    """
    scaler = make_pipeline(StandardScaler(with_std=False), StandardScaler())
    with config_context(transform_output="default"):
        scaler.fit(X.astype(np.float64, copy=False))
    span = X.max(axis=0).astype(np.float64) - X.min(axis=0)
    lost = np.flatnonzero((scaler[-1].var_ == 0) & (span > 0))
    if len(lost):
        j = lost[0]
        raise ValueError(
            f"Column {names[j]!r} cannot be standardized: its values lie within "
            f"{span[j]:.3g}, and their variance vanishes in rounding. Rescale it."
        )
    return scaler


def scale(
    scaler: Pipeline, X: np.ndarray, names: Sequence, first_row: int = 0
) -> np.ndarray:
    """Return standardized rows, float32; refuse a value too large for the network."""
    # An overflow is refused below.
    with config_context(transform_output="default"), np.errstate(over="ignore"):
        scaled = scaler.transform(X.astype(np.float64, copy=False))
    far = ~(np.abs(scaled) < MAX_DEVIATION)
    if far.any():
        row, j = np.argwhere(far)[0]
        raise ValueError(
            f"Column {names[j]!r}, row {first_row + row}: {X[row, j]} lies "
            f"{abs(scaled[row, j]):.3g} standard deviations from the mean of the "
            f"training rows; below {MAX_DEVIATION:.0e} is allowed."
        )
    return scaled.astype(np.float32)


def marginal_table(x: np.ndarray, n_quantiles: int = 1000) -> np.ndarray:
    """Return evenly spaced quantiles of each column, (q, d): its marginal law.

    They are values of the column, without interpolation, so that a discrete column
    stays discrete. q = min(n, n_quantiles).
    """
    n = len(x)
    q = min(n, n_quantiles)
    index = (2 * np.arange(q) + 1) * n // (2 * q)
    return np.sort(x, axis=0)[index]


def _unsupported_columns(X: Any) -> Iterator[tuple[Any, str]]:
    """Yield name and kind of the columns whose dtype is of no use as it is.

    Other objects than times, such as strings, are left to the conversion.
    """
    if hasattr(X, "columns") and hasattr(X, "dtypes"):
        for name, dtype in zip(X.columns, X.dtypes, strict=True):
            if not _is_numeric(dtype):
                yield name, str(dtype)
        if not any(is_object_dtype(dtype) for dtype in X.dtypes):
            return
    elif isinstance(X, np.ndarray) and X.dtype != object:
        if X.dtype.kind in "mM":
            yield 0, X.dtype.name
        return
    for name, column in _columns(X):
        for value in column:
            if isinstance(value, np.datetime64 | np.timedelta64):
                yield name, type(value).__name__
                break


def _is_numeric(dtype: Any) -> bool:
    if hasattr(dtype, "is_numeric"):  # polars
        return dtype.is_numeric() or str(dtype) in ("Boolean", "Object", "Null")
    return is_numeric_dtype(dtype) or is_bool_dtype(dtype) or is_object_dtype(dtype)


def _first_bad_cell(X: Any) -> str | None:
    """Say which cell of a refused table is not a finite number, if one is."""
    for name, column in _columns(X):
        for row in _suspects(column):
            problem = _problem(column[row])
            if problem:
                return f"Column {name!r}, row {row}: {column[row]!r} is {problem}."
    return None


def _columns(X: Any) -> Iterator[tuple[Any, np.ndarray]]:
    """Yield name and values of each column of a frame, list or 2-D array."""
    if getattr(X, "ndim", 2) != 2:
        return
    if hasattr(X, "iloc"):
        for j, name in enumerate(X.columns):
            yield name, np.asarray(X.iloc[:, j], dtype=object)
    elif hasattr(X, "columns"):
        for name in X.columns:
            yield name, np.asarray(X[name], dtype=object)
    elif isinstance(X, list | tuple | np.ndarray):
        try:
            array = np.asarray(X, dtype=object)
        except ValueError:  # ragged
            return
        if array.ndim == 2:
            yield from enumerate(array.T)


def _suspects(column: np.ndarray) -> np.ndarray:
    """Return the rows to look at: all of them where the column is not numeric."""
    try:
        return np.flatnonzero(~np.isfinite(column.astype(np.float64)))
    except (TypeError, ValueError, OverflowError):
        return np.arange(len(column))


def _problem(value: Any) -> str | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return "not a number"
    except OverflowError:
        return "too large for a float"
    return None if np.isfinite(number) else "missing or infinite"
