"""From a frame or an array, whatever its columns hold, to validated rows."""

from collections.abc import Callable, Sequence
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

# Sums of squares must not overflow in float64. (A Python float beside an array of
# float32 would be cast to it, and overflow.)
MAX_VALUE = np.float64(1e150)

# A column of strings is text if it has more different ones than this, and nearly as
# many as values.
MAX_STRINGS, MAX_SHARE = 40, 0.9

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
    "Times and text need skrub's TableVectorizer first: "
    "make_pipeline(TableVectorizer(), ...)."
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
    positions = list(range(estimator.n_features_in_))
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
    columns = read_columns(X)
    hint = f"Encode it first, with OneHotEncoder in a ColumnTransformer. {USE_SKRUB}"
    options = {"ensure_min_samples": min_samples, "ensure_all_finite": True}
    return _check_numbers(estimator, X, columns, columns, hint, reset, options)


def check_rows(
    estimator: BaseEstimator,
    X: Any,
    columns: list["Column"],
    categorical: Sequence[int],
    *,
    reset: bool,
    min_samples: int = 1,
    ignored: Sequence[int] = (),
) -> Rows:
    """Validate a table of numbers and categories, with missing values.

    Parameters
    ----------
    estimator : BaseEstimator
        Whose n_features_in_ and feature_names_in_ are set, or compared with.
    X : array-like of shape (n, d)
        The table.
    columns : list of Column
        Its columns, from :func:`read_columns`.
    categorical : sequence of int
        Positions of the categories, from :func:`find_categorical`.
    reset : bool
        True in fit.
    min_samples : int, default=1
        The fewest rows.
    ignored : sequence of int, default=()
        Positions of columns that are missing whatever they hold.

    Returns
    -------
    Rows
        Numbers, of type float32 or float64 and none infinite, and categories.

    Raises
    ------
    ValueError, TypeError
        As scikit-learn has them, followed by the column and the value.
    """
    columns = [
        column.without_values() if j in ignored else column
        for j, column in enumerate(columns)
    ]
    chosen = set(categorical) if columns else set()
    numeric = [column for j, column in enumerate(columns) if j not in chosen]
    hint = "In fit it held numbers."
    if reset:
        hint = (
            "A list of categorical_features must have all columns of categories. "
            f"{USE_SKRUB}"
        )
    options = {"ensure_min_samples": min_samples, "ensure_all_finite": "allow-nan"}
    numbers = _check_numbers(estimator, X, columns, numeric, hint, reset, options)
    categories = np.empty((len(numbers), len(chosen)), dtype=object)
    for k, j in enumerate(sorted(chosen)):
        categories[:, k] = columns[j].to_categories()
    return Rows(numbers, categories)


def find_categorical(
    columns: list["Column"], categorical_features: Any, user: str
) -> list[int]:
    """Return the positions of the columns of categories.

    Parameters
    ----------
    columns : list of Column
        From :func:`read_columns`; none where X is no table.
    categorical_features : "from_dtype", array-like or None
        As the encoder has it.
    user : str
        Who asks, for messages.

    Returns
    -------
    list of int
        In ascending order.

    Raises
    ------
    ValueError, TypeError
        If categorical_features does not fit the table; or, from dtypes, a column holds
        times or text; or a column of categories cannot be sorted.
    """
    if categorical_features is None or not columns:
        return []
    if isinstance(categorical_features, str):
        positions = [j for j, c in enumerate(columns) if c.is_category_by_dtype(user)]
    else:
        positions = _positions(categorical_features, [c.name for c in columns])
    positions = [j for j in positions if not columns[j].is_empty]
    for j in positions:
        if columns[j].kind != STRING:
            columns[j].check_sortable()
    return positions


