"""scikit-learn's estimator suite, on every loss with every relaxation."""

import unittest

import numpy as np
import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from skcl import ContrastiveEncoder, DiscrepancyScorer, RelaxedKMeansRegularizer
from skcl._table import Rows
from skcl.losses import LOSSES

REGULARIZERS = [
    None,
    RelaxedKMeansRegularizer(n_clusters=2, relaxation="spectral"),
    RelaxedKMeansRegularizer(n_clusters=2, relaxation="entropic"),
]


# "balanced" is refused in partial_fit, as scikit-learn's learners refuse it.
CLASS_WEIGHT = {0: 1.0, 1: 3.0, 2: 0.5, 3: 5.0}

RANDOM_STARTS = (
    "k-means++ draws the starts among the rows: from the same seed, others among "
    "repeated rows than among weighted ones, as in scikit-learn's KMeans"
)
MINI_BATCHES = (
    "the batches and views that are drawn of repeated rows differ from those of "
    "weighted ones, as in scikit-learn's mini-batch learners"
)


def small_encoder(**params):
    return ContrastiveEncoder(
        n_components=4, hidden_layer_sizes=(8,), projection_dim=4, max_iter=3, **params
    )


class WithHoles(ContrastiveEncoder):
    """An encoder of tables in which some values, always the same, are missing."""

    def _check_rows(self, X, **options):
        rows = super()._check_rows(X, **options)
        numbers = rows.numbers.copy()
        numbers[np.floor(numbers * 1e3) % 5 == 0] = np.nan
        return Rows(numbers, rows.categories)


def expected_failures(estimator):
    """One check, of what draws at random from the rows. DiscrepancyScorer does not."""
    check = "check_sample_weight_equivalence_on_dense_data"
    if isinstance(estimator, DiscrepancyScorer):
        estimator = estimator.encoder
    match estimator:
        case RelaxedKMeansRegularizer():
            return {check: RANDOM_STARTS}
        case ContrastiveEncoder():
            return {check: MINI_BATCHES}
    return {}


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
        small_encoder(class_weight=CLASS_WEIGHT, regularizer=REGULARIZERS[2]),
        small_encoder(sampling="balanced", loss="supcon", regularizer=REGULARIZERS[1]),
        small_encoder(categorical_features=[0], passthrough=True),
        WithHoles(passthrough=True, max_iter=3, hidden_layer_sizes=(8,)),
        RelaxedKMeansRegularizer(),
        RelaxedKMeansRegularizer(relaxation="spectral"),
        DiscrepancyScorer(),
        DiscrepancyScorer(small_encoder(random_state=0)),
    ],
    expected_failed_checks=expected_failures,
)
def test_estimator_suite(estimator, check):
    try:
        check(estimator)
    except unittest.SkipTest as reason:
        pytest.fail(f"skipped: {reason}")
