"""Frames as users have them: categories, missing values, and awkward columns."""

import decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from sklearn import config_context
from sklearn.base import clone
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from skrub import TableVectorizer

from skcl import ContrastiveEncoder
from skcl._preprocessing import Preprocessor
from skcl._table import Rows
from skcl.networks import ColumnEmbedding

N = 120


def draw(values, p=None, n=N, seed=0):
    return np.random.RandomState(seed).choice(np.array(values, dtype=object), n, p=p)


@pytest.fixture
def mixed():
    """Numbers, categories, booleans, and missing values among them."""
    rng = np.random.RandomState(0)
    X = pd.DataFrame(
        {
            "age": rng.normal(40, 10, N),
            "job": draw(["clerk", "nurse", "cook"]),
            "smokes": rng.rand(N) > 0.7,
            "grade": pd.Categorical(draw(["a", "b"], seed=1), categories=list("abc")),
            "income": rng.exponential(1e4, N),
        }
    )
    X.loc[::7, "age"] = np.nan
    X.loc[3::11, "job"] = None
    return X


def as_lists(X):
    """The columns by name, with None where a value is missing."""
    return X.astype(object).where(X.notna(), None).to_dict(orient="list")


def same_data(X):
    """Yield the same table in other containers and types."""
    yield X.astype(object).to_numpy()
    yield X.astype(object).where(X.notna(), None).to_numpy().tolist()
    yield X.convert_dtypes()
    yield X.convert_dtypes(dtype_backend="pyarrow")
    yield X.astype({"job": "category"})
    yield X.astype({"job": "string", "smokes": float})
    dictionary = pd.ArrowDtype(pa.dictionary(pa.int32(), pa.string()))
    yield X.assign(job=pd.array(X["job"], dtype=dictionary))
    frame = pl.DataFrame(as_lists(X))
    yield frame
    yield frame.with_columns(
        pl.col("job").cast(pl.Categorical), pl.col("grade").cast(pl.Enum(["a", "b"]))
    )


def test_containers_and_types_hold_the_same_table(mixed, make_encoder):
    encoder = make_encoder(passthrough=True).fit(mixed)
    expected = encoder.transform(mixed)
    assert np.isfinite(expected).all()
    for X in same_data(mixed):
        encoder = make_encoder(passthrough=True).fit(X)
        assert encoder.categorical_features_.tolist() == [
            False,
            True,
            False,
            True,
            False,
        ]
        np.testing.assert_array_equal(np.asarray(encoder.transform(X)), expected)


@pytest.mark.parametrize(
    "features",
    [["job", "grade"], [1, 3], [False, True, False, True, False], np.array([3, 1])],
)
def test_categorical_features_by_name_position_or_mask(features, mixed, make_encoder):
    expected = make_encoder().fit_transform(mixed)
    encoder = make_encoder(categorical_features=features)
    np.testing.assert_array_equal(encoder.fit_transform(mixed), expected)


def test_numbers_as_categories(make_encoder):
    """Listed, codes are categories: their order and distance mean nothing."""
    codes = draw([3, 17, 400]).astype(float)
    numbers = np.random.RandomState(1).normal(size=N)
    X = np.column_stack([codes, numbers])
    encoder = make_encoder(categorical_features=[0]).fit(X)
    renamed = pd.Series(codes).map({3.0: "c", 17.0: "d", 400.0: "q"})
    other = pd.DataFrame({"code": renamed, "number": numbers})
    np.testing.assert_array_equal(
        encoder.transform(X), make_encoder().fit_transform(other)
    )


def test_without_categorical_features_strings_are_refused(mixed, make_encoder):
    for features in (None, ["grade"]):
        with pytest.raises(ValueError, match="'job' holds string"):
            make_encoder(categorical_features=features).fit(mixed)


def test_unseen_categories_are_all_the_same(mixed, make_encoder):
    encoder = make_encoder().fit(mixed)
    tables = [mixed.assign(job=job) for job in ("pilot", "poet", "Clerk")]
    expected, *others = [encoder.transform(X) for X in tables]
    assert np.isfinite(expected).all()
    for Z in others:
        np.testing.assert_array_equal(Z, expected)
    for known in ("clerk", "nurse", None):
        assert (encoder.transform(mixed.assign(job=known)) != expected).any()


def test_a_missing_category_where_fit_saw_none_is_as_unseen(mixed, make_encoder):
    X = mixed.fillna({"job": "clerk"})
    encoder = make_encoder().fit(X)
    np.testing.assert_array_equal(
        encoder.transform(X.assign(job=None)), encoder.transform(X.assign(job="poet"))
    )


