"""Training that goes on: warm starts and partial fits."""

import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from torch import nn

from skcl import RelaxedKMeansRegularizer
from skcl.losses import LOSSES


@pytest.fixture
def labels(rows):
    return (rows[:, 0] > 0.5).astype(int)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("sampling", ["uniform", "balanced"])
def test_five_and_five_epochs_are_ten(loss, sampling, rows, labels, make_encoder):
    params = {"loss": loss, "sampling": sampling, "batch_size": 50}
    ten = make_encoder(max_iter=10, **params).fit(rows, labels)
    five = make_encoder(max_iter=5, warm_start=True, **params).fit(rows, labels)
    assert five.n_iter_ == 5
    five.fit(rows, labels)
    assert five.n_iter_ == 10
    assert five.loss_curve_ == ten.loss_curve_
    np.testing.assert_array_equal(five.transform(rows), ten.transform(rows))
    np.testing.assert_array_equal(five.embed_views(rows), ten.embed_views(rows))


def test_ten_partial_fits_are_ten_epochs(rows, labels, make_encoder):
    for regularizer in (None, RelaxedKMeansRegularizer(2, relaxation="spectral")):
        params = {"max_iter": 10, "batch_size": 50, "regularizer": regularizer}
        whole = make_encoder(**params).fit(rows)
        parts = make_encoder(**params)
        for _ in range(10):
            parts.partial_fit(rows)
        assert parts.n_iter_ == 10
        weights = whole.history_["regularizer_weight"]
        assert parts.history_["regularizer_weight"] == weights
        if regularizer is None:
            assert parts.loss_curve_ == whole.loss_curve_
            np.testing.assert_array_equal(parts.transform(rows), whole.transform(rows))


def test_training_goes_on_after_a_pickle(rows, make_encoder):
    encoder = make_encoder(warm_start=True).fit(rows)
    loaded = pickle.loads(pickle.dumps(encoder))
    encoder.fit(rows)
    loaded.fit(rows)
    np.testing.assert_array_equal(loaded.transform(rows), encoder.transform(rows))
    assert loaded.loss_curve_ == encoder.loss_curve_


def test_a_warm_start_may_be_asked_for_later(rows, make_encoder):
    encoder = make_encoder().fit(rows)
    encoder.set_params(warm_start=True).fit(rows)
    ten = make_encoder(max_iter=10).fit(rows)
    np.testing.assert_array_equal(encoder.transform(rows), ten.transform(rows))


def test_without_warm_start_a_fit_begins_anew(rows, make_encoder):
    encoder = make_encoder().fit(rows)
    Z = encoder.transform(rows)
    encoder.partial_fit(rows)
    assert (encoder.transform(rows) != Z).any()
    np.testing.assert_array_equal(encoder.fit(rows).transform(rows), Z)
    assert not hasattr(clone(encoder.set_params(warm_start=True)), "module_")


@pytest.mark.parametrize("regularizer", [None, RelaxedKMeansRegularizer(3)])
def test_the_loss_does_not_rise_on_resuming(regularizer, imbalanced, make_encoder):
    X, _ = imbalanced
    encoder = make_encoder(
        warm_start=True, max_iter=30, regularizer=regularizer, regularizer_weight=0.1
    ).fit(X)
    encoder.set_params(max_iter=50).fit(X)
    curve = np.array(encoder.loss_curve_)
    descent = curve[0] - curve[25:30].mean()
    assert curve[30:35].mean() - curve[25:30].mean() < 0.1 * descent


def test_the_regularizer_does_not_step_back(rows, make_encoder):
    encoder = make_encoder(warm_start=True, regularizer=RelaxedKMeansRegularizer(3))
    full = encoder.fit(rows).history_["regularizer_weight"][-1]
    encoder.set_params(max_iter=20).fit(rows)
    assert encoder.history_["regularizer_weight"][5:] == [full] * 20


def first_coordinate(z, temperature, y=None):
    """A loss whose training can only lower the score of the held-out rows."""
    return z[..., 0].mean() if torch.is_grad_enabled() else -z[..., 0].mean()


def test_early_stopping_returns_to_the_weights_it_resumed_from(
    imbalanced, make_encoder
):
    X, _ = imbalanced
    encoder = make_encoder(
        warm_start=True, early_stopping=True, loss=first_coordinate, random_state=None
    ).fit(X)
    Z = encoder.transform(X)
    encoder.set_params(max_iter=2).fit(X)
    scores = encoder.validation_scores_
    assert len(scores) == 7
    assert max(scores[1:]) < scores[0]
    np.testing.assert_array_equal(encoder.transform(X), Z)


