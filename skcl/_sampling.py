"""The order in which an epoch visits the rows."""

import torch
from torch import Generator, Tensor


def uniform_order(n: int, generator: Generator) -> Tensor:
    """Return each of n rows once, at random."""
    return torch.randperm(n, generator=generator, device=generator.device)


def balanced_order(codes: Tensor, generator: Generator) -> Tensor:
    """Return rows in a random order, each class equally often.

    There are as many labelled rows in it as there are, but a third of all at the least.
    Of a class larger than its share an epoch visits a part, another in each epoch; the
    rows of a smaller class come again once all have come. Unlabelled rows come once
    each. All groups are spread evenly, so that batches have the same mixture, as far
    as whole rows allow.

    Parameters
    ----------
    codes : Tensor of shape (n,)
        Classes; -1 marks an unlabelled row.
    generator : Generator
        Source of randomness, on the device of codes.

    Returns
    -------
    Tensor of int64, of shape (n,)
        Rows; of every class one at least.
    """
    options = {"generator": generator, "device": codes.device}
    present, sizes = codes.unique(return_counts=True)
    groups = codes.argsort(stable=True).split(sizes.tolist())
    n_classes = int((present >= 0).sum())
    n_labelled = int((codes >= 0).sum())
    n_drawn = max(n_labelled, -(-(len(codes) - n_labelled) // 2))
    share, rest = divmod(n_drawn, max(n_classes, 1))
    ranks = torch.randperm(n_classes, **options).tolist()  # the first have one more
    drawn, position = [], []
    for label, rows in zip(present.tolist(), groups, strict=True):
        m = len(rows) if label < 0 else share + (ranks.pop() < rest)
        rounds = [torch.randperm(len(rows), **options) for _ in range(0, m, len(rows))]
        drawn.append(rows[torch.cat(rounds)[:m]])
        first = torch.rand(1, **options)
        position.append((torch.arange(m, device=codes.device) + first) / m)
    return torch.cat(drawn)[torch.cat(position).argsort(stable=True)]
