"""Are the colors of sources told apart, and the letters on them read? Computed from the style sheet of the page."""

from __future__ import annotations

import re
from importlib.resources import files
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from equitar.reporting.page import _COLORS

CSS = (files("equitar") / "templates" / "report.css").read_text(encoding="utf-8")
# From linear RGB to the cones, and from their cube roots to lightness and two opponent colors: Ottosson, "OKLab" (2020).
CONES = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
LAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)
LUMINANCE = np.array([0.2126, 0.7152, 0.0722])  # of linear RGB, as WCAG defines it


def linear(color: str) -> NDArray[np.float64]:
    """Return the linear RGB of #rgb or #rrggbb."""
    digits = color.removeprefix("#")
    digits = "".join(2 * digit for digit in digits) if len(digits) == 3 else digits
    channels = np.array([int(digits[place : place + 2], 16) for place in (0, 2, 4)]) / 255
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def oklab(color: str) -> NDArray[np.float64]:
    lab: NDArray[np.float64] = LAB @ np.cbrt(CONES @ linear(color))
    return lab


def contrast(color: str, other: str) -> float:
    """Return the contrast ratio of WCAG."""
    darker, lighter = sorted(float(LUMINANCE @ linear(each)) for each in (color, other))
    return (lighter + 0.05) / (darker + 0.05)


def pairs_of_colors() -> dict[str, tuple[str, str]]:
    """Return background and text of each source's color, by its class."""
    rules = re.findall(r"\.(c\d+) \{ background: (#\w+); color: (#\w+); \}", CSS)
    return {name: (background, text) for name, background, text in rules}


def test_formulas_give_what_their_definitions_say() -> None:
    assert np.allclose(oklab("#fff"), [1, 0, 0], atol=1e-4)
    assert np.allclose(oklab("#ff0000"), [0.62796, 0.22486, 0.12585], atol=1e-4)
    assert round(contrast("#fff", "#000"), 6) == 21
    assert round(contrast("#777", "#fff"), 2) == 4.48


def test_there_are_as_many_colors_as_sources_take_in_turn() -> None:
    assert [*pairs_of_colors()] == [f"c{number}" for number in range(_COLORS)]
    assert _COLORS == 30


def test_any_two_colors_are_told_apart() -> None:
    labs = {name: oklab(background) for name, (background, _) in pairs_of_colors().items()}
    distances = {pair: float(np.linalg.norm(labs[pair[0]] - labs[pair[1]])) for pair in combinations(labs, 2)}
    assert {pair: distance for pair, distance in distances.items() if distance < 0.1} == {}


def test_letters_are_read_on_every_color() -> None:
    ratios = {name: contrast(*pair) for name, pair in pairs_of_colors().items()}
    assert {name: ratio for name, ratio in ratios.items() if ratio < 4.5} == {}
