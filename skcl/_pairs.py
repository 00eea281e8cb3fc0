"""Sums over all pairs of a batch, in flat memory.

The pairs are visited in tiles. Of the partition function they are those of the upper
triangle, a similarity serving both of its anchors; and of a large batch no tile is
kept: backward computes them again. So memory grows with the batch, not with its square.
"""

from collections.abc import Iterator
from itertools import combinations_with_replacement, pairwise
from itertools import product as cartesian

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from skcl._blocks import BLOCK, pairwise_products, product, summed_products

# With weights of 1e-30 or more, exponentials of up to this need no maximum taken off
# them: neither they nor sums of a million leave the normal numbers of float32.
SAFE, SAFE_WEIGHTED = 70.0, 16.0

# Pairs whose exponentials are kept for backward, those of 4,000 anchors: 32 MiB in
# float32, and with weights twice that.
KEPT = 2**23


def log_partition(
    z: Tensor,
    temperature: float,
    weight: Tensor | None = None,
    closed: Tensor | None = None,
) -> Tensor:
    """Return log Σ_{b≠a} w_b exp(z_a·z_b / t) of each anchor a, (m,).

    Parameters
    ----------
    z : Tensor of shape (m, d)
        Unit vectors.
    temperature : float
        t, positive.
    weight : Tensor of shape (m,), default=None
        w, at least 1e-30 and at most 1; None is 1 for all.
    closed : bool Tensor of shape (m,), default=None
        Anchors that sum over one another alone. None: all sum over all others.

    Returns
    -------
    Tensor of shape (m,)
        -inf of an anchor that has nothing to sum over.
    """
    if closed is None:
        return _LogPartition.apply(z, temperature, weight, 0)
    order = closed.argsort(stable=True)
    weight = None if weight is None else weight[order]
    n_open = int((~closed).sum())
    value = _LogPartition.apply(_Permute.apply(z, order), temperature, weight, n_open)
    return _Permute.apply(value, order.argsort())


class _Permute(torch.autograd.Function):
    """Rows in another order: that no row comes twice, backward need not know."""

    @staticmethod
    def forward(ctx, x, order):
        ctx.order = order
        return x[order]

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        return gradient[ctx.order.argsort()], None


def sum_over_own_views(z: Tensor) -> Tensor:
    """Return Σ_{v≠v'} z_iv·z_iv' of each row of z (n, V, d), (n,)."""
    return _SumOverOwnViews.apply(z)


class _SumOverOwnViews(torch.autograd.Function):
    @staticmethod
    def forward(ctx, z):
        ctx.others = z.sum(dim=1, keepdim=True) - z
        return (z * ctx.others).sum(dim=(1, 2))

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        return (2 * gradient)[:, None, None] * ctx.others


def sum_over_others_of_class(x: Tensor, y: Tensor) -> Tensor:
    """Return the sum of x (n, d) over the other rows of each row's class, (n, d).

    Of an unlabelled row (y = -1) it is 0. Nothing is subtracted from the sum over the
    class, of which a row can be nearly all.
    """
    return _SumOverOthers.apply(x, y)


