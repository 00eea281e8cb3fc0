"""Contrastive losses over mini-batches, as pure functions of tensors.

Every loss has the signature ``loss(z, temperature, y=None)``. ``z`` (n, V, d) holds V
views of each of n rows, unit vectors z_iv; anchors are all n V of them. A mean over
positives leaves the anchor itself out, and so does every sum over negatives: these
are the estimates that a mini-batch gives. The exact losses of a whole set of rows,
of which the bounds speak, are in :mod:`skcl.theory`. An anchor without a positive
contributes nothing; a mean over no negatives is 0.

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


def _declare(*, uses_y: bool, discrepancy_weight: Callable[[float], float]) -> Callable:
    def declare(loss: Callable) -> Callable:
        loss.uses_y = uses_y
        loss.discrepancy_weight = discrepancy_weight
        return loss

    return declare


@_declare(uses_y=False, discrepancy_weight=lambda temperature: 1 / temperature)
def infonce(z: Tensor, temperature: float, y: Tensor | None = None) -> Tensor:
    """InfoNCE, or NT-Xent, with the mean of the other anchors as partition.

    L = mean_a [ -mean_p z_a·z_p / t + log mean_{b≠a} exp(z_a·z_b / t) ]

    for anchors a, positives p (the other views of the same row), temperature t. The
    usual sum in place of the mean adds log(n V - 1), and no gradient.

    Parameters
    ----------
    z : Tensor of shape (n, V, d)
        Unit vectors.
    temperature : float
        t, positive.
    y : None
        Ignored.

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
    anchors = z.flatten(0, 1)  # (nV, d)
    similarity = pairwise_products(anchors, anchors) / temperature
    positive = _mean_positive(z) / temperature
    return mean(_log_mean_exp_of_others(similarity) - positive.flatten())


@_declare(uses_y=True, discrepancy_weight=lambda temperature: 1 / temperature)
def supcon(z: Tensor, temperature: float, y: Tensor | None = None) -> Tensor:
    """Supervised contrastive loss, with the log outside the mean over positives.

    L = mean_a [ -mean_{p ∈ P(a)} z_a·z_p / t + log mean_{b≠a} exp(z_a·z_b / t) ]

    P(a): all other views of the rows of a's class; for an unlabelled row (y = -1),
    and for every row if y is None, the other views of the row itself. The mean is
    over the anchors that have a positive.

    Parameters
    ----------
    z : Tensor of shape (n, V, d)
        Unit vectors.
    temperature : float
        t, positive.
    y : Tensor of shape (n,) or None
        Integer classes; -1 marks an unlabelled row.

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
        return infonce(z, temperature)
    n, V, _ = z.shape
    if n * V < 2:
        return _nothing(z)
    anchors = z.flatten(0, 1)  # (nV, d)
    similarity = pairwise_products(anchors, anchors) / temperature
    own = -1 - torch.arange(n, device=z.device)  # a label that no other row has
    label = torch.where(y >= 0, y, own).repeat_interleave(V)
    is_positive = label[:, None] == label
    is_positive.fill_diagonal_(False)
    n_positive = is_positive.sum(dim=1)
    positive = torch.where(is_positive, similarity, 0).sum(dim=1)
    per_anchor = _log_mean_exp_of_others(similarity) - positive / n_positive.clamp(1)
    counted = n_positive > 0
    share = counted.sum().clamp(1) / (n * V)
    return mean(torch.where(counted, per_anchor, 0)) / share


@_declare(uses_y=False, discrepancy_weight=lambda temperature: 2.0)
def spectral(
    z: Tensor, temperature: float | None = None, y: Tensor | None = None
) -> Tensor:
    """Spectral contrastive loss.

    L = -2 mean_a mean_p z_a·z_p + mean_a mean_b (z_a·z_b)²

    for anchors a, positives p (the other views of the same row), negatives b (the
    views of all other rows). The second term is ‖Zᵀ Z‖² less the rows' own share, so
    no matrix of all pairs is formed.

    Parameters
    ----------
    z : Tensor of shape (n, V, d)
        Unit vectors.
    temperature, y : None
        Ignored.

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
    loss = -2 * mean(_mean_positive(z).mean(dim=1))
    if n == 1:
        return loss
    anchors = z.flatten(0, 1)  # (nV, d)
    all_pairs = summed_products(anchors, anchors).square().sum(dim=1).sum()
    own_pairs = mean((z @ z.mT).square().sum(dim=(1, 2))) * n
    return loss + (all_pairs - own_pairs) / (n * (n - 1) * V**2)


@_declare(uses_y=False, discrepancy_weight=lambda temperature: 1 / (2 * temperature))
def logistic(z: Tensor, temperature: float, y: Tensor | None = None) -> Tensor:
    """Logistic loss with one positive and one negative.

    L = mean_a mean_p mean_b log(1 + exp(-z_a·(z_p - z_b) / t))

    for anchors a, positives p (the other views of the same row), negatives b (the
    views of all other rows), temperature t.

    Parameters
    ----------
    z : Tensor of shape (n, V, d)
        Unit vectors.
    temperature : float
        t, positive.
    y : None
        Ignored.

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
    row = torch.arange(n, device=z.device).repeat_interleave(V)
    same_row = row[:, None] == row
    total = 0.0
    for shift in range(1, V):
        positive = (z * z.roll(shift, dims=1)).sum(dim=-1).reshape(-1, 1) / temperature
        loss = -logsigmoid(positive - similarity)
        total = total + mean(loss.masked_fill(same_row, 0).sum(dim=1))
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
    """Mean similarity of each anchor to the other views of its row, (n, V)."""
    total = (z @ z.sum(dim=1, keepdim=True).mT).squeeze(-1)
    return (total - z.square().sum(dim=-1)) / (z.shape[1] - 1)


def _log_mean_exp_of_others(similarity: Tensor) -> Tensor:
    """Return log mean_{b≠a} exp(similarity_ab) for each anchor a."""
    m = len(similarity)
    itself = torch.eye(m, dtype=torch.bool, device=similarity.device)
    others = similarity.masked_fill(itself, -torch.inf)
    return others.logsumexp(dim=1) - math.log(m - 1)


def _nothing(z: Tensor) -> Tensor:
    """A zero that backward can pass through."""
    return 0.0 * z.sum()
