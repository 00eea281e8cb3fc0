"""Train on a GPU what benchmarks.speed trains on the CPU, and compare the results.

It prints the time of a step on the CPU, on the GPU, and there with products in
bfloat16; and how far the embeddings that one fitted encoder makes on both lie apart.
"""

import pickle
from contextlib import nullcontext
from time import perf_counter

import numpy as np
import torch

from benchmarks.speed import BATCHES, SIZES, make_encoder


def fit(X, batch_size, device, context):
    """Return a fitted encoder and the seconds of one of its steps."""
    n_epochs = -(-100 * batch_size // len(X))
    encoder = make_encoder(batch_size=batch_size, max_iter=n_epochs, device=device)
    with context:
        start = perf_counter()
        encoder.fit(X)
        seconds = perf_counter() - start
    return encoder, seconds / (n_epochs * -(-len(X) // batch_size))


def main():
    if not torch.cuda.is_available():
        print("There is no CUDA device.")
        return
    print("| rows, columns | batch | device | step | final loss | embeddings apart |")
    print("|---|---|---|---|---|---|")
    for n, d in SIZES:
        X = np.random.RandomState(0).normal(size=(n, d)).astype(np.float32)
        for batch_size in BATCHES:
            for name, device, context in (
                ("CPU", "cpu", nullcontext()),
                ("GPU", "cuda", nullcontext()),
                ("GPU, bfloat16", "cuda", torch.autocast("cuda", torch.bfloat16)),
            ):
                fit(X[:1000], batch_size, device, context)  # to warm up
                encoder, seconds = fit(X, batch_size, device, context)
                loss = encoder.history_["contrastive"][-1]
                print(
                    f"| {n:,} × {d} | {batch_size} | {name} | {1e3 * seconds:.2f} ms "
                    f"| {loss:.4f} | {apart(encoder, X[:5000]):.1e} |"
                )


def apart(encoder, X):
    """Return the largest difference of a fitted encoder's outputs on CPU and GPU."""
    Z = {}
    for device in ("cpu", "cuda"):
        moved = pickle.loads(pickle.dumps(encoder))
        moved._model_.to(torch.device(device))
        Z[device] = moved.transform(X)
    return np.abs(Z["cpu"] - Z["cuda"]).max()


if __name__ == "__main__":
    main()