class _SumOverOthers(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.y = y
        return _sum_over_others(x, y)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        return _sum_over_others(gradient, ctx.y), None


def _sum_over_others(x: Tensor, y: Tensor) -> Tensor:
    result = torch.zeros_like(x)
    blocks = _blocks(0, len(x))
    for rows, columns in cartesian(blocks, blocks):
        is_counted = (y[rows, None] == y[columns]) & (y[columns] >= 0)
        if rows == columns:
            is_counted.fill_diagonal_(False)
        result[rows] += product(is_counted.to(x.dtype), x[columns])
    return result


def _blocks(*bounds: int) -> list[slice]:
    """Cut the ranges between the bounds into blocks."""
    starts = [
        start for first, end in pairwise(bounds) for start in range(first, end, BLOCK)
    ]
    return [slice(*ends) for ends in pairwise([*starts, bounds[-1]])]


class _LogPartition(torch.autograd.Function):
    @staticmethod
    def forward(ctx, z, temperature, weight, n_open):
        tiles = _Tiles(z, temperature, weight, n_open)
        total = z.new_zeros(len(z))
        n_pairs = len(z) * (len(z) + 1) // 2
        ctx.kept = [] if ctx.needs_input_grad[0] and n_pairs <= KEPT else None
        for rows, columns, is_mutual in tiles.pairs():
            by_row, by_column = tile = tiles.exponentials(rows, columns)
            total[rows] += by_row.sum(dim=1)
            if is_mutual and rows != columns:
                total[columns] += by_column.sum(dim=0)
            if ctx.kept is not None:
                ctx.kept.append(tile)
        ctx.tiles, ctx.total = tiles, total
        return total.log() if tiles.shift is None else total.log() + tiles.shift

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        z, total = ctx.tiles.z, ctx.total
        share = gradient / (total * ctx.tiles.temperature)
        share = torch.where(total > 0, share, 0)
        result = torch.zeros_like(z)
        for k, (rows, columns, is_mutual) in enumerate(ctx.tiles.pairs()):
            if ctx.kept is None:
                by_row, by_column = ctx.tiles.exponentials(rows, columns)
            else:
                by_row, by_column = ctx.kept[k]
            # The gradient by the similarities of the tile.
            if not is_mutual:
                pairs = by_row * share[rows, None]
            elif by_column is by_row:
                pairs = (share[rows, None] + share[columns]).mul_(by_row)
            else:
                pairs = by_row * share[rows, None] + by_column * share[columns]
            result[rows] += product(pairs, z[columns])
            if rows != columns:
                result[columns] += summed_products(pairs, z[rows])
        return result, None, None, None


class _Tiles:
    """The pairs of anchors a and b in tiles, a in one slice and b in another.

    The exponentials of a tile's rows are w_b exp(z_a·z_b / t - s_a), those of its
    columns w_a exp(z_a·z_b / t - s_b); if these are the same, they are one tensor. The
    shift s is an anchor's largest exponent, or 0 where nothing can overflow.
    """

    def __init__(
        self, z: Tensor, temperature: float, weight: Tensor | None, n_open: int
    ):
        self.z = z
        self.scaled = z / temperature
        self.temperature = temperature
        self.log_weight = None if weight is None else weight.log()
        self.n_open = n_open
        safe = SAFE if weight is None else SAFE_WEIGHTED
        self.shift = None if 1 / temperature <= safe else self._largest()

    def pairs(self) -> Iterator[tuple[slice, slice, bool]]:
        """Yield each tile's slices, and whether its columns sum over its rows too."""
        blocks = _blocks(0, self.n_open, len(self.z))
        for rows, columns in combinations_with_replacement(blocks, 2):
            is_mutual = (rows.start < self.n_open) == (columns.start < self.n_open)
            yield rows, columns, is_mutual

    def exponentials(self, rows: slice, columns: slice) -> tuple[Tensor, Tensor]:
        """Return the exponentials of the rows and of the columns of a tile."""
        by_row, by_column = self._exponents(rows, columns)
        if self.shift is not None:
            by_row = by_row - self.shift[rows, None]
            by_column = by_column - self.shift[columns]
        elif by_column is by_row:
            return (by_row.exp_(),) * 2
        return by_row.exp(), by_column.exp()

    def _exponents(self, rows: slice, columns: slice) -> tuple[Tensor, Tensor]:
        """Return the exponents of a tile's rows and columns before the shift."""
        similarity = pairwise_products(self.scaled[rows], self.z[columns])
        if rows == columns:
            similarity.fill_diagonal_(-torch.inf)
        if self.log_weight is None:
            return similarity, similarity
        log_weight = self.log_weight
        return similarity + log_weight[columns], similarity + log_weight[rows, None]

    def _largest(self) -> Tensor:
        """Return the largest exponent of each anchor; 0 if it has none."""
        largest = torch.full_like(self.z[:, 0], -torch.inf)
        for rows, columns, is_mutual in self.pairs():
            by_row, by_column = self._exponents(rows, columns)
            largest[rows] = torch.maximum(largest[rows], by_row.amax(dim=1))
            if is_mutual:
                of_columns = by_column.amax(dim=0)
                largest[columns] = torch.maximum(largest[columns], of_columns)
        return torch.where(largest == -torch.inf, 0, largest)
