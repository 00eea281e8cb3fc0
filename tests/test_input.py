"""Tables as users have them: each either works, or is refused by name."""

import datetime

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from scipy import sparse
from sklearn.base import clone

from skcl import ContrastiveEncoder, DiscrepancyScorer, RelaxedKMeansRegularizer
from skcl.losses import LOSSES


@pytest.fixture
def integers():
    return np.random.RandomState(0).randint(0, 5, size=(60, 3))


@pytest.mark.parametrize(
    "convert",
    [
        lambda X: X.astype(np.float64),
        lambda X: X.astype(np.float32),
        lambda X: X.astype(np.float16),
        lambda X: X.astype(np.int8),
        lambda X: X.astype(np.uint64),
        lambda X: X.astype(object),
        lambda X: X.tolist(),
        lambda X: np.asfortranarray(X, dtype=np.float64),
        lambda X: np.repeat(X, 2, axis=0)[::2],
        lambda X: X[:, ::-1].copy()[:, ::-1],
        lambda X: pd.DataFrame(X),
        lambda X: pd.DataFrame(X, columns=["a", "b", "c"]),
        lambda X: pd.DataFrame(X, columns=["a", "b", "c"]).astype("Int64"),
        lambda X: pd.DataFrame(X, columns=["a", "b", "c"]).astype("Float32"),
        lambda X: pd.DataFrame(X, columns=["a", "b", "c"]).astype(object),
        lambda X: pl.DataFrame(X, schema=["a", "b", "c"]),
        lambda X: torch.tensor(X),
    ],
)
def test_containers_and_dtypes_are_the_same_data(convert, integers, make_encoder):
    expected = make_encoder().fit_transform(integers)
    X = convert(integers)
    Z = make_encoder().fit_transform(X)
    assert Z.dtype == np.float32
    np.testing.assert_array_equal(np.asarray(Z), expected)


def test_an_array_of_another_library_with_categories(integers, make_encoder):
    encoder = make_encoder(categorical_features=[1])
    expected = encoder.fit_transform(integers)
    X = torch.tensor(integers)
    np.testing.assert_array_equal(encoder.transform(X), expected)
    np.testing.assert_array_equal(encoder.fit_transform(X), expected)


@pytest.mark.parametrize(
    "convert",
    [
        lambda X: X,
        lambda X: pd.DataFrame(X),
        lambda X: pd.DataFrame(X).astype("boolean"),
        lambda X: pl.DataFrame(X, schema=["a", "b", "c"]),
    ],
)
def test_booleans(convert, integers, make_encoder):
    X = integers > 2
    expected = make_encoder().fit_transform(X.astype(float))
    np.testing.assert_array_equal(make_encoder().fit_transform(convert(X)), expected)


def test_read_only_and_memory_mapped(tmp_path, rows, make_encoder):
    expected = make_encoder().fit_transform(rows)
    np.save(tmp_path / "rows.npy", rows)
    mapped = np.load(tmp_path / "rows.npy", mmap_mode="r")
    frozen = rows.copy()
    frozen.flags.writeable = False
    for X in (mapped, frozen):
        np.testing.assert_array_equal(make_encoder().fit_transform(X), expected)
    np.testing.assert_array_equal(mapped, rows)


ESTIMATORS = [
    ContrastiveEncoder(max_iter=1),
    RelaxedKMeansRegularizer(2),
    DiscrepancyScorer(n_clusters=2),
]
each_of_numbers = pytest.mark.parametrize(
    "estimator", ESTIMATORS[1:], ids=lambda e: type(e).__name__
)
each = pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda e: type(e).__name__)
DAY = datetime.datetime(2020, 1, 1)


def assert_the_bad_one_is_named(estimator, make_frame, column):
    X = make_frame({"good": np.arange(20.0), "bad one": column})
    with pytest.raises((ValueError, TypeError), match="'bad one'"):
        estimator.fit(X)


@each
@pytest.mark.parametrize(
    "column",
    [
        pd.date_range("2020-01-01", periods=20),
        pd.timedelta_range("1s", periods=20),
        pd.period_range("2020-01", periods=20, freq="M"),
        [DAY] * 20,
        [1.0, "two"] * 10,
        ["two", None, 2.0, "two"] * 5,
        [1.0, np.inf] * 10,
        [None, np.inf] * 10,
        [1.0, {"one": 1}] * 10,
        [["a"], None] * 10,
        [b"a", b"b"] * 10,
        [1.0, 1j] * 10,
        pd.Series([1j, 2.0] * 10, dtype=object),
        pd.Categorical([1, "a"] * 10),
    ],
)
def test_a_column_of_no_use_is_named(estimator, column):
    assert_the_bad_one_is_named(estimator, pd.DataFrame, column)


