"""DiscrepancyScorer.report: all terms, by class, with warnings, to read and to use."""

import numpy as np
import pandas as pd
import pytest
from sklearn.base import BaseEstimator
from sklearn.datasets import load_wine
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skcl import (
    ContrastiveEncoder,
    DiscrepancyScorer,
    RelaxedKMeansRegularizer,
    theory,
)
from skcl.datasets import load_keel

GUARANTEES = (
    "contrastive_loss",
    "incurred_loss",
    "squared_discrepancy",
    "cross_entropy",
    "error",
    "direct_cross_entropy",
    "direct_error",
)


def unit(array):
    return array / np.linalg.norm(array, axis=-1, keepdims=True)


class Places(BaseEstimator):
    """An encoder whose views of a row lie around the place that the row names."""

    def __init__(self, places, noise=0.0, loss="infonce", temperature=0.5):
        self.places = places
        self.noise = noise
        self.loss = loss
        self.temperature = temperature

    def fit(self, X, y=None):
        self.fitted_ = True
        return self

    def embed_views(self, X, n_views, random_state=None):
        rng = np.random.RandomState(random_state)
        place = np.asarray(self.places, dtype=float)[np.asarray(X)[:, 0].astype(int)]
        noise = rng.normal(size=(len(place), n_views, place.shape[1]))
        return unit(place[:, None] + self.noise * noise).astype(np.float32)


def report_on(places, y, noise=0.0, n_views=4, **params):
    """Rows of class k at the k-th place."""
    classes, codes = np.unique(y, return_inverse=True)
    assert len(classes) == len(places)
    encoder = FrozenEstimator(Places(places, noise, **params).fit(None))
    scorer = DiscrepancyScorer(encoder, n_views=n_views, random_state=0)
    return scorer.fit(codes[:, None], y).report(codes[:, None], y)


@pytest.fixture(scope="module")
def measured():
    """An encoder, held-out rows, their report, and the same from the theory."""
    X, y = load_keel("ecoli3")
    train, test, y_train, y_test = train_test_split(X, y, stratify=y, random_state=0)
    encoder = ContrastiveEncoder(max_iter=3, temperature=1.0, random_state=0)
    encoder.fit(train)
    scorer = DiscrepancyScorer(FrozenEstimator(encoder), random_state=0)
    names = np.array(["usual", "rare"])
    scorer.fit(train, names[y_train])
    views = encoder.embed_views(test, 8, random_state=scorer._views_seed_)
    bound = theory.discrepancy_bound(views, names[y_test], 1.0)
    return scorer, test, names[y_test], views, bound


def test_the_report_is_the_theory_of_the_rows_own_centers(measured):
    scorer, X, y, views, bound = measured
    report = scorer.report(X, y)
    assert report.classes.tolist() == ["rare", "usual"]
    for name in ("contrastive_loss", "upper_bound", "lower_bound", "incurred_loss"):
        assert report.overall[name] == getattr(bound, name)
    for name, values in bound.per_class.items():
        np.testing.assert_array_equal(report.per_class[name], values)
    geometry = theory.optimal_geometry(bound.per_class["prior"], 1.0)
    assert report.overall["optimal_loss"] == geometry.value
    assert report.geometry.gram.shape == (2, 2)
    assert report.overall["attained"] == bound.incurred_loss / geometry.value
    gap = report.overall["optimality_gap"]
    assert gap == bound.incurred_loss - geometry.value > 0
    certificate = theory.certificate(views, y, 1.0, random_state=scorer._views_seed_)
    assert report.certificate == certificate
    assert report.certificate.confidence == 0.95


def test_the_report_is_the_same_each_time(measured):
    scorer, X, y, *_ = measured
    assert repr(scorer.report(X, y)) == repr(scorer.report(X, y))


def test_confidence(measured):
    scorer, X, y, *_ = measured
    bounds = [
        scorer.set_params(confidence=c).report(X, y).certificate.incurred_loss.bound
        for c in (0.5, 0.95, 0.999)
    ]
    scorer.set_params(confidence=0.95)
    assert bounds == sorted(bounds)
    for refused in (0.0, 1.0, 95):
        with pytest.raises(ValueError, match="'confidence'"):
            DiscrepancyScorer(confidence=refused).fit(X, y)


