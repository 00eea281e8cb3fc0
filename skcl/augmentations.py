"""Augmentations: functions (x, generator) -> view of standardized rows x (n, d).

Missing numbers are NaN, and categories codes: each is a single value, which a view
keeps or replaces as a whole.
"""

from collections.abc import Callable
from hashlib import blake2b

import torch
from torch import Generator, Tensor


def swap(x: Tensor, generator: Generator, *, rate: float, marginals: Tensor) -> Tensor:
    """Replace each value, with probability `rate`, by a draw from its column.

    Parameters
    ----------
    x : Tensor of shape (n, d)
        Rows.
    generator : Generator
        Source of randomness, on the device of x.
    rate : float
        The probability, in (0, 1].
    marginals : Tensor of shape (q, d)
        Equally likely values of each column.

    Returns
    -------
    Tensor of shape (n, d)
        A view of each row, independent of the other rows.

    References
    ----------
    Bahri, Jiang, Tay, Metzler: SCARF: Self-supervised contrastive learning using
    random feature corruption (ICLR 2022).

    Examples
    --------
    >>> import torch
    >>> from skcl.augmentations import swap
    >>> x, generator = torch.zeros(1000, 1), torch.Generator().manual_seed(0)
    >>> view = swap(x, generator, rate=0.3, marginals=torch.ones(5, 1))
    >>> 0.25 < view.mean().item() < 0.35
    True
    """
    q = len(marginals)
    uniform = torch.rand(x.shape, generator=generator, device=x.device, dtype=x.dtype)
    swapped = uniform < rate
    # Given that it is below the rate, uniform / rate is again uniform on [0, 1).
    index = (uniform * (q / rate)).clamp_max(q - 1).long()
    return torch.where(swapped, marginals.gather(0, index), x)


def noise(x: Tensor, generator: Generator, *, rate: float | Tensor) -> Tensor:
    """Add Gaussian noise of standard deviation `rate`.

    Parameters
    ----------
    x : Tensor of shape (n, d)
        Rows.
    generator : Generator
        Source of randomness, on the device of x.
    rate : float or Tensor of shape (d,)
        The standard deviation, in units of x; 0 for a column to be left as it is.

    Returns
    -------
    Tensor of shape (n, d)
        A view of each row.

    Examples
    --------
    >>> import torch
    >>> from skcl.augmentations import noise
    >>> x, generator = torch.zeros(1000, 1), torch.Generator().manual_seed(0)
    >>> 0.25 < noise(x, generator, rate=0.3).std().item() < 0.35
    True
    """
    drawn = torch.randn(x.shape, generator=generator, device=x.device, dtype=x.dtype)
    return x + rate * drawn


def draw_views(
    augment: Callable[[Tensor, Generator], Tensor],
    x: Tensor,
    n_views: int,
    generator: Generator,
) -> Tensor:
    """Draw views of each row of a batch, (n, V, d)."""
    views = augment(x.repeat_interleave(n_views, dim=0), generator)
    return views.unflatten(0, (len(x), n_views))


def draw_views_by_row(
    augment: Callable[[Tensor, Generator], Tensor], x: Tensor, n_views: int, seed: int
) -> Tensor:
    """Draw views that depend on the seed and on the row itself alone, (n, V, d).

    They are the same wherever a row stands and whichever rows stand beside it.
    """
    key = seed.to_bytes(8, "little")
    generator = Generator()
    views = torch.empty(len(x), n_views, x.shape[1], dtype=x.dtype)
    for i, row in enumerate(x.cpu() + 0.0):  # of -0 the bytes are others
        digest = blake2b(row.numpy().tobytes(), digest_size=8, key=key).digest()
        generator.manual_seed(int.from_bytes(digest, "little", signed=True))
        views[i] = augment(row.expand(n_views, -1), generator)
    return views