@pytest.mark.parametrize("missing", [None, np.nan, pd.NA, pd.NaT])
def test_every_kind_of_missing_value_is_one(missing, mixed, make_encoder):
    encoder = make_encoder().fit(mixed)
    X = mixed.astype({"job": object, "age": object})
    X.loc[X["job"].isna(), "job"] = missing
    X.loc[X["age"].isna(), "age"] = missing
    np.testing.assert_array_equal(encoder.transform(X), encoder.transform(mixed))


def test_the_views_of_a_row_do_not_depend_on_the_bits_of_nan(rows, make_encoder):
    rows[::4, 2] = np.nan
    encoder = make_encoder().fit(rows)
    negative = np.where(np.isnan(rows), -np.nan, rows)
    assert np.signbit(negative[0, 2])
    expected = encoder.embed_views(rows)
    np.testing.assert_array_equal(encoder.embed_views(negative), expected)


def test_a_missing_number_is_the_mean_and_an_indicator(rows, make_encoder):
    """Without an indicator, where fit saw none missing, it is the mean alone."""
    encoder = make_encoder().fit(rows)
    X, Y = rows.copy(), rows.copy()
    X[:, 1], Y[:, 1] = np.nan, rows[:, 1].mean()
    np.testing.assert_allclose(encoder.transform(X), encoder.transform(Y), atol=1e-6)
    lacking = rows.copy()
    lacking[::3, 1] = np.nan
    encoder = make_encoder().fit(lacking)
    Y[:, 1] = np.nanmean(lacking[:, 1])
    assert np.abs(encoder.transform(X) - encoder.transform(Y)).max() > 1e-3


def test_a_column_without_a_value_stays_missing(rows, make_encoder):
    X = np.column_stack([rows, np.full(N, np.nan)])
    encoder = make_encoder(passthrough=True).fit(X)
    Z = encoder.transform(X)
    assert np.isfinite(Z).all()
    X[:, -1] = 7.0
    np.testing.assert_array_equal(encoder.transform(X)[:, :-1], Z[:, :-1])


def test_the_block_is_what_sklearns_transformers_give():
    rng = np.random.RandomState(0)
    numbers = rng.normal(5, 3, size=(N, 2))
    numbers[::5, 0] = np.nan
    categories = np.column_stack([draw(["b", "a"]), draw(["u", np.nan, "v"])])
    rows, names = Rows(numbers, categories), ["c", "n", "d", "m"]
    columns = Preprocessor(rows, None, [0, 2], names)
    x = columns.encode(rows)
    scaled = StandardScaler().fit_transform(numbers)
    np.testing.assert_allclose(x[:, [1, 3]], scaled, rtol=1e-5, atol=1e-6)
    assert columns.missing_indicator == (1,)
    np.testing.assert_array_equal(x[:, 0], 2 + (categories[:, 0] == "b"))
    imputed = make_pipeline(StandardScaler(), SimpleImputer(add_indicator=True))
    one_hot = OneHotEncoder(sparse_output=False)
    expected = [imputed.fit_transform(numbers), one_hot.fit_transform(categories)]
    np.testing.assert_allclose(
        columns.impute(rows, x), np.hstack(expected), rtol=1e-5, atol=1e-6
    )
    assert columns.imputed_names(names).tolist() == [
        *("n", "m", "missingindicator_n"),
        *("c_a", "c_b", "d_u", "d_v", "d_nan"),
    ]


def test_passthrough_names_and_columns_agree(mixed, make_encoder):
    encoder = make_encoder(passthrough=True).set_output(transform="pandas").fit(mixed)
    Z = encoder.transform(mixed)
    assert Z.columns.tolist() == encoder.get_feature_names_out().tolist()
    jobs = ["job_clerk", "job_cook", "job_nurse", "job_nan"]
    assert Z.columns[5:].tolist() == [
        *("age", "smokes", "income", "missingindicator_age"),
        *jobs,
        *("grade_a", "grade_b"),
    ]
    assert Z["missingindicator_age"].eq(mixed["age"].isna()).all()
    assert Z[jobs].sum(axis=1).eq(1).all()
    unseen = encoder.transform(mixed.assign(job="poet"))
    assert unseen[jobs].eq(0).all(axis=None)


