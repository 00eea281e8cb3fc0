"""Spreading labels, against a literal loop and on known graphs."""

import numpy as np
import pytest

from skcl._propagation import propagate


def unit_vectors(n, d, seed=0):
    points = np.random.RandomState(seed).normal(size=(n, d))
    return points / np.linalg.norm(points, axis=1, keepdims=True)


def loop_propagate(points, codes, n_classes, k, weight):
    n = len(points)
    similarity = points @ points.T
    W = np.zeros((n, n))
    for i in range(n):
        others = [j for j in np.argsort(-similarity[i]) if j != i][:k]
        for j in others:
            W[i, j] += np.exp((similarity[i, j] - 1) / 0.1) / 2
            W[j, i] += np.exp((similarity[i, j] - 1) / 0.1) / 2
    degree = W.sum(axis=1)
    S = W / np.sqrt(np.outer(degree, degree))
    source = np.zeros((n, n_classes))
    for i in range(n):
        if codes[i] >= 0:
            source[i, codes[i]] = weight[i] / weight[codes == codes[i]].sum()
    mass = source
    for _ in range(30):
        mass = 0.9 * S @ mass + 0.1 * source
    mass = mass / mass.sum(axis=0)
    shares = mass / mass.sum(axis=1, keepdims=True)
    shares[codes >= 0] = np.eye(n_classes)[codes[codes >= 0]]
    return shares


@pytest.mark.parametrize("weighted", [False, True])
def test_equals_the_literal_loop(weighted):
    points, rng = unit_vectors(40, 3), np.random.RandomState(1)
    codes = np.where(rng.rand(40) < 0.3, rng.randint(0, 3, 40), -1)
    weight = rng.rand(40) + 0.1 if weighted else np.ones(40)
    shares = propagate(points, codes, 3, 5, weight if weighted else None)
    expected = loop_propagate(points, codes, 3, 5, weight)
    np.testing.assert_allclose(shares, expected, atol=1e-10)
    np.testing.assert_allclose(shares.sum(axis=1), 1)


def test_a_row_that_no_label_reaches_is_shared_equally():
    east, north = (
        unit_vectors(10, 2) * 0.01 + [1, 0],
        unit_vectors(10, 2) * 0.01 + [0, 1],
    )
    codes = np.full(20, -1)
    codes[:2] = [0, 1]
    shares = propagate(np.concatenate([east, north]), codes, 2, 5)
    np.testing.assert_array_equal(shares[10:], np.full((10, 2), 0.5))
    assert (shares[2:10] != 0.5).any()


def test_a_rare_class_keeps_the_rows_around_its_label():
    """Beside nine labels of the frequent class it has the same mass."""
    rng = np.random.RandomState(0)
    centers = np.repeat([[1.0, 0.0], [0.0, 1.0]], [270, 30], axis=0)
    points = centers + 0.2 * rng.normal(size=centers.shape)
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    codes = np.full(300, -1)
    codes[:9], codes[270] = 0, 1
    shares = propagate(points, codes, 2, 20)
    assert (shares[271:].argmax(axis=1) == 1).mean() > 0.9
    assert (shares[9:270].argmax(axis=1) == 0).mean() > 0.9


def test_a_class_without_labels_gets_nothing():
    codes = np.where(np.arange(30) < 6, np.arange(30) % 2 * 2, -1)
    shares = propagate(unit_vectors(30, 3), codes, 3, 29)
    assert (shares[:, 1] == 0).all()


def test_fewer_rows_than_neighbors():
    shares = propagate(unit_vectors(3, 2), np.array([0, 1, -1]), 2, 20)
    assert np.isfinite(shares).all()


def test_points_far_apart_are_isolated():
    points = np.array([[0.0], [1.0], [1e3], [1e6]])
    shares = propagate(points, np.array([0, -1, 1, -1]), 2, 2)
    np.testing.assert_array_equal(shares, [[1, 0], [1, 0], [0, 1], [0.5, 0.5]])
