"""Displays: they show the theory's numbers, where and as they are told to."""

import sys

import matplotlib.pyplot as plt
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skcl import RelaxedKMeansRegularizer, theory
from skcl.plotting import BoundDisplay, GeometryDisplay

TERMS = ("upper_bound", "incurred_loss", "contrastive_loss")


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def assert_shows(display, bounds):
    assert [line.get_label() for line in display.lines_] == [
        "upper bound",
        "incurred supervised loss",
        "contrastive loss",
    ]
    for line, term in zip(display.lines_, TERMS, strict=True):
        expected = [getattr(bound, term) for bound in bounds]
        np.testing.assert_array_equal(line.get_ydata(), expected)


def bound_of(encoder, X, y):
    views = encoder.embed_views(X, 8, random_state=0)
    return theory.discrepancy_bound(views, y, encoder.temperature, encoder.loss)


def test_over_training_it_shows_that_training(imbalanced, make_encoder):
    """At epochs 2, 3 and 5: what fits that end there have."""
    X, y = imbalanced
    display = BoundDisplay.from_estimator(make_encoder(), X, y, param_range=[2, 3, 5])
    fits = [make_encoder(max_iter=epochs).fit(X, y) for epochs in (2, 3, 5)]
    assert_shows(display, [bound_of(fit, X, y) for fit in fits])
    assert display.ax_.get_xlabel() == "epoch"
    assert display.figure_ is display.ax_.figure


@pytest.mark.parametrize(
    "params",
    [
        {"regularizer": RelaxedKMeansRegularizer(2)},
        {"loss": "supcon", "class_weight": "balanced", "sampling": "balanced"},
        {"early_stopping": True, "n_iter_no_change": 50},
    ],
)
def test_the_last_epoch_is_that_of_fit(params, imbalanced, make_encoder):
    X, y = imbalanced
    encoder = make_encoder(max_iter=8, **params)
    display = BoundDisplay.from_estimator(encoder, X, y, param_range=[1, 8])
    assert not hasattr(encoder, "n_iter_")
    if "early_stopping" not in params:  # which goes back to the best epoch
        encoder.fit(X, y)
        assert_shows(display, [display.bounds[0], bound_of(encoder, X, y)])


def test_all_epochs_of_a_short_training(imbalanced, make_encoder):
    X, y = imbalanced
    assert BoundDisplay.from_estimator(make_encoder(), X, y).values == [1, 2, 3, 4, 5]
    long = BoundDisplay.from_estimator(make_encoder(max_iter=25), X, y)
    assert len(long.values) == 20
    assert long.values[-1] == 25


def test_over_a_parameter_of_a_pipeline_on_held_out_rows(imbalanced, make_encoder):
    X, y = imbalanced
    encoder = make_encoder(regularizer=RelaxedKMeansRegularizer(2))
    pipeline = make_pipeline(StandardScaler(), encoder, LogisticRegression())
    _, ax = plt.subplots()
    display = BoundDisplay.from_estimator(
        pipeline,
        X[:160],
        y[:160],
        param_name="contrastiveencoder__regularizer_weight",
        param_range=[0, 0.1, 1],
        X_val=X[160:],
        y_val=y[160:],
        ax=ax,
    )
    scaled = StandardScaler().fit(X[:160])
    fits = [
        clone(encoder).set_params(regularizer_weight=weight)
        for weight in display.values
    ]
    assert_shows(
        display,
        [
            bound_of(
                fit.fit(scaled.transform(X[:160]), y[:160]),
                scaled.transform(X[160:]),
                y[160:],
            )
            for fit in fits
        ],
    )
    assert display.ax_ is ax
    assert ax.get_xlabel() == "regularizer weight"
    # Unequal steps are drawn equally far apart, under their own names.
    assert [label.get_text() for label in ax.get_xticklabels()] == ["0", "0.1", "1"]


def test_a_pipeline_over_training(imbalanced, make_encoder):
    X, y = imbalanced
    pipeline = make_pipeline(StandardScaler(), make_encoder())
    display = BoundDisplay.from_estimator(
        pipeline, X[:160], y[:160], param_range=[2], X_val=X[160:], y_val=y[160:]
    )
    scaler = StandardScaler().fit(X[:160])
    fit = make_encoder(max_iter=2).fit(scaler.transform(X[:160]), y[:160])
    assert_shows(display, [bound_of(fit, scaler.transform(X[160:]), y[160:])])


def test_values_that_are_no_numbers(imbalanced, make_encoder):
    X, y = imbalanced
    display = BoundDisplay.from_estimator(
        make_encoder(max_iter=1),
        X,
        y,
        param_name="hidden_layer_sizes",
        param_range=iter([(4,), (4, 4)]),
    )
    assert display.values == [(4,), (4, 4)]
    labels = [label.get_text() for label in display.ax_.get_xticklabels()]
    assert labels == ["(4,)", "(4, 4)"]
    losses = BoundDisplay.from_estimator(
        make_encoder(max_iter=1),
        X,
        y,
        param_name="loss",
        param_range=["infonce", "spectral"],
    )
    assert not losses.ax_.texts  # a constant encoder has no one loss
    assert display.ax_.texts