def test_a_frame(measured):
    scorer, X, y, _, bound = measured
    frame = scorer.report(X, y).to_frame()
    assert frame.index.tolist() == ["all", "rare", "usual"]
    assert frame.index.name == "class"
    assert frame.loc["all", "n_rows"] == len(X) == frame["n_rows"].iloc[1:].sum()
    assert frame.loc["all", "upper_bound"] == bound.upper_bound
    np.testing.assert_array_equal(
        frame["incurred_loss"].iloc[1:], bound.per_class["incurred_loss"]
    )
    assert frame.loc["all", "optimality_gap"] > 0
    assert frame["optimality_gap"].iloc[1:].isna().all()
    assert frame["collapsed"].tolist() == [False, *bound.per_class["collapsed"]]


def test_the_printed_table_has_the_terms_the_classes_and_the_guarantees(measured):
    scorer, X, y, _, bound = measured
    report = scorer.report(X, y)
    text = str(report)
    heading = f"{len(X)} rows, 8 views each, of the projection; loss infonce at "
    assert text.startswith(heading + "temperature 1")
    for value in (bound.contrastive_loss, bound.upper_bound, bound.alignment):
        assert f"{value:.4f}" in text
    for name in ("rare", "usual"):
        (line,) = [line for line in text.splitlines() if line.startswith(name)]
        k = report.classes.tolist().index(name)
        assert str(bound.per_class["n_rows"][k]) in line.split()
        assert f"{bound.per_class['incurred_loss'][k]:.4f}" in line.split()
    assert "each with confidence 0.95" in text
    assert report.certificate.error.bound > 1
    (line,) = [line for line in text.splitlines() if line.startswith("error  ")]
    assert float(line.split()[1]) == 1
    assert text.count(" is trivial") == sum(
        guarantee is not None and guarantee.vacuous
        for guarantee in (getattr(report.certificate, name) for name in GUARANTEES)
    )
    assert max(map(len, text.split("Warning")[0].splitlines())) <= 88


def test_a_good_embedding_has_no_warning():
    report = report_on(np.eye(3), np.repeat([5, 7, 9], 20), noise=0.05)
    assert report.warnings == ()
    assert not report.per_class["collapsed"].any()
    assert report.overall["relative_discrepancy"] < 0.1
    assert "Warning" not in str(report)


@pytest.mark.parametrize("loss", theory.LOSSES)
def test_a_constant_embedding_is_reported_as_collapsed(loss):
    y = np.repeat(["a", "b", "c"], [30, 6, 4])
    report = report_on([[0.6, 0.8]] * 3, y, loss=loss)
    assert report.overall["relative_discrepancy"] == 1
    assert report.per_class["collapsed"].all()
    collapse, vacuous = report.warnings[:2]
    assert "the embedding has collapsed" in collapse
    assert "the bound is vacuous" in vacuous
    assert report.to_frame().loc["all", "collapsed"]
    assert np.isfinite(report.to_frame()["incurred_loss"]).all()
    assert "nan" not in str(report).lower()


@pytest.mark.parametrize("loss", ["infonce", "spectral"])
def test_an_embedding_that_has_nearly_collapsed_is_reported_as_collapsed(loss):
    """Its classes are told apart, at a scale that no loss sees."""
    y = np.repeat([0, 1], 50)
    report = report_on([[1.0, 0.0], [1.0, 0.03]], y, noise=0.001, loss=loss)
    assert report.overall["relative_discrepancy"] < 0.1
    assert not report.per_class["collapsed"].any()
    assert report.to_frame().loc["all", "collapsed"]
    assert "the embedding has collapsed" in report.warnings[0]


def test_centers_that_tell_little():
    """The bound says something, if only just, and no variance is small."""
    y = np.repeat([0, 1], 200)
    near = report_on([[1.0, 0.0], [1.0, 0.25]], y, noise=0.02)
    assert 0 < near.overall["attained"] < 0.05
    assert "the classes' centers tell little" in near.warnings[0]
    far = report_on([[1.0, 0.0], [0.0, 1.0]], y, noise=0.02)
    assert far.overall["attained"] > 0.05
    assert far.warnings == ()


def test_an_encoder_collapsed_by_its_regularizer_is_reported(make_encoder):
    X, y = load_wine(return_X_y=True)
    encoder = make_encoder(
        max_iter=40,
        regularizer=RelaxedKMeansRegularizer(2, relaxation="entropic"),
        regularizer_weight=100,
    )
    scorer = DiscrepancyScorer(encoder, random_state=0).fit(X, y)
    assert "the embedding has collapsed" in scorer.report(X, y).warnings[0]


