"""The training loop, in three levels: fit, epoch, step."""

import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor, nn
from tqdm import tqdm

from skcl._blocks import mean
from skcl._optimizer import AdamW
from skcl._sampling import uniform_order
from skcl._torch import (
    generator_to_numpy,
    is_out_of_memory,
    keep_freed_memory,
    load_generator,
    load_optimizer,
    load_weights,
    make_generator,
    optimizer_to_numpy,
    weights_to_numpy,
)
from skcl.augmentations import draw_views

# The share of max_iter at which the regularizer sets in, and at which it has reached
# its full weight: before, the positive means say too little about the clusters.
RAMP = (0.4, 0.6)

REMEDY = (
    "Training diverged: lower learning_rate, raise temperature, or lower "
    "regularizer_weight."
)


@dataclass(frozen=True)
class Batch:
    """Rows, all of them or a batch, and what is known about each."""

    x: Tensor  # (n, n_features), or views (n, V, n_features)
    y: Tensor | None = None  # (n,) classes, where the loss uses them
    weight: Tensor | None = None  # (n,); None if equal
    index: Tensor | None = None  # (n,) among the rows that start is given, or -1

    def __len__(self):
        return len(self.x)

    def __getitem__(self, rows) -> "Batch":
        known = (self.y, self.weight, self.index)
        return Batch(self.x[rows], *(None if v is None else v[rows] for v in known))

    def share(self) -> Tensor:
        """Return the mean weight, by which a batch counts among batches of its size."""
        return self.x.new_ones(()) if self.weight is None else mean(self.weight)

    def weighted(self) -> dict[str, Tensor]:
        """Return the weights by keyword, for functions that need not know them."""
        return {} if self.weight is None else {"sample_weight": self.weight}


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

    def start(self, points: Tensor, generator: Generator, rows: Batch) -> Any:
        """Return what the penalty is measured from in the next epoch."""
        with torch.autocast(points.device.type, enabled=False):
            return self.regularizer.start(points, generator, rows.y, **rows.weighted())

    def parts(self, z: Tensor, rows: Batch, state: Any) -> tuple[Tensor, Tensor]:
        """Return the contrastive loss and the penalty of views z (n, V, d).

        A caller's autocast is for the network alone.
        """
        with torch.autocast(z.device.type, enabled=False):
            return self._parts(z, rows, state)

    def _parts(self, z: Tensor, rows: Batch, state: Any) -> tuple[Tensor, Tensor]:
        weighted = rows.weighted()
        contrastive = self.loss(z, self.temperature, rows.y, **weighted)
        if self.regularizer is None:
            return contrastive, torch.zeros_like(contrastive)
        penalty = self.regularizer.penalty(
            z.mean(dim=1), state, rows.y, rows.index, **weighted
        )
        if not isinstance(penalty, Tensor) or penalty.shape != ():
            raise ValueError(
                "The regularizer's method penalty must return a tensor of shape (); it "
                f"returned {getattr(penalty, 'shape', type(penalty).__name__)}."
            )
        return contrastive, penalty


@dataclass
class Best:
    """The best score of held-out rows so far, and what had been learned then."""

    score: float = -math.inf
    n_without_gain: int = 0  # epochs since it rose enough
    weights: dict[str, np.ndarray] | None = None
    optimizer: dict[int, dict[str, np.ndarray]] | None = None


@dataclass
class Stopping:
    """Early stopping on held-out rows, by the objective of fixed views of them."""

    views: Batch
    n_iter_no_change: int
    tol: float
    best: Best = field(default_factory=Best)

    @property
    def is_due(self) -> bool:
        """Whether the score has not risen for too long."""
        return self.best.n_without_gain >= self.n_iter_no_change

    def observe(self, score: float, network: nn.Module, optimizer: AdamW) -> None:
        """Keep what is learned if it is the best so far."""
        gained = score > self.best.score + self.tol
        n_without_gain = 0 if gained else self.best.n_without_gain + 1
        if score > self.best.score:
            learned = weights_to_numpy(network), optimizer_to_numpy(optimizer)
            self.best = Best(score, n_without_gain, *learned)
        else:
            self.best = replace(self.best, n_without_gain=n_without_gain)


@dataclass
class History:
    """One entry an epoch; the penalty is kept before its weight is applied."""

    contrastive: list[float] = field(default_factory=list)
    regularizer: list[float] = field(default_factory=list)
    regularizer_weight: list[float] = field(default_factory=list)
    validation_scores: list[float] = field(default_factory=list)

    def append(self, parts: Tensor, shares: Tensor, weight: float) -> None:
        """Add the batches' mean loss parts; parts (n_batches, 2) must be finite."""
        if not parts.isfinite().all():
            batch, part = (~parts.isfinite()).nonzero()[0].tolist()
            raise ValueError(
                f"The {('contrastive loss', 'regularizer')[part]} became "
                f"{parts[batch, part].item()} in epoch {len(self.contrastive) + 1}, "
                f"batch {batch + 1}. {REMEDY}"
            )
        self.contrastive.append(mean(parts[:, 0], shares).item())
        self.regularizer.append(mean(parts[:, 1], shares).item())
        self.regularizer_weight.append(weight)

    def copy(self) -> "History":
        """Return a history that others' entries do not reach."""
        return History(*(list(part) for part in vars(self).values()))

    def latest(self) -> dict[str, float]:
        """Return the last entry of each part that there is, for display."""
        return {name: part[-1] for name, part in vars(self).items() if part}


