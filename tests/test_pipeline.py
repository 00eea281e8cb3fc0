"""In scikit-learn's tools, as users combine them."""

import os

import numpy as np
import pandas as pd
import pytest
import sklearn
import skops.io
from sklearn.base import clone, is_classifier
from sklearn.compose import ColumnTransformer
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import (
    GridSearchCV,
    HalvingGridSearchCV,
    cross_val_score,
)
from sklearn.pipeline import FeatureUnion, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from skcl import DiscrepancyScorer, RelaxedKMeansRegularizer


def classifier():
    return LogisticRegression(class_weight="balanced")


def test_pipeline_is_a_classifier_and_names_its_columns(imbalanced, make_encoder):
    X, y = imbalanced
    pipeline = make_pipeline(make_encoder(), classifier())
    assert is_classifier(pipeline)
    pipeline.fit(X, y)
    assert set(pipeline.predict(X)) == {0, 1}
    expected = [f"contrastiveencoder{i}" for i in range(5)]
    assert list(pipeline[:-1].get_feature_names_out()) == expected


def test_feature_union_and_column_transformer(imbalanced, make_encoder):
    X, y = imbalanced
    X = X.assign(kind=np.where(np.arange(len(X)) % 3 == 0, "a", "b"))
    numeric = [f"x{j}" for j in range(6)]
    union = FeatureUnion([("raw", StandardScaler()), ("embedding", make_encoder())])
    columns = ColumnTransformer(
        [("numeric", union, numeric), ("kind", OneHotEncoder(), ["kind"])]
    )
    names = list(columns.fit(X, y).get_feature_names_out())
    assert "numeric__embedding__contrastiveencoder0" in names
    assert "kind__kind_a" in names
    assert columns.transform(X).shape == (240, 6 + 5 + 2)


@pytest.mark.parametrize("container", ["pandas", "polars"])
def test_set_output_keeps_names_and_index(container, imbalanced, make_encoder):
    X, _ = imbalanced
    shuffled = X.sample(frac=1, random_state=0)
    Z = make_encoder().set_output(transform=container).fit(X).transform(shuffled)
    assert list(Z.columns) == [f"contrastiveencoder{i}" for i in range(5)]
    if container == "pandas":
        pd.testing.assert_index_equal(Z.index, shuffled.index)


@pytest.mark.parametrize("container", ["pandas", "polars"])
def test_global_set_output(container, imbalanced, make_encoder):
    X, y = imbalanced
    encoder = make_encoder().fit(X)
    expected = encoder.transform(X)
    with sklearn.config_context(transform_output=container):
        for model in (encoder, make_encoder().fit(X), make_encoder().fit(X.to_numpy())):
            data = X if hasattr(model, "feature_names_in_") else X.to_numpy()
            Z = model.transform(data)
            assert list(Z.columns) == list(model.get_feature_names_out())
            np.testing.assert_array_equal(Z.to_numpy(), expected)
        pipeline = make_pipeline(StandardScaler(), make_encoder(), classifier())
        pipeline.fit(X, y)
        assert np.isfinite(DiscrepancyScorer()(pipeline, X, y))


def test_grid_search_over_nested_parameters_in_two_processes(
    imbalanced, make_encoder, tmp_path, monkeypatch
):
    """n_jobs=2 gives the scores of n_jobs=1, and nothing is written."""
    monkeypatch.chdir(tmp_path)
    X, y = imbalanced
    encoder = make_encoder(regularizer=RelaxedKMeansRegularizer())
    pipeline = make_pipeline(encoder, classifier())
    grid = {
        "contrastiveencoder__regularizer__n_clusters": [2, 5],
        "contrastiveencoder__regularizer_weight": [0.1, 1.0],
        "contrastiveencoder__loss": ["infonce", "supcon"],
    }
    searches = [
        GridSearchCV(pipeline, grid, cv=2, n_jobs=n, scoring="balanced_accuracy")
        for n in (1, 2)
    ]
    scores = [s.fit(X, y).cv_results_["mean_test_score"] for s in searches]
    np.testing.assert_array_equal(scores[0], scores[1])
    assert len(np.unique(scores[0])) > 1
    assert os.listdir(tmp_path) == []
    assert pipeline[0].regularizer.n_clusters == 8


def test_halving_search(imbalanced, make_encoder):
    X, y = imbalanced
    search = HalvingGridSearchCV(
        make_pipeline(make_encoder(max_iter=2), classifier()),
        {"contrastiveencoder__temperature": [0.1, 0.5, 1.0]},
        scoring=DiscrepancyScorer(),
        cv=3,
        random_state=0,
        error_score="raise",
    ).fit(X, y)
    assert search.n_iterations_ > 1
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


def test_cross_val_score_by_the_encoders_own_score(imbalanced, make_encoder):
    X, _ = imbalanced
    scores = cross_val_score(make_encoder(), X, cv=3)
    assert np.isfinite(scores).all()


def test_clone_is_unfitted_and_parameters_stay(imbalanced, make_encoder):
    X, y = imbalanced
    regularizer = RelaxedKMeansRegularizer(3)
    encoder = make_encoder(loss="supcon", regularizer=regularizer)
    before = encoder.get_params()
    encoder.fit(X, y)
    assert encoder.get_params() == before
    assert encoder.regularizer is regularizer
    assert encoder.regularizer_ is not regularizer
    assert set(vars(regularizer)) == set(regularizer.get_params())
    assert not any(name.endswith("_") for name in vars(clone(encoder)))


def test_a_whole_pipeline_saves_with_skops(imbalanced, make_encoder, tmp_path):
    X, y = imbalanced
    pipeline = make_pipeline(
        make_encoder(regularizer=RelaxedKMeansRegularizer(3)), classifier()
    ).fit(X, y)
    skops.io.dump(pipeline, tmp_path / "pipeline.skops")
    untrusted = skops.io.get_untrusted_types(file=tmp_path / "pipeline.skops")
    foreign = {name for name in untrusted if not name.startswith("skcl.")}
    assert foreign <= {"numpy.dtype"}  # of scikit-learn's SimpleImputer
    loaded = skops.io.load(tmp_path / "pipeline.skops", trusted=untrusted)
    np.testing.assert_array_equal(loaded.predict_proba(X), pipeline.predict_proba(X))


def test_metadata_routing_with_the_scorer(imbalanced, make_encoder):
    X, y = imbalanced
    with sklearn.config_context(enable_metadata_routing=True):
        head = classifier().set_fit_request(sample_weight=True)
        encoder = make_encoder(max_iter=2).set_fit_request(sample_weight=False)
        search = GridSearchCV(
            make_pipeline(encoder, head),
            {"contrastiveencoder__temperature": [0.2, 0.5]},
            scoring=DiscrepancyScorer().set_score_request(sample_weight=False),
            cv=2,
            error_score="raise",
        ).fit(X, y, sample_weight=np.ones(len(y)))
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
