"""DiscrepancyScorer: alone, on an encoder, and as scoring."""

import numpy as np
import pandas as pd
import pytest
from sklearn import config_context
from sklearn.base import BaseEstimator, TransformerMixin, clone, is_classifier
from sklearn.cluster import KMeans
from sklearn.datasets import make_blobs
from sklearn.exceptions import UnsetMetadataPassedError
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_random_state

from skcl import DiscrepancyScorer, RelaxedKMeansRegularizer, theory
from skcl._torch import draw_seed

TERMS = (
    "discrepancy",
    "squared_discrepancy",
    "relative_discrepancy",
    "contrastive_loss",
    "incurred_loss",
    "bound",
)

# For tests that look at something else than whether a bound says anything.
also_vacuous = pytest.mark.filterwarnings("ignore:Scored by the bound")


def test_a_representation_by_hand():
    """Classes {0, 2} and {10}: distances 1, 1, 0 to the centers 1 and 10."""
    X, y = np.array([[0.0], [2.0], [10.0]]), np.array(["a", "a", "b"])
    scorer = DiscrepancyScorer(term="discrepancy").fit(X, y)
    np.testing.assert_array_equal(scorer.classes_, ["a", "b"])
    np.testing.assert_array_equal(scorer.centers_, [[1], [10]])
    np.testing.assert_array_equal(scorer.transform(X), [[1, 10], [1, 8], [9, 0]])
    np.testing.assert_array_equal(scorer.score_samples(X, y), [-1, -1, 0])
    assert scorer.score(X, y) == pytest.approx(-2 / 3)
    squared = clone(scorer).set_params(term="squared_discrepancy").fit(X, y)
    assert squared.score(X, y) == pytest.approx(-2 / 3)
    relative = DiscrepancyScorer().fit(X, y)
    assert relative.score(X, y) == pytest.approx(-(2 / 3) / X.var())
    # Without labels, to the nearest center.
    assert scorer.score([[9.0]]) == -1


def test_clusters_stand_in_for_classes():
    X, y = make_blobs(90, centers=3, cluster_std=0.1, random_state=0)
    by_class = DiscrepancyScorer(random_state=0).fit(X, y)
    by_cluster = DiscrepancyScorer(n_clusters=3, random_state=0).fit(X)
    assert by_cluster.score(X) == pytest.approx(by_class.score(X, y))
    assert not hasattr(by_cluster, "classes_")
    by_class.set_params(n_clusters=3).fit(X)
    assert not hasattr(by_class, "classes_")


def test_unlabelled_rows_are_left_out(rows):
    y = np.arange(120) % 3
    few = np.where(np.arange(120) < 60, y, -1)
    scorer = DiscrepancyScorer().fit(rows, few)
    expected = DiscrepancyScorer().fit(rows[:60], y[:60])
    np.testing.assert_array_equal(scorer.centers_, expected.centers_)
    assert scorer.score(rows, few) == expected.score(rows[:60], y[:60])


@also_vacuous
@pytest.mark.parametrize("term", TERMS)
@pytest.mark.parametrize("loss", ["infonce", "spectral", "logistic", "supcon"])
def test_terms_are_those_of_the_theory(term, loss, imbalanced, make_encoder):
    X, y = imbalanced
    encoder = make_encoder(loss=loss).fit(X, y)
    scorer = DiscrepancyScorer(FrozenEstimator(encoder), term=term, random_state=0)
    scorer.fit(X, y)
    views = encoder.embed_views(X, 8, random_state=scorer._views_seed_).astype(float)
    means = views.mean(axis=1)
    centers = theory.class_centers(means, y)
    np.testing.assert_allclose(scorer.centers_, centers)
    np.testing.assert_allclose(
        scorer.transform(X)[:, 0], np.linalg.norm(means - centers[0], axis=1), atol=1e-7
    )
    distance = theory.internal_discrepancy(means, centers, y)
    np.testing.assert_allclose(scorer.score_samples(X, y), -distance)
    contrastive = theory.contrastive_loss(views, 0.2, loss, y)
    expected = {
        "discrepancy": distance.mean(),
        "squared_discrepancy": (distance**2).mean(),
        "relative_discrepancy": theory.relative_discrepancy(means, centers, y),
        "contrastive_loss": contrastive,
        "incurred_loss": theory.incurred_loss(views, y, 0.2, loss),
        "bound": theory.upper_bound(contrastive, distance, 0.2, loss),
    }
    assert scorer.score(X, y) == pytest.approx(-expected[term])
    # The scoring protocol, with the rows' own centers: the same on the rows of fit.
    scoring = DiscrepancyScorer(term=term, random_state=0)
    assert scoring(encoder, X, y) == pytest.approx(-expected[term])