def read_columns(X: Any) -> list["Column"]:
    """Return the columns of a frame, list or 2-D array; of anything else, none."""
    if getattr(X, "ndim", 2) != 2:
        return []
    if hasattr(X, "iloc"):
        repeated = X.columns[X.columns.duplicated()]
        if len(repeated):
            raise ValueError(
                f"X has several columns named {repeated[0]!r}: names must be unique."
            )
        return [
            Column(name, dtype, partial(_pandas_column, X, j))
            for j, (name, dtype) in enumerate(zip(X.columns, X.dtypes, strict=True))
        ]
    if hasattr(X, "get_column"):  # polars
        return [_polars_column(X.get_column(name)) for name in X.columns]
    if isinstance(X, list | tuple):
        try:
            array = np.asarray(X)
            X = array if array.dtype.kind in "biuf" else np.asarray(X, dtype=object)
        except ValueError:  # ragged
            return []
    elif hasattr(X, "__array__"):  # of any library
        X = np.asarray(X)
    if not isinstance(X, np.ndarray) or X.ndim != 2 or X.dtype.kind == "c":
        return []
    if X.dtype.kind in "OSTU":
        X = X.astype(object)
    return [Column(j, X.dtype, partial(_array_column, X, j)) for j in range(X.shape[1])]


def _pandas_column(X: pd.DataFrame, j: int) -> pd.Series:
    return X.iloc[:, j]


def _array_column(X: np.ndarray, j: int) -> pd.Series:
    return pd.Series(X[:, j], dtype=object if X.dtype == object else None)


def _polars_column(series: Any) -> "Column":
    dtype = str(series.dtype)
    if series.dtype.is_numeric() or dtype in ("Boolean", "Null"):
        values = pd.Series(series.cast(float).to_numpy())
    else:
        is_category = dtype.startswith(("Categorical", "Enum"))
        kind = "category" if is_category else object
        values = pd.Series(series.to_list(), dtype=kind)
    return Column(series.name, values.dtype, lambda: values)


def _check_numbers(
    estimator: BaseEstimator,
    X: Any,
    columns: list["Column"],
    numeric: list["Column"],
    hint: str,
    reset: bool,
    options: dict[str, Any],
) -> np.ndarray:
    """Return the numeric ones of the columns of X, (n, p)."""
    options["dtype"] = [np.float64, np.float32]
    if not columns:  # no table, which scikit-learn refuses: by its shape first
        is_object = isinstance(X, np.ndarray) and X.dtype == object
        if is_object or hasattr(X, "columns"):
            X = np.zeros(X.shape)
        return validate_data(estimator, X, reset=reset, **options)
    validate_data(estimator, X, reset=reset, skip_check_array=True)
    for column in numeric:
        if column.kind not in (NUMBER, MIXED):
            raise ValueError(
                f"Column {column.name!r} holds {column.kind} values; "
                f"{type(estimator).__name__} takes numbers and booleans there. {hint}"
            )
    table = X
    if len(numeric) < len(columns) or not all(column.is_plain for column in numeric):
        n = len(columns[0].values)
        check_array(
            np.empty((n, len(columns))),
            ensure_min_samples=options["ensure_min_samples"],
            ensure_all_finite=False,
            estimator=estimator,
        )
        table = np.empty((n, len(numeric)))
        for k, column in enumerate(numeric):
            table[:, k] = column.to_numbers()
    try:
        numbers = check_array(
            table, estimator=estimator, input_name="X", ensure_min_features=0, **options
        )
    except ValueError as error:
        culprit = _first_not_finite(numeric, options["ensure_all_finite"] is not True)
        if culprit is None:
            raise
        raise ValueError(f"{error}\n{culprit}") from error
    _refuse_large(numbers, numeric)
    return numbers


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
        elif _is_position(value) and 0 <= value < len(names):
            positions.add(int(value))
        else:
            raise ValueError(
                f"{described}: {value!r} is no column. Allowed are names, positions "
                f"from 0 to {len(names) - 1}, or a mask."
            )
    return sorted(positions)


