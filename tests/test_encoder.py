"""ContrastiveEncoder: what it learns, its parameters, and its promises."""

import copy
import itertools
import pickle
import threading

import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from parameters import INVALID, VALID
from sklearn.base import BaseEstimator, clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.semi_supervised import SelfTrainingClassifier
from torch import nn

from skcl import ContrastiveEncoder, RelaxedKMeansRegularizer, theory
from skcl.losses import LOSSES


@pytest.mark.parametrize("loss", LOSSES)
def test_training_lowers_the_loss_and_raises_the_score(loss, imbalanced, make_encoder):
    X, y = imbalanced
    short = make_encoder(loss=loss, max_iter=1).fit(X, y)
    long = make_encoder(loss=loss, max_iter=40).fit(X, y)
    assert long.loss_curve_[-1] < long.loss_curve_[0]
    assert long.score(X, y) > short.score(X, y)


def test_embedding_serves_a_class_that_is_not_linear_in_the_input():
    """A ring around a disc: hopeless for a linear model on raw columns."""
    rng = np.random.RandomState(0)
    X = rng.normal(size=(600, 2))
    y = (np.hypot(*X.T) > 1.6).astype(int)
    head = LogisticRegression(class_weight="balanced")
    encoder = ContrastiveEncoder(n_components=32, max_iter=30, random_state=0)
    scoring = {"cv": 3, "scoring": "balanced_accuracy"}
    raw = cross_val_score(make_pipeline(StandardScaler(), head), X, y, **scoring)
    embedded = cross_val_score(make_pipeline(encoder, head), X, y, **scoring)
    assert raw.mean() < 0.6
    assert embedded.mean() > 0.9


def test_score_is_minus_the_exact_loss_of_its_views(imbalanced, make_encoder):
    X, y = imbalanced
    for loss in LOSSES:
        encoder = make_encoder(loss=loss, max_iter=2).fit(X, y)
        exact = theory.contrastive_loss(encoder.embed_views(X), 0.2, loss, y)
        assert encoder.score(X, y) == -exact


def test_score_does_not_depend_on_batch_size_or_order(imbalanced, make_encoder):
    X, _ = imbalanced
    encoder = make_encoder().fit(X)
    score = encoder.score(X)
    assert encoder.score(X.iloc[::-1]) == pytest.approx(score, abs=1e-6)
    assert encoder.set_params(batch_size=7).score(X) == score
    assert np.isfinite(encoder.score(X[:1]))


def test_embed_views_are_unit_vectors_of_each_row_alone(imbalanced, make_encoder):
    X, _ = imbalanced
    encoder = make_encoder().fit(X)
    views = encoder.embed_views(X, n_views=3)
    assert views.shape == (240, 3, 4)
    assert views.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(views, axis=2), 1, atol=1e-5)
    assert np.abs(views[:, 0] - views[:, 1]).max() > 0.01
    np.testing.assert_array_equal(encoder.embed_views(X[100:110], 3), views[100:110])
    np.testing.assert_array_equal(
        encoder.embed_views(X, 3, random_state=1),
        encoder.embed_views(X, 3, random_state=1),
    )
    assert (encoder.embed_views(X, 3, random_state=1) != views).any()
    with pytest.raises(ValueError, match="n_views=0"):
        encoder.embed_views(X, 0)


def test_transform_of_any_split_is_the_same(make_encoder):
    X = np.random.RandomState(0).normal(size=(1300, 4))
    encoder = make_encoder(hidden_layer_sizes=(256, 256)).fit(X[:100])
    Z = encoder.transform(X)
    assert Z.dtype == np.float32
    for step in (1, 7, 512, 700):
        split = [encoder.transform(X[i : i + step]) for i in range(0, len(X), step)]
        np.testing.assert_array_equal(np.concatenate(split), Z)