def test_auto(imbalanced, make_encoder):
    X, y = imbalanced
    encoder = make_encoder(regularizer=RelaxedKMeansRegularizer(3)).fit(X)
    auto = DiscrepancyScorer()
    assert auto(encoder, X, y) == DiscrepancyScorer(term="incurred_loss")(encoder, X, y)
    assert auto(encoder, X) == DiscrepancyScorer(term="bound")(encoder, X)
    scorers = {
        term: DiscrepancyScorer(FrozenEstimator(encoder), term=term, random_state=0)
        for term in ("auto", "incurred_loss", "bound")
    }
    assert scorers["auto"].fit(X, y).score(X, y) == scorers["incurred_loss"].fit(
        X, y
    ).score(X, y)
    assert scorers["auto"].fit(X).score(X) == scorers["bound"].fit(X).score(X)


def test_auto_prefers_no_collapse(imbalanced, make_encoder):
    """An embedding that a huge penalty has collapsed has the least discrepancy."""
    X, y = imbalanced
    regularizer = RelaxedKMeansRegularizer(1)
    healthy, collapsed = (
        make_encoder(regularizer=regularizer, regularizer_weight=w, max_iter=40).fit(X)
        for w in (0, 100)
    )
    plain = DiscrepancyScorer(term="discrepancy")
    assert plain(collapsed, X, y) > plain(healthy, X, y)
    assert DiscrepancyScorer()(collapsed, X, y) < DiscrepancyScorer()(healthy, X, y)


def test_the_encoder_is_cloned_fitted_or_frozen(imbalanced, make_encoder):
    X, y = imbalanced
    pipeline = make_pipeline(StandardScaler(), make_encoder())
    scorer = DiscrepancyScorer(pipeline, random_state=0).fit(X, y)
    assert not hasattr(pipeline[-1], "module_")
    fitted = clone(pipeline).fit(X, y)
    frozen = DiscrepancyScorer(FrozenEstimator(fitted), random_state=0).fit(X, y)
    assert frozen.score(X, y) == scorer.score(X, y)
    assert frozen.encoder_.estimator is fitted
    assert list(scorer.feature_names_in_) == list(X)


@pytest.mark.parametrize(
    ("params", "labelled", "message"),
    [
        ({"term": "incurred_loss"}, True, "term='incurred_loss'.*needs views"),
        ({"term": "bound"}, True, "term='bound'.*needs views"),
        ({"term": "silhouette"}, True, "'term' parameter"),
        ({}, False, "n_clusters=None gives no number"),
        ({"n_clusters": 121}, False, "n_clusters=121 exceeds n_samples=120"),
        ({"n_clusters": 0}, False, "'n_clusters' parameter"),
        ({"n_views": 0}, True, "'n_views' parameter"),
        ({"encoder": StandardScaler()}, True, "embed_views"),
        ({"encoder": "encoder"}, True, "'encoder' parameter"),
    ],
)
def test_refused_at_fit(params, labelled, message, rows):
    y = np.arange(120) % 2 if labelled else None
    with pytest.raises(ValueError, match=message):
        DiscrepancyScorer(**params).fit(rows, y)


def test_labels_refused_at_score(rows):
    y = np.arange(120) % 2
    scorer = DiscrepancyScorer().fit(rows, y)
    with pytest.raises(ValueError, match=r"classes \[2\], which fit did not see"):
        scorer.score(rows, y + 1)
    with pytest.raises(ValueError, match="no labelled row"):
        scorer.score(rows, np.full(120, -1))
    with pytest.raises(ValueError, match="inconsistent"):
        scorer.score(rows, y[:5])
    with pytest.raises(ValueError, match="fitted without labels"):
        DiscrepancyScorer(n_clusters=2).fit(rows).score(rows, y)
    # A batch that lacks a class is scored by the classes it has.
    assert np.isfinite(scorer.score(rows[y == 1], y[y == 1]))


