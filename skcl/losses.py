"""Contrastive losses over mini-batches, as pure functions of tensors.

Every loss has the signature ``loss(z, temperature, y=None, sample_weight=None)``.
``z`` (n, V, d) holds V views of each of n rows, unit vectors z_iv; anchors are all n V
of them. A mean over positives leaves the anchor itself out, and so does every sum over
negatives: these are the estimates that a mini-batch gives. The exact losses of a whole
set of rows, of which the bounds speak, are in :mod:`skcl.theory`. An anchor without a
positive contributes nothing; a mean over no negatives is 0.

With ``sample_weight`` (n,) a view counts in every mean, as anchor, positive or
negative, with the weight of its row. Only ratios matter: w stands for weights that are
positive, of the dtype of z, without a gradient, and at least 1e-30 of the largest.

The memory of "infonce", "supcon" and "spectral" grows with the number of anchors, that
of "logistic" with its square. The first two have a gradient by z, once.

Two attributes tell a trainer what to do with a loss:

- ``uses_y``: whether it reads ``y`` (n,), integer classes with -1 for an unlabelled
  row;
- ``discrepancy_weight(temperature)``: the unit of a regularizer's weight. It is the
  factor with which the squared internal discrepancy enters the loss's bound on the
  supervised loss it incurs; "supcon", whose bound lacks that term, has InfoNCE's.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from skcl._blocks import mean, pairwise_products, summed_products
from skcl._pairs import log_partition, sum_over_others_of_class, sum_over_own_views


def _declare(*, uses_y: bool, discrepancy_weight: Callable[[float], float]) -> Callable:
    def declare(loss: Callable) -> Callable:
        loss.uses_y = uses_y
        loss.discrepancy_weight = discrepancy_weight
        return loss

    return declare


@_declare(uses_y=False, discrepancy_weight=lambda temperature: 1 / temperature)
def infonce(
    z: Tensor,
    temperature: float,
    y: Tensor | None = None,
    sample_weight: Tensor | None = None,
) -> Tensor:
    """InfoNCE, or NT-Xent, with the mean of the other anchors as partition.

    L = mean_a [ -mean_p z_a·z_p / t + log mean_{b≠a} exp(z_a·z_b / t) ]

    for anchors a, positives p (the other views of the same row), temperature t. The
    usual sum in place of the mean adds log(n V - 1), and no gradient. With weights
    the partition is Σ_{b≠a} w_b exp(z_a·z_b / t) / Σ_{b≠a} w_b.

    Parameters
    ----------
    z : Tensor of shape (n, V, d)
        Unit vectors.
    temperature : float
        t, positive.
    y : None
        Ignored.
    sample_weight : Tensor of shape (n,) or None
        w, the weights of the rows; None weighs them equally.

    Returns
    -------
    Tensor of shape ()
        The loss; 0 if V = 1.

    References
    ----------
    van den Oord, Li, Vinyals: Representation learning with contrastive predictive
    coding (2018). Chen, Kornblith, Norouzi, Hinton: A simple framework for
    contrastive learning of visual representations (ICML 2020).

    Examples
    --------
    >>> import torch
    >>> from skcl.losses import infonce
    >>> z = torch.eye(4).reshape(4, 1, 4).expand(4, 2, 4)  # aligned, orthogonal rows
    >>> round(infonce(z, temperature=1.0).item(), 4)
    -0.7805
    """
    if z.shape[1] < 2:
        return _nothing(z)
    w = _relative(sample_weight)
    partition = _log_mean_exp(z, temperature, w)
    return mean(partition - _mean_positive(z) / temperature, w)


@_declare(uses_y=True, discrepancy_weight=lambda temperature: 1 / temperature)
def supcon(
    z: Tensor,
    temperature: float,
    y: Tensor | None = None,
    sample_weight: Tensor | None = None,
) -> Tensor:
    """Supervised contrastive loss, with the log outside the mean over positives.

    L = mean_a [ -mean_{p ∈ P(a)} z_a·z_p / t + log mean_{b≠a} exp(z_a·z_b / t) ]

    P(a): all other views of the rows of a's class; for an unlabelled row (y = -1),
    and for every row if y is None, the other views of the row itself. The mean over b
    leaves the unlabelled rows out if a is labelled: some are of its class. The mean
    over a is over the anchors that have a positive. With weights all three means are
    weighted, the partition as in :func:`infonce`.

    Parameters
    ----------
    z : Tensor of shape (n, V, d)
        Unit vectors.
    temperature : float
        t, positive.
    y : Tensor of shape (n,) or None
        Integer classes; -1 marks an unlabelled row.
    sample_weight : Tensor of shape (n,) or None
        w, the weights of the rows; None weighs them equally.

    Returns
    -------
    Tensor of shape ()
        The loss; 0 if no anchor has a positive.

    References
    ----------
    Khosla, Teterwak, Wang, Sarna, Tian, Isola, Maschinot, Liu, Krishnan: Supervised
    contrastive learning (NeurIPS 2020), their L_out.

    Examples
    --------
    >>> import torch
    >>> from skcl.losses import infonce, supcon
    >>> z = torch.nn.functional.normalize(torch.randn(6, 2, 3), dim=-1)
    >>> unlabelled = torch.full((6,), -1)
    >>> torch.isclose(supcon(z, 0.5, unlabelled), infonce(z, 0.5)).item()
    True
    """
    if y is None:
        return infonce(z, temperature, sample_weight=sample_weight)
    w = _relative(sample_weight)
    partition = _log_mean_exp(z, temperature, w, closed=y >= 0)
    positive, counted = _mean_over_class(z, y, w)
    return _mean_of_counted(partition - positive / temperature, counted, w)


@_declare(uses_y=False, discrepancy_weight=lambda temperature: 2.0)
def spectral(
    z: Tensor,
    temperature: float | None = None,
    y: Tensor | None = None,
    sample_weight: Tensor | None = None,
) -> Tensor:
    """Spectral contrastive loss.

    L = -2 mean_a mean_p z_a·z_p + mean_a mean_b (z_a·z_b)²

    for anchors a, positives p (the other views of the same row), negatives b (the
    views of all other rows). The second term is ‖Zᵀ Z‖² less the rows' own share, so
    no matrix of all pairs is formed. With weights of sum W the pair of rows i and j
    counts w_i w_j / (W (W - w_i)) in it.

    Parameters
    ----------
    z : Tensor of shape (n, V, d)
        Unit vectors.
    temperature, y : None
        Ignored.
    sample_weight : Tensor of shape (n,) or None
        w, the weights of the rows; None weighs them equally.

    Returns
    -------
    Tensor of shape ()
        The loss; 0 if V = 1.

    References
    ----------
    HaoChen, Wei, Gaidon, Ma: Provable guarantees for self-supervised deep learning
    with spectral contrastive loss (NeurIPS 2021).

    Examples
    --------
    >>> import torch
    >>> from skcl.losses import spectral
    >>> z = torch.eye(4).reshape(4, 1, 4).expand(4, 2, 4)
    >>> spectral(z).item()
    -2.0
    """
    n, V, _ = z.shape
    if V < 2:
        return _nothing(z)
    w = _relative(sample_weight)
    loss = -2 * mean(_mean_positive(z), w)
    if n == 1:
        return loss
    if w is None:
        return loss + _sum_over_pairs(z) / (n * (n - 1) * V**2)
    u = w / _sum_of_others(w)
    # The pair of the heaviest row with itself, u_i w_i, can be far above the sum of
    # all others. It must not be added and taken off again: that row's part is a sum
    # over the others from the start.
    heaviest, others = _split_largest(w)
    u_heaviest = torch.where(heaviest > 0, u, 0)
    pairs = _sum_over_pairs(z, u_heaviest, others)
    pairs = pairs + _sum_over_pairs(z, u - u_heaviest, w)
    return loss + pairs / (mean(w) * n * V**2)


@_declare(uses_y=False, discrepancy_weight=lambda temperature: 1 / (2 * temperature))
def logistic(
    z: Tensor,
    temperature: float,
    y: Tensor | None = None,
    sample_weight: Tensor | None = None,
) -> Tensor:
    """Logistic loss with one positive and one negative.

    L = mean_a mean_p mean_b log(1 + exp(-z_a·(z_p - z_b) / t))

    for anchors a, positives p (the other views of the same row), negatives b (the
    views of all other rows), temperature t. With weights of sum W the anchors' mean is
    weighted, and a negative of row j of an anchor of row i has weight w_j / (W - w_i).

    Parameters
    ----------
    z : Tensor of shape (n, V, d)
        Unit vectors.
    temperature : float
        t, positive.
    y : None
        Ignored.
    sample_weight : Tensor of shape (n,) or None
        w, the weights of the rows; None weighs them equally.

    Returns
    -------
    Tensor of shape ()
        The loss; 0 if n = 1 or V = 1.

    References
    ----------
    Arora, Khandeparkar, Khodak, Plevrakis, Saunshi: A theoretical analysis of
    contrastive unsupervised representation learning (ICML 2019).

    Examples
    --------
    >>> import torch
    >>> from skcl.losses import logistic
    >>> z = torch.eye(4).reshape(4, 1, 4).expand(4, 2, 4)
    >>> round(logistic(z, temperature=1.0).item(), 4)  # log(1 + exp(-1))
    0.3133
    """
    n, V, _ = z.shape
    if n < 2 or V < 2:
        return _nothing(z)
    anchors = z.flatten(0, 1)  # (nV, d)
    similarity = pairwise_products(anchors, anchors) / temperature
    w = _relative(sample_weight)
    weight = _repeat(w, V)
    scale = None if w is None else _repeat((n - 1) / _sum_of_others(w), V)
    row = torch.arange(n, device=z.device).repeat_interleave(V)
    same_row = row[:, None] == row
    total = 0.0
    for shift in range(1, V):
        positive = (z * z.roll(shift, dims=1)).sum(dim=-1).reshape(-1, 1) / temperature
        loss = -logsigmoid(positive - similarity)
        negative = _times(loss.masked_fill(same_row, 0), weight).sum(dim=1)
        total = total + mean(_times(negative, scale), weight)
    return total / ((V - 1) * (n - 1) * V)


def alignment(z: Tensor) -> Tensor:
    """Mean squared distance between two views of a row.

    E ‖z - z⁺‖² = 2 mean_i Σ_v ‖z_iv - m_i‖² / (V - 1), m_i the mean of row i's views.

    Parameters
    ----------
    z : Tensor of shape (n, V, d)
        Unit vectors, V ≥ 2.

    Returns
    -------
    Tensor of shape ()
        Between 0 and 4; lower is better.

    References
    ----------
    Wang, Isola: Understanding contrastive representation learning through alignment
    and uniformity on the hypersphere (ICML 2020), with their α = 2.

    Examples
    --------
    >>> import torch
    >>> from skcl.losses import alignment
    >>> alignment(torch.eye(2).reshape(1, 2, 2)).item()
    2.0
    """
    return mean(2 * z.var(dim=1).sum(dim=-1))


def uniformity(z: Tensor, scale: float = 2.0) -> Tensor:
    """Log of the mean Gaussian potential between different rows.

    log mean_{a, b} exp(-s ‖z_a - z_b‖²) over views a, b of different rows, s the scale.

    Parameters
    ----------
    z : Tensor of shape (n, V, d)
        Unit vectors, n ≥ 2.
    scale : float, default=2.0
        s, positive.

    Returns
    -------
    Tensor of shape ()
        Between -4 s and 0; lower is better.

    References
    ----------
    Wang, Isola: Understanding contrastive representation learning through alignment
    and uniformity on the hypersphere (ICML 2020).

    Examples
    --------
    >>> import torch
    >>> from skcl.losses import uniformity
    >>> z = torch.eye(2).reshape(2, 1, 2)  # two rows at squared distance 2
    >>> uniformity(z).item()
    -4.0
    """
    n, V, _ = z.shape
    anchors = z.flatten(0, 1)  # (nV, d)
    row = torch.arange(n, device=z.device).repeat_interleave(V)
    potential = 2 * scale * (pairwise_products(anchors, anchors) - 1)
    potential = potential.masked_fill(row[:, None] == row, -torch.inf)
    per_anchor = potential.logsumexp(dim=1)
    return per_anchor.logsumexp(dim=0) - math.log(n * (n - 1) * V**2)


LOSSES = {
    "infonce": infonce,
    "spectral": spectral,
    "logistic": logistic,
    "supcon": supcon,
}


def _mean_positive(z: Tensor) -> Tensor:
    """Return the mean similarity of two different views of each row, (n,)."""
    V = z.shape[1]
    return sum_over_own_views(z) / (V * (V - 1))


def _mean_over_class(z: Tensor, y: Tensor, w: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the mean similarity of each row's views to their positives, (n,).

    And whether the row has any positive: the other views of the row, and, of a
    labelled row, all views of the other rows of its class.
    """
    V = z.shape[1]
    weight = torch.ones_like(z[:, 0, 0]) if w is None else w
    total = z.sum(dim=1)
    # A last column counts the views.
    sums = torch.cat([total, torch.full_like(total[:, :1], V)], dim=1)
    others = sum_over_others_of_class(weight[:, None] * sums, y)  # (n, d + 1)
    n_positive = (V - 1) * weight + others[:, -1]
    sum_positive = weight * sum_over_own_views(z) + (total * others[:, :-1]).sum(dim=1)
    counted = n_positive > 0
    return sum_positive / torch.where(counted, V * n_positive, 1), counted