def test_early_stopping_resumes_from_the_best_weights(rows, make_encoder):
    encoder = make_encoder(
        warm_start=True, early_stopping=True, max_iter=50, n_iter_no_change=2, tol=0.5
    ).fit(rows)
    assert encoder.n_iter_ == 3
    Z = encoder.transform(rows)
    encoder.set_params(learning_rate=1e-12, max_iter=1).fit(rows)
    np.testing.assert_allclose(encoder.transform(rows), Z, atol=1e-5)
    assert len(encoder.validation_scores_) == encoder.n_iter_ == 4


def test_training_parameters_act_on_resuming(rows, make_encoder):
    encoder = make_encoder(warm_start=True).fit(rows)
    Z = encoder.transform(rows)
    encoder.set_params(learning_rate=1e-12, weight_decay=0.0).fit(rows)
    np.testing.assert_allclose(encoder.transform(rows), Z, atol=1e-5)
    encoder.set_params(learning_rate=1e-3, batch_size=16, temperature=0.5).fit(rows)
    assert np.abs(encoder.transform(rows) - Z).max() > 1e-3


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n_components", 6),
        ("hidden_layer_sizes", (16, 16)),
        ("projection_dim", 5),
        ("augmentation", "noise"),
        ("corruption_rate", 0.5),
        ("n_views", 3),
        ("backbone", nn.Linear),
        ("categorical_features", [0]),
    ],
)
def test_what_shapes_the_network_cannot_change(name, value, rows, make_encoder):
    encoder = make_encoder(warm_start=True).fit(rows)
    Z = encoder.transform(rows)
    with pytest.raises(ValueError, match=f"{name}=.* differs"):
        encoder.set_params(**{name: value}).fit(rows)
    with pytest.raises(ValueError, match=f"{name}=.* differs"):
        encoder.partial_fit(rows)
    np.testing.assert_array_equal(encoder.transform(rows), Z)


@pytest.mark.parametrize(
    ("name", "value"),
    [("temperature", -1.0), ("batch_size", 0), ("sampling", "odd"), ("loss", None)],
)
def test_partial_fit_validates_parameters_each_time(name, value, rows, make_encoder):
    encoder = make_encoder().partial_fit(rows)
    with pytest.raises(ValueError, match=f"'{name}' parameter"):
        encoder.set_params(**{name: value}).partial_fit(rows)


def test_a_refused_resumption_loses_nothing(rows, make_encoder):
    encoder = make_encoder(warm_start=True).fit(rows)
    Z, curve = encoder.transform(rows), encoder.loss_curve_
    for X in (rows[:, :3], np.full_like(rows, np.inf), rows[:1]):
        with pytest.raises(ValueError, match=r"feature|inf|sample"):
            encoder.fit(X)
    with pytest.raises(ValueError, match="diverged"):
        encoder.set_params(learning_rate=1e30, max_iter=20).fit(rows)
    np.testing.assert_array_equal(encoder.transform(rows), Z)
    assert encoder.loss_curve_ == curve
    encoder.set_params(learning_rate=1e-3, max_iter=5, loss=FailsLater())
    with pytest.raises(RuntimeError, match="later"):
        encoder.fit(rows)
    encoder.set_params(loss="infonce").fit(rows)
    ten = make_encoder(max_iter=10).fit(rows)
    assert encoder.loss_curve_ == ten.loss_curve_
    np.testing.assert_array_equal(encoder.transform(rows), ten.transform(rows))


class FailsLater:
    n_calls = 0

    def __call__(self, z, temperature, y):
        self.n_calls += 1
        if self.n_calls > 7:
            raise RuntimeError("later")
        return -(z.mean(dim=1) ** 2).mean() / temperature


def test_the_first_call_fixes_scale_categories_and_classes(make_encoder):
    rng = np.random.RandomState(0)
    first = pd.DataFrame({"x": rng.normal(size=40), "s": ["a", "b"] * 20})
    later = pd.DataFrame({"x": rng.normal(50, 9, size=40), "s": ["b", "c"] * 20})
    encoder = make_encoder(passthrough=True, loss="supcon")
    encoder.partial_fit(first, np.arange(40) % 2)
    columns = encoder.transform(later)[:, -3:]
    encoder.partial_fit(later, np.arange(40) % 2)
    np.testing.assert_array_equal(encoder.transform(later)[:, -3:], columns)
    assert encoder.get_feature_names_out()[-2:].tolist() == ["s_a", "s_b"]
    with pytest.raises(ValueError, match=r"classes \[2\], which fit did not see"):
        encoder.partial_fit(later, np.arange(40) % 3)
    # A chunk of one class, or of none that is labelled, is no reason to refuse it.
    encoder.partial_fit(later, np.ones(40, dtype=int))
    encoder.partial_fit(later, np.full(40, -1))
    assert np.isfinite(encoder.loss_curve_).all()


