"""What the theory says of an embedding, laid out to be read."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.special import entr

from skcl import theory
from skcl.theory._discrepancy import terms_of_representation

# The losses whose incurred loss is InfoNCE's, of which the certificate and the optimal
# geometry speak.
LOG_LOSSES = ("infonce", "supcon")

# Above it the optimal geometry takes more than seconds.
MAX_OPTIMAL_CLASSES = 200

# Of unit vectors, whose variance is 1 at most: below it they are nearly one point.
NEARLY_CONSTANT = 0.01

# A share of the optimal loss that hardly differs from a constant encoder's.
LITTLE = 0.05

VACUOUS = (
    "the bound is vacuous: no less than the incurred loss of an encoder that maps all "
    "rows to one point. Do not rank by it: with labels there is the incurred loss, and "
    "the metric of the whole pipeline."
)

# The lines of the printed table, in their order.
OVERALL = {
    "contrastive_loss": "contrastive loss",
    "alignment": "  alignment: mean similarity of positives",
    "uniformity": "  uniformity: what the negatives add",
    "incurred_loss": "incurred supervised loss",
    "lower_bound": "  its lower bound",
    "upper_bound": "  its upper bound",
    "optimal_loss": "  the least of any encoder",
    "optimality_gap": "  excess over the least",
    "attained": "  share of the least, 1 at best",
    "discrepancy": "internal discrepancy, mean distance",
    "squared_discrepancy": "  mean squared distance",
    "unbiased_squared_discrepancy": "  the same, unbiased",
    "relative_discrepancy": "  share of the variance, 1 if collapsed",
}
GUARANTEES = {
    "contrastive_loss": "InfoNCE",
    "incurred_loss": "incurred supervised loss",
    "squared_discrepancy": "squared discrepancy",
    "cross_entropy": "cross-entropy",
    "error": "error",
    "direct_cross_entropy": "cross-entropy, from labels alone",
    "direct_error": "error, from labels alone",
}
OF_CLASSES = {
    "n_rows": "rows",
    "prior": "share",
    "contrastive_loss": "contrastive",
    "incurred_loss": "incurred",
    "upper_bound": "upper bound",
    "squared_discrepancy": "squared",
    "relative_discrepancy": "relative",
    "collapsed": "collapsed",
}


@dataclass(frozen=True, eq=False, repr=False)
class DiscrepancyReport:
    """What :meth:`DiscrepancyScorer.report` found; printed, a table.

    Attributes
    ----------
    heading : str
        Number of rows and views, loss and temperature.
    classes : array of shape (K,)
        The classes; without labels, the numbers of the clusters.
    overall : dict of str to float
        The terms over all rows; see :class:`skcl.theory.DiscrepancyBound`. For
        "infonce" and "supcon" with "optimal_loss", the least incurred loss of any
        encoder at these class frequencies, "optimality_gap", the excess over it, and
        "attained", the incurred loss as a share of it.
    per_class : dict of str to array of shape (K,)
        The terms of each class.
    certificate : skcl.theory.Certificate or None
        What the rows guarantee of the population that they were drawn from. None for
        other losses than "infonce" and "supcon", with weights, below 8 rows, and for
        single views without labels.
    geometry : skcl.theory.OptimalGeometry or None
        The centers of least incurred loss, where there is an "optimal_loss": for those
        losses, up to 200 classes.
    warnings : tuple of str
        What makes a number look better than the embedding is.
    """

    heading: str
    classes: np.ndarray
    overall: dict[str, float]
    per_class: dict[str, np.ndarray]
    certificate: theory.Certificate | None = None
    geometry: theory.OptimalGeometry | None = None
    warnings: tuple[str, ...] = ()

    def to_frame(self):
        """Return the terms as a frame.

        Returns
        -------
        DataFrame
            A column for each term; a row "all", and one for each class. What is not
            defined is missing.
        """
        overall = {
            "n_rows": self.per_class["n_rows"].sum(),
            "prior": 1.0,
            **self.overall,
        }
        names = dict.fromkeys([*OF_CLASSES, *OVERALL, *self.per_class, *overall])
        missing = np.full(len(self.classes), np.nan)
        columns = {
            name: [overall[name], *self.per_class.get(name, missing)]
            for name in names
            if name in overall
        }
        index = pd.Index(["all", *self.classes], name="class", dtype=object)
        return pd.DataFrame(columns, index=index)

    def __repr__(self):
        """Return the table."""
        parts = [self.heading, self._overall(), self._guarantees(), self._classes()]
        parts += [f"Warning: {warning}" for warning in self.warnings]
        return "\n\n".join(part for part in parts if part)

    def _overall(self) -> str:
        return "\n".join(
            f"{label:<42}{self.overall[name]:>10.4f}"
            for name, label in OVERALL.items()
            if not np.isnan(self.overall.get(name, np.nan))
        )

    def _guarantees(self) -> str:
        if self.certificate is None:
            return ""
        lines = [
            "Guaranteed for rows to come, if these were held out; each with confidence "
            f"{self.certificate.confidence:g}"
        ]
        for name, label in GUARANTEES.items():
            guarantee = getattr(self.certificate, name)
            if guarantee is None:
                continue
            note = f"  vacuous: {guarantee.trivial:.4f} is trivial"
            bound = min(guarantee.bound, 1.0 if "error" in name else np.inf)
            line = f"{label:<42}{bound:>10.4g}{note * guarantee.vacuous}"
            lines.append(line)
            if name == "error" and self.geometry is not None:
                label = "  the least that could be guaranteed"
                lines.append(f"{label:<42}{self._least_error_guarantee():>10.4g}")
        return "\n".join(lines)

    def _least_error_guarantee(self) -> float:
        """Return the least cross-entropy over log 2, at these class frequencies."""
        return (self.geometry.value + entr(self.geometry.priors).sum()) / np.log(2)

    def _classes(self) -> str:
        columns = {
            label: self.per_class[name]
            for name, label in OF_CLASSES.items()
            if name in self.per_class
        }
        index = pd.Index(self.classes, name="class")
        frame = pd.DataFrame(columns, index=index)
        table = frame.to_string(float_format="{:.4f}".format)
        return "\n".join(line.rstrip() for line in table.splitlines())


def report_views(
    views: np.ndarray,
    codes: np.ndarray,
    classes: np.ndarray,
    weight: np.ndarray | None,
    *,
    temperature: float,
    loss: str,
    certificate: theory.Certificate | None,
) -> DiscrepancyReport:
    """Report on views (n, V, d) of rows of known class, codes (n,) into the classes."""
    bound = theory.discrepancy_bound(
        views, codes, temperature, loss, sample_weight=weight
    )
    classes = classes[bound.classes]
    overall = {name: getattr(bound, name) for name in OVERALL if hasattr(bound, name)}
    overall["collapsed"] = _is_collapsed(overall, classes, NEARLY_CONSTANT)
    geometry = _optimal_geometry(bound)
    if geometry is not None:
        overall["optimal_loss"] = geometry.value
        overall["optimality_gap"] = bound.incurred_loss - geometry.value
        if geometry.value < 0:
            overall["attained"] = bound.incurred_loss / geometry.value
    at = "" if loss == "spectral" else f" at temperature {temperature:g}"
    return DiscrepancyReport(
        f"{len(views)} rows, {views.shape[1]} views each, of the projection; "
        f"loss {loss}{at}",
        classes,
        overall,
        bound.per_class,
        certificate,
        geometry,
        (
            *_of_collapse(overall, bound.per_class, classes),
            *_of_little(overall),
            *_of_the_bound(bound),
            *_of_temperature(bound),
        ),
    )


def certify(
    views: np.ndarray,
    codes: np.ndarray | None,
    weight: np.ndarray | None,
    *,
    temperature: float,
    loss: str,
    confidence: float,
    random_state: int,
) -> theory.Certificate | None:
    """Return the certificate of views, by their labels if there are any; None without.

    It needs InfoNCE's incurred loss, equal weights, rows enough, and without labels two
    views of each.
    """
    single = codes is None and views.shape[1] < 2
    few = len(views) < theory.FEWEST_ROWS
    if loss not in LOG_LOSSES or weight is not None or single or few:
        return None
    return theory.certificate(
        views, codes, temperature, confidence, random_state=random_state
    )


def _optimal_geometry(bound: theory.DiscrepancyBound) -> theory.OptimalGeometry | None:
    if bound.loss not in LOG_LOSSES or len(bound.classes) > MAX_OPTIMAL_CLASSES:
        return None
    return theory.optimal_geometry(bound.per_class["prior"], bound.temperature)


def report_representation(
    means: np.ndarray,
    codes: np.ndarray,
    classes: np.ndarray,
    weight: np.ndarray | None,
    rounding: float,
) -> DiscrepancyReport:
    """Report on a representation (n, d), which has neither views nor a temperature."""
    present, codes = np.unique(codes, return_inverse=True)
    overall, per_class = terms_of_representation(means, codes, weight, rounding)
    overall["collapsed"] = _is_collapsed(overall, present, 0.0)
    return DiscrepancyReport(
        f"{len(means)} rows",
        classes[present],
        overall,
        per_class,
        warnings=_of_collapse(overall, per_class, classes[present]),
    )


def _of_collapse(
    overall: dict[str, float], per_class: dict[str, np.ndarray], classes: np.ndarray
) -> tuple[str, ...]:
    if overall["collapsed"]:
        return (
            "the embedding has collapsed: positive means do not tell the classes "
            "apart, or are nearly one point. A discrepancy near 0 is no merit then.",
        )
    collapsed = classes[per_class["collapsed"]]
    if not len(collapsed):
        return ()
    names = ", ".join(map(str, collapsed[:10])) + ", …" * (len(collapsed) > 10)
    return (
        f"collapsed: {names}. The center of each cannot be told from that of another "
        "class, beyond what sampling does.",
    )


def _is_collapsed(
    overall: dict[str, float], classes: np.ndarray, smallest: float
) -> bool:
    """Return whether all classes are one, or the variance is below the smallest."""
    relative = overall["relative_discrepancy"]
    # The squared discrepancy is that share of the variance.
    tiny = overall["squared_discrepancy"] < smallest * relative
    return len(classes) > 1 and bool(relative == 1 or tiny)


def _of_little(overall: dict[str, float]) -> tuple[str, ...]:
    if overall["collapsed"] or overall.get("attained", 1.0) >= LITTLE:
        return ()
    return (
        f"the classes' centers tell little: {overall['attained']:.1%} of the least "
        "loss that an encoder can incur. A bound a little below 0 is no merit then.",
    )


def _of_the_bound(bound: theory.DiscrepancyBound) -> tuple[str, ...]:
    return (VACUOUS,) if bound.vacuous else ()


def _of_temperature(bound: theory.DiscrepancyBound) -> tuple[str, ...]:
    if bound.loss not in LOG_LOSSES or len(bound.classes) < 3:
        return ()
    threshold = theory.collapse_threshold(bound.per_class["prior"])
    if bound.temperature < threshold:
        return ()
    return (
        f"at temperature {bound.temperature:g}, {threshold:.4f} or more, even the best "
        "encoder lets all classes but the largest coincide.",
    )