def test_passthrough_puts_the_standardized_columns_beside(imbalanced, make_encoder):
    X, _ = imbalanced
    plain = make_encoder().fit(X)
    encoder = make_encoder(passthrough=True).set_output(transform="pandas").fit(X)
    Z = encoder.transform(X)
    assert list(Z.columns) == [f"contrastiveencoder{i}" for i in range(5)] + list(X)
    np.testing.assert_array_equal(Z.iloc[:, :5], plain.transform(X))
    np.testing.assert_allclose(
        Z[X.columns], StandardScaler().fit_transform(X), atol=1e-6
    )


def test_output_chooses_what_transform_returns(imbalanced, make_encoder):
    X, _ = imbalanced
    encoder = make_encoder(output="projection", passthrough=True).fit(X)
    Z = encoder.transform(X)
    assert (
        Z.shape == (240, 4 + X.shape[1]) == (240, len(encoder.get_feature_names_out()))
    )
    np.testing.assert_allclose(np.linalg.norm(Z[:, :4], axis=1), 1, rtol=1e-5)
    below = encoder.set_params(output="backbone", passthrough=False).transform(X)
    head = encoder.module_.head(torch.tensor(below))
    expected = torch.nn.functional.normalize(head).detach()
    np.testing.assert_allclose(Z[:, :4], expected, atol=1e-6)


def test_history_keeps_the_parts_of_the_loss_apart(imbalanced, make_encoder):
    X, _ = imbalanced
    regularizer = RelaxedKMeansRegularizer(n_clusters=3)
    encoder = make_encoder(
        regularizer=regularizer, regularizer_weight=0.5, temperature=0.25, max_iter=10
    ).fit(X)
    history = encoder.history_
    assert {len(part) for part in history.values()} == {10} == {encoder.n_iter_}
    # 1/t = 4 times 0.5; nothing for 40 % of the epochs, all of it from 60 % on.
    expected = [0, 0, 0, 0, 1, 2, 2, 2, 2, 2]
    np.testing.assert_allclose(history["regularizer_weight"], expected, atol=1e-12)
    np.testing.assert_allclose(
        encoder.loss_curve_,
        np.add(history["contrastive"], np.multiply(expected, history["regularizer"])),
    )


@pytest.mark.parametrize("relaxation", ["spectral", "entropic"])
def test_weight_zero_is_no_regularizer(relaxation, imbalanced, make_encoder):
    X, _ = imbalanced
    regularizer = RelaxedKMeansRegularizer(n_clusters=3, relaxation=relaxation)
    without = make_encoder().fit_transform(X)
    zero = make_encoder(regularizer=regularizer, regularizer_weight=0)
    one = make_encoder(regularizer=regularizer, regularizer_weight=1)
    np.testing.assert_array_equal(zero.fit_transform(X), without)
    assert (one.fit_transform(X) != without).any()


@pytest.mark.parametrize("relaxation", ["spectral", "entropic"])
@pytest.mark.parametrize("loss", LOSSES)
def test_the_regularizer_lowers_what_it_penalizes(
    loss, relaxation, imbalanced, make_encoder
):
    X, y = imbalanced
    regularizer = RelaxedKMeansRegularizer(n_clusters=3, relaxation=relaxation)
    final = {}
    for weight in (0, 3):
        encoder = make_encoder(
            loss=loss, regularizer=regularizer, regularizer_weight=weight, max_iter=40
        )
        final[weight] = encoder.fit(X, y).history_["regularizer"][-1]
    assert final[3] < final[0]


def test_any_object_with_start_and_penalty_regularizes(imbalanced, make_encoder):
    """Also one that is no estimator; it is copied, and sees labels with supcon only."""

    class Recorder:
        def __init__(self):
            self.calls = []

        def start(self, means, generator, y=None):
            self.calls.append((tuple(means.shape), y is not None, means.requires_grad))
            return means.mean(dim=0)

        def penalty(self, means, state, y=None, rows=None):
            return (means - state).square().sum(dim=1).mean()

    X, y = imbalanced
    for loss, labelled in (("infonce", False), ("supcon", True)):
        recorder = Recorder()
        encoder = make_encoder(loss=loss, regularizer=recorder, max_iter=3).fit(X, y)
        assert recorder.calls == []
        assert encoder.regularizer_.calls == [((240, 4), labelled, False)] * 3