@each_of_numbers
@pytest.mark.parametrize(
    "column",
    [
        ["a", "b"] * 10,
        pd.Categorical(["a", "b"] * 10),
        pd.Categorical([1, 2] * 10),
        pd.array(["a", "b"] * 10, dtype="string"),
        [1.0, None] * 10,
        pd.array([1, None] * 10, dtype="Int64"),
        pd.array([True, None] * 10, dtype="boolean"),
        [1.0, np.nan] * 10,
    ],
)
def test_a_column_that_is_no_finite_number_is_named(estimator, column):
    assert_the_bad_one_is_named(estimator, pd.DataFrame, column)


@each
@pytest.mark.parametrize(
    "column",
    [
        pl.Series([DAY] * 20),
        pl.Series([DAY.date()] * 20),
        pl.Series([datetime.timedelta(1)] * 20),
        pl.Series([[1], [2]] * 10),
        pl.Series([1.0, float("inf")] * 10),
    ],
)
def test_polars_columns_of_no_use_are_named(estimator, column):
    assert_the_bad_one_is_named(estimator, pl.DataFrame, column)


@each_of_numbers
@pytest.mark.parametrize(
    "column",
    [
        pl.Series(["a", "b"] * 10),
        pl.Series(["a", "b"] * 10, dtype=pl.Categorical),
        pl.Series([1.0, None] * 10),
        pl.Series([1.0, float("nan")] * 10),
    ],
)
def test_polars_columns_are_named(estimator, column):
    assert_the_bad_one_is_named(estimator, pl.DataFrame, column)


@each_of_numbers
@pytest.mark.parametrize("value", [np.nan, np.inf, "two", None])
def test_in_an_array_the_position_is_named(estimator, value):
    X = np.arange(40.0).reshape(20, 2).astype(object)
    X[7, 1] = value
    for table in (X, X.tolist()):
        with pytest.raises((ValueError, TypeError), match="Column 1, row 7"):
            estimator.fit(table)


def test_a_bad_cell_is_named_at_transform_too(rows, make_encoder):
    encoder = make_encoder().fit(pd.DataFrame(rows, columns=list("abcd")))
    X = pd.DataFrame(rows, columns=list("abcd"))
    X.loc[3, "c"] = np.inf
    with pytest.raises(ValueError, match="Column 'c', row 3: inf"):
        encoder.transform(X)


def test_duplicate_column_names_are_refused(rows):
    X = pd.DataFrame(rows, columns=["a", "a", "b", "b"])
    with pytest.raises(ValueError, match="several columns named 'a'"):
        ContrastiveEncoder(max_iter=1).fit(X)


@each
@pytest.mark.parametrize("make", [sparse.csr_matrix, sparse.csr_array])
def test_sparse_input_is_sklearns_own_error(estimator, make):
    with pytest.raises(TypeError, match=r"[Ss]parse"):
        estimator.fit(make(np.eye(20)))


@pytest.mark.parametrize(
    "change",
    [
        lambda X: X[["b", "a", "c", "d"]],
        lambda X: X.drop(columns="b"),
        lambda X: X.assign(e=1.0),
        lambda X: X.rename(columns={"a": "z"}),
    ],
)
def test_permuted_missing_extra_and_renamed_columns(change, rows, make_encoder):
    X = pd.DataFrame(rows, columns=list("abcd"))
    encoder = make_encoder().fit(X)
    for method in (encoder.transform, encoder.score, encoder.embed_views):
        with pytest.raises(ValueError, match="feature names should match"):
            method(change(X))


@pytest.mark.parametrize("regularized", [False, True])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(
    ("n", "d", "batch_size"),
    [(2, 3, 256), (5, 3, 4), (65, 3, 64), (3, 3, 2), (40, 1, 256), (7, 2, 3)],
)
def test_small_tables(loss, regularized, n, d, batch_size, make_encoder):
    """Fewer rows than a batch, odd rests, two rows, one column."""
    rng = np.random.RandomState(0)
    X, y = rng.normal(size=(n, d)), np.arange(n) % 2
    regularizer = RelaxedKMeansRegularizer(2) if regularized else None
    encoder = make_encoder(loss=loss, batch_size=batch_size, regularizer=regularizer)
    Z = encoder.fit(X, y).transform(X)
    assert np.isfinite(Z).all()
    assert np.isfinite(encoder.loss_curve_).all()
    assert np.isfinite(encoder.score(X, y))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (np.ones((1, 3)), "1 sample"),
        (np.ones((0, 3)), "0 sample"),
        (np.ones((5, 0)), "0 feature"),
        (np.ones(5), "Expected 2D array"),
        (np.ones((5, 3, 2)), "dim 3"),
        (
            np.full((5, 2), 1e200) * [[1], [2], [3], [4], [5]],
            r"Column 0, row 0: .*Rescale",
        ),
    ],
)
def test_tables_that_cannot_be_learned_from(table, message):
    with pytest.raises(ValueError, match=message):
        ContrastiveEncoder().fit(table)


