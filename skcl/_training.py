"""The training loop, in three levels: fit, epoch, step."""

import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Generator, Tensor, nn
from tqdm import tqdm

from skcl.augmentations import draw_views

# The share of max_iter at which the regularizer sets in, and at which it has reached
# its full weight: before, the positive means say too little about the clusters.
RAMP = (0.4, 0.6)

REMEDY = (
    "Training diverged: lower learning_rate, raise temperature, or lower "
    "regularizer_weight."
)


@dataclass(frozen=True)
class Objective:
    """The contrastive loss plus weight times the regularizer's penalty."""

    loss: Callable[..., Tensor]
    temperature: float
    regularizer: Any = None
    weight: float = 0.0

    def weight_at(self, progress: float) -> float:
        """Return the penalty's weight in the epoch that ends at this share of all."""
        begin, end = RAMP
        return self.weight * min(max((progress - begin) / (end - begin), 0.0), 1.0)

    def parts(self, z: Tensor, y: Tensor | None, state: Any) -> tuple[Tensor, Tensor]:
        """Return the contrastive loss and the penalty of views z (n, V, d)."""
        contrastive = self.loss(z, self.temperature, y)
        if self.regularizer is None:
            return contrastive, torch.zeros_like(contrastive)
        penalty = self.regularizer.penalty(z.mean(dim=1), state, y)
        if not isinstance(penalty, Tensor) or penalty.shape != ():
            raise ValueError(
                "The regularizer's method penalty must return a tensor of shape (); it "
                f"returned {getattr(penalty, 'shape', type(penalty).__name__)}."
            )
        return contrastive, penalty


@dataclass
class Stopping:
    """Early stopping on held-out rows, by the objective of fixed views of them."""

    views: Tensor  # (n, V, n_features)
    y: Tensor | None
    n_iter_no_change: int
    tol: float
    best_score: float = -math.inf
    best_weights: dict[str, Tensor] | None = None
    n_without_gain: int = 0

    def observe(self, score: float, network: nn.Module) -> bool:
        """Keep the network if it is the best so far; return whether to stop."""
        gained = score > self.best_score + self.tol
        self.n_without_gain = 0 if gained else self.n_without_gain + 1
        if score > self.best_score:
            self.best_score = score
            self.best_weights = deepcopy(network.state_dict())
        return self.n_without_gain >= self.n_iter_no_change

    def restore(self, network: nn.Module) -> None:
        """Put the best weights back, if any were kept."""
        if self.best_weights is not None:
            network.load_state_dict(self.best_weights)


@dataclass
class History:
    """One entry an epoch; the penalty is kept before its weight is applied."""

    contrastive: list[float] = field(default_factory=list)
    regularizer: list[float] = field(default_factory=list)
    regularizer_weight: list[float] = field(default_factory=list)
    validation_scores: list[float] = field(default_factory=list)

    def append(self, parts: Tensor, weight: float, epoch: int) -> None:
        """Add the batches' mean loss parts; parts (n_batches, 2) must be finite."""
        if not parts.isfinite().all():
            batch, part = (~parts.isfinite()).nonzero()[0].tolist()
            raise ValueError(
                f"The {('contrastive loss', 'regularizer')[part]} became "
                f"{parts[batch, part].item()} in epoch {epoch + 1}, batch {batch + 1}. "
                f"{REMEDY}"
            )
        contrastive, penalty = parts.mean(dim=0).tolist()
        self.contrastive.append(contrastive)
        self.regularizer.append(penalty)
        self.regularizer_weight.append(weight)

    def latest(self) -> dict[str, float]:
        """Return the last entry of each part that there is, for display."""
        return {name: part[-1] for name, part in vars(self).items() if part}


