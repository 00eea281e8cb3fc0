"""From a frame or an array, whatever its columns hold, to validated rows."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from numbers import Integral, Number
from typing import Any

import numpy as np
import pandas as pd
from pandas.api import types
from sklearn.base import BaseEstimator
from sklearn.utils import check_array
from sklearn.utils.validation import validate_data

# Sums of squares must not overflow in float64.
MAX_VALUE = np.float64(1e150)  # of this type also beside float32

# A column with more different strings than this, most rows having their own, is text.
MAX_STRINGS = 40

NUMBER, CATEGORY, STRING, MIXED = "number", "category", "string", "mixed"

# What pandas calls objects that are all numbers, booleans or missing.
NUMERIC_OBJECTS = {
    "boolean",
    "decimal",
    "empty",
    "floating",
    "integer",
    "mixed-integer-float",
}

USE_SKRUB = (
    "Put skrub's TableVectorizer before it: make_pipeline(TableVectorizer(), "
    "ContrastiveEncoder())"
)


@dataclass(frozen=True)
class Rows:
    """Validated rows, an array for each kind of column."""

    numbers: np.ndarray  # (n, p), NaN where missing
    categories: np.ndarray  # (n, c) of objects, NaN where missing

    def __len__(self):
        return len(self.numbers)

    def __getitem__(self, index) -> "Rows":
        return Rows(self.numbers[index], self.categories[index])


def forget_fit(estimator: BaseEstimator) -> None:
    """Delete what an earlier fit has set: the attributes whose names end in "_"."""
    for name in [name for name in vars(estimator) if name.endswith("_")]:
        delattr(estimator, name)


def column_names(estimator: BaseEstimator) -> Sequence:
    """Return the names of the columns of fit, or their positions."""
    positions = range(estimator.n_features_in_)
    return getattr(estimator, "feature_names_in_", positions)


def check_table(
    estimator: BaseEstimator, X: Any, *, reset: bool, min_samples: int = 1
) -> np.ndarray:
    """Validate a table of finite numbers, and name the column that fails.

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
    hint = (
        "Encode it first, with OneHotEncoder in a ColumnTransformer, or with skrub's "
        "TableVectorizer."
    )
    return _check(estimator, X, (), reset, min_samples, False, hint).numbers


def check_rows(
    estimator: BaseEstimator,
    X: Any,
    *,
    categorical: Sequence[int],
    reset: bool,
    min_samples: int = 1,
) -> Rows:
    """Validate a table of numbers and categories, with missing values.

    Parameters
    ----------
    estimator : BaseEstimator
        Whose n_features_in_ and feature_names_in_ are set, or compared with.
    X : array-like of shape (n, d)
        The table.
    categorical : sequence of int
        Positions of the categories, from :func:`find_categorical`.
    reset : bool
        True in fit.
    min_samples : int, default=1
        The fewest rows.

    Returns
    -------
    Rows
        Numbers, of type float32 or float64 and none infinite, and categories.

    Raises
    ------
    ValueError, TypeError
        As scikit-learn has them, followed by the column and the value.
    """
    hint = (
        "List it in categorical_features if it holds categories; times and text need "
        "skrub's TableVectorizer before the encoder."
        if reset
        else "So it did in fit."
    )
    return _check(estimator, X, categorical, reset, min_samples, True, hint)


def find_categorical(X: Any, categorical_features: Any) -> list[int]:
    """Return the positions of the columns of categories.

    Parameters
    ----------
    X : array-like of shape (n, d)
        The table.
    categorical_features : "from_dtype", array-like or None
        As the encoder has it.

    Returns
    -------
    list of int
        In ascending order.

    Raises
    ------
    ValueError, TypeError
        If categorical_features does not fit the table; or, from dtypes, a column holds
        times or text; or a column of categories has several types.
    """
    columns = _columns(X)
    if categorical_features is None or not columns:
        return []
    if isinstance(categorical_features, str):
        positions = [j for j, c in enumerate(columns) if c.is_category_by_dtype()]
    else:
        positions = _positions(categorical_features, [c.name for c in columns])
    for j in positions:
        columns[j].check_categories()
    return positions