@pytest.mark.parametrize(
    ("params", "y"),
    [
        ({"encoder": "good"}, None),
        ({"encoder": "good", "n_clusters": 500}, None),
        ({"encoder": "scaler"}, np.zeros(240)),
    ],
)
def test_refused_before_the_encoder_is_trained(params, y, imbalanced, make_encoder):
    calls = []

    def backbone(n_in, n_out):
        calls.append(None)

    encoders = {"good": make_encoder(backbone=backbone), "scaler": StandardScaler()}
    params = params | {"encoder": encoders[params["encoder"]]}
    with pytest.raises(ValueError, match=r"n_clusters|embed_views"):
        DiscrepancyScorer(**params).fit(imbalanced[0], y)
    assert not calls


def test_the_trap_of_minus_one_as_a_class(imbalanced, make_encoder):
    X, y = imbalanced
    signs = np.where(y == 0, -1, 1)
    encoder = make_encoder().fit(X)
    with pytest.raises(ValueError, match="LabelEncoder"):
        DiscrepancyScorer()(encoder, X, signs)
    with pytest.raises(ValueError, match="LabelEncoder"):
        DiscrepancyScorer().fit(X, signs)


def test_clusters_of_held_out_rows_have_exact_means(imbalanced, make_encoder):
    """Of which the bound speaks: any other center would lie farther."""
    X, _ = imbalanced
    encoder = make_encoder().fit(X)
    scorer = DiscrepancyScorer(term="squared_discrepancy", n_clusters=4)
    views = encoder.embed_views(X, 8, random_state=draw_seed(check_random_state(0)))
    means = views.mean(axis=1, dtype=float)
    kmeans = KMeans(4, n_init=10, random_state=0).fit(means)
    assert -scorer(encoder, X) == pytest.approx(kmeans.inertia_ / len(X), rel=0.02)


def test_refused_as_scoring(imbalanced, make_encoder):
    X, y = imbalanced
    encoder = make_encoder().fit(X)
    with pytest.raises(ValueError, match="only encoder=None is allowed"):
        DiscrepancyScorer(encoder)(encoder, X, y)
    with pytest.raises(ValueError, match="embed_views"):
        DiscrepancyScorer()(LogisticRegression().fit(X, y), X, y)
    with pytest.raises(ValueError, match="n_clusters=None"):
        DiscrepancyScorer()(encoder, X)
    custom = make_encoder(loss=lambda z, temperature, y: z.square().sum()).fit(X)
    with pytest.raises(ValueError, match=r"incurred_loss.*callable"):
        DiscrepancyScorer()(custom, X, y)
    assert np.isfinite(DiscrepancyScorer(term="discrepancy")(custom, X, y))


def test_scoring_sees_the_steps_before_and_ignores_those_behind(
    imbalanced, make_encoder
):
    X, y = imbalanced
    Z = StandardScaler().fit_transform(X)
    encoder = make_encoder().fit(Z)
    expected = DiscrepancyScorer()(encoder, Z, y)
    head = LogisticRegression(class_weight="balanced")
    flat = make_pipeline(StandardScaler(), make_encoder(), head).fit(X, y)
    nested = make_pipeline(make_pipeline(StandardScaler(), make_encoder()), head)
    assert is_classifier(flat)
    assert DiscrepancyScorer()(flat, X, y) == expected
    assert DiscrepancyScorer()(nested.fit(X, y), X, y) == expected
    twice = make_pipeline(make_encoder(), make_encoder(n_components=3)).fit(X)
    last = DiscrepancyScorer()(twice[1], twice[0].transform(X), y)
    assert DiscrepancyScorer()(twice, X, y) == last


@pytest.mark.parametrize("random_state", [None, 3, np.random.RandomState(3)])
def test_every_call_draws_the_same_views(random_state, imbalanced, make_encoder):
    X, y = imbalanced
    encoder = make_encoder().fit(X)
    scorer = DiscrepancyScorer(random_state=random_state)
    assert scorer(encoder, X, y) == scorer(encoder, X, y)