def test_from_predictions(rows, make_encoder):
    y = np.arange(120) % 3
    views = [make_encoder(max_iter=i).fit(rows).embed_views(rows, 4) for i in (1, 3)]
    display = BoundDisplay.from_predictions(
        ["one", "three"], views, y, [0.2, 0.4], loss="logistic", name="training"
    )
    assert_shows(
        display,
        [
            theory.discrepancy_bound(z, y, t, "logistic")
            for z, t in zip(views, (0.2, 0.4), strict=True)
        ],
    )
    labels = [label.get_text() for label in display.ax_.get_xticklabels()]
    assert labels == ["one", "three"]


def test_unlabelled_rows_are_not_measured(imbalanced, make_encoder):
    X, y = imbalanced
    y = np.array(["usual", "rare"], dtype=object)[y]
    encoder = make_encoder().fit(X)
    y[:100] = -1
    geometry = GeometryDisplay.from_estimator(encoder, X, y)
    views = encoder.embed_views(X, 8, random_state=0)[100:]
    expected = theory.discrepancy_bound(views, y[100:].astype(str), 0.2)
    np.testing.assert_allclose(
        geometry.actual, expected.centers @ expected.centers.T, atol=1e-12
    )
    assert geometry.classes.tolist() == ["rare", "usual"]


@pytest.mark.parametrize("K", [1, 2, 20])
def test_geometry(K):
    rng = np.random.RandomState(0)
    y = np.arange(5 * K) % K
    views = rng.normal(size=(5 * K, 3, 30))
    views /= np.linalg.norm(views, axis=2, keepdims=True)
    display = GeometryDisplay.from_predictions(views, y, 0.5)
    bound = theory.discrepancy_bound(views, y, 0.5)
    drawn = [ax.images[0].get_array() for ax in display.axes_]
    np.testing.assert_array_equal(drawn[0], bound.centers @ bound.centers.T)
    optimal = theory.optimal_geometry(bound.per_class["prior"], 0.5)
    np.testing.assert_array_equal(drawn[1], optimal.gram)
    labels = [label.get_text() for label in display.axes_[0].get_xticklabels()]
    assert labels == [str(k) for k in range(K)]
    assert len(display.axes_[1].texts) == (K * K if K <= 8 else 0)
    _, axes = plt.subplots(1, 2)
    assert display.plot(axes).figure_ is axes[0].figure


@pytest.mark.parametrize("display", [BoundDisplay, GeometryDisplay])
def test_without_matplotlib(display, monkeypatch):
    """Said before anything is fitted."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(
        ImportError, match=f"{display.__name__}.from_estimator requires"
    ):
        display.from_estimator(None, None, None)


def test_refused_arguments(imbalanced, make_encoder):
    X, y = imbalanced
    encoder = make_encoder()
    from_estimator = BoundDisplay.from_estimator
    with pytest.raises(ValueError, match="X_val and y_val go together"):
        from_estimator(encoder, X, y, X_val=X)
    with pytest.raises(ValueError, match="values of temperature are needed"):
        from_estimator(encoder, X, y, param_name="temperature")
    with pytest.raises(ValueError, match=r"param_range=\[3, 2\]: ascending"):
        from_estimator(encoder, X, y, param_range=[3, 2])
    with pytest.raises(ValueError, match="up to max_iter=5 are allowed"):
        from_estimator(encoder, X, y, param_range=[6])
    for refused in ([], [1.5], [0, 1]):
        with pytest.raises(ValueError, match=r"param_range=\[.*: ascending numbers"):
            from_estimator(encoder, X, y, param_range=refused)
    with pytest.raises(ValueError, match=r"param_range=\[\]: values of temperature"):
        from_estimator(encoder, X, y, param_name="temperature", param_range=[])
    with pytest.raises(ValueError, match="two matplotlib Axes are allowed"):
        GeometryDisplay(np.eye(2), np.eye(2), classes=[0, 1]).plot([plt.gca()])
    with pytest.raises(ValueError, match="it is LogisticRegression"):
        from_estimator(make_pipeline(encoder, LogisticRegression()), X, y)
    with pytest.raises(ValueError, match="no step with a method embed_views"):
        from_estimator(LogisticRegression(), X, y)
    with pytest.raises(ValueError, match="a callable, has no bound"):
        from_estimator(
            encoder.set_params(loss=lambda z, t, y: z.mean()), X, y, param_range=[1]
        )
    spectral = make_encoder(loss="spectral").fit(X)
    with pytest.raises(ValueError, match="loss='spectral': the optimal geometry"):
        GeometryDisplay.from_estimator(spectral, X, y)
    with pytest.raises(ValueError, match="views has 1 arrays for 2 values"):
        BoundDisplay.from_predictions([1, 2], [np.ones((3, 1, 1))], [0, 1, 1], 0.5)
