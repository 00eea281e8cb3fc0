"""The theory as numbers about an encoder and its rows: arrays in, numbers out.

Row i has V_i views z_iv, unit vectors, and weight w_i, by default 1; the views of a row
share its weight equally. With that measure the positive of an anchor is any view of its
row, the anchor itself included, and a negative is any view of any row. A partition y of
the rows into classes k of frequency π_k = Σ_{i in k} w_i / Σ_i w_i defines

- the positive means m_i = 1/V_i Σ_v z_iv,
- the class centers c_k, the means of m_i over class k, weighted by w_i,
- the internal discrepancy ‖m_i - c_{y_i}‖ of row i.

An integer weight is that many copies of the row, but in the unbiased discrepancy and in
collapse, which count rows; a row of weight 0 is absent, whatever its values.

For InfoNCE at temperature t, with Δ₂² the (weighted) mean squared discrepancy,

    incurred_loss ≤ contrastive_loss + Δ₂² / t.

:func:`discrepancy_bound` has all its terms on given rows, :func:`certificate` what they
say of rows to come, and :func:`optimal_geometry` the least incurred loss that any
encoder has.

The ideas are those of "Internal Discrepancy for Contrastive Learning: Generalization
Bounds and Downstream Behaviors" (2026); the formulas are derived in this project, see
docs/theory.md.
"""

from skcl.theory._bound import (
    CONSTANT_LOSS,
    DiscrepancyBound,
    discrepancy_bound,
    is_vacuous,
    lower_bound,
    upper_bound,
)
from skcl.theory._certificate import FEWEST_ROWS, Certificate, certificate
from skcl.theory._discrepancy import (
    class_centers,
    internal_discrepancy,
    relative_discrepancy,
)
from skcl.theory._geometry import (
    OptimalGeometry,
    collapse_temperature,
    collapse_threshold,
    optimal_geometry,
)
from skcl.theory._guarantee import Guarantee
from skcl.theory._losses import LOSSES, contrastive_loss, incurred_loss

__all__ = [
    "CONSTANT_LOSS",
    "FEWEST_ROWS",
    "LOSSES",
    "Certificate",
    "DiscrepancyBound",
    "Guarantee",
    "OptimalGeometry",
    "certificate",
    "class_centers",
    "collapse_temperature",
    "collapse_threshold",
    "contrastive_loss",
    "discrepancy_bound",
    "incurred_loss",
    "internal_discrepancy",
    "is_vacuous",
    "lower_bound",
    "optimal_geometry",
    "relative_discrepancy",
    "upper_bound",
]