@also_vacuous
@pytest.mark.parametrize("labelled", [True, False])
def test_grid_search_selects_by_it(labelled, imbalanced, make_encoder):
    X, y = imbalanced
    target = y if labelled else None
    encoder = make_encoder(regularizer=RelaxedKMeansRegularizer(3))
    grid = {
        "contrastiveencoder__regularizer_weight": [0, 1],
        "contrastiveencoder__regularizer__n_clusters": [2, 4],
    }
    results = []
    for n_jobs in (1, 2):
        search = GridSearchCV(
            make_pipeline(encoder, StandardScaler()),
            grid,
            scoring=DiscrepancyScorer(),
            cv=3,
            n_jobs=n_jobs,
        ).fit(X, target)
        results.append(search.cv_results_["mean_test_score"])
    assert np.isfinite(results[0]).all()
    np.testing.assert_array_equal(results[0], results[1])


def test_multimetric_scoring(imbalanced, make_encoder):
    X, y = imbalanced
    model = make_pipeline(make_encoder(), LogisticRegression(class_weight="balanced"))
    scores = cross_validate(
        model,
        X,
        y,
        cv=3,
        scoring={"incurred": DiscrepancyScorer(), "accuracy": "balanced_accuracy"},
        error_score="raise",
    )
    assert np.isfinite(scores["test_incurred"]).all()
    assert np.isfinite(scores["test_accuracy"]).all()


@pytest.mark.parametrize("labelled", [True, False])
@pytest.mark.parametrize(("offset", "scale"), [(1e8, 1), (0, 1e-9), (0, 1e9), (-3, 7)])
def test_offset_and_scale_of_a_representation_change_nothing(offset, scale, labelled):
    X, y = make_blobs(90, centers=3, random_state=0)
    X = np.round(X, 4)
    target = y if labelled else None
    plain = DiscrepancyScorer(n_clusters=3, random_state=0).fit(X, target)
    moved = DiscrepancyScorer(n_clusters=3, random_state=0)
    Z = X * scale + offset
    moved.fit(Z, target)
    assert moved.score(Z, target) == pytest.approx(plain.score(X, target), rel=1e-5)
    np.testing.assert_allclose(
        moved.transform(Z), plain.transform(X) * scale, rtol=1e-4
    )


def test_a_constant_representation_is_collapsed():
    for value in (0.0, 0.1, 1e9, 1e9 + 0.1, 12345.678):
        X, y = np.full((45, 3), value), np.arange(45) % 4 // 2
        assert DiscrepancyScorer().fit(X, y).score(X, y) == -1


def test_score_samples_refuses_unlabelled_rows(rows):
    y = np.arange(120) % 3 - 1
    scorer = DiscrepancyScorer().fit(rows, y)
    with pytest.raises(ValueError, match="y holds -1"):
        scorer.score_samples(rows, y)


def test_a_finished_search_is_scored_by_its_best_estimator(imbalanced, make_encoder):
    X, y = imbalanced
    grid = {"temperature": [0.2, 0.5]}
    search = GridSearchCV(make_encoder(), grid, cv=2).fit(X, y)
    assert DiscrepancyScorer()(search, X, y) == DiscrepancyScorer()(
        search.best_estimator_, X, y
    )


def test_a_parameter_set_after_fit_waits_for_the_next(rows, make_encoder):
    y = np.arange(120) % 2
    scorer = DiscrepancyScorer().fit(rows, y)
    score = scorer.score(rows, y)
    assert scorer.set_params(encoder=make_encoder()).score(rows, y) == score


def test_a_term_set_after_fit_is_checked(rows):
    y = np.arange(120) % 2
    scorer = DiscrepancyScorer(Turned(), random_state=0).fit(rows, y)
    with pytest.raises(ValueError, match="'term' parameter"):
        scorer.set_params(term="incured_loss").score(rows, y)


def test_a_fold_of_a_single_class_warns(rows):
    with pytest.warns(UserWarning, match="Scored on a single class"):
        assert DiscrepancyScorer()(Turned(), rows, np.zeros(120)) == pytest.approx(0)