def test_the_regularizer_starts_each_epoch_from_where_the_rows_are(rows, make_encoder):
    class Follower:
        def __init__(self):
            self.means = []

        def start(self, means, generator, y=None):
            self.means.append(means.clone())

        def penalty(self, means, state, y=None, rows=None):
            return means.square().sum(dim=1).mean()

    encoder = make_encoder(regularizer=Follower(), max_iter=4).fit(rows)
    means = encoder.regularizer_.means
    changes = [(b - a).norm(dim=1) for a, b in itertools.pairwise(means)]
    assert all((change > 0).all() for change in changes)  # every row's, every epoch


def test_a_lazy_backbone(rows, make_encoder):
    def backbone(n_inputs, n_components):
        return nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.Linear(8, n_components))

    encoder = make_encoder(backbone=backbone).fit(rows)
    assert np.isfinite(encoder.transform(rows)).all()


class FromSome(BaseEstimator):
    """A regularizer that wants few unlabelled rows, and records what it is given."""

    max_unlabelled = 20

    def start(self, means, generator, y=None):
        self.starts = [*getattr(self, "starts", ()), (means, y)]
        return len(means)

    def penalty(self, means, state, y=None, rows=None):
        assert rows.max() < state
        self.places = [*getattr(self, "places", ()), rows]
        return means.square().sum(dim=1).mean()


@pytest.mark.parametrize("loss", ["infonce", "supcon"])
def test_an_epoch_starts_from_labelled_rows_and_a_draw_of_the_others(
    loss, rows, make_encoder
):
    y = np.where(np.arange(120) < 30, np.arange(120) % 2, -1)
    encoder = make_encoder(loss=loss, regularizer=FromSome(), max_iter=3)
    starts = encoder.fit(rows, y).regularizer_.starts
    n_labelled = 30 if loss == "supcon" else 0
    assert [len(means) for means, _ in starts] == [n_labelled + 20] * 3
    if loss == "supcon":
        assert all((labels >= 0).sum() == 30 for _, labels in starts)
    assert not torch.equal(starts[0][0], starts[1][0])
    # Each of these rows finds its place once an epoch.
    for epoch in range(3):
        places = torch.cat(encoder.regularizer_.places[2 * epoch : 2 * epoch + 2])
        seen = places[places >= 0].sort().values
        assert torch.equal(seen, torch.arange(n_labelled + 20))
        assert len(places) == 120


def fit_recorded(encoder, X):
    """Return the first column of the views of each batch drawn in training."""
    batches = []

    def record(x, generator):
        batches.append(x[:, 0].clone())
        return custom_augmentation(x, generator)

    class Marker(Spread):
        def start(self, means, generator, y=None):
            if not recorded:
                batches.clear()  # what tried the callable
            recorded.append(None)

        def penalty(self, means, state, y=None, rows=None):
            return means.square().sum(dim=1).mean()

    recorded = []
    encoder.set_params(augmentation=record, regularizer=Marker()).fit(X)
    return batches


def test_every_epoch_visits_each_row_once_in_an_order_of_its_own(rows, make_encoder):
    encoder = make_encoder(max_iter=3, batch_size=50, n_views=3)
    views = fit_recorded(encoder, rows)
    assert [len(batch) for batch in views] == [3 * 40] * 9
    firsts = [batch[::3] for batch in views]  # of three views each
    orders = [torch.cat(firsts[i : i + 3]) for i in (0, 3, 6)]
    for order in orders:
        assert torch.equal(order.sort().values, orders[0].sort().values)
        assert len(order.unique()) == 120
    assert not torch.equal(orders[0], orders[1])
    assert not torch.equal(orders[1], orders[2])


