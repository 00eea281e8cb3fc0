"""Class labels with -1 for an unlabelled row, as integer codes."""

from typing import Any

import numpy as np
from pandas import isna
from sklearn.utils import column_or_1d
from sklearn.utils.multiclass import check_classification_targets

UNLABELLED = -1


def encode_labels(y: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the sorted classes and each row's code, -1 for an unlabelled row.

    Parameters
    ----------
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
        If y is continuous, of mixed types, or has missing values.
    """
    y = column_or_1d(y, warn=True)
    for row in np.flatnonzero(isna(y)):
        raise ValueError(
            f"y[{row}] is {y[row]!r}: labels must not be missing. An unlabelled row is "
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
    codes = np.full(len(y), UNLABELLED, dtype=np.int64)
    known = np.array(y[labelled].tolist()) if y.dtype == object else y[labelled]
    if not len(known):
        return known, codes
    check_classification_targets(known)
    classes, codes[labelled] = np.unique(known, return_inverse=True)
    return classes, codes