def _log_mean_exp(
    z: Tensor, temperature: float, w: Tensor | None, closed: Tensor | None = None
) -> Tensor:
    """Return the mean over each row's views of log mean_b exp(z_a·z_b / t), (n,).

    The mean over b is that over the other anchors; of a `closed` row (n,), over those
    of closed rows. A row with none has -inf.
    """
    n, V, _ = z.shape
    partition = log_partition(
        z.flatten(0, 1), temperature, _repeat(w, V), _repeat(closed, V)
    )
    partition = partition.unflatten(0, (n, V)).mean(dim=1)
    if w is None and closed is None:
        return partition - math.log(n * V - 1)
    w = torch.ones_like(z[:, 0, 0]) if w is None else w
    mass = _mass_of_others(w, V)
    if closed is not None:
        mass_of_closed = _mass_of_others(torch.where(closed, w, 0), V)
        mass = torch.where(closed, mass_of_closed, mass)
    return partition - mass.log()


def _mass_of_others(w: Tensor, V: int) -> Tensor:
    """Return the weight of all views but one of row i, for each i, (n,)."""
    return V * _sum_of_others(w) + (V - 1) * w


def _mean_of_counted(values: Tensor, counted: Tensor, weight: Tensor | None) -> Tensor:
    """Return the mean of the values that are counted; 0 if there are none."""
    if weight is None:
        share = counted.sum().clamp(1) / len(values)
    else:
        share = mean(counted.to(weight.dtype), weight)
        share = torch.where(share > 0, share, 1)
    return mean(torch.where(counted, values, 0), weight) / share