def _check(
    estimator: BaseEstimator,
    X: Any,
    categorical: Sequence[int],
    reset: bool,
    min_samples: int,
    allow_nan: bool,
    hint: str,
) -> Rows:
    columns = _columns(X)
    if columns:
        validate_data(estimator, X, reset=reset, skip_check_array=True)
    else:  # no table: scikit-learn refuses it below
        categorical = ()
    chosen = set(categorical)
    numeric = [column for j, column in enumerate(columns) if j not in chosen]
    for column in numeric:
        if column.kind not in (NUMBER, MIXED):
            raise ValueError(
                f"Column {column.name!r} holds {column.kind} values; "
                f"{type(estimator).__name__} takes numbers and booleans there. {hint}"
            )
    finite = "allow-nan" if allow_nan else True
    options = {"dtype": [np.float64, np.float32], "ensure_all_finite": finite}
    if not chosen and not any(column.is_object for column in columns):
        validate, table = partial(validate_data, estimator, reset=reset), X
    else:
        validate = partial(check_array, ensure_min_features=0, estimator=estimator)
        table = np.empty((len(columns[0].values), len(numeric)))
        for k, column in enumerate(numeric):
            table[:, k] = column.to_numbers()
    try:
        numbers = validate(table, ensure_min_samples=min_samples, **options)
    except ValueError as error:
        culprit = _first_not_finite(numeric, allow_nan)
        if culprit is None:
            raise
        raise ValueError(f"{error}\n{culprit}") from error
    _refuse_large(numbers, numeric)
    categories = np.empty((len(numbers), len(categorical)), dtype=object)
    for k, j in enumerate(categorical):
        categories[:, k] = columns[j].to_categories()
    return Rows(numbers, categories)


def _positions(categorical_features: Any, names: list) -> list[int]:
    """Return the positions that a mask, positions or names mean."""
    given = np.asarray(categorical_features, dtype=object)
    described = f"categorical_features={categorical_features!r}"
    if given.ndim != 1:
        raise ValueError(f"{described}: a list in one dimension is allowed.")
    if all(isinstance(value, bool | np.bool_) for value in given) and len(given):
        if len(given) != len(names):
            raise ValueError(
                f"{described}: a mask of {len(given)} for {len(names)} columns; one "
                "boolean a column is allowed."
            )
        return np.flatnonzero(given.astype(bool)).tolist()
    positions = set()
    for value in given:
        if isinstance(value, str):
            if value not in names:
                raise ValueError(
                    f"{described}: no column is named {value!r}; they are "
                    f"{list(names)}."
                )
            positions.add(names.index(value))
        elif isinstance(value, Integral) and 0 <= value < len(names):
            positions.add(int(value))
        else:
            raise ValueError(
                f"{described}: {value!r} is no column. Allowed are names, positions "
                f"from 0 to {len(names) - 1}, or a mask."
            )
    return sorted(positions)


def _columns(X: Any) -> list["Column"]:
    """Return the columns of a frame, list or 2-D array; of anything else, none."""
    if getattr(X, "ndim", 2) != 2:
        return []
    if hasattr(X, "iloc"):
        repeated = X.columns[X.columns.duplicated()]
        if len(repeated):
            raise ValueError(
                f"X has several columns named {repeated[0]!r}: names must be unique."
            )
        return [Column(name, X.iloc[:, j]) for j, name in enumerate(X.columns)]
    if hasattr(X, "get_column"):  # polars
        return [Column(name, X.get_column(name)) for name in X.columns]
    if isinstance(X, list | tuple):
        try:
            array = np.asarray(X)
            X = array if array.dtype.kind in "biuf" else np.asarray(X, dtype=object)
        except ValueError:  # ragged
            return []
    elif hasattr(X, "__array__"):  # of any library
        X = np.asarray(X)
    if isinstance(X, np.ndarray) and X.ndim == 2 and X.dtype.kind != "c":
        return [Column(j, X[:, j]) for j in range(X.shape[1])]
    return []


