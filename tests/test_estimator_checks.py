"""scikit-learn's estimator suite, on every loss with every relaxation."""

import unittest

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from skcl import ContrastiveEncoder, DiscrepancyScorer, RelaxedKMeansRegularizer
from skcl.losses import LOSSES

REGULARIZERS = [
    None,
    RelaxedKMeansRegularizer(n_clusters=2, relaxation="spectral"),
    RelaxedKMeansRegularizer(n_clusters=2, relaxation="entropic"),
]


def small_encoder(**params):
    return ContrastiveEncoder(
        n_components=4, hidden_layer_sizes=(8,), projection_dim=4, max_iter=3, **params
    )


# A check fits eight clusters to ten rows, some of which then have none.
@pytest.mark.filterwarnings("ignore:Only . of n_clusters=8 clusters have rows")
@parametrize_with_checks(
    [
        ContrastiveEncoder(),
        *(
            small_encoder(loss=loss, regularizer=regularizer)
            for loss in LOSSES
            for regularizer in REGULARIZERS
        ),
        small_encoder(passthrough=True, augmentation="noise"),
        RelaxedKMeansRegularizer(),
        RelaxedKMeansRegularizer(relaxation="spectral"),
        DiscrepancyScorer(),
        DiscrepancyScorer(small_encoder(random_state=0)),
    ]
)
def test_estimator_suite(estimator, check):
    try:
        check(estimator)
    except unittest.SkipTest as reason:
        pytest.fail(f"skipped: {reason}")