class Turned(TransformerMixin, BaseEstimator):
    """An encoder without chance: views of a row are its direction, turned a little.

    It keeps what its fit was given.
    """

    temperature = 0.5

    def __init__(self, loss="infonce", angle=0.3):
        self.loss = loss
        self.angle = angle

    def fit(self, X, y=None, sample_weight=None):
        self.given_ = X, y, sample_weight
        return self

    def transform(self, X):
        return X

    def embed_views(self, X, n_views, random_state=None):
        X = np.asarray(X)
        angle = np.arctan2(X[:, 1], X[:, 0])[:, None] + self.angle * np.arange(n_views)
        return np.stack([np.cos(angle), np.sin(angle)], axis=-1)


class Unweighted(Turned):
    def fit(self, X, y=None):
        return self


@pytest.fixture
def weighted():
    """Rows, classes, unlabelled rows and weights 1, 2 or 3; and these repeated."""
    rng = np.random.RandomState(0)
    X, y = rng.normal(size=(60, 2)), rng.randint(-1, 3, size=60)
    w = rng.randint(1, 4, size=60)
    return (X, y, w), (X.repeat(w, axis=0), y.repeat(w))


@also_vacuous
@pytest.mark.parametrize("term", TERMS)
@pytest.mark.parametrize("loss", ["infonce", "spectral", "logistic", "supcon"])
@pytest.mark.parametrize("labelled", [True, False])
def test_an_integer_weight_is_that_many_rows(term, loss, labelled, weighted):
    (X, y, w), (X_repeated, y_repeated) = weighted
    if not labelled:
        y = y_repeated = None
    scorer = DiscrepancyScorer(term=term, n_clusters=3, random_state=0)
    scores = [
        scorer(Turned(loss), X, y, sample_weight=w),
        scorer(Turned(loss), X_repeated, y_repeated),
        scorer(Turned(loss), X, y),
    ]
    assert scores[0] == pytest.approx(scores[1], rel=1e-9)
    assert scores[0] != pytest.approx(scores[2], rel=1e-6)
    scorer.set_params(encoder=FrozenEstimator(Turned(loss).fit(X)))
    expected = clone(scorer).fit(X_repeated, y_repeated)
    scorer.fit(X, y, sample_weight=w)
    np.testing.assert_allclose(scorer.centers_, expected.centers_)
    score = scorer.score(X, y, sample_weight=w)
    assert score == pytest.approx(expected.score(X_repeated, y_repeated), rel=1e-9)
    assert score != pytest.approx(expected.score(X, y), rel=1e-6)


@pytest.mark.parametrize("term", TERMS[:3])
@pytest.mark.parametrize("labelled", [True, False])
def test_an_integer_weight_is_that_many_rows_of_a_representation(
    term, labelled, weighted
):
    (X, y, w), (X_repeated, y_repeated) = weighted
    if not labelled:
        y = y_repeated = None
    scorer = DiscrepancyScorer(term=term, n_clusters=3, random_state=0)
    expected = clone(scorer).fit(X_repeated, y_repeated)
    scorer.fit(X, y, sample_weight=w)
    np.testing.assert_allclose(scorer.centers_, expected.centers_)
    assert scorer.score(X, y, sample_weight=w) == pytest.approx(
        expected.score(X_repeated, y_repeated), rel=1e-9
    )


def test_weights_by_hand():
    """Center (1·0 + 3·2)/4 = 1.5 of the first class: distances 1.5, 0.5, 0."""
    X, y, w = np.array([[0.0], [2.0], [10.0]]), ["a", "a", "b"], [1, 3, 4]
    scorer = DiscrepancyScorer(term="discrepancy").fit(X, y, sample_weight=w)
    np.testing.assert_array_equal(scorer.centers_, [[1.5], [10]])
    assert scorer.score(X, y, sample_weight=w) == pytest.approx(-(1.5 + 3 * 0.5) / 8)
    assert scorer.score(X, y) == pytest.approx(-2 / 3)