@dataclass(frozen=True)
class Column:
    """A column of any container."""

    name: Any
    dtype: Any  # of numpy or pandas
    read: Callable[[], pd.Series]

    @cached_property
    def values(self) -> pd.Series:
        """The column itself."""
        return self.read()

    @property
    def is_plain(self) -> bool:
        """Whether it holds numbers of numpy, which need no conversion."""
        return isinstance(self.dtype, np.dtype) and self.dtype.kind in "biuf"

    @cached_property
    def is_empty(self) -> bool:
        """Whether all values are missing."""
        return bool(self.values.isna().all())

    @cached_property
    def kind(self) -> str:
        """NUMBER, CATEGORY, STRING, MIXED, or what else it holds.

        Without any value it counts as a number.
        """
        if self.is_plain:
            return NUMBER
        dtype, name = self.dtype, str(self.dtype)
        if types.is_object_dtype(dtype):
            return _kind_of_objects(self.to_objects())
        if types.is_complex_dtype(dtype):
            return name
        numeric = types.is_numeric_dtype(dtype) or types.is_bool_dtype(dtype)
        if isinstance(dtype, pd.CategoricalDtype) or name.startswith("dictionary"):
            return NUMBER if self.is_empty else CATEGORY
        if numeric or self.is_empty:
            return NUMBER
        return STRING if types.is_string_dtype(dtype) else name

    def is_category_by_dtype(self, user: str) -> bool:
        """Whether it holds categories; raise where it holds what is neither."""
        if self.kind == STRING:
            self._refuse_text()
        elif self.kind == MIXED:
            for row, value in enumerate(self.to_objects()):
                if not isinstance(value, str):
                    self._to_number(row, value)
        elif self.kind not in (NUMBER, CATEGORY):
            raise ValueError(
                f"Column {self.name!r} holds {self.kind} values, which {user} does not "
                f"encode. {USE_SKRUB}"
            )
        return self.kind != NUMBER

    def _refuse_text(self) -> None:
        values = self.to_objects()
        values = values[~pd.isna(values)]
        n_different = len(set(values))
        if n_different > max(MAX_STRINGS, MAX_SHARE * len(values)):
            raise ValueError(
                f"Column {self.name!r} holds text: {n_different} of its {len(values)} "
                f"values are different. {USE_SKRUB} If they are categories, give the "
                "column the dtype 'category'."
            )

    def check_sortable(self) -> None:
        """Raise where the values are of types that cannot be sorted together."""
        objects = self.to_categories()
        present = np.flatnonzero(~pd.isna(objects))
        try:
            different = sorted(set(objects[present]))
            if isinstance(different[0], tuple):
                raise TypeError("a tuple")
        except TypeError as error:
            first = {type(objects[row]): row for row in reversed(present)}
            held = [f"row {row} {objects[row]!r}" for row in sorted(first.values())]
            problem = "mixes types" if len(held) > 1 else "holds what is no category"
            raise ValueError(
                f"Column {self.name!r} {problem}: {', '.join(held[:2])}. Convert it to "
                "one type, with astype(str) for categories."
            ) from error

    def without_values(self) -> "Column":
        """Return a column of the same name and length, all of it missing."""
        missing = pd.Series(np.full(len(self.values), np.nan))
        return Column(self.name, np.dtype(object), lambda: missing.astype(object))

    def to_objects(self) -> np.ndarray:
        """Return a copy as objects, with NaN for every kind of missing value."""
        objects = np.array(self.values, dtype=object)
        objects[pd.isna(objects)] = np.nan
        return objects

    def to_categories(self) -> np.ndarray:
        """Return objects that can be looked up."""
        objects = self.to_objects()
        try:
            set(objects)
        except TypeError as error:
            row = next(row for row, value in enumerate(objects) if not _hashes(value))
            raise TypeError(
                f"Column {self.name!r}, row {row}: {objects[row]!r} is unhashable; the "
                "argument must be a string, a number or another hashable object."
            ) from error
        return objects

    def to_numbers(self) -> np.ndarray:
        """Return floats, with NaN where missing."""
        if types.is_object_dtype(self.dtype):
            objects = self.to_objects()
            return np.array([self._to_number(*cell) for cell in enumerate(objects)])
        if not self.is_plain and self.is_empty:
            return np.full(len(self.values), np.nan)
        return self.values.to_numpy(dtype=np.float64, na_value=np.nan)

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


def _is_position(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _kind_of_objects(objects: np.ndarray) -> str:
    inferred = types.infer_dtype(objects, skipna=True)
    if inferred not in ("mixed", "mixed-integer"):
        return NUMBER if inferred in NUMERIC_OBJECTS else inferred
    return NUMBER if all(map(_is_number, objects)) else MIXED


def _hashes(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


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