def test_classes_can_be_named_before_they_come(rows, make_encoder):
    encoder = make_encoder(loss="supcon")
    encoder.partial_fit(rows, np.array(["a", "b"] * 60), classes=["c", "a", "b"])
    assert encoder.classes_.tolist() == ["a", "b", "c"]
    encoder.partial_fit(rows, np.array(["c", "b"] * 60))
    with pytest.raises(ValueError, match=r"\['d'\], which fit did not see"):
        encoder.partial_fit(rows, np.array(["d", "b"] * 60))
    with pytest.raises(ValueError, match=r"\['d'\], which"):
        make_encoder(loss="supcon").partial_fit(
            rows, np.array(["d", "b"] * 60), classes=["a", "b"]
        )


def test_classes_may_be_those_of_y(rows, make_encoder):
    """The idiom np.unique(y), whose -1 is no class."""
    y = np.resize([0, 1, -1], len(rows))
    encoder = make_encoder(loss="supcon")
    encoder.partial_fit(rows, y, classes=np.unique(y))
    assert encoder.classes_.tolist() == [0, 1]
    encoder.partial_fit(rows, y, classes=[1, 0])
    with pytest.raises(ValueError, match=r"classes=\[0, 1, 2\] differ"):
        encoder.partial_fit(rows, y, classes=[0, 1, 2])


def test_a_backbone_of_the_user_trains_on_twice(rows, make_encoder):
    class Factory:
        def __call__(self, n_inputs, n_components):
            return nn.Linear(n_inputs, n_components)

    encoder = make_encoder(warm_start=True, backbone=Factory()).fit(rows)
    encoder.fit(rows).fit(rows)
    assert encoder.n_iter_ == 15
    with pytest.raises(ValueError, match=r"backbone=.* differs"):
        encoder.set_params(backbone=Factory()).fit(rows)


def test_a_fit_after_one_that_failed_begins_anew(rows, labels, make_encoder):
    encoder = make_encoder(warm_start=True, loss="supcon", regularizer=Broken())
    for method in (encoder.fit, encoder.partial_fit):
        with pytest.raises(RuntimeError, match="broken"):
            method(rows, labels + 5)
    encoder.set_params(regularizer=None).partial_fit(rows[:, :3], labels)
    assert encoder.classes_.tolist() == [0, 1]
    assert encoder.n_features_in_ == 3


class Broken:
    def start(self, means, generator, y=None):
        raise RuntimeError("broken")

    def penalty(self, means, state, y=None, rows=None):
        raise AssertionError


def test_what_needs_all_rows_is_refused_in_partial_fit(rows, labels, make_encoder):
    with pytest.raises(ValueError, match="early_stopping"):
        make_encoder(early_stopping=True).partial_fit(rows)
    with pytest.raises(ValueError, match="class_weight='balanced'"):
        make_encoder(class_weight="balanced").partial_fit(rows, labels)
    encoder = make_encoder(class_weight={0: 1, 1: 5}).partial_fit(rows, labels)
    assert encoder.n_iter_ == 1


def test_labels_asked_for_too_late_are_refused(rows, labels, make_encoder):
    encoder = make_encoder(warm_start=True).fit(rows)
    with pytest.raises(ValueError, match="first fit had none"):
        encoder.set_params(loss="supcon").fit(rows, labels)


def test_chunks_of_a_table_are_learned_like_the_table(imbalanced, make_encoder):
    X, _ = imbalanced
    X = X.sample(frac=1, random_state=0)
    whole = make_encoder(max_iter=30, batch_size=60).fit(X)
    chunks = make_encoder(max_iter=120, batch_size=60)
    for _ in range(30):
        for start in range(0, len(X), 60):
            chunks.partial_fit(X.iloc[start : start + 60])
    begin = make_encoder(max_iter=1, batch_size=60).fit(X).score(X)
    gain = whole.score(X) - begin
    assert chunks.score(X) - begin > 0.7 * gain
