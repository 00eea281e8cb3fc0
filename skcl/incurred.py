"""The supervised losses that contrastive losses incur, as pure functions of tensors.

Every loss has the signature ``loss(scores, y, priors, sample_weight=None)``. ``scores``
(n, K) are those of any classifier head, such as s_ik = z_i·c_k / t for representations
z_i, class centers c_k and temperature t; with these scores and the frequencies of the
classes as priors the loss is that of :func:`skcl.theory.incurred_loss`. A head can be
trained by it: :func:`infonce` has an example.

Let p(x, k) be the rows' distribution, p(x | k) the classes' densities, and let the
priors be the frequencies, π_k = p(k), weighted as the rows are. Over all scores, every
loss is least at scores that order the classes as p(x | k) does: the prior is gone.
argmax_k s_k(x) is then the Bayes rule for the balanced error, however rare a class is.
The Bayes rule for the plain error is argmax_k π_k p(x | k).
"""

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from skcl._blocks import mean


def infonce(
    scores: Tensor, y: Tensor, priors: Tensor, sample_weight: Tensor | None = None
) -> Tensor:
    """Supervised loss that InfoNCE and SupCon incur.

    L = mean_i [ -s_{i,y_i} + log Σ_k π_k exp(s_ik) ]

    for scores s, classes y, priors π. It is least, over all scores, where
    s_k(x) = log p(x | k) + g(x) with any g; the minimum is -I(X; Y), minus the mutual
    information. Constant scores cost 0.

    It is the cross-entropy of the scores s_k + log π_k (logit adjustment, or balanced
    softmax) plus mean_i log π_{y_i}, which is -H(π) if the priors are the frequencies
    of the classes in y. With equal priors it is the plain cross-entropy of s, less
    log K.

    Parameters
    ----------
    scores : Tensor of shape (n, K)
        s.
    y : Tensor of shape (n,)
        Classes, int64, 0 … K - 1.
    priors : Tensor of shape (K,)
        π, not negative, of sum 1. The scores of a class of prior 0 are read only for
        the rows of that class.
    sample_weight : Tensor of shape (n,) or None
        Positive weights of the rows, of which only ratios matter; None weighs them
        equally.

    Returns
    -------
    Tensor of shape ()
        The loss.

    Raises
    ------
    ValueError
        If a shape does not fit, y holds no codes, or the priors do not sum to 1.

    References
    ----------
    Menon, Jayasumana, Rawat, Jain, Veit, Kumar: Long-tail learning via logit
    adjustment (ICLR 2021). Ren, Yu, Sheng, Ma, Zhao, Yi, Li: Balanced meta-softmax for
    long-tailed visual recognition (NeurIPS 2020). That InfoNCE incurs it, with the
    class centers as head: derived in this project after "Internal Discrepancy for
    Contrastive Learning" (2026).

    Examples
    --------
    Two normal classes, one of them 19 times as frequent. A linear head trained by the
    loss finds both equally well; the head of the cross-entropy misses the rare one.

    >>> import torch
    >>> from torch.nn.functional import cross_entropy
    >>> from skcl.incurred import infonce
    >>> x = torch.special.ndtri((torch.arange(100.0) + 0.5) / 100)[:, None]
    >>> x = torch.cat([x - 1] * 19 + [x + 1])  # (2000, 1)
    >>> y = torch.arange(2).repeat_interleave(torch.tensor([1900, 100]))
    >>> def train(loss):
    ...     head = torch.nn.Linear(1, 2)
    ...     optimizer = torch.optim.Adam(head.parameters(), lr=0.1)
    ...     for _ in range(300):
    ...         optimizer.zero_grad()
    ...         loss(head(x), y).backward()
    ...         optimizer.step()
    ...     found = head(x).argmax(dim=1) == y
    ...     return [round(found[y == k].double().mean().item(), 1) for k in (0, 1)]
    >>> train(lambda scores, y: infonce(scores, y, torch.tensor([0.95, 0.05])))
    [0.8, 0.8]
    >>> train(cross_entropy)
    [1.0, 0.3]
    """
    own, others, priors = _split(scores, y, priors)
    partition = (others - own + priors.log()).logsumexp(dim=1)
    return _mean(partition, sample_weight)