def test_held_out_rows_are_never_trained_on(rows, make_encoder):
    encoder = make_encoder(early_stopping=True, max_iter=4, batch_size=50)
    batches = fit_recorded(encoder, rows)
    assert len(torch.cat([b for b in batches if len(b) > 2]).unique()) == 108


def test_unlabelled_rows_in_a_pipeline(imbalanced, make_encoder):
    """Behind the encoder, the classifier must not learn a class -1."""
    X, y = imbalanced
    few = np.where(np.arange(240) % 4 == 0, y, -1)
    pipeline = make_pipeline(
        make_encoder(loss="supcon", max_iter=20),
        SelfTrainingClassifier(LogisticRegression(class_weight="balanced"), max_iter=0),
    ).fit(X, few)
    np.testing.assert_array_equal(pipeline.classes_, [0, 1])
    np.testing.assert_array_equal(pipeline[0].classes_, [0, 1])
    assert balanced_accuracy_score(y, pipeline.predict(X)) > 0.8


def test_string_labels_and_their_mark(imbalanced, make_encoder):
    X, y = imbalanced
    names = np.array(["rare" if k else "common" for k in y], dtype=object)
    few, few_names = y.copy(), names.copy()
    few[::2], few_names[::2] = -1, -1
    by_name = make_encoder(loss="supcon").fit(X, few_names)
    np.testing.assert_array_equal(by_name.classes_, ["common", "rare"])
    by_code = make_encoder(loss="supcon").fit(X, few)
    np.testing.assert_array_equal(by_name.transform(X), by_code.transform(X))


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (None, "requires y to be passed, but the target y is None"),
        (np.tile([-1, 1], 60), "LabelEncoder"),
        (np.zeros(120), "at least two classes"),
        (np.full(120, -1), "at least two classes"),
        (np.linspace(0, 1, 120), "[Uu]nknown label type"),
        (np.where(np.arange(120) == 7, np.nan, 1.0), r"y\[7\] is .*nan"),
        (np.array(["a", "b", None] * 40, dtype=object), r"y\[2\] is None"),
        (np.array(["a", "b", 3] * 40, dtype=object), "mixes strings"),
        (np.array(["a", "b", "-1"] * 40), "the string '-1'"),
        (pd.array([0, 1, None] * 40, dtype="Int64"), r"y\[2\] is <NA>"),
        (np.zeros(7), "inconsistent numbers of samples"),
    ],
)
def test_labels_that_supcon_refuses(y, message, rows, make_encoder):
    with pytest.raises(ValueError, match=message):
        make_encoder(loss="supcon").fit(rows, y)


@pytest.mark.parametrize(
    ("y", "classes"),
    [
        (["a", "b", -1] * 40, ["a", "b"]),
        ([0, 1, -1] * 40, [0, 1]),
        ([False, True] * 60, [False, True]),
        (pd.Series([2**62, 2**62 + 1] * 60, dtype="Int64"), [2**62, 2**62 + 1]),
        (pd.Series([True, False] * 60, dtype="boolean"), [False, True]),
        (pd.Series(["b", "a"] * 60, dtype="string"), ["a", "b"]),
        (pd.Series(["b", "a"] * 60, dtype="category"), ["a", "b"]),
        (pd.Series([0.0, 1.0, -1.0] * 40, index=range(120, 0, -1)), [0, 1]),
        (np.array([[0], [1]] * 60)[:, 0], [0, 1]),
    ],
)
def test_labels_of_any_type(y, classes, rows, make_encoder):
    encoder = make_encoder(loss="supcon", max_iter=1).fit(rows, y)
    assert encoder.classes_.tolist() == classes
    assert np.isfinite(encoder.score(rows, y))