def _sum_over_pairs(
    z: Tensor, u: Tensor | None = None, w: Tensor | None = None
) -> Tensor:
    """Return Σ_{i≠j} u_i w_j Σ_{v, v'} (z_iv·z_jv')², without a matrix of all pairs."""
    moment = _second_moment(z, u)
    other_moment = moment if w is None else _second_moment(z, w)
    all_pairs = (moment * other_moment).sum(dim=1).sum()
    own_pairs = (z @ z.mT).square().sum(dim=(1, 2))
    share = None if w is None else u * w
    return all_pairs - mean(_times(own_pairs, share)) * len(z)


def _second_moment(z: Tensor, w: Tensor | None) -> Tensor:
    """Return Σ_i w_i Σ_v z_iv z_ivᵀ, (d, d)."""
    anchors = z.flatten(0, 1)  # (nV, d)
    weighted = anchors if w is None else (z * w[:, None, None]).flatten(0, 1)
    return summed_products(anchors, weighted)


def _relative(sample_weight: Tensor | None) -> Tensor | None:
    """Return weights of which the largest is 1; of equal weights all are, exactly."""
    return None if sample_weight is None else sample_weight / sample_weight.max()


def _repeat(x: Tensor | None, V: int) -> Tensor | None:
    """Give each view what its row has, (nV,)."""
    return None if x is None else x.repeat_interleave(V)


def _times(x: Tensor, w: Tensor | None) -> Tensor:
    return x if w is None else x * w


def _split_largest(w: Tensor) -> tuple[Tensor, Tensor]:
    """Return the largest weight and the others, each padded with zeros."""
    largest = torch.arange(len(w), device=w.device) == w.argmax()
    return torch.where(largest, w, 0), torch.where(largest, 0, w)


def _sum_of_others(w: Tensor) -> Tensor:
    """Return Σ_{j≠i} w_j for each i, (n,).

    W - w_i cancels where w_i is most of W. Here nothing does: it is the sum without
    the largest, plus the largest less w_i.
    """
    _, rest = _split_largest(w)
    return mean(rest) * len(w) + (w.max() - w)


def _nothing(z: Tensor) -> Tensor:
    """A zero that backward can pass through."""
    return 0.0 * z.sum()