@pytest.mark.parametrize("make", [np.asarray, np.asfortranarray, list, pd.DataFrame])
@pytest.mark.parametrize("labelled", [True, False])
@pytest.mark.parametrize("encoder", [None, Turned()])
def test_a_row_of_weight_zero_is_absent(encoder, labelled, make, weighted):
    """Of a class of its own, and far away."""
    (X, y, w), _ = weighted
    w = np.where(np.arange(60) % 3, w, 0)
    X, y = np.where(w[:, None], X, 1e3), np.where(w, y, 7).astype(object)
    X, few = make(X), make(X[w > 0])
    y, y_few = (list(y), y[w > 0]) if labelled else (None, None)
    scorer = DiscrepancyScorer(encoder, n_clusters=3, random_state=0)
    absent = clone(scorer).fit(few, y_few, sample_weight=w[w > 0])
    scorer.fit(X, y, sample_weight=list(w))
    np.testing.assert_array_equal(scorer.centers_, absent.centers_)
    if labelled:
        assert scorer.classes_.tolist() == absent.classes_.tolist() == [0, 1, 2]
    kept = {"sample_weight": w[w > 0]}
    score = scorer.score(X, y, sample_weight=w)
    assert score == absent.score(few, y_few, **kept)
    if encoder is not None:
        scoring = DiscrepancyScorer(n_clusters=3)
        score = scoring(encoder, X, y, sample_weight=w)
        assert score == scoring(encoder, few, y_few, **kept)
        for given, expected in zip(
            scorer.encoder_.given_, absent.encoder_.given_, strict=True
        ):
            np.testing.assert_array_equal(given, expected)


@pytest.mark.parametrize("labelled", [True, False])
def test_equal_weights_are_none(labelled, weighted):
    """And so are those that are equal but for unlabelled rows."""
    (X, y, w), _ = weighted
    w = np.where(y < 0, w, 0.7) if labelled else 0.7 * np.ones(60)
    target = y if labelled else None
    scorer = DiscrepancyScorer(term="discrepancy", n_clusters=3, random_state=0)
    plain = clone(scorer).fit(X, target)
    scorer.fit(X, target, sample_weight=w)
    np.testing.assert_array_equal(scorer.centers_, plain.centers_)
    assert scorer.score(X, target, sample_weight=w) == plain.score(X, target)
    assert scorer(Turned(), X, target, sample_weight=w) == scorer(Turned(), X, target)
    assert scorer.score(X, target, sample_weight=2) == plain.score(X, target)


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (np.arange(60) - 1.0, r"sample_weight\[0\] is -1.0: finite"),
        (np.full(60, np.nan), "is nan: finite"),
        (np.zeros(60), r"weight is zero for all"),
        (np.ones(59), r"shape \(59,\)"),
    ],
)
def test_weights_refused(weight, message, weighted):
    (X, y, _), _ = weighted
    scorer = DiscrepancyScorer()
    with pytest.raises(ValueError, match=message):
        scorer.fit(X, y, sample_weight=weight)
    scorer.fit(X, y)
    with pytest.raises(ValueError, match=message):
        scorer.score(X, y, sample_weight=weight)
    with pytest.raises(ValueError, match=message):
        scorer(Turned(), X, y, sample_weight=weight)
    # What remains must suffice: rows for the clusters, a label, labels for the rows.
    few = np.eye(60)[0]
    with pytest.raises(ValueError, match="n_clusters=2 exceeds n_samples=1"):
        DiscrepancyScorer(n_clusters=2).fit(X, sample_weight=few)
    with pytest.raises(ValueError, match="no labelled row"):
        scorer.score(X, np.where(few, -1, 1), sample_weight=few)
    with pytest.raises(ValueError, match="inconsistent"):
        scorer.score(X, y[:5], sample_weight=few)


def test_the_encoder_is_passed_weights_or_the_fit_is_refused(weighted):
    (X, y, w), _ = weighted
    scorer = DiscrepancyScorer(Turned()).fit(X, y, sample_weight=w)
    assert scorer.encoder_.given_[2] is w
    assert DiscrepancyScorer(Turned()).fit(X, y).encoder_.given_[2] is None
    pipeline = make_pipeline(StandardScaler(), Turned())
    for encoder in (pipeline, Unweighted()):
        refused = DiscrepancyScorer(encoder)
        with pytest.raises(ValueError, match=r"enable_metadata_routing.*set_fit_req"):
            refused.fit(X, y, sample_weight=w)
        refused.fit(X, y)
    frozen = DiscrepancyScorer(FrozenEstimator(pipeline.fit(X, y)), random_state=0)
    frozen.fit(X, y, sample_weight=w)
    assert frozen.encoder_.estimator[-1].given_[2] is None
    with pytest.raises(ValueError, match="enable_metadata_routing"):
        scorer.fit(X, y, other=w)