def test_a_view_has_whole_categories_of_the_column(mixed, make_encoder):
    """The backbone sees no mixture of two, and no number beside its indicator."""
    seen = []

    class Spy(torch.nn.Linear):
        def forward(self, x):
            seen.append(x.detach().clone())
            return super().forward(x)

    encoder = make_encoder(backbone=Spy, learning_rate=1e-12, weight_decay=0.0)
    encoder.fit(mixed)
    x = torch.cat(seen)
    age, missing, job, grade = x[:, 0], x[:, 3], x[:, 4:7], x[:, 7:9]
    assert set(missing.tolist()) == {0, 1}
    assert torch.equal(age == 0, missing == 1)
    for vectors, may_miss in ((job, True), (grade, False)):
        assert torch.isin(vectors.round(decimals=4), torch.tensor([0.0, 1.0])).all()
        total = vectors.sum(dim=1).round().unique().tolist()
        assert total == ([0, 1] if may_miss else [1])


def test_vectors_of_categories_begin_as_one_hot_or_random():
    few, many = ColumnEmbedding([5, 102], [], torch.Generator()).vectors
    expected = torch.cat([torch.zeros(2, 3), torch.eye(3)])
    torch.testing.assert_close(few.detach(), expected)
    assert many.shape == (102, 32)
    assert not many[:2].any()
    torch.testing.assert_close(many[2:].norm(dim=1), torch.ones(100))
    cosine = many[2:] @ many[2:].T - torch.eye(100)
    assert cosine.abs().max() < 0.8


def test_no_rows_at_all(mixed, make_encoder):
    with pytest.raises(ValueError, match=r"0 sample\(s\) \(shape=\(0, 5\)\)"):
        make_encoder().fit(mixed).transform(mixed[:0])


def test_noise_leaves_categories(mixed, make_encoder):
    encoder = make_encoder(augmentation="noise", corruption_rate=0.5).fit(mixed)
    model = encoder._model_
    x = torch.zeros(500, 5) + 2
    view = model.augmentation.on(torch.device("cpu"))(x, torch.Generator())
    assert torch.equal(view[:, [1, 3]], x[:, [1, 3]])
    assert (view[:, [0, 2, 4]] - x[:, [0, 2, 4]]).std() == pytest.approx(0.5, abs=0.05)
    with pytest.raises(ValueError, match="augmentation='noise' needs a column of num"):
        make_encoder(augmentation="noise").fit(mixed[["job", "grade"]])


def test_an_augmentation_that_breaks_categories_is_named(mixed, make_encoder):
    def shift(x, generator):
        return x + 0.5

    with pytest.raises(ValueError, match="augmentation changes column 1, of cat"):
        make_encoder(augmentation=shift).fit(mixed)


def test_a_backbone_is_told_the_width_of_its_input(mixed, make_encoder):
    widths = []

    def linear(n_inputs, n_components):
        widths.append(n_inputs)
        return torch.nn.Linear(n_inputs, n_components)

    encoder = make_encoder(backbone=linear).fit(mixed)
    # Three numbers, an indicator, vectors of 3 and of 2 dimensions.
    assert widths == [3 + 1 + 3 + 2]
    assert np.isfinite(encoder.transform(mixed)).all()


def test_categories_are_learned(make_encoder):
    """Two columns of categories that go together: one tells the other."""
    first = draw(list("abcdef"), n=600)
    second = pd.Series(first).map(dict(zip("abcdef", "uvwxyz", strict=True)))
    X = pd.DataFrame({"first": first, "second": second})
    encoder = make_encoder(max_iter=40, n_components=8).fit(X)
    assert encoder.loss_curve_[-1] < encoder.loss_curve_[0] - 0.3
    one = pd.DataFrame({"first": list("abcdef"), "second": list("uvwxyz")})
    views = encoder.embed_views(one, n_views=50)
    means = views.mean(axis=1)
    own = np.einsum("ivd,id->iv", views, means).mean()
    other = np.einsum("ivd,jd->ijv", views, means).mean()
    assert own > other + 0.2


def test_the_categories_of_fit_are_fixed(mixed, make_encoder):
    """A number at fit is no category later, and a category takes anything later."""
    encoder = make_encoder().fit(mixed)
    with pytest.raises(ValueError, match=r"'age' holds string .* In fit it"):
        encoder.transform(mixed.assign(age="old"))
    with pytest.raises(TypeError, match=r"Column 'job', row 0: \['clerk'\]"):
        encoder.transform(mixed.assign(job=[["clerk"]] * N))
    with pytest.raises(ValueError, match=r"'job' holds 7 and the like, .* strings"):
        encoder.transform(mixed.assign(job=7))
    some = mixed.assign(job=draw(["clerk", 7]))
    assert np.isfinite(encoder.transform(some)).all()


