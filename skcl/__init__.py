"""Contrastive representation learning on tables, for scikit-learn."""

from skcl._discrepancy import DiscrepancyScorer
from skcl._encoder import ContrastiveEncoder
from skcl._regularizer import RelaxedKMeansRegularizer
from skcl._report import DiscrepancyReport

__all__ = [
    "ContrastiveEncoder",
    "DiscrepancyReport",
    "DiscrepancyScorer",
    "RelaxedKMeansRegularizer",
]
__version__ = "0.1.0"
