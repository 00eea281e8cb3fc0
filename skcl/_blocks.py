"""Matrix products whose bits do not depend on the number of threads.

Once the inner dimension of a product is long, a BLAS splits it over its threads,
and partial sums added in another grouping round differently. Here no inner
dimension, of a product or of its gradient, is longer than `BLOCK`; longer sums are
added block by block, in order. (MKL keeps inner dimensions of 512 whole and splits
those of 1,000.) Products with a vector it splits at any length: they are multiplied
and summed without it.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

BLOCK = 512


def apply_in_blocks(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Apply a row-wise function to at most `BLOCK` rows at a time."""
    return _join([function(block) for block in _blocks(x)])


def product(a: Tensor, b: Tensor) -> Tensor:
    """Return a b for a (n, k) and b (k, m); the gradients sum over m and over n."""
    columns = _blocks(b, dim=1)
    return _join(
        [
            _join([_sum_inner(rows, block) for block in columns], dim=1)
            for rows in _blocks(a)
        ]
    )


def pairwise_products(a: Tensor, b: Tensor) -> Tensor:
    """Return a bᵀ for a (n, d) and b (m, d)."""
    return product(a, b.T)


def summed_products(a: Tensor, b: Tensor) -> Tensor:
    """Return aᵀ b, a sum over the rows of a (n, d) and b (n, e)."""
    return product(a.T, b)


def _sum_inner(a: Tensor, b: Tensor) -> Tensor:
    """Return a b for at most `BLOCK` rows of a and columns of b."""
    inner = zip(_blocks(a, dim=1), _blocks(b), strict=True)
    sums = [
        (p[:, :, None] * q).sum(dim=1) if 1 in (*p.shape, *q.shape) else p @ q
        for p, q in inner
    ]
    return sums[0] if len(sums) == 1 else torch.stack(sums).sum(dim=0)


def _blocks(x: Tensor, dim: int = 0) -> Sequence[Tensor]:
    """Cut a tensor into blocks; one of a single block is itself, not a view."""
    return (x,) if x.shape[dim] <= BLOCK else x.split(BLOCK, dim)


def _join(blocks: list[Tensor], dim: int = 0) -> Tensor:
    return blocks[0] if len(blocks) == 1 else torch.cat(blocks, dim)


def mean(values: Tensor, weight: Tensor | None = None) -> Tensor:
    """Return the mean of a vector, weighted if weights are given."""
    if weight is not None:
        return _sum(values * weight) / _sum(weight)
    return _sum(values) / len(values)


def _sum(values: Tensor) -> Tensor:
    sums = [block.sum() for block in _blocks(values)]
    return sums[0] if len(sums) == 1 else torch.stack(sums).sum()