def test_a_collapsed_minority_shows_although_the_majority_is_healthy():
    """Of two rare classes, "d" lies where "c" does."""
    y = np.repeat(["a", "b", "c", "d"], [200, 100, 10, 10])
    places = np.eye(4)[[0, 1, 2, 2]]
    report = report_on(places, y, noise=0.1)
    assert report.overall["relative_discrepancy"] < 0.2
    assert report.per_class["collapsed"].tolist() == [False, False, True, True]
    (warning,) = report.warnings
    assert "collapsed: c, d." in warning
    assert f"Warning: {warning}" in str(report)


def test_a_temperature_at_which_the_best_encoder_collapses():
    """t* is 1.1425461 at a share of .9."""
    y = np.repeat([0, 1, 2], [90, 6, 4])
    for temperature, expected in ((1.14, 0), (1.15, 1)):
        report = report_on(np.eye(3), y, temperature=temperature)
        assert len(report.warnings) == expected
    assert "1.1425 or more" in report.warnings[0]


@pytest.mark.parametrize("loss", theory.LOSSES)
def test_what_each_loss_has(loss):
    report = report_on(np.eye(3), np.repeat([0, 1, 2], 10), noise=0.1, loss=loss)
    speaks_of_infonce = loss in ("infonce", "supcon")
    assert (report.certificate is not None) == speaks_of_infonce
    assert (report.geometry is not None) == speaks_of_infonce
    assert ("optimality_gap" in report.overall) == speaks_of_infonce
    assert report.overall["incurred_loss"] <= report.overall["upper_bound"] + 1e-9
    assert loss in report.heading


def test_without_labels_there_are_clusters_and_a_label_free_guarantee():
    X = np.repeat([0, 1, 2], 30)[:, None]
    encoder = FrozenEstimator(Places(np.eye(3), 0.05).fit(X))
    report = DiscrepancyScorer(encoder, n_clusters=3, random_state=0).fit(X).report(X)
    assert report.classes.tolist() == [0, 1, 2]
    assert report.per_class["n_rows"].tolist() == [30, 30, 30]
    assert report.certificate.contrastive_loss is not None
    assert report.certificate.incurred_loss is None
    assert "incurred supervised loss" in str(report)
    single = DiscrepancyScorer(encoder, n_clusters=3, n_views=1, random_state=0).fit(X)
    assert single.report(X).certificate is None


def test_unlabelled_rows_weights_and_few_rows():
    X, y = np.repeat([0, 1], 6)[:, None], np.repeat([0, 1], 6)
    encoder = FrozenEstimator(Places(np.eye(2), 0.1).fit(X))
    scorer = DiscrepancyScorer(encoder, random_state=0).fit(X, y)
    unlabelled = y.copy()
    unlabelled[[0, 6]] = -1
    report = scorer.report(X, unlabelled)
    assert report.per_class["n_rows"].tolist() == [5, 5]
    w = np.where(np.arange(12) % 6 == 0, 0, 1)
    assert scorer.report(X, y, sample_weight=w).per_class["n_rows"].tolist() == [5, 5]
    w[1] = 3
    weighted = scorer.report(X, y, sample_weight=w)
    assert weighted.certificate is None
    assert weighted.per_class["prior"] == pytest.approx([7 / 12, 5 / 12])
    few = [0, 1, 2, 6, 7, 8, 9]
    assert scorer.report(X[few], y[few]).certificate is None
    assert scorer.report(X[[0, *few]], y[[0, *few]]).certificate is not None
    # A class that these rows lack.
    assert scorer.report(X[:6], y[:6]).classes.tolist() == [0]


def test_a_representation_has_the_discrepancy_alone():
    X, y = np.array([[0.0], [2.0], [10.0], [10.0]]), np.array(["a", "a", "b", "b"])
    report = DiscrepancyScorer().fit(X, y).report(X, y)
    assert report.overall["discrepancy"] == 0.5
    assert report.per_class["discrepancy"].tolist() == [1, 0]
    assert report.certificate is report.geometry is None
    assert set(report.overall) == {
        "collapsed",
        "discrepancy",
        "squared_discrepancy",
        "relative_discrepancy",
    }
    assert report.heading == "4 rows"
    constant = DiscrepancyScorer().fit(np.ones((4, 2)), y).report(np.ones((4, 2)), y)
    assert "the embedding has collapsed" in constant.warnings[0]


