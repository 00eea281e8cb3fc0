"""Class labels with -1 for an unlabelled row, as codes, and splits by them."""

from typing import Any

import numpy as np
from pandas import isna
from pandas.api.types import is_extension_array_dtype
from sklearn.model_selection import train_test_split
from sklearn.utils import check_consistent_length, column_or_1d
from sklearn.utils.multiclass import check_classification_targets

UNLABELLED = -1


def encode_labels(X: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the sorted classes and each row's code, -1 for an unlabelled row.

    Parameters
    ----------
    X : array-like of n rows
        What the labels belong to.
    y : array-like of shape (n,)
        Classes of any one type; the integer -1 marks an unlabelled row, in an array of
        objects where the classes are strings.

    Returns
    -------
    classes : array of shape (K,)
        The classes, without the mark.
    codes : array of int64, of shape (n,)
        Indices into classes, or -1.

    Raises
    ------
    ValueError
        If y is of another length than X, continuous, of mixed types, or has missing
        values.
    """
    check_consistent_length(X, y)
    if isinstance(y, list | tuple) or is_extension_array_dtype(y):
        y = np.asarray(y, dtype=object)  # else -1 becomes a string, an integer a float
    y = column_or_1d(y, warn=True)
    missing = np.flatnonzero(isna(y))
    if len(missing):
        row = missing[0]
        raise ValueError(
            f"y[{row}] is {y[row]}: labels must not be missing. An unlabelled row is "
            "marked by the integer -1."
        )
    if y.dtype.kind in "OU":
        is_string = np.array([isinstance(value, str) for value in y], dtype=bool)
        labelled = is_string | (y.astype(object) != UNLABELLED)
    else:
        is_string = np.zeros(len(y), dtype=bool)
        labelled = y != UNLABELLED
    if is_string[labelled].any() and not is_string[labelled].all():
        raise ValueError(
            "y mixes strings with other labels: all classes must be of one type. Only "
            "the mark of an unlabelled row, the integer -1, may stand among strings."
        )
    if is_string.any() and (y[is_string] == str(UNLABELLED)).any():
        raise ValueError(
            "y holds the string '-1'. If it marks unlabelled rows, use the integer -1, "
            "in an array of objects; if it is a class, encode the labels first: "
            "y = sklearn.preprocessing.LabelEncoder().fit_transform(y)."
        )
    codes = np.full(len(y), UNLABELLED, dtype=np.int64)
    known = np.array(y[labelled].tolist()) if y.dtype == object else y[labelled]
    if not len(known):
        return known, codes
    check_classification_targets(known)
    classes, codes[labelled] = np.unique(known, return_inverse=True)
    return classes, codes


def check_two_classes(classes: np.ndarray, codes: np.ndarray, user: str) -> None:
    """Refuse labels of fewer than two classes; `user` is what needs them."""
    if len(classes) >= 2:
        return
    message = f"{user} needs labels of at least two classes; y has {classes.tolist()}."
    if (codes == UNLABELLED).any():
        message += (
            " The label -1 marks an unlabelled row. If it is a class here, as in "
            "{-1, 1}, encode the labels first: "
            "y = sklearn.preprocessing.LabelEncoder().fit_transform(y)."
        )
    raise ValueError(message)


def hold_out(
    n: int,
    codes: np.ndarray | None,
    validation_fraction: float,
    random_state: np.random.RandomState,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows to train on and those held out, stratified by the codes.

    Every class keeps a row to train on.
    """
    strata = np.zeros(n, dtype=int) if codes is None else codes
    _, stratum, size = np.unique(strata, return_inverse=True, return_counts=True)
    divisible = np.flatnonzero(size[stratum] > 1)
    try:
        _, held_out = train_test_split(
            divisible,
            test_size=validation_fraction,
            stratify=strata[divisible],
            random_state=random_state,
        )
    except ValueError as error:
        raise ValueError(
            f"validation_fraction={validation_fraction!r} does not suit {n} rows: "
            f"{error}"
        ) from error
    for missing in np.setdiff1d(strata, np.delete(strata, held_out)):
        held_out = np.setdiff1d(held_out, np.flatnonzero(strata == missing)[:1])
    training = np.setdiff1d(np.arange(n), held_out)
    if min(len(training), len(held_out)) < 2:
        raise ValueError(
            f"validation_fraction={validation_fraction!r} splits {n} rows into "
            f"{len(training)} to train on and {len(held_out)} to hold out; at least 2 "
            "of each are needed."
        )
    return training, np.sort(held_out)