def test_score_of_unlabelled_rows_alone(rows, make_encoder):
    """Their positives are their own views: the score of InfoNCE."""
    encoder = make_encoder(loss="supcon").fit(rows, np.arange(120) % 2)
    score = encoder.score(rows, np.full(120, -1))
    assert encoder.set_params(loss="infonce").score(rows) == pytest.approx(score)


def test_the_other_losses_ignore_y(rows, make_encoder):
    expected = make_encoder().fit_transform(rows)
    for y in (np.linspace(0, 1, 120), np.full(120, np.nan), ["a"] * 120):
        encoder = make_encoder()
        np.testing.assert_array_equal(encoder.fit_transform(rows, y), expected)
        assert not hasattr(encoder, "classes_")


def test_early_stopping_stops_and_restores_the_best_weights(imbalanced, make_encoder):
    X, _ = imbalanced
    params = {
        "early_stopping": True,
        "validation_fraction": 0.3,
        "n_iter_no_change": 5,
        "learning_rate": 0.02,
        "max_iter": 200,
    }
    encoder = make_encoder(**params).fit(X)
    scores = encoder.validation_scores_
    best = int(np.argmax(scores))
    assert len(scores) == encoder.n_iter_ < 200
    assert best < len(scores) - 1
    params |= {"max_iter": best + 1, "n_iter_no_change": 1000}
    until_best = make_encoder(**params).fit(X)
    np.testing.assert_array_equal(encoder.transform(X), until_best.transform(X))


def test_early_stopping_counts_from_where_the_regularizer_has_its_weight(
    imbalanced, make_encoder
):
    X, _ = imbalanced
    encoder = make_encoder(
        early_stopping=True,
        n_iter_no_change=1,
        tol=1e6,
        max_iter=20,
        regularizer=RelaxedKMeansRegularizer(n_clusters=3),
    ).fit(X)
    assert (
        encoder.n_iter_ == 13
    )  # epoch 12 is the first at full weight, 13 adds nothing


def test_every_class_keeps_a_row_to_train_on(rows, make_encoder):
    y = np.repeat([0, 1, 2], 40)
    y[-2:] = 3
    for seed in range(10):
        encoder = make_encoder(
            loss="supcon",
            early_stopping=True,
            validation_fraction=0.8,
            regularizer=RelaxedKMeansRegularizer(2),
            random_state=seed,
            max_iter=2,
        ).fit(rows, y)
        assert np.isfinite(encoder.validation_scores_).all()


def test_held_out_rows_are_stratified_where_the_loss_uses_labels(rows, make_encoder):
    y = np.array([0] * 60 + [1] * 59 + [2])  # the class with one row stays in training
    encoder = make_encoder(loss="supcon", early_stopping=True, max_iter=2).fit(rows, y)
    assert len(encoder.validation_scores_) == 2
    np.testing.assert_array_equal(encoder.classes_, [0, 1, 2])
    assert np.isfinite(encoder.validation_scores_).all()


@pytest.mark.parametrize(
    ("n", "fraction", "loss"), [(10, 0.1, "infonce"), (12, 0.1, "supcon")]
)
def test_a_validation_fraction_that_holds_out_too_little(
    n, fraction, loss, rows, make_encoder
):
    encoder = make_encoder(early_stopping=True, validation_fraction=fraction, loss=loss)
    with pytest.raises(ValueError, match=f"validation_fraction={fraction}"):
        encoder.fit(rows[:n], np.arange(n) % 3)


def test_verbose_shows_progress(rows, make_encoder, capsys):
    make_encoder(max_iter=2).fit(rows)
    assert capsys.readouterr() == ("", "")
    make_encoder(max_iter=2, verbose=1).fit(rows)
    assert "2/2" in capsys.readouterr().err


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda e: pickle.loads(pickle.dumps(e))]
)
def test_copies_keep_the_embedding(copied, rows, make_encoder):
    encoder = make_encoder(regularizer=RelaxedKMeansRegularizer(3)).fit(rows)
    again = copied(encoder)
    np.testing.assert_array_equal(again.transform(rows), encoder.transform(rows))
    assert again.score(rows) == encoder.score(rows)
    assert not hasattr(clone(again), "module_")