@pytest.mark.parametrize("scale", [1e-12, 1e-3, 1e12])
def test_the_scale_of_a_representation_does_not_matter(scale):
    X, y = load_wine(return_X_y=True)
    X = StandardScaler().fit_transform(X).astype(np.float32)
    report = DiscrepancyScorer().fit(X, y).report(X, y)
    X = X * np.float32(scale)
    scaled = DiscrepancyScorer().fit(X, y).report(X, y)
    names = ["relative_discrepancy", "collapsed"]
    pd.testing.assert_frame_equal(report.to_frame()[names], scaled.to_frame()[names])
    assert report.warnings == scaled.warnings == ()


def test_a_single_class_has_not_collapsed():
    for noise in (0.0, 0.1):
        report = report_on([[1.0, 0.0]], np.zeros(20), noise=noise)
        assert report.overall["relative_discrepancy"] == 1
        assert not report.to_frame()["collapsed"].any()
        assert "vacuous" in report.warnings[0]


def test_a_single_view_leaves_the_unbiased_discrepancy_out():
    report = report_on(np.eye(2), np.repeat([0, 1], 10), noise=0.1, n_views=1)
    assert np.isnan(report.overall["unbiased_squared_discrepancy"])
    assert "unbiased" not in str(report)


def test_a_callable_loss_has_the_discrepancy_alone():
    y = np.repeat([0, 1], 10)
    report = report_on(np.eye(2), y, noise=0.1, loss=lambda z, t, y: z.mean())
    assert "incurred_loss" not in report.overall
    assert report.overall["discrepancy"] > 0


def test_a_pipeline(imbalanced, make_encoder):
    X, y = imbalanced
    pipeline = make_pipeline(StandardScaler(), make_encoder())
    report = DiscrepancyScorer(pipeline, random_state=0).fit(X, y).report(X, y)
    assert report.per_class["n_rows"].sum() == len(X)
    bounds = report.to_frame()[["lower_bound", "incurred_loss", "upper_bound"]]
    assert (bounds.diff(axis=1).iloc[:, 1:] >= -1e-9).all(axis=None)


def test_refused_rows(measured):
    scorer, X, y, *_ = measured
    with pytest.raises(ValueError, match="unheard"):
        scorer.report(X, np.full(len(X), "unheard"))
    by_clusters = DiscrepancyScorer(n_clusters=2).fit(X)
    with pytest.raises(ValueError, match="fitted without labels"):
        by_clusters.report(X, y)


@pytest.mark.parametrize("loss", theory.LOSSES)
def test_a_vacuous_bound_used_for_selection_warns(loss):
    """As scoring and as score, for all that are constant; for none that are apart."""
    X, y = np.repeat([0, 1], 20)[:, None], np.repeat([0, 1], 20)
    constant = Places([[1.0, 0.0]] * 2, loss=loss).fit(X)
    apart = Places(np.eye(2), loss=loss).fit(X)
    scorer = DiscrepancyScorer(term="bound")
    message = "Scored by the bound, but the bound is vacuous"
    with pytest.warns(UserWarning, match=message):
        assert scorer(constant, X, y) == pytest.approx(
            -theory.CONSTANT_LOSS[loss], abs=1e-5
        )
    fitted = DiscrepancyScorer(FrozenEstimator(constant), term="bound").fit(X, y)
    with pytest.warns(UserWarning, match=message):
        fitted.score(X, y)
    scorer(apart, X, y)
    DiscrepancyScorer(term="incurred_loss")(constant, X, y)


def test_a_search_by_a_vacuous_bound_warns():
    X = np.tile([0, 1], 20)[:, None]
    scoring = DiscrepancyScorer(n_clusters=2, random_state=0)
    search = GridSearchCV(Places([[1.0, 0.0]] * 2), {"noise": [0.0]}, scoring=scoring)
    with pytest.warns(UserWarning, match="Scored by the bound"):
        search.fit(X)
    search.set_params(estimator=Places(np.eye(2))).fit(X)


def test_frames_of_many_classes_and_types():
    y = pd.Series(pd.date_range("2020", periods=25).repeat(4)).astype(str)
    report = report_on(np.eye(25), y, noise=0.01)
    assert len(report.to_frame()) == 26
    assert len(str(report).splitlines()) > 25