def test_constant_columns_and_rows(rows, make_encoder):
    constant = np.column_stack([rows, np.full(len(rows), 7.0)])
    assert np.isfinite(make_encoder().fit_transform(constant)).all()
    for loss in LOSSES:
        encoder = make_encoder(loss=loss, regularizer=RelaxedKMeansRegularizer(2))
        Z = encoder.fit_transform(np.ones((30, 3)), np.arange(30) % 2)
        assert np.isfinite(Z).all()


def test_a_class_with_one_row(rows, make_encoder):
    y = np.zeros(120, dtype=int)
    y[3] = 1
    regularizer = RelaxedKMeansRegularizer(2)
    encoder = make_encoder(loss="supcon", regularizer=regularizer, batch_size=16)
    assert np.isfinite(encoder.fit(rows, y).transform(rows)).all()
    scorer = DiscrepancyScorer().fit(encoder.transform(rows), y)
    assert np.isfinite(scorer.score(encoder.transform(rows), y))


@pytest.mark.parametrize("scale", [1e-100, 1e-20, 1e20, 1e100])
def test_any_scale_of_a_column(scale, rows, make_encoder):
    """Standardizing undoes it, up to rounding that training amplifies a little."""
    expected = make_encoder(max_iter=1).fit_transform(rows)
    scaled = rows * [scale, 1, 1, 1]
    Z = make_encoder(max_iter=1).fit_transform(scaled)
    np.testing.assert_allclose(Z, expected, atol=1e-3)


def test_epoch_seconds(rows, make_encoder):
    """1.7e9 ± 1: cast to float32 before standardizing, they would be one value."""
    seconds = np.round(rows[:, :1], 3)
    expected = make_encoder(max_iter=1).fit_transform(np.hstack([seconds, rows]))
    late = np.hstack([seconds + 1.7e9, rows])
    Z = make_encoder(max_iter=1).fit_transform(late)
    np.testing.assert_allclose(Z, expected, atol=1e-3)


def test_a_value_too_far_for_float32_is_named(rows, make_encoder):
    X = pd.DataFrame(rows, columns=list("abcd"))
    encoder = make_encoder().fit(X)
    X.loc[9, "b"] = 1e30
    for method in (encoder.transform, encoder.score):
        with pytest.raises(ValueError, match=r"Column 'b', row 9: .*1e\+30"):
            method(X)
    X.loc[9, "b"] = 1e12
    assert np.isfinite(encoder.transform(X)).all()


@pytest.mark.parametrize("rate", [1e6, 1e30])
def test_a_divergent_fit_is_an_error_or_finite(rate, rows, make_encoder):
    try:
        Z = make_encoder(learning_rate=rate, max_iter=20).fit_transform(rows)
    except ValueError as error:
        message = str(error)
        Z = 0.0
    else:
        message = "lower learning_rate"
    assert "lower learning_rate" in message
    assert np.isfinite(Z).all()


def test_a_loss_that_is_not_finite_names_epoch_batch_and_part(rows, make_encoder):
    calls = []

    def breaks(z, temperature, y):
        calls.append(None)
        return z.sum() / (0 if len(calls) == 6 else 1)

    # One call tries the callable; then two batches an epoch.
    encoder = make_encoder(loss=breaks, batch_size=60)
    with pytest.raises(ValueError, match=r"contrastive loss .* epoch 3, batch 1"):
        encoder.fit(rows)


@each
@pytest.mark.parametrize("value", [1e150, -1e200, 1e308])
def test_a_value_whose_square_overflows_is_named(estimator, value):
    X = np.random.RandomState(0).normal(size=(20, 2))
    X[4, 1] = value
    with pytest.raises(ValueError, match=r"Column 1, row 4: .*too large to be squared"):
        estimator.fit(X)
    estimator = clone(estimator).fit(X[:4])
    with pytest.raises(ValueError, match=r"Column 1, row 4: .*too large to be squared"):
        estimator.transform(X)


