"""Checks of the functions that a user gives, before training begins with them."""

from collections.abc import Callable
from inspect import signature
from typing import Any

import torch
from torch import Tensor

from skcl._torch import isolated_global_rng, make_generator
from skcl._training import Batch, Trainer, embed
from skcl.networks import ColumnEmbedding


def is_foreign(regularizer: Any) -> bool:
    """Whether a regularizer may draw from torch's global generators."""
    declared = vars(type(regularizer))  # a subclass declares for itself
    return regularizer is not None and not declared.get("draws_from_generator_only")


def check_take_weights(loss: Callable, regularizer: Any = None) -> None:
    """Refuse a loss and a regularizer that weights cannot be passed to."""
    functions = [("loss", loss)]
    if regularizer is not None:
        functions += [
            (f"regularizer's method {name}", getattr(regularizer, name))
            for name in ("start", "penalty")
        ]
    for name, function in functions:
        parameters = signature(function).parameters.values()
        takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
        if not takes_all and "sample_weight" not in {p.name for p in parameters}:
            raise ValueError(
                f"The {name}, {function!r}, takes no weights: to be used with "
                "sample_weight or class_weight it needs a parameter sample_weight."
            )


def try_callables(trainer: Trainer, rows: Batch, n_components: int) -> None:
    """Run augmentation, backbone and loss on a few rows, to name what is wrong."""
    x, columns = rows.x, trainer.network.columns
    view = trainer.augment(x, make_generator(0, x.device))
    _check_tensor("augmentation", view, x.shape)
    if view.isinf().any():
        raise ValueError(
            "The callable given as augmentation returned inf: finite numbers are "
            "allowed, and NaN for a missing one."
        )
    _check_codes(view, columns)
    if _mixes_rows(trainer.augment, x):
        raise ValueError(
            "The callable given as augmentation mixes rows: views of some rows depend "
            "on others. A view must be drawn of each row by itself."
        )
    trainer.network.eval()
    with torch.no_grad():
        embedding = trainer.network.embed(view)
        _check_tensor("backbone", embedding, (len(x), n_components))
        z = embed(trainer.network, torch.stack([x, view], dim=1))
    z.requires_grad_()
    objective = trainer.objective
    loss = objective.loss(z, objective.temperature, rows.y, **rows.weighted())
    _check_tensor("loss", loss, ())
    if not loss.requires_grad:
        raise ValueError("The callable given as loss returned no gradient.")


def _mixes_rows(augment: Callable, x: Tensor) -> bool:
    """Whether views of the second half of the rows change with the first half."""
    half = (len(x) + 1) // 2
    changed = x.clone()
    changed[:half] = x[len(x) - half :]
    for seed in range(8):
        views = []
        for rows in (x, x, changed):
            with isolated_global_rng(seed, x.device, enabled=True):
                view = augment(rows, make_generator(seed, x.device))[half:]
                views.append(view.nan_to_num())  # NaN is not equal to itself
        first, again, other = views
        # Where the seed does not fix the views, there is nothing to compare.
        if torch.equal(first, again) and not torch.equal(first, other):
            return True
    return False


def _check_codes(view: Tensor, columns: ColumnEmbedding) -> None:
    """Refuse a view whose categories are no codes."""
    for j, vectors in zip(columns.categorical, columns.vectors, strict=True):
        codes = torch.arange(len(vectors), device=view.device, dtype=view.dtype)
        if not torch.isin(view[:, j], codes).all():
            raise ValueError(
                f"The callable given as augmentation changes column {j}, of "
                f"categories, to other values than its codes 0 to {len(vectors) - 1}."
            )


def _check_tensor(parameter: str, output: Tensor, expected: tuple) -> None:
    found = type(output).__name__
    if isinstance(output, Tensor):
        if output.shape == expected and output.dtype == torch.float32:
            return
        found = f"{output.dtype} of shape {tuple(output.shape)}"
    raise ValueError(
        f"The callable given as {parameter} must return a tensor of torch.float32, "
        f"here of shape {tuple(expected)}; it returned {found}."
    )
