"""Displays: they show the theory's numbers, where and as they are told to."""

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


def test_over_training_it_is_one_training(imbalanced, make_encoder):
    """Seen at epochs 2, 3 and 5: the numbers of partial fits."""
    X, y = imbalanced
    encoder = make_encoder(regularizer=RelaxedKMeansRegularizer(2))
    display = BoundDisplay.from_estimator(encoder, X, y, param_range=[2, 3, 5])
    parts, expected = clone(encoder), []
    for epoch in range(1, 6):
        parts.partial_fit(X, y)
        if epoch in (2, 3, 5):
            expected.append(bound_of(parts, X, y))
    assert_shows(display, expected)
    assert display.ax_.get_xlabel() == "epoch"
    assert display.figure_ is display.ax_.figure
    assert not hasattr(encoder, "n_iter_")


def test_all_epochs_of_a_short_training(imbalanced, make_encoder):
    X, y = imbalanced
    assert BoundDisplay.from_estimator(make_encoder(), X, y).values.tolist() == [
        *range(1, 6)
    ]
    long = BoundDisplay.from_estimator(make_encoder(max_iter=50), X, y)
    assert len(long.values) == 20
    assert long.values[-1] == 50


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
    assert [label.get_text() for label in ax.get_xticklabels()] == ["0.0", "0.1", "1.0"]


def test_a_pipeline_over_training(imbalanced, make_encoder):
    X, y = imbalanced
    pipeline = make_pipeline(StandardScaler(), make_encoder())
    display = BoundDisplay.from_estimator(pipeline, X, y, param_range=[1, 2])
    scaled = StandardScaler().fit_transform(X)
    encoder = make_encoder().partial_fit(scaled, y)
    expected = [bound_of(encoder, scaled, y)]
    expected.append(bound_of(encoder.partial_fit(scaled, y), scaled, y))
    assert_shows(display, expected)


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
    with pytest.raises(ValueError, match="its last step is LogisticRegression"):
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
