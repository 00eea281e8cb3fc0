"""The code in the README runs, in order, as one program."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_code_blocks_run(path, capsys):
    blocks = re.findall(r"^```python\n(.*?)^```", path.read_text(), re.M | re.S)
    namespace = {}
    for block in blocks:
        exec(compile(block, str(path), "exec"), namespace)
    if path.name == "README.md":
        assert "contrastiveencoder__regularizer_weight" in capsys.readouterr().out


def test_the_example_of_the_readme_is_five_lines():
    first = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert len([line for line in first.group(1).splitlines() if line]) == 5