def test_pickle_holds_arrays_and_no_training_rows(make_encoder, tmp_path):
    rng = np.random.RandomState(0)
    sizes = []
    for n in (2000, 8000):
        encoder = make_encoder(
            max_iter=1, regularizer=RelaxedKMeansRegularizer(3), early_stopping=True
        ).fit(rng.normal(size=(n, 4)))
        stored = pickle.dumps(encoder)
        assert b"torch" not in stored
        sizes.append(len(stored))
    assert sizes[1] <= sizes[0] * 1.01
    joblib.dump(encoder, tmp_path / "encoder.joblib")
    assert isinstance(joblib.load(tmp_path / "encoder.joblib"), ContrastiveEncoder)


def test_a_model_fitted_on_a_device_that_is_missing_loads_on_the_cpu(
    rows, make_encoder
):
    encoder = make_encoder().fit(rows)
    encoder._model_.device = torch.device("cuda:0")  # as a fit on a GPU leaves it
    stored = pickle.dumps(encoder)
    encoder._model_.device = torch.device("cpu")
    loaded = pickle.loads(stored)
    assert next(loaded.module_.parameters()).device.type == "cpu"
    np.testing.assert_array_equal(loaded.transform(rows), encoder.transform(rows))


@pytest.mark.parametrize("device", ["gpu", "cuda:99", "meta", "cpu:x", "xpu", "vulkan"])
def test_unknown_or_missing_device(device, rows, make_encoder):
    with pytest.raises(ValueError, match=f"device='{device}'.*Allowed are 'auto'"):
        make_encoder(device=device).fit(rows)


@pytest.mark.parametrize("device", ["auto", "cpu", torch.device("cpu")])
def test_devices_that_always_work(device, rows, make_encoder):
    assert make_encoder(device=device, max_iter=1).fit(rows).n_iter_ == 1


def test_parameters_set_after_fit_wait_for_the_next(rows, make_encoder):
    encoder = make_encoder().fit(rows)
    Z, views = encoder.transform(rows), encoder.embed_views(rows)
    encoder.set_params(
        n_components=9,
        projection_dim=7,
        hidden_layer_sizes=(3, 3),
        augmentation="noise",
        corruption_rate=5.0,
        n_views=3,
    )
    for model in (encoder, pickle.loads(pickle.dumps(encoder))):
        np.testing.assert_array_equal(model.transform(rows), Z)
        np.testing.assert_array_equal(model.embed_views(rows), views)
        assert len(model.get_feature_names_out()) == 5


def test_every_parameter_is_validated(make_encoder):
    assert set(INVALID) == set(make_encoder().get_params(deep=False)) == set(VALID)


@pytest.mark.parametrize(
    ("name", "value"), [(name, v) for name, values in INVALID.items() for v in values]
)
def test_invalid_parameters_are_named_at_the_start_of_fit(
    name, value, rows, make_encoder
):
    encoder = make_encoder(**{name: value})
    name = "n_clusters" if isinstance(value, RelaxedKMeansRegularizer) else name
    with pytest.raises(ValueError, match=name):
        encoder.fit(rows, np.arange(len(rows)) % 2)
    with pytest.raises(NotFittedError):
        encoder.transform(rows)


@pytest.mark.parametrize("relaxation", ["spectral", "entropic"])
def test_more_clusters_than_rows_are_refused_under_their_nested_name(
    relaxation, rows, make_encoder
):
    regularizer = RelaxedKMeansRegularizer(n_clusters=121, relaxation=relaxation)
    with pytest.raises(ValueError, match="regularizer__n_clusters=121"):
        make_encoder(regularizer=regularizer).fit(rows)
    # A batch of fewer rows than clusters has a penalty all the same.
    encoder = make_encoder(regularizer=regularizer.set_params(n_clusters=20))
    encoder.set_params(batch_size=8).fit(rows)
    assert np.isfinite(encoder.loss_curve_).all()