@dataclass
class Progress:
    """How far training has come: what it takes to go on, as arrays and numbers."""

    history: History = field(default_factory=History)
    share: float = 0.0  # of max_iter, by which the regularizer sets in
    optimizer: dict[int, dict[str, np.ndarray]] | None = None
    generators: list[tuple[int, np.ndarray]] = field(default_factory=list)
    best: Best | None = None  # of a fit that is under way

    @property
    def n_epochs(self) -> int:
        """Return the number of epochs that are done."""
        return len(self.history.contrastive)


class Trainer:
    """Fits a network to rows.

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
        self.optimizer = AdamW(network.parameters(), learning_rate, weight_decay)
        self.progress = Progress()

    def resume(self, progress: Progress, under_way: bool) -> None:
        """Go on from where another trainer of the network has come.

        In a fit that is under way, early stopping goes on too; else it begins anew.
        """
        self.progress = deepcopy(progress)
        if not under_way:
            self.progress.best = None
        load_optimizer(self.optimizer, progress.optimizer)
        for generator, state in zip(
            self._generators(), progress.generators, strict=True
        ):
            load_generator(generator, *state)

    def fit(
        self,
        rows: Batch,
        *,
        n_epochs: int,
        max_iter: int,
        order: Callable[[Generator], Tensor] | None = None,
        stopping: Stopping | None = None,
        watch: Callable[[], None] | None = None,
        verbose: bool = False,
    ) -> None:
        """Run up to n_epochs; with `stopping`, put the best weights back.

        The regularizer sets in at a share of max_iter epochs, counted over all fits,
        and never steps back. `order` draws the rows of an epoch; None is each once.
        `watch` is called after each epoch. Where an error or an interrupt ends it, what
        the last whole epoch has learned is left.
        """
        keep_freed_memory()
        order = order or partial(uniform_order, len(rows))
        rows, starting = self._with_places(rows)
        if stopping is not None:
            self._begin(stopping, starting)
        # A bar that is not shown would still start a thread.
        epochs = tqdm(range(n_epochs), desc="epochs") if verbose else range(n_epochs)
        whole = self._record(stopping)
        try:
            for _ in epochs:
                if stopping is not None and stopping.is_due:
                    break
                self._fit_epoch(rows, starting, order, max_iter, stopping)
                whole = self._record(stopping)
                if watch is not None:
                    watch()
                if verbose:
                    epochs.set_postfix(self.progress.history.latest())
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise MemoryError(
                f"There is too little memory on {rows.x.device} for a training step: "
                "lower batch_size, n_views or hidden_layer_sizes, or set another "
                f"device. {error}"
            ) from error
        finally:
            self._return_to(*whole)

    def _record(self, stopping: Stopping | None) -> tuple[dict, Progress]:
        """Return the weights, and how far training has come."""
        progress = self.progress
        progress.optimizer = optimizer_to_numpy(self.optimizer)
        progress.generators = [generator_to_numpy(g) for g in self._generators()]
        progress.best = None if stopping is None else stopping.best
        recorded = replace(progress, history=progress.history.copy())
        return weights_to_numpy(self.network), recorded

    def _return_to(self, weights: dict[str, np.ndarray], progress: Progress) -> None:
        """Leave nothing of an epoch that was cut short; put the best weights back."""
        optimizer, best = progress.optimizer, progress.best
        if best is not None and best.weights is not None:
            weights, optimizer = best.weights, best.optimizer
        load_weights(self.network, weights)
        self.progress = replace(progress, optimizer=optimizer, best=None)

    def _fit_epoch(
        self,
        rows: Batch,
        starting: Batch,
        order: Callable[[Generator], Tensor],
        max_iter: int,
        stopping: Stopping | None,
    ) -> None:
        """Run an epoch, and enter it in the history."""
        progress, history = self.progress, self.progress.history
        done = (progress.n_epochs + 1) / max_iter
        progress.share = max(progress.share, done)
        weight = self.objective.weight_at(progress.share)
        state = self._start(starting)
        parts, shares = self._epoch(rows, order, state, weight)
        history.append(parts, shares, weight)
        self._check_finite_weights()
        if stopping is None:
            return
        score = self._validation_score(stopping.views, state, weight)
        history.validation_scores.append(score)
        # While the weight rises, the objective's values do not compare.
        if weight == self.objective.weight:
            stopping.observe(score, self.network, self.optimizer)

    def _begin(self, stopping: Stopping, starting: Batch) -> None:
        """Let early stopping go on, or return to the weights that a fit starts from."""
        if self.progress.best is not None:
            stopping.best = self.progress.best
            return
        weight = self.objective.weight_at(self.progress.share)
        if self.progress.n_epochs and weight == self.objective.weight:
            state = self._start(starting)
            score = self._validation_score(stopping.views, state, weight)
            stopping.observe(score, self.network, self.optimizer)

    def _start(self, rows: Batch) -> Any:
        """Return what the penalty is measured from, if there is one."""
        if self.objective.regularizer is None:
            return None
        with torch.no_grad():
            self.network.eval()
            points = self.network(rows.x)
        if not points.isfinite().all():
            raise ValueError(
                "The network's output became infinite or NaN before epoch "
                f"{self.progress.n_epochs + 1}. {REMEDY}"
            )
        return self.objective.start(points, self.regularizer_generator, rows)

    def _with_places(self, rows: Batch) -> tuple[Batch, Batch]:
        """Return the rows with their places among the starting ones, and these.

        Each epoch's penalty starts from all rows; or, where the regularizer limits
        them, from the labelled ones and a draw of the others, the same in all epochs,
        so that their scores compare.
        """
        seen = torch.ones(len(rows), dtype=torch.bool, device=rows.x.device)
        limit = getattr(self.objective.regularizer, "max_unlabelled", len(rows))
        unlabelled = seen if rows.y is None else rows.y < 0
        positions = unlabelled.nonzero().squeeze(1)
        if len(positions) > limit:
            seed = self.regularizer_generator.initial_seed()
            generator = make_generator(seed, rows.x.device)
            left_out = uniform_order(len(positions), generator)[limit:]
            seen[positions[left_out]] = False
        places = torch.where(seen, seen.cumsum(dim=0) - 1, -1)
        rows = replace(rows, index=places)
        return rows, rows if seen.all() else rows[seen]

    def _epoch(
        self,
        rows: Batch,
        order: Callable[[Generator], Tensor],
        state: Any,
        weight: float,
    ) -> tuple[Tensor, Tensor]:
        """Visit the rows; return each batch's loss parts (n_batches, 2) and share."""
        self.network.train()
        # Even batches: no small rest is left, whose rows would have few negatives.
        drawn = order(self.generator)
        batches = drawn.tensor_split(-(-len(drawn) // self.batch_size))
        parts = rows.x.new_empty(len(batches), 2)
        shares = rows.x.new_empty(len(batches))
        for i, index in enumerate(batches):
            batch = rows[index]
            shares[i] = batch.share()
            parts[i] = self._step(batch, state, weight)
        return parts, shares

    def _step(self, batch: Batch, state: Any, weight: float) -> Tensor:
        """Take one step of the optimizer; return the loss parts (2,)."""
        torch.clear_autocast_cache()  # of a caller's autocast: the weights have moved
        z = self._embed_views(batch.x)
        contrastive, penalty = self.objective.parts(z, batch, state)
        loss = contrastive + weight * penalty if weight else contrastive
        self.optimizer.zero_grad()
        # By its share, the mean over the batches is that over the rows.
        (batch.share() * loss).backward()
        self.optimizer.step()
        return torch.stack([contrastive, penalty]).detach()

    def _embed_views(self, x: Tensor) -> Tensor:
        """Return unit vectors of n_views views of each row, (n, V, projection_dim)."""
        views = draw_views(self.augment, x, self.n_views, self.generator)
        return embed(self.network, views)

    @torch.no_grad()
    def _validation_score(self, views: Batch, state: Any, weight: float) -> float:
        """Return minus the objective, the mean over even batches of held-out rows."""
        self.network.eval()
        n_batches = -(-len(views) // self.batch_size)
        total, shares = 0.0, 0.0
        for index in torch.arange(len(views)).tensor_split(n_batches):
            batch = views[index]
            z = embed(self.network, batch.x)
            contrastive, penalty = self.objective.parts(z, batch, state)
            share = batch.share().item()
            total += share * (contrastive + weight * penalty).item()
            shares += share
        score = -total / shares
        if not math.isfinite(score):
            raise ValueError(f"The score of the held-out rows is {score}. {REMEDY}")
        return score

    def _generators(self) -> tuple[Generator, Generator]:
        return self.generator, self.regularizer_generator

    def _check_finite_weights(self) -> None:
        for name, value in self.network.named_parameters():
            if not value.isfinite().all():
                raise ValueError(
                    f"The weights {name!r} are not finite after epoch "
                    f"{self.progress.n_epochs}. {REMEDY}"
                )


def embed(network: nn.Module, views: Tensor) -> Tensor:
    """Return the unit vectors of views (n, V, n_features), (n, V, projection_dim)."""
    return network(views.flatten(0, 1)).unflatten(0, views.shape[:2])
