"""The page's colours: their contrasts, and that colours of namespaces differ for all kinds of colour vision."""

import itertools
import re
from typing import Final

import numpy as np
import pytest
from numpy.typing import NDArray

from berth_kubectl.dashboard import files

Colour = NDArray[np.float64]
"""Linear red, green and blue, 0 to 1."""
Matrix = tuple[tuple[float, float, float], ...]

THEMES: Final = ("light", "dark")
PAIR: Final = re.compile(r"--(?P<name>[\w-]+): light-dark\((?P<light>#[0-9a-f]{6}), (?P<dark>#[0-9a-f]{6})\);")
NAMESPACES: Final = tuple(f"ns-{number}" for number in range(8))
FILLS: Final = (*NAMESPACES, "ns-other", "held", "track-edge", "line-strong", "accent", "bad", "warn", "good", "idle")
TEXTS: Final = ("ink", "ink-2", "accent", "bad", "warn", "good")
LEAST_NORMAL: Final = 0.15
LEAST_SIMULATED: Final = 0.12
"""Distances in Oklab, in which black and white are 1 apart; the eye sees about 0.02 side by side."""

VISIONS: Final[dict[str, Matrix]] = {
    "normal": ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
    "protanopia by Viénot 1999": ((0.10889, 0.89111, 0.0), (0.10889, 0.89111, 0.0), (0.00447, -0.00447, 1.0)),
    "deuteranopia by Viénot 1999": ((0.29031, 0.70969, 0.0), (0.29031, 0.70969, 0.0), (-0.02197, 0.02197, 1.0)),
    "protanopia by Machado 2009": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia by Machado 2009": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
}
"""What of linear red, green and blue is seen."""
LMS: Final[Matrix] = (
    (0.4122214708, 0.5363325363, 0.0514459929),
    (0.2119034982, 0.6806995451, 0.1073969566),
    (0.0883024619, 0.2817188376, 0.6299787005),
)
OKLAB: Final[Matrix] = (
    (0.2104542553, 0.7936177850, -0.0040720468),
    (1.9779984951, -2.4285922050, 0.4505937099),
    (0.0259040371, 0.7827717662, -0.8086757660),
)


def linear(text: str) -> Colour:
    """Return a colour of the form `#rrggbb`."""
    values = np.array([int(text[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    decoded: Colour = np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
    return decoded


def oklab(colour: Colour) -> Colour:
    """Return lightness and the two axes of colour."""
    axes: Colour = np.array(OKLAB) @ np.cbrt(np.array(LMS) @ np.clip(colour, 0, 1))
    return axes


def contrast(one: Colour, other: Colour) -> float:
    """Return the contrast of WCAG 2."""
    weights = np.array([0.2126, 0.7152, 0.0722])
    dark, light = sorted((float(weights @ one), float(weights @ other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.fixture(scope="module", params=THEMES)
def theme(request: pytest.FixtureRequest) -> dict[str, Colour]:
    """The colours of a theme by name."""
    text = files.read()["style/theme.css"].body.decode()
    return {match["name"]: linear(match[request.param]) for match in PAIR.finditer(text)}


@pytest.mark.parametrize("vision", VISIONS)
def test_colours_of_namespaces_differ(theme: dict[str, Colour], vision: str) -> None:
    seen = {name: oklab(np.array(VISIONS[vision]) @ theme[name]) for name in NAMESPACES}
    least = LEAST_NORMAL if vision == "normal" else LEAST_SIMULATED
    distances = {
        (one, other): round(float(np.linalg.norm(seen[one] - seen[other])), 3)
        for one, other in itertools.combinations(NAMESPACES, 2)
    }
    assert {pair: distance for pair, distance in distances.items() if distance < least} == {}


@pytest.mark.parametrize(("names", "grounds", "least"), [(FILLS, ["surface"], 3.0), (TEXTS, ["surface", "bg"], 4.5)])
def test_contrasts(theme: dict[str, Colour], names: list[str], grounds: list[str], least: float) -> None:
    found = {
        (name, ground): round(contrast(theme[name], theme[ground]), 2)
        for name, ground in itertools.product(names, grounds)
    }
    assert {pair: value for pair, value in found.items() if value < least} == {}


def test_the_edge_of_a_free_card_is_seen_on_both_sides(theme: dict[str, Colour]) -> None:
    assert min(contrast(theme["track-edge"], theme[ground]) for ground in ("surface", "track")) >= 3