def custom_loss(z, temperature, y):
    return (z[:, 0] - z[:, 1]).square().sum(dim=1).mean()


def custom_augmentation(x, generator):
    return x + 0.1 * torch.randn(x.shape, generator=generator)


def custom_backbone(n_features_in, n_components):
    return nn.Sequential(
        nn.Linear(n_features_in, 8),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(8, n_components),
    )


def test_callables(rows, make_encoder):
    encoder = make_encoder(
        loss=custom_loss, augmentation=custom_augmentation, backbone=custom_backbone
    ).fit(rows)
    z = torch.tensor(encoder.embed_views(rows))
    assert encoder.score(rows) == pytest.approx(-custom_loss(z, 0.2, None).item())
    again = pickle.loads(pickle.dumps(encoder))
    np.testing.assert_array_equal(again.transform(rows), encoder.transform(rows))


def test_a_callable_loss_may_use_labels(imbalanced, make_encoder):
    def labelled(z, temperature, y):
        return LOSSES["supcon"](z, temperature, y)

    labelled.uses_y = True
    X, y = imbalanced
    expected = make_encoder(loss="supcon").fit_transform(X, y)
    np.testing.assert_array_equal(
        make_encoder(loss=labelled).fit_transform(X, y), expected
    )
    with pytest.raises(ValueError, match="requires y"):
        make_encoder(loss=labelled).fit(X)


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("loss", lambda z, temperature, y: z.sum(dim=2)),
        ("augmentation", lambda x, generator: x[:, :1]),
        ("backbone", lambda n_in, n_out: nn.Linear(n_in, n_out + 1)),
        ("loss", lambda z, temperature, y: 1.0),
        ("backbone", lambda n_in, n_out: None),
        ("loss", lambda z, temperature, y: z.detach().sum()),
        ("augmentation", lambda x, generator: x.double()),
        ("augmentation", lambda x, generator: x / 0),
    ],
)
def test_callables_of_the_wrong_shape_are_named(name, function, rows, make_encoder):
    with pytest.raises(ValueError, match=f"callable given as {name}"):
        make_encoder(**{name: function}).fit(rows)


def test_a_regularizer_that_does_not_fit(rows, make_encoder):
    class Vector:
        def start(self, means, generator, y=None):
            return None

        def penalty(self, means, state, y=None, rows=None):
            return means.sum(dim=1)

    with pytest.raises(ValueError, match=r"penalty must return .* shape \(\)"):
        make_encoder(regularizer=Vector()).fit(rows)
    with pytest.raises(ValueError, match="an instance is needed"):
        make_encoder(regularizer=RelaxedKMeansRegularizer).fit(rows)


def test_a_failed_second_fit_leaves_an_unfitted_encoder(rows, make_encoder):
    encoder = make_encoder().fit(rows)
    with pytest.raises(ValueError, match="missing"):
        encoder.fit(np.full((5, 2), np.nan))
    for method in (encoder.transform, encoder.score, encoder.embed_views):
        with pytest.raises(NotFittedError):
            method(rows)
    with pytest.raises(NotFittedError):
        encoder.get_feature_names_out()
    assert not hasattr(encoder, "module_")


@pytest.mark.parametrize("max_iter", [1, 2, 3])
def test_short_runs_are_regularized_and_restored(max_iter, rows, make_encoder):
    encoder = make_encoder(
        regularizer=RelaxedKMeansRegularizer(2),
        early_stopping=True,
        max_iter=max_iter,
        learning_rate=0.5,
    ).fit(rows)
    assert encoder.history_["regularizer_weight"][-1] == 5