@dataclass(frozen=True)
class Column:
    """A column of any container."""

    name: Any
    values: Any  # a Series of pandas or polars, or an array

    @property
    def is_object(self) -> bool:
        """Whether each value may be of a type of its own."""
        return str(self.values.dtype).lower() == "object"

    @cached_property
    def kind(self) -> str:
        """NUMBER, CATEGORY, STRING, MIXED, or what else it holds."""
        dtype = self.values.dtype
        name = str(dtype)
        if self.is_object:
            return _kind_of_objects(self.to_objects())
        if hasattr(dtype, "is_numeric"):  # polars
            known = {
                "Boolean": NUMBER,
                "Null": NUMBER,
                "String": STRING,
                "Categorical": CATEGORY,
                "Enum": CATEGORY,
            }
            return NUMBER if dtype.is_numeric() else known.get(name.split("(")[0], name)
        if isinstance(dtype, pd.CategoricalDtype) or name.startswith("dictionary"):
            return CATEGORY
        if types.is_complex_dtype(dtype):
            return name
        if types.is_numeric_dtype(dtype) or types.is_bool_dtype(dtype):
            return NUMBER
        return STRING if types.is_string_dtype(dtype) else name

    def is_category_by_dtype(self) -> bool:
        """Whether it holds categories; raise where it holds times or text."""
        if self.kind in (NUMBER, MIXED):
            return self.kind == MIXED
        if self.kind == STRING:
            values = self.to_objects()
            values = values[~pd.isna(values)]
            n_different = len(set(values))
            if n_different > max(MAX_STRINGS, len(values) / 2):
                raise ValueError(
                    f"Column {self.name!r} holds text: {n_different} of its "
                    f"{len(values)} values are different. {USE_SKRUB}; or, if they are "
                    "categories, give the column the dtype 'category' or list it in "
                    "categorical_features."
                )
        elif self.kind != CATEGORY:
            raise ValueError(
                f"Column {self.name!r} holds {self.kind} values, which "
                f"ContrastiveEncoder does not encode. {USE_SKRUB}."
            )
        return True

    def check_categories(self) -> None:
        """Raise where the values are of several types, which cannot be sorted."""
        objects = self.to_objects()
        if _kind_of_objects(objects) != MIXED:
            return
        first = {}
        for row, value in enumerate(objects):
            if not isinstance(value, str):
                self._to_number(row, value)
            if not pd.isna(value):
                first.setdefault(isinstance(value, str), (row, value))
        (row, value), (other, another) = first.values()
        raise ValueError(
            f"Column {self.name!r} mixes strings and numbers: row {row} holds "
            f"{value!r}, row {other} {another!r}. Convert it to one type, with "
            "astype(str) for categories."
        )

    def to_objects(self) -> np.ndarray:
        """Return a copy as objects, with NaN for every kind of missing value."""
        polars = hasattr(self.values, "to_list") and not hasattr(self.values, "iloc")
        values = self.values.to_list() if polars else self.values
        objects = np.empty(len(values), dtype=object)
        objects[:] = values
        objects[pd.isna(objects)] = np.nan
        return objects

    def to_categories(self) -> np.ndarray:
        """Return objects that can be looked up."""
        objects = self.to_objects()
        for row, value in enumerate(objects):
            if not isinstance(value, Hashable):
                raise TypeError(
                    f"Column {self.name!r}, row {row}: {value!r} is no category; "
                    "strings, numbers and other hashable objects are allowed."
                )
        return objects

    def to_numbers(self) -> np.ndarray:
        """Return floats, with NaN where missing."""
        if self.is_object:
            objects = self.to_objects()
            return np.array([self._to_number(*cell) for cell in enumerate(objects)])
        if hasattr(self.values, "iloc"):
            return self.values.to_numpy(dtype=np.float64, na_value=np.nan)
        if hasattr(self.values, "cast"):  # polars
            return self.values.cast(float).to_numpy()
        return self.values.astype(np.float64)

    def _to_number(self, row: int, value: Any) -> float:
        place = f"Column {self.name!r}, row {row}: {value!r}"
        if isinstance(value, str):
            raise ValueError(f"{place} is not a number.")
        if not _is_number(value):
            raise TypeError(f"{place}: the argument must be a string or a number.")
        try:
            return float(value)
        except OverflowError as error:
            raise ValueError(f"{place} is too large for a float.") from error


def _kind_of_objects(objects: np.ndarray) -> str:
    inferred = types.infer_dtype(objects, skipna=True)
    if inferred not in ("mixed", "mixed-integer"):
        return NUMBER if inferred in NUMERIC_OBJECTS else inferred
    return NUMBER if all(map(_is_number, objects)) else MIXED


def _is_number(value: Any) -> bool:
    """Whether it is a real number or a boolean."""
    no = complex | np.complexfloating | np.timedelta64
    return isinstance(value, Number | np.bool_) and not isinstance(value, no)


def _first_not_finite(columns: list[Column], allow_nan: bool) -> str | None:
    """Say which value of a refused table is missing or infinite, if one is."""
    for column in columns:
        values = column.to_numbers()
        bad = np.isinf(values) if allow_nan else ~np.isfinite(values)
        if bad.any():
            row = np.argmax(bad)
            problem = "missing" if np.isnan(values[row]) else "infinite"
            return f"Column {column.name!r}, row {row}: {values[row]} is {problem}."
    return None


def _refuse_large(numbers: np.ndarray, columns: list[Column]) -> None:
    large = np.abs(numbers) >= MAX_VALUE
    if large.any():
        row, j = np.argwhere(large)[0]
        raise ValueError(
            f"Column {columns[j].name!r}, row {row}: {numbers[row, j]} is too large to "
            f"be squared; below {MAX_VALUE:.0e} is allowed. Rescale it."
        )
