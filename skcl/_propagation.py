"""Labels spread over a graph of neighbors: what a few labels say about other rows."""

import numpy as np
from scipy import sparse

# The share of a row that its neighbors decide in a round; the rest is its own label's.
INERTIA = 0.9

ROUNDS = 30

# Of similarities of unit vectors, by which neighbors weigh.
TEMPERATURE = 0.1


def propagate(
    points: np.ndarray,
    codes: np.ndarray,
    n_classes: int,
    n_neighbors: int,
    sample_weight: np.ndarray | None = None,
) -> np.ndarray:
    """Return each row's share of each class, (n, n_classes), of sum 1.

    Labels spread over the graph of nearest neighbors. Every class starts with the same
    mass, and ends with it: else the large ones would take the rows of the rare ones.
    A labelled row has its class alone; a row that no label reaches, equal shares. A
    class without labels has no share in the rows that others reach.

    Parameters
    ----------
    points : array of shape (n, d)
        Unit vectors.
    codes : array of int, of shape (n,)
        Classes; -1 marks an unlabelled row.
    n_classes : int
        Number of classes.
    n_neighbors : int
        Neighbors of each row; all others, if there are fewer.
    sample_weight : array of shape (n,), default=None
        Shares of labelled rows in the mass of their class; None is equal shares.

    References
    ----------
    Zhou, Bousquet, Lal, Weston, Schölkopf: Learning with local and global consistency
    (NIPS 2003), for the spreading. Zhu, Ghahramani, Lafferty: Semi-supervised learning
    using Gaussian fields and harmonic functions (ICML 2003), for the classes' mass.
    """
    labelled = codes >= 0
    weight = labelled.astype(float) if sample_weight is None else sample_weight
    source = np.zeros((len(points), n_classes))
    source[labelled, codes[labelled]] = weight[labelled]
    source = _normalize(source, axis=0)
    graph = _graph(points, min(n_neighbors, len(points) - 1))
    mass = source
    for _ in range(ROUNDS):
        mass = INERTIA * (graph @ mass) + (1 - INERTIA) * source
    shares = _normalize(_normalize(mass, axis=0), axis=1)
    shares[labelled] = np.eye(n_classes)[codes[labelled]]
    shares[shares.sum(axis=1) == 0] = 1 / n_classes
    return shares


def _graph(points: np.ndarray, n_neighbors: int) -> sparse.csr_matrix:
    """Return the symmetric graph, normalized by the square roots of the degrees."""
    # Slow to import, as it brings most of scikit-learn.
    from sklearn.neighbors import kneighbors_graph

    graph = kneighbors_graph(points, n_neighbors, mode="distance")
    # Of unit vectors, ‖a - b‖² = 2 - 2 a·b.
    graph.data = np.exp(-(graph.data**2) / (2 * TEMPERATURE))
    graph = (graph + graph.T) / 2
    degree = np.asarray(graph.sum(axis=1)).ravel()
    # A row far from all others, as none of unit vectors is, has neighbors of weight 0.
    scale = sparse.diags(np.where(degree > 0, np.fmax(degree, 1e-300) ** -0.5, 0.0))
    return (scale @ graph @ scale).tocsr()


def _normalize(shares: np.ndarray, axis: int) -> np.ndarray:
    """Divide by the sums along an axis; zeros stay where there is nothing else."""
    total = shares.sum(axis=axis, keepdims=True)
    return np.divide(shares, total, out=np.zeros_like(shares), where=total > 0)