def test_weights_are_routed_to_the_encoder(weighted):
    (X, y, w), (X_repeated, _) = weighted
    with config_context(enable_metadata_routing=True):
        scale, turned = StandardScaler(), Turned()
        scorer = DiscrepancyScorer(make_pipeline(scale, turned))
        with pytest.raises(UnsetMetadataPassedError, match="set_fit_request"):
            scorer.fit(X, y, sample_weight=w)
        scorer.fit(X, y)
        scale.set_fit_request(sample_weight=True)
        turned.set_fit_request(sample_weight=False)
        fitted = clone(scorer).fit(X, y, sample_weight=w).encoder_
        np.testing.assert_allclose(fitted[0].mean_, X_repeated.mean(axis=0))
        assert fitted[1].given_[2] is None
        # By another name, and without the rows that do not count.
        turned.set_fit_request(sample_weight="of_turned")
        few = w - 1
        fitted = scorer.fit(X, y, sample_weight=few, of_turned=w).encoder_
        np.testing.assert_allclose(fitted[0].mean_, np.average(X, axis=0, weights=few))
        np.testing.assert_array_equal(fitted[1].given_[2], w[few > 0])
        frozen = DiscrepancyScorer(FrozenEstimator(Turned().fit(X)))
        frozen.fit(X, y, sample_weight=w)
        with pytest.raises(TypeError, match="other"):
            DiscrepancyScorer().fit(X, y, other=w)
        alone = DiscrepancyScorer().fit(X, y, sample_weight=w)
    expected = DiscrepancyScorer().fit(X, y, sample_weight=w)
    np.testing.assert_array_equal(alone.centers_, expected.centers_)


def search_scores(scoring, X, y, w, **options):
    search = GridSearchCV(
        Turned().set_fit_request(sample_weight=True),
        {"angle": [0.1, 0.5]},
        scoring=scoring,
        cv=StratifiedKFold(2),
        error_score="raise",
        **options,
    )
    return search.fit(X, y, sample_weight=w).cv_results_


def test_a_search_routes_the_weights_of_each_fold(weighted):
    (X, y, w), _ = weighted
    w = w - 1
    plain = DiscrepancyScorer()
    expected = [
        plain(Turned(angle=angle), X[held_out], y[held_out], w[held_out])
        for angle in (0.1, 0.5)
        for _, held_out in StratifiedKFold(2).split(X, y)
    ]
    with config_context(enable_metadata_routing=True):
        with pytest.raises(UnsetMetadataPassedError, match="DiscrepancyScorer"):
            search_scores(DiscrepancyScorer(), X, y, w)
        scorer = DiscrepancyScorer().set_score_request(sample_weight=True)
        single = search_scores(scorer, X, y, w)
        unweighted = DiscrepancyScorer().set_score_request(sample_weight=False)
        several = search_scores({"a": scorer, "b": unweighted}, X, y, w, refit="a")
        repr(scorer)
        assert clone(scorer).get_metadata_routing().consumes(
            "score", ["sample_weight"]
        ) == {"sample_weight"}
    scores = [single[f"split{k}_test_score"] for k in (0, 1)]
    np.testing.assert_array_equal(np.ravel(scores, order="F"), expected)
    scores = [several[f"split{k}_test_a"] for k in (0, 1)]
    np.testing.assert_array_equal(np.ravel(scores, order="F"), expected)
    assert not np.isin([several["split0_test_b"]], expected).any()


@also_vacuous
def test_a_search_without_routing_takes_weights(weighted):
    """What scikit-learn then does with them depends on its version."""
    (X, y, w), _ = weighted
    search = GridSearchCV(
        Turned(),
        {"angle": [0.1, 0.5]},
        scoring={"a": DiscrepancyScorer(), "b": DiscrepancyScorer(term="bound")},
        refit="a",
        error_score="raise",
    )
    search.fit(X, y, sample_weight=w)
    assert search.best_estimator_.given_[2] is not None