class Trainer:
    """Fits a network to rows x (n, d), with labels y (n,) where the loss uses them.

    All randomness comes from `generator`, but for the regularizer's, which has
    `regularizer_generator`: a weight of 0 leaves the network as without a regularizer.
    """

    def __init__(
        self,
        network: nn.Module,
        objective: Objective,
        augment: Callable[[Tensor, Generator], Tensor],
        *,
        n_views: int,
        batch_size: int,
        learning_rate: float,
        weight_decay: float,
        generator: Generator,
        regularizer_generator: Generator,
    ):
        self.network = network
        self.objective = objective
        self.augment = augment
        self.n_views = n_views
        self.batch_size = batch_size
        self.generator = generator
        self.regularizer_generator = regularizer_generator
        self.optimizer = torch.optim.AdamW(
            network.parameters(),
            lr=learning_rate,
            weight_decay=weight_decay,
            fused=generator.device.type in ("cpu", "cuda"),
        )

    def fit(
        self,
        x: Tensor,
        y: Tensor | None,
        *,
        max_iter: int,
        stopping: Stopping | None = None,
        verbose: bool = False,
    ) -> History:
        """Run up to max_iter epochs; with `stopping`, put the best weights back."""
        history = History()
        means = None if self.objective.regularizer is None else self._positive_means(x)
        # A bar that is not shown would still start a thread.
        epochs = tqdm(range(max_iter), desc="epochs") if verbose else range(max_iter)
        for epoch in epochs:
            weight = self.objective.weight_at((epoch + 1) / max_iter)
            state = None
            if means is not None:
                state = self.objective.regularizer.start(
                    means.clone(), self.regularizer_generator, y
                )
            parts = self._epoch(x, y, state, weight, means)
            history.append(parts, weight, epoch)
            if verbose:
                epochs.set_postfix(history.latest())
            if stopping is not None:
                score = self._validation_score(stopping, state, weight)
                history.validation_scores.append(score)
                # While the weight rises, the objective's values do not compare.
                if weight == self.objective.weight and stopping.observe(
                    score, self.network
                ):
                    break
        if stopping is not None:
            stopping.restore(self.network)
        self._check_finite_weights()
        return history

    def _epoch(
        self,
        x: Tensor,
        y: Tensor | None,
        state: Any,
        weight: float,
        means: Tensor | None,
    ) -> Tensor:
        """Visit each row once; return the loss parts of each batch, (n_batches, 2)."""
        self.network.train()
        order = torch.randperm(len(x), generator=self.generator, device=x.device)
        # Even batches: no small rest is left, whose rows would have few negatives.
        batches = order.tensor_split(-(-len(x) // self.batch_size))
        parts = torch.empty(len(batches), 2, device=x.device, dtype=x.dtype)
        for i, rows in enumerate(batches):
            y_rows = None if y is None else y[rows]
            z, parts[i] = self._step(x[rows], y_rows, state, weight)
            if means is not None:
                means[rows] = z.mean(dim=1)
        return parts

    def _step(
        self, x: Tensor, y: Tensor | None, state: Any, weight: float
    ) -> tuple[Tensor, Tensor]:
        """Take one step of the optimizer; return the views' vectors and loss parts."""
        z = self._embed_views(x)
        contrastive, penalty = self.objective.parts(z, y, state)
        loss = contrastive + weight * penalty if weight else contrastive
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return z.detach(), torch.stack([contrastive, penalty]).detach()

    def _embed_views(self, x: Tensor) -> Tensor:
        """Return unit vectors of n_views views of each row, (n, V, projection_dim)."""
        views = draw_views(self.augment, x, self.n_views, self.generator)
        return embed(self.network, views)

    @torch.no_grad()
    def _positive_means(self, x: Tensor) -> Tensor:
        """Return the positive means before training, (n, projection_dim)."""
        self.network.eval()
        views = draw_views(self.augment, x, self.n_views, self.regularizer_generator)
        return embed(self.network, views).mean(dim=1)

    @torch.no_grad()
    def _validation_score(self, held_out: Stopping, state: Any, weight: float) -> float:
        """Return minus the objective, the mean over even batches of held-out rows."""
        self.network.eval()
        n_batches = -(-len(held_out.views) // self.batch_size)
        scores = []
        for rows in torch.arange(len(held_out.views)).tensor_split(n_batches):
            y = None if held_out.y is None else held_out.y[rows]
            z = embed(self.network, held_out.views[rows])
            contrastive, penalty = self.objective.parts(z, y, state)
            scores.append(-(contrastive + weight * penalty).item())
        score = sum(scores) / n_batches
        if not math.isfinite(score):
            raise ValueError(f"The score of the held-out rows is {score}. {REMEDY}")
        return score

    def _check_finite_weights(self) -> None:
        for name, value in self.network.named_parameters():
            if not value.isfinite().all():
                raise ValueError(f"The weights {name!r} are not finite. {REMEDY}")


def embed(network: nn.Module, views: Tensor) -> Tensor:
    """Return the unit vectors of views (n, V, n_features), (n, V, projection_dim)."""
    return network(views.flatten(0, 1)).unflatten(0, views.shape[:2])
