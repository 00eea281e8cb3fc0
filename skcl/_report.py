"""What the theory says of an embedding, laid out to be read."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from skcl import theory

# The losses whose incurred loss is InfoNCE's, of which the certificate and the optimal
# geometry speak.
LOG_LOSSES = ("infonce", "supcon")
MIN_CERTIFIED_ROWS = 8

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


@dataclass(frozen=True, repr=False)
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
        encoder at these class frequencies, and "optimality_gap", the excess over it.
    per_class : dict of str to array of shape (K,)
        The terms of each class.
    certificate : skcl.theory.Certificate or None
        What the rows guarantee of the population that they were drawn from. None for
        other losses than "infonce" and "supcon", with weights, below 8 rows, and for
        single views without labels.
    geometry : skcl.theory.OptimalGeometry or None
        The centers of least incurred loss, where there is an "optimal_loss".
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
            "collapsed": self.overall["relative_discrepancy"] == 1,
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
            if name in self.overall
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
            line = f"{label:<42}{guarantee.bound:>10.4g}{note * guarantee.vacuous}"
            lines.append(line)
            if name == "error":
                label = "  which cannot be guaranteed to be below"
                lines.append(f"{label:<42}{self.certificate.floor:>10.4g}")
        return "\n".join(lines)

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
    confidence: float,
    random_state: int,
    has_labels: bool,
) -> DiscrepancyReport:
    """Report on views (n, V, d) of rows of known class, codes (n,) into the classes."""
    bound = theory.discrepancy_bound(
        views, codes, temperature, loss, sample_weight=weight
    )
    overall = {name: getattr(bound, name) for name in OVERALL if hasattr(bound, name)}
    certificate = geometry = None
    if loss in LOG_LOSSES:
        geometry = theory.optimal_geometry(bound.per_class["prior"], temperature)
        overall["optimal_loss"] = geometry.value
        overall["optimality_gap"] = bound.incurred_loss - geometry.value
        enough = len(views) >= MIN_CERTIFIED_ROWS and (has_labels or views.shape[1] > 1)
        if weight is None and enough:
            certificate = theory.certificate(
                views,
                codes if has_labels else None,
                temperature,
                confidence,
                random_state=random_state,
            )
    classes = classes[bound.classes]
    at = "" if loss == "spectral" else f" at temperature {temperature:g}"
    return DiscrepancyReport(
        f"{len(views)} rows, {views.shape[1]} views each; loss {loss}{at}",
        classes,
        overall,
        bound.per_class,
        certificate,
        geometry,
        (
            *_of_collapse(overall, bound.per_class, classes),
            *_of_the_bound(bound),
            *_of_temperature(bound),
        ),
    )


def report_representation(
    means: np.ndarray,
    codes: np.ndarray,
    classes: np.ndarray,
    weight: np.ndarray | None,
    rounding: float,
) -> DiscrepancyReport:
    """Report on a representation (n, d), which has neither views nor a temperature."""
    present, codes = np.unique(codes, return_inverse=True)
    overall, per_class = theory.discrepancy_terms(
        means, codes, sample_weight=weight, rounding=rounding
    )
    return DiscrepancyReport(
        f"{len(means)} rows",
        classes[present],
        overall,
        per_class,
        warnings=_of_collapse(overall, per_class, classes[present]),
    )


def _of_collapse(overall: dict, per_class: dict, classes: np.ndarray) -> tuple:
    if overall["relative_discrepancy"] == 1 and len(classes) > 1:
        return (
            "the embedding has collapsed: positive means do not tell the classes "
            "apart at all. A discrepancy near 0 is no merit then.",
        )
    collapsed = classes[per_class["collapsed"]]
    if not len(collapsed):
        return ()
    names = ", ".join(map(str, collapsed[:10])) + ", …" * (len(collapsed) > 10)
    return (
        f"collapsed: {names}. The center of each cannot be told from that of another "
        "class, beyond what sampling does.",
    )


def _of_the_bound(bound: theory.DiscrepancyBound) -> tuple:
    if not bound.vacuous:
        return ()
    return (vacuous_message(bound.upper_bound, bound.loss),)


def vacuous_message(upper_bound: float, loss: str) -> str:
    """Return why a bound says nothing."""
    return (
        f"the bound is vacuous: {upper_bound:.4f} is no less than "
        f"{theory.CONSTANT_LOSS[loss]:.4f}, the incurred loss of an encoder that maps "
        "all rows to one point."
    )


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
