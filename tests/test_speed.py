"""The benchmark of speed: that its work is what it says."""

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import speed
from skcl.losses import LOSSES


def flops(run):
    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


def test_the_floor_has_the_products_of_a_step():
    X = np.random.RandomState(0).normal(size=(64, 8)).astype(np.float32)
    of_step = flops(lambda: speed.fast_loop(X, 64, 1))
    assert flops(speed.step_floor(8, 64, n_products=2)) == of_step
    less = 2 * 128 * 128 * speed.WIDTHS[-1]
    assert flops(speed.step_floor(8, 64, n_products=1)) == of_step - less


@pytest.mark.parametrize("name", speed.FULL_MATRIX)
def test_the_full_matrix_is_the_same_loss(name):
    z = torch.nn.functional.normalize(torch.randn(40, 2, 5), dim=-1)
    value = LOSSES[name](z, speed.TEMPERATURE, torch.arange(40) % 7)
    if name != "spectral":  # theirs has the sum as partition
        value = value + np.log(79)
    torch.testing.assert_close(speed.FULL_MATRIX[name](z), value)


def test_all_loops_learn_the_same():
    X = np.random.RandomState(0).normal(size=(512, 8)).astype(np.float32)
    torch.manual_seed(0)
    final = {}
    for loop in (speed.plain_loop, speed.fast_loop, speed.skcl_fit):
        n_steps, losses = loop(X, 64, 10)
        assert n_steps == 80
        final[loop] = np.mean(
            losses[-8:] if loop is not speed.skcl_fit else losses[-1:]
        )
    final[speed.skcl_fit] += np.log(127)  # the mean of the others as partition
    assert max(final.values()) < np.log(127) - 0.5
    assert max(final.values()) - min(final.values()) < 0.4


def test_a_figure_is_the_median_of_the_turns():
    turns = {"a": [1.0, 2.0, 9.0], "b": [2.0, 2.0, 3.0]}
    assert speed.ratios(turns, "a", "b") == "1.00 (0.50 to 3.00)"


@pytest.mark.parametrize("argv", [[], ["imports"]])
def test_sections_run_alone_or_all(argv, monkeypatch, capsys, tmp_path):
    def stub(name):
        def section(repetitions, threads):
            yield f"{name} {repetitions} {threads}"

        section.__name__ = name
        return section

    stubs = [stub(section.__name__) for section in speed.SECTIONS]
    monkeypatch.setattr(speed, "SECTIONS", stubs)
    monkeypatch.setattr(speed.os, "environ", {})
    speed.main([*argv, "--repetitions", "3", "--output", str(tmp_path / "speed.md")])
    expected = argv or [section.__name__ for section in stubs]
    lines = [f"{name} 3 1" for name in expected]
    assert capsys.readouterr().out.splitlines() == lines
    written = (tmp_path / "speed.md").read_text().splitlines()
    assert [line for line in written if line] == lines