def test_a_small_spread_beside_a_large_value_is_kept():
    """100,000 epoch seconds, a hundredth apart: they fill a standard deviation."""
    rng = np.random.RandomState(0)
    X = np.column_stack([1.7e9 + 0.01 * rng.normal(size=100_000), rng.rand(100_000)])
    encoder = ContrastiveEncoder(
        hidden_layer_sizes=(4,), passthrough=True, max_iter=1, batch_size=500
    )
    Z = encoder.fit_transform(X)
    assert Z[:, -2].std() == pytest.approx(1, abs=1e-3)


def test_float32_columns_that_fill_their_range(make_encoder):
    X = np.random.RandomState(0).uniform(0, 3e38, size=(40, 3)).astype(np.float32)
    assert np.isfinite(make_encoder().fit_transform(X)).all()


def test_a_column_that_standardizing_would_lose_is_refused(rows, make_encoder):
    X = pd.DataFrame(rows * [1, 1e-200, 1, 1], columns=list("abcd"))
    with pytest.raises(ValueError, match="Column 'b' cannot be standardized"):
        make_encoder().fit(X)


@each
def test_a_series_is_no_table(estimator):
    with pytest.raises(ValueError, match="Expected"):
        estimator.fit(pd.Series(np.arange(20.0)))


@each
@pytest.mark.parametrize("kind", [list, np.array, pd.DataFrame])
def test_times_do_not_pass_as_numbers(estimator, kind):
    day = np.datetime64("2020-01-01")
    X = kind([[day + j, day + 2 * j] for j in range(20)])
    with pytest.raises(ValueError, match="Column 0 holds datetime"):
        estimator.fit(X)
    mixed = np.array([[1.0, np.timedelta64(j, "D")] for j in range(20)], dtype=object)
    with pytest.raises(ValueError, match="Column 1 holds timedelta"):
        estimator.fit(mixed)


@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize("where", ["hidden", "embedding", "projection"])
def test_narrow_layers_learn(where, width, make_encoder):
    """A normalization of one unit is 0, and of two units a sign: no gradient."""
    if where == "projection" and width == 1:
        with pytest.raises(ValueError, match="'projection_dim'"):
            make_encoder(projection_dim=1).fit(np.eye(4))
        return
    params = {
        "hidden": {"hidden_layer_sizes": (16, width)},
        "embedding": {"n_components": width},
        "projection": {"projection_dim": width},
    }[where]
    X = np.random.RandomState(0).normal(size=(300, 3))
    encoder = make_encoder(**params, max_iter=60).fit(X)
    assert encoder.loss_curve_[-1] < encoder.loss_curve_[0]
    assert len(np.unique(encoder.embed_views(X).round(3), axis=0)) > 20


def test_tiny_corruption_rate(rows, make_encoder):
    assert np.isfinite(make_encoder(corruption_rate=1e-30).fit_transform(rows)).all()


@pytest.mark.parametrize("loss", ["infonce", "supcon", "spectral", "logistic"])
def test_a_callers_autocast_is_for_the_network_alone(loss, rows, make_encoder):
    y = np.arange(len(rows)) % 3 - 1
    losses = []
    for enabled in (False, True):
        encoder = make_encoder(
            loss=loss,
            regularizer=RelaxedKMeansRegularizer(3),
            max_iter=10,
            learning_rate=0.01,
        )
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            encoder.fit(rows, y)
            assert encoder.transform(rows).dtype == np.float32
        losses.append(encoder.loss_curve_)
    assert losses[0] != losses[1]
    assert losses[0] == pytest.approx(losses[1], abs=0.1)


def test_the_callers_torch_settings_do_not_matter(rows, make_encoder):
    regularizer = RelaxedKMeansRegularizer(2)
    expected = make_encoder(regularizer=regularizer).fit_transform(rows)
    with torch.no_grad():
        Z = make_encoder(regularizer=regularizer).fit_transform(rows)
    np.testing.assert_array_equal(Z, expected)
    with torch.inference_mode():
        Z = make_encoder(regularizer=regularizer).fit_transform(rows)
    np.testing.assert_array_equal(Z, expected)
    torch.set_default_dtype(torch.float64)
    try:
        Z = make_encoder(regularizer=regularizer).fit_transform(rows)
    finally:
        torch.set_default_dtype(torch.float32)
    np.testing.assert_array_equal(Z, expected)
