"""Contrastive representation learning on tables, for scikit-learn."""

from skcl._discrepancy import DiscrepancyScorer
from skcl._encoder import ContrastiveEncoder
from skcl._persistence import load, save
from skcl._regularizer import RelaxedKMeansRegularizer
from skcl._report import DiscrepancyReport
from skcl._version import __version__

__all__ = [
    "ContrastiveEncoder",
    "DiscrepancyReport",
    "DiscrepancyScorer",
    "RelaxedKMeansRegularizer",
    "__version__",
    "load",
    "save",
]
