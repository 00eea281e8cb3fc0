"""The border between numpy and torch: devices, seeds, tensors, portable weights."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor, nn

from skcl._optimizer import AdamW

# In bytes. The C library of Linux keeps no blocks of 32 MiB or more.
LARGEST_KEPT = 2**25 - 2**16


def resolve_device(device: str | torch.device) -> torch.device:
    """Return a device that works here, or raise a ValueError that names it.

    "auto" is the first CUDA device where there is one, else the CPU.
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        resolved = torch.device(device)
        torch.zeros(1, device=resolved).cpu()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"device={device!r} cannot be used here: {reason}. Allowed are 'auto', "
            "'cpu', and the devices of torch that this machine has, such as 'cuda'."
        ) from error
    return resolved


def draw_seed(random_state: np.random.RandomState) -> int:
    """Draw the seed of a torch generator."""
    return int(random_state.randint(np.iinfo(np.int32).max))


def make_generator(seed: int, device: torch.device) -> Generator:
    """Return a generator on the device; torch's global one stays as it is."""
    return Generator(device=device).manual_seed(seed)


def generator_to_numpy(generator: Generator) -> tuple[int, np.ndarray]:
    """Return the seed and the state of a generator."""
    return generator.initial_seed(), to_numpy(generator.get_state())


def load_generator(generator: Generator, seed: int, state: np.ndarray) -> None:
    """Go on where a generator stood; one of another kind of device begins anew."""
    generator.manual_seed(seed)
    if state.shape == tuple(generator.get_state().shape):
        generator.set_state(torch.tensor(state))


@contextmanager
def gradients_enabled() -> Iterator[None]:
    """Record gradients, also where the caller has switched them off."""
    with torch.inference_mode(False), torch.enable_grad():
        yield


# The global generators are one for all threads of the process.
_GLOBAL_RNG = RLock()


@contextmanager
def isolated_global_rng(
    seed: int, device: torch.device, enabled: bool
) -> Iterator[None]:
    """Seed torch's global generators inside, and put them back afterwards.

    For code that knows no other: the initialization and the dropout of a user's own
    module. One thread at a time is let in.
    """
    if not enabled:
        yield
        return
    devices = [device] if device.type == "cuda" else []
    with _GLOBAL_RNG, torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield


# Whether torch has had threads in this process, or in one that it was forked from.
_THREADS = {"here": False, "before the fork": False}

if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        after_in_child=lambda: _THREADS.update(
            {"before the fork": any(_THREADS.values()), "here": False}
        )
    )


def check_threads_work() -> None:
    """Raise where a forked process would wait for threads that it does not have."""
    if torch.get_num_threads() == 1:
        return
    if _THREADS["before the fork"]:
        raise RuntimeError(
            "This process was forked from one in which torch has used several threads, "
            "and would wait for them forever. Call torch.set_num_threads(1) in it, or "
            "start processes by 'spawn', 'forkserver' or joblib."
        )
    _THREADS["here"] = True


def keep_freed_memory() -> None:
    """Let the allocator of the C library keep, and give again, what a step has freed.

    It hands large blocks back to the system until it has seen one of their size freed:
    then each step would have its memory cleared anew, page by page.
    """
    torch.empty(LARGEST_KEPT, dtype=torch.uint8)


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether a device has had too little memory, the CPU included."""
    return isinstance(error, torch.cuda.OutOfMemoryError) or (
        "DefaultCPUAllocator" in str(error)
    )


def portable(parameters: dict[str, Any]) -> dict[str, Any]:
    """Return parameters as another system can read them: devices and paths as text."""
    return {
        name: os.fspath(value)
        if isinstance(value, os.PathLike)
        else str(value)
        if isinstance(value, torch.device)
        else value
        for name, value in parameters.items()
    }


def to_tensor(array: np.ndarray, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Copy an array to a tensor that shares no memory with it."""
    return torch.tensor(np.ascontiguousarray(array), device=device, dtype=dtype)


def to_numpy(tensor: Tensor) -> np.ndarray:
    """Copy a tensor to an array."""
    return tensor.detach().cpu().numpy().copy()


def weights_to_numpy(module: nn.Module) -> dict[str, np.ndarray]:
    """Return the state of a module as arrays, portable over devices."""
    return {name: to_numpy(value) for name, value in module.state_dict().items()}


def optimizer_to_numpy(optimizer: AdamW) -> dict[int, dict[str, np.ndarray]]:
    """Return what an optimizer keeps of each parameter, as arrays."""
    return {
        index: {name: to_numpy(value) for name, value in kept.items()}
        for index, kept in optimizer.state_dict().items()
    }


def load_optimizer(optimizer: AdamW, state: dict[int, dict[str, np.ndarray]]) -> None:
    """Put arrays from :func:`optimizer_to_numpy` into an optimizer."""
    optimizer.load_state_dict(
        {
            index: {name: torch.tensor(value) for name, value in kept.items()}
            for index, kept in state.items()
        }
    )


def load_weights(module: nn.Module, weights: dict[str, np.ndarray]) -> None:
    """Put arrays from :func:`weights_to_numpy` into a module."""
    module.load_state_dict(
        {name: torch.tensor(value) for name, value in weights.items()}
    )
