"""Beside other estimators, over tables with categories and missing values."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
import sklearn
from imblearn import over_sampling
from imblearn.pipeline import make_pipeline as make_imblearn_pipeline
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import StackingClassifier
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.inspection import permutation_importance
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import (
    GridSearchCV,
    HalvingGridSearchCV,
    StratifiedKFold,
    cross_validate,
)
from sklearn.pipeline import make_pipeline
from sklearn.semi_supervised import SelfTrainingClassifier
from sklearn.tree import DecisionTreeClassifier

from skcl import ContrastiveEncoder, DiscrepancyScorer


@pytest.fixture
def table(imbalanced):
    """The imbalanced frame with categories and missing values, and its classes."""
    X, y = imbalanced
    rng = np.random.RandomState(0)
    X = X.assign(
        kind=rng.choice(["a", "b", "c"], len(X)),
        flag=pd.array(rng.rand(len(X)) > 0.5, dtype="boolean"),
    )
    X.loc[::9, "x0"] = np.nan
    X.loc[4::13, "kind"] = None
    X.loc[5::17, "flag"] = pd.NA
    return X, y


def classifier():
    return LogisticRegression(class_weight="balanced")


@pytest.fixture
def pipeline(make_encoder):
    return make_pipeline(make_encoder(max_iter=3), classifier())


def test_cross_validation_and_a_search_over_a_mixed_table(table, pipeline):
    X, y = table
    folds = StratifiedKFold(3, shuffle=True, random_state=0)
    scores = cross_validate(pipeline, X, y, cv=folds, error_score="raise")
    assert np.isfinite(scores["test_score"]).all()
    grid = {
        "contrastiveencoder__passthrough": [False, True],
        "contrastiveencoder__categorical_features": ["from_dtype", ["kind", "flag"]],
    }
    for scoring in ("balanced_accuracy", DiscrepancyScorer()):
        search = GridSearchCV(
            pipeline, grid, cv=folds, scoring=scoring, error_score="raise"
        ).fit(X, y)
        assert np.isfinite(search.cv_results_["mean_test_score"]).all()


def test_calibration(table, pipeline):
    X, y = table
    model = CalibratedClassifierCV(pipeline, cv=3).fit(X, y)
    probability = model.predict_proba(X)[:, 1]
    assert np.isfinite(probability).all()
    assert probability[y == 1].mean() > probability[y == 0].mean()


def test_stacking(table, make_encoder):
    X, y = table
    embedded = make_pipeline(make_encoder(max_iter=3), classifier())
    passed = make_pipeline(
        make_encoder(max_iter=3, passthrough=True),
        DecisionTreeClassifier(max_depth=3, random_state=0),
    )
    stack = StackingClassifier(
        [("linear", embedded), ("tree", passed)], classifier(), cv=3
    )
    assert stack.fit(X, y).score(X, y) > 0.7


def test_halving(table, pipeline):
    X, y = table
    search = HalvingGridSearchCV(
        pipeline,
        {"contrastiveencoder__temperature": [0.1, 0.3, 1.0]},
        cv=StratifiedKFold(3, shuffle=True, random_state=0),
        random_state=0,
        error_score="raise",
    ).fit(X, y)
    assert search.n_iterations_ > 1
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


def test_halving_over_epochs(table, pipeline):
    """The epochs as the resource, as of any iterative learner."""
    X, y = table
    search = HalvingGridSearchCV(
        pipeline,
        {"contrastiveencoder__temperature": [0.1, 0.3, 1.0]},
        resource="contrastiveencoder__max_iter",
        min_resources=1,
        max_resources=9,
        cv=3,
        random_state=0,
        error_score="raise",
    ).fit(X, y)
    assert search.n_resources_ == [1, 3]


@pytest.mark.parametrize("loss", ["infonce", "supcon"])
def test_self_training(loss, imbalanced, make_encoder):
    """Numbers alone: SelfTrainingClassifier itself takes no others."""
    X, y = imbalanced
    y = np.where(np.arange(len(y)) % 3 == 0, y, -1)
    head = SelfTrainingClassifier(classifier(), max_iter=2)
    model = make_pipeline(make_encoder(loss=loss), head).fit(X, y)
    assert set(model.predict(X)) == {0, 1}
    outer = SelfTrainingClassifier(
        make_pipeline(make_encoder(max_iter=2), classifier()), max_iter=2
    ).fit(X, y)
    assert set(outer.predict(X)) == {0, 1}


def test_permutation_importance_finds_the_columns_that_matter(make_encoder):
    rng = np.random.RandomState(0)
    y = rng.randint(0, 2, 300)
    X = pd.DataFrame(
        {
            "noise": rng.normal(size=300),
            "shift": y * 4 + rng.normal(size=300),
            "kind": np.where(rng.rand(300) < 0.9, y, 1 - y).astype(str),
            "other": rng.choice(["u", "v"], 300),
        }
    )
    model = make_pipeline(make_encoder(max_iter=20, n_components=16), classifier())
    model.fit(X, y)
    found = permutation_importance(model, X, y, n_repeats=3, random_state=0)
    importance = dict(zip(X, found.importances_mean, strict=True))
    relevant = min(importance["shift"], importance["kind"])
    assert relevant > max(importance["noise"], importance["other"])


@pytest.mark.parametrize("sampler", ["RandomOverSampler", "SMOTE", "SMOTENC"])
def test_a_sampler_of_imbalanced_learn_before_the_encoder(
    sampler, table, imbalanced, make_encoder
):
    X, y = imbalanced
    options = {"random_state": 0}
    if sampler == "RandomOverSampler":
        X = table[0].astype({"flag": object})
    if sampler == "SMOTENC":
        X = X.assign(kind=table[0]["kind"].fillna("d"))
        options["categorical_features"] = ["kind"]
    resample = getattr(over_sampling, sampler)(**options)
    model = make_imblearn_pipeline(resample, make_encoder(), classifier())
    model.fit(X, y)
    assert np.isfinite(model[1].loss_curve_).all()
    folds = StratifiedKFold(3, shuffle=True, random_state=0)
    scores = cross_validate(
        model,
        X,
        y,
        cv=folds,
        scoring={"accuracy": "accuracy", "incurred": DiscrepancyScorer()},
        error_score="raise",
    )
    assert np.isfinite(scores["test_incurred"]).all()
    assert set(model.predict(X)) == {0, 1}


# Indexes and containers out


@pytest.mark.parametrize(
    "index",
    [
        lambda n: np.random.RandomState(0).permutation(n),
        lambda n: np.zeros(n, dtype=int),
        lambda n: np.arange(n) % 7,
        lambda n: [f"row {i}" for i in range(n)],
        lambda n: pd.MultiIndex.from_product([range(n // 2), ["a", "b"]]),
        lambda n: pd.date_range("2020-01-01", periods=n),
    ],
)
@pytest.mark.parametrize("passthrough", [False, True])
def test_set_output_keeps_any_index(index, passthrough, table, make_encoder):
    X, _ = table
    X.index = index(len(X))
    encoder = make_encoder(passthrough=passthrough)
    expected = encoder.fit_transform(X)
    encoder.set_output(transform="pandas")
    for Z in (encoder.fit_transform(X), encoder.transform(X)):
        pd.testing.assert_index_equal(Z.index, X.index)
        np.testing.assert_array_equal(Z.to_numpy(), expected)
        assert Z.columns.tolist() == encoder.get_feature_names_out().tolist()


def test_polars_in_and_out(table, make_encoder):
    X, _ = table
    expected = make_encoder().fit_transform(X)
    objects = X.astype(object)
    frame = pl.DataFrame(objects.where(X.notna(), None).to_dict(orient="list"))
    encoder = make_encoder().set_output(transform="polars")
    Z = encoder.fit_transform(frame)
    assert isinstance(Z, pl.DataFrame)
    np.testing.assert_array_equal(Z.to_numpy(), expected)
    with sklearn.config_context(transform_output="polars"):
        assert isinstance(make_encoder().fit_transform(frame), pl.DataFrame)


def test_rows_and_labels_go_together_by_position(table, make_encoder):
    """As everywhere in scikit-learn, indexes of X, y and weights are not matched."""
    X, y = table
    weight = np.random.RandomState(0).uniform(0.5, 2, len(y))
    encoder = make_encoder(loss="supcon")
    expected = encoder.fit(X, y, sample_weight=weight).transform(X)
    order = np.random.RandomState(1).permutation(len(y))
    labels = pd.Series(y, index=order)
    weights = pd.Series(weight, index=order[::-1])
    X.index = np.arange(len(y)) + 1000
    encoder.fit(X, labels, sample_weight=weights)
    np.testing.assert_array_equal(encoder.transform(X), expected)
    assert encoder.score(X, labels, weights) == encoder.score(X, y, weight)
    scorer = DiscrepancyScorer()
    assert scorer(encoder, X, labels, weights) == scorer(encoder, X, y, weight)


def test_default_parameters_on_a_mixed_table(table):
    X, y = table
    model = make_pipeline(ContrastiveEncoder(max_iter=2), classifier()).fit(X, y)
    assert model.predict_proba(X).shape == (240, 2)