@pytest.mark.parametrize(
    "empty",
    [
        None,
        np.nan,
        pd.Categorical([None] * N),
        pd.array([None] * N, dtype="string"),
        pd.array([None] * N, dtype=pd.ArrowDtype(pa.null())),
        pd.array([pd.NaT] * N),
    ],
)
def test_a_column_without_a_value_is_missing_for_good(empty, mixed, make_encoder):
    """As a rare column is in a fold, whatever the reader made of it."""
    encoder = make_encoder().fit(mixed.assign(rare=empty))
    expected = encoder.transform(mixed.assign(rare=empty))
    for value in ("some", 3.5, pd.Timestamp("2020"), None):
        Z = encoder.transform(mixed.assign(rare=value))
        np.testing.assert_array_equal(Z, expected)
    encoder.set_params(categorical_features=["job", "grade", "rare"])
    assert np.isfinite(encoder.fit_transform(mixed.assign(rare=empty))).all()
    # And a column of numbers or categories may be all missing later.
    encoder = make_encoder().fit(mixed)
    for name in ("age", "job", "grade"):
        Z = encoder.transform(mixed.assign(**{name: empty}))
        np.testing.assert_array_equal(
            Z, encoder.transform(mixed.assign(**{name: None}))
        )


def test_values_read_with_another_type_are_no_unseen_categories(mixed, make_encoder):
    """A file whose codes have letters, and one whose codes happen to have none."""
    encoder = make_encoder(categorical_features=["job", "grade", "code"])
    codes = mixed.assign(code=np.arange(N) % 3)
    encoder.fit(codes.astype({"code": str}))
    with pytest.raises(ValueError, match=r"'code' holds 0 .* strings such as '0'"):
        encoder.transform(codes)
    encoder.fit(codes)
    with pytest.raises(ValueError, match=r"'code' holds '0' .* other values such as 0"):
        encoder.transform(codes.astype({"code": str}))
    with_missing = codes.astype({"code": float})
    expected = encoder.transform(with_missing)
    np.testing.assert_array_equal(encoder.transform(codes), expected)


def test_a_category_that_only_held_out_rows_have(make_encoder):
    """By early stopping a column may have no value left to train on."""
    X = pd.DataFrame({"x": NUMBER, "s": pd.Series(["a"] + [None] * (N - 1))})
    encoder = make_encoder(early_stopping=True, validation_fraction=0.5)
    for seed in range(4):
        Z = encoder.set_params(random_state=seed).fit_transform(X)
        assert np.isfinite(Z).all()


def test_passthrough_names_that_clash_are_refused(mixed, make_encoder):
    X = mixed.assign(job_cook=1.0)
    with pytest.raises(ValueError, match="two columns the name 'job_cook'"):
        make_encoder(passthrough=True).fit(X)
    encoder = make_encoder().fit(X)
    with pytest.raises(ValueError, match="two columns the name 'job_cook'"):
        encoder.set_params(passthrough=True).get_feature_names_out()


@pytest.mark.parametrize("values", [[1j, 2j], [("a", 1), ("b", 2)], [1, "b"]])
def test_what_is_no_category_is_refused_where_listed(values, mixed, make_encoder):
    encoder = make_encoder(categorical_features=["kind"])
    kind = pd.Series(values * 60, dtype=object)
    with pytest.raises(ValueError, match=r"'kind' (holds what is no|mixes types).*row"):
        encoder.fit(mixed[["age"]].assign(kind=kind))


def test_times_and_text_point_to_skrub(mixed, make_encoder):
    with pytest.raises(ValueError, match=r"'when' holds datetime.*TableVectorizer\(\)"):
        make_encoder().fit(mixed.assign(when=pd.Timestamp("2020")))
    text = [f"dear sir {i}" for i in range(N)]
    with pytest.raises(ValueError, match=r"'note' holds text: 120 of its 120 .*skrub"):
        make_encoder().fit(mixed.assign(note=text))
    as_category = mixed.assign(note=pd.Categorical(text))
    assert np.isfinite(make_encoder().fit_transform(as_category)).all()
    listed = make_encoder(categorical_features=["job", "grade", "note"])
    assert np.isfinite(listed.fit_transform(mixed.assign(note=text))).all()


def test_after_skrubs_table_vectorizer(mixed, make_encoder):
    X = mixed.assign(
        when=pd.date_range("2020-01-01", periods=N),
        note=[f"dear sir {i % 60}, {i}" for i in range(N)],
    )
    pipeline = make_pipeline(TableVectorizer(), make_encoder()).fit(X)
    assert np.isfinite(pipeline.transform(X)).all()


NUMBER = np.random.RandomState(0).normal(size=N)

