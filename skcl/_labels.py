"""Class labels with -1 for an unlabelled row, as codes, and splits by them."""

from numbers import Real
from typing import Any

import numpy as np
from pandas import isna
from pandas.api.types import is_extension_array_dtype
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


def encode_known_labels(X: Any, y: Any, classes: np.ndarray) -> np.ndarray:
    """Return each row's index into classes that fit saw, -1 for an unlabelled row.

    Raises
    ------
    ValueError
        As :func:`encode_labels`, and for a class that is not among them.
    """
    present, codes = encode_labels(X, y)
    unseen = [label for label in present.tolist() if label not in classes.tolist()]
    if unseen:
        raise ValueError(
            f"y has the classes {unseen}, which fit did not see; allowed are "
            f"{classes.tolist()}, and -1 for an unlabelled row."
        )
    index = np.searchsorted(classes, present) if len(present) else present
    return np.append(index, UNLABELLED)[codes].astype(np.int64)


def class_weights(
    class_weight: Any, classes: np.ndarray, codes: np.ndarray, weight: np.ndarray | None
) -> np.ndarray:
    """Return the factor by which class_weight multiplies each row's weight.

    It is 1 for unlabelled rows, and for classes that a dict does not name. With
    "balanced" all classes weigh the same together, and all labelled rows what they
    weighed before.

    Raises
    ------
    ValueError
        If a weight is not a positive number, or a dict names -1, or both leaves out a
        class and names what is none.
    """
    factors = np.ones(len(classes) + 1)  # the last is that of unlabelled rows
    if class_weight == "balanced":
        labelled = codes >= 0
        weight = None if weight is None else weight[labelled]
        total = np.bincount(codes[labelled], weight, minlength=len(classes))
        present = total > 0
        factors[:-1][present] = total.sum() / (present.sum() * total[present])
        return factors[codes]
    for label, factor in class_weight.items():
        if not (isinstance(factor, Real) and 0 < factor < np.inf):
            raise ValueError(
                f"class_weight[{label!r}]={factor!r}: positive numbers are allowed. To "
                "leave rows out, give them a sample_weight of 0."
            )
    labels = classes.tolist()
    if UNLABELLED in class_weight:
        raise ValueError(
            "class_weight names -1, the mark of unlabelled rows, which keep their "
            "weights. Give them others by sample_weight."
        )
    unknown = [label for label in class_weight if label not in labels]
    unnamed = [label for label in labels if label not in class_weight]
    if unknown and unnamed:
        raise ValueError(
            f"class_weight names the classes {unknown}, which y does not have, and not "
            f"{unnamed}, which it has."
        )
    factors[:-1] = [class_weight.get(label, 1.0) for label in labels]
    return factors[codes]


def check_two_classes(classes: np.ndarray, codes: np.ndarray, user: str) -> None:
    """Refuse labels of fewer than two classes; `user` is what needs them."""
    if len(classes) >= 2:
        return
    message = (
        f"{user} needs labels of at least two classes; y has {classes.tolist()}. "
        "(partial_fit takes those of later calls as its parameter classes.)"
    )
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
    # Slow to import, as it brings most of scikit-learn.
    from sklearn.model_selection import train_test_split

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