class Spread(BaseEstimator):
    """A user's regularizer, with a parameter of its own and no declared constraints."""

    def __init__(self, power=2):
        self.power = power

    def start(self, means, generator, y=None):
        return means.mean(dim=0)

    def penalty(self, means, state, y=None, rows=None):
        return (means - state).norm(dim=1).pow(self.power).mean()


def test_a_search_over_a_users_own_regularizer(rows, make_encoder):
    grid = {"regularizer__power": [1, 2], "regularizer_weight": [1.0]}
    search = GridSearchCV(
        make_encoder(regularizer=Spread()), grid, cv=2, error_score="raise"
    ).fit(rows)
    assert len(set(search.cv_results_["mean_test_score"])) == 2


def test_an_augmentation_may_work_in_place(rows, make_encoder):
    def in_place(x, generator):
        x += 0.1 * torch.randn(x.shape, generator=generator)
        return x

    encoder = make_encoder(augmentation=in_place, early_stopping=True).fit(rows)
    expected = make_encoder(augmentation=custom_augmentation, early_stopping=True)
    np.testing.assert_array_equal(
        encoder.transform(rows), expected.fit(rows).transform(rows)
    )
    views = encoder.embed_views(rows)
    assert (views[:, 0] != views[:, 1]).any()


def test_an_augmentation_that_mixes_rows_is_refused(rows, make_encoder):
    def mixup(x, generator):
        return 0.7 * x + 0.3 * x[torch.randperm(len(x), generator=generator)]

    def centered(x, generator):
        return x - x.mean(dim=0)

    for augmentation in (mixup, centered):
        for n in (2, 5, 120):
            with pytest.raises(ValueError, match="mixes rows"):
                make_encoder(augmentation=augmentation).fit(rows[:n])


@pytest.mark.parametrize("seeded", [True, False])
@pytest.mark.parametrize("rate", [0.003, 0.1])
def test_a_rare_change_of_a_row_does_not_count_as_mixing(rate, seeded, make_encoder):
    def erase(x, generator):
        uniform = torch.rand(x.shape, generator=generator if seeded else None)
        return torch.where(uniform < rate, 0.0, x)

    for seed in range(20):
        X = np.random.RandomState(seed).normal(size=(12, 2))
        make_encoder(augmentation=erase, max_iter=1).fit(X)


def batch_norm_backbone(n_in, n_out):
    return nn.Sequential(nn.Linear(n_in, 8), nn.BatchNorm1d(8), nn.Linear(8, n_out))


def test_a_users_backbone_sees_a_batch_whole(make_encoder):
    """513 views: in blocks of 512, batch normalization would see a single one."""
    X = np.random.RandomState(0).normal(size=(342, 3))
    encoder = make_encoder(backbone=batch_norm_backbone, batch_size=171, n_views=3)
    assert np.isfinite(encoder.fit_transform(X)).all()


def test_a_callable_loss_that_fails_in_score_says_so(rows, make_encoder):
    def loss(z, temperature, y):
        return z.sum() * (float("nan") if z.shape[0] == 120 else 1.0)

    encoder = make_encoder(loss=loss, batch_size=60).fit(rows)
    with pytest.raises(ValueError, match="callable given as loss returned nan"):
        encoder.score(rows)


def test_no_thread_is_left_behind(rows, make_encoder):
    before = set(threading.enumerate())
    make_encoder().fit(rows)
    assert set(threading.enumerate()) == before


def test_a_regularizer_may_keep_or_change_the_means(rows, make_encoder):
    class Keeper(Spread):
        def start(self, means, generator, y=None):
            self.kept = means
            self.copy = means.clone()
            return means

        def penalty(self, means, state, y=None, rows=None):
            assert torch.equal(state, self.copy)
            return means.square().sum(dim=1).mean()

    assert make_encoder(regularizer=Keeper(), batch_size=30).fit(rows).n_iter_ == 5
