"""What tests of documentation and examples share: the Python blocks of pages, and shards that the examples can run on."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import numpy as np

import demo_shards

DOCS = Path(__file__).parents[2] / "docs"
EXAMPLES = Path(demo_shards.__file__).parent

_BLOCK = re.compile(r"^( *)```python\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


def python_blocks(page: str) -> list[str]:
    """Return the Python blocks of a page, in order."""
    text = (DOCS / page).read_text(encoding="utf-8")
    blocks = [textwrap.dedent(code) for _, code in _BLOCK.findall(text)]
    assert text.count("```python") == len(blocks), f"a Python block of {page} must end as it began"
    return blocks


def is_part_of(block: str, text: str) -> bool:
    """Return whether a block is a part of a text, however the formatter breaks and indents the lines of both."""
    wanted, whole = (re.sub(r",(?=[)\]}])", "", re.sub(r"\s", "", code)) for code in (block, text))
    return wanted in whole


def write_digits(folder: Path) -> None:
    """Write the digits, and their negatives as a second source: the other sources of the demo take seconds to load."""
    from sklearn.datasets import load_digits

    demo_shards.write_digits(folder)
    images, labels = load_digits(return_X_y=True)
    negatives = np.round(255 - images[:300].reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    samples = (demo_shards._digit(negatives, labels, index) for index in range(300))
    demo_shards.write_shards(folder, "negatives", samples, 100)