# A frame, and what becomes of it: the number of inputs of the backbone, or an error.
AWKWARD = {
    "a constant": (pd.DataFrame({"x": NUMBER, "c": 3.0}), 2),
    "all missing": (pd.DataFrame({"x": NUMBER, "c": np.nan}), 3),
    "all missing objects": (pd.DataFrame({"x": NUMBER, "c": [None] * N}), 3),
    "high cardinality": (
        pd.DataFrame({"x": NUMBER, "zip": [f"{10000 + i % 55}" for i in range(N)]}),
        1 + 32,
    ),
    "an identifier": (
        pd.DataFrame({"x": NUMBER, "id": [f"#{i}" for i in range(N)]}),
        "Column 'id' holds text: 120 of its 120 values are different",
    ),
    "mixed numbers and strings": (
        pd.DataFrame({"x": NUMBER, "m": draw([1, "one"])}),
        "Column 'm' mixes types: row 0 1, row 1 'one'",
    ),
    "booleans with missing": (
        pd.DataFrame({"x": NUMBER, "b": draw([True, False, None])}),
        3,
    ),
    "huge and tiny scales": (
        pd.DataFrame({"x": NUMBER, "h": NUMBER * 1e140, "t": NUMBER * 1e-140}),
        3,
    ),
    "too huge a scale": (
        pd.DataFrame({"x": NUMBER, "h": NUMBER * 1e200}),
        r"Column 'h', row 0: 1\..*e\+200 is too large",
    ),
    "duplicate names": (
        pd.DataFrame(np.column_stack([NUMBER, NUMBER]), columns=["x", "x"]),
        "several columns named 'x'",
    ),
    "a single category": (pd.DataFrame({"x": NUMBER, "s": "only"}), 1 + 1),
    "more columns than rows": (pd.DataFrame(np.outer(NUMBER, range(250))), 250),
    "three rows": (pd.DataFrame({"x": [1.0, np.nan, 3.0], "s": ["a", None, "b"]}), 4),
    "categories alone": (
        pd.DataFrame({"s": draw(["a", "b"]), "t": draw(list("cd"))}),
        4,
    ),
    "integers as categories": (
        pd.DataFrame({"x": NUMBER, "k": pd.Categorical(draw([1, 2, 30]))}),
        1 + 3,
    ),
    "intervals": (pd.DataFrame({"x": NUMBER, "i": pd.cut(NUMBER, 3)}), 1 + 3),
    "decimals": (
        pd.DataFrame({"x": NUMBER, "d": [decimal.Decimal(i) for i in range(N)]}),
        2,
    ),
    "an infinite value": (
        pd.DataFrame({"x": NUMBER, "i": [np.inf, *NUMBER[1:]]}),
        "Column 'i', row 0: inf is infinite",
    ),
    "numbers as strings": (
        pd.DataFrame({"x": NUMBER, "s": draw(["1", "2", "3.5"])}),
        1 + 3,
    ),
}


@pytest.mark.parametrize("name", AWKWARD)
def test_awkward_frames(name, make_encoder):
    X, outcome = AWKWARD[name]
    encoder = make_encoder(max_iter=2)
    before = X.copy()
    if isinstance(outcome, str):
        with pytest.raises((ValueError, TypeError), match=outcome):
            encoder.fit(X)
    else:
        Z = encoder.fit_transform(X)
        assert np.isfinite(Z).all()
        assert np.isfinite(encoder.score(X))
        assert encoder.module_.columns.n_outputs == outcome
        np.testing.assert_array_equal(clone(encoder).fit_transform(X), Z)
    pd.testing.assert_frame_equal(X, before)


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_categories_train_to_the_same_bits_at_any_thread_count(threads, make_encoder):
    rng = np.random.RandomState(0)
    X = pd.DataFrame({"x": rng.normal(size=2000), "k": rng.randint(0, 900, 2000)})
    X.loc[::9, "x"] = np.nan
    before = torch.get_num_threads()
    encoder = make_encoder(categorical_features=["k"], batch_size=1000, max_iter=2)
    try:
        torch.set_num_threads(1)
        expected = encoder.fit_transform(X)
        torch.set_num_threads(threads)
        np.testing.assert_array_equal(encoder.fit_transform(X), expected)
    finally:
        torch.set_num_threads(before)


def test_the_encoder_is_not_changed_by_a_global_output_container(mixed):
    encoder = ContrastiveEncoder(max_iter=1, random_state=0, passthrough=True)
    expected = clone(encoder).fit_transform(mixed)
    with config_context(transform_output="pandas"):
        Z = clone(encoder).fit_transform(mixed)
    np.testing.assert_array_equal(Z.to_numpy(), expected)