def spectral(
    scores: Tensor, y: Tensor, priors: Tensor, sample_weight: Tensor | None = None
) -> Tensor:
    """Supervised loss that the spectral contrastive loss incurs.

    L = mean_i [ -2 s_{i,y_i} + Σ_k π_k s_ik² ]

    for scores s, classes y, priors π. It is least, over all scores, at
    s_k(x) = p(x | k) / p(x); the minimum is -Σ_k ∫ p(x, k)² / (p(x) π_k) dx, which is
    -(1 + χ²), χ² the divergence of the joint distribution of x and k from the product
    of its margins. Scores of 1 cost -1.

    Parameters
    ----------
    scores : Tensor of shape (n, K)
        s; without a temperature.
    y : Tensor of shape (n,)
        Classes, int64, 0 … K - 1.
    priors : Tensor of shape (K,)
        π, not negative, of sum 1. The scores of a class of prior 0 are read only for
        the rows of that class.
    sample_weight : Tensor of shape (n,) or None
        Positive weights of the rows, of which only ratios matter; None weighs them
        equally.

    Returns
    -------
    Tensor of shape ()
        The loss.

    Raises
    ------
    ValueError
        If a shape does not fit, y holds no codes, or the priors do not sum to 1.

    References
    ----------
    For the contrastive loss: HaoChen, Wei, Gaidon, Ma: Provable guarantees for
    self-supervised deep learning with spectral contrastive loss (NeurIPS 2021). For the
    squared loss as a fit of density ratios: Kanamori, Hido, Sugiyama: A least-squares
    approach to direct importance estimation (JMLR 2009). The formulas: derived in this
    project.

    Examples
    --------
    >>> import torch
    >>> from skcl.incurred import spectral
    >>> y, priors = torch.tensor([0, 0, 0, 1]), torch.tensor([0.75, 0.25])
    >>> spectral(torch.ones(4, 2), y, priors).item()
    -1.0
    >>> best = torch.eye(2)[y] / priors  # where x determines the class: -K
    >>> round(spectral(best, y, priors).item(), 4)
    -2.0
    """
    own, others, priors = _split(scores, y, priors)
    squares = (others.square() * priors).sum(dim=1)
    return _mean(squares - 2 * own.squeeze(1), sample_weight)


def logistic(
    scores: Tensor, y: Tensor, priors: Tensor, sample_weight: Tensor | None = None
) -> Tensor:
    """Supervised loss that the logistic loss with one negative incurs.

    L = mean_i Σ_k π_k log(1 + exp(-(s_{i,y_i} - s_ik)))

    for scores s, classes y, priors π; the term of k = y_i is π_k log 2. It is least,
    over all scores, where s_j(x) - s_k(x) = log p(x | j) - log p(x | k) for all j, k;
    the minimum is log 2 - Σ_jk π_j π_k JS_jk, JS_jk the Jensen-Shannon divergence of
    p(x | j) and p(x | k). Constant scores cost log 2.

    Parameters
    ----------
    scores : Tensor of shape (n, K)
        s.
    y : Tensor of shape (n,)
        Classes, int64, 0 … K - 1.
    priors : Tensor of shape (K,)
        π, not negative, of sum 1. The scores of a class of prior 0 are read only for
        the rows of that class.
    sample_weight : Tensor of shape (n,) or None
        Positive weights of the rows, of which only ratios matter; None weighs them
        equally.

    Returns
    -------
    Tensor of shape ()
        The loss.

    Raises
    ------
    ValueError
        If a shape does not fit, y holds no codes, or the priors do not sum to 1.

    References
    ----------
    For the contrastive loss: Arora, Khandeparkar, Khodak, Plevrakis, Saunshi: A
    theoretical analysis of contrastive unsupervised representation learning (ICML
    2019). The formulas: derived in this project.

    Examples
    --------
    >>> import torch
    >>> from skcl.incurred import logistic
    >>> y, priors = torch.tensor([0, 0, 0, 1]), torch.tensor([0.75, 0.25])
    >>> round(logistic(torch.zeros(4, 2), y, priors).item(), 4)
    0.6931
    """
    own, others, priors = _split(scores, y, priors)
    losses = -logsigmoid(own - others) * priors
    return _mean(losses.sum(dim=1), sample_weight)


INCURRED = {
    "infonce": infonce,
    "spectral": spectral,
    "logistic": logistic,
    "supcon": infonce,
}


def _split(scores: Tensor, y: Tensor, priors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the own scores (n, 1), all scores and the priors, as scores are kept.

    What stands for an absent class in the scores, even NaN, must not spoil a product
    with its prior of 0.
    """
    if scores.ndim != 2 or not scores.is_floating_point():
        raise ValueError(
            f"scores is of shape {tuple(scores.shape)} and {scores.dtype}: (n_rows, "
            "n_classes) of floats is allowed."
        )
    n, K = scores.shape
    _check_shape("y", y, (n,))
    _check_shape("priors", priors, (K,))
    priors = torch.as_tensor(priors).to(scores)
    if (priors < 0).any() or not (priors.sum() - 1).abs() < 0.01:
        raise ValueError(
            f"priors={priors.tolist()}: not negative, of sum 1, is needed."
        )
    if y.is_floating_point() or ((y < 0) | (y >= K)).any():
        raise ValueError(f"y holds other than whole numbers from 0 to {K - 1}.")
    own = scores.gather(1, y.to(scores.device, torch.int64)[:, None])
    return own, scores.masked_fill(priors == 0, 0), priors


def _mean(losses: Tensor, sample_weight: Tensor | None) -> Tensor:
    if sample_weight is None:
        return mean(losses)
    _check_shape("sample_weight", sample_weight, losses.shape)
    w = sample_weight.to(losses)
    return mean(losses, w / w.max())


def _check_shape(name: str, given: Tensor, allowed: tuple[int, ...]) -> None:
    if given.shape != allowed:
        raise ValueError(
            f"{name} is of shape {tuple(given.shape)}: {tuple(allowed)} is allowed."
        )
