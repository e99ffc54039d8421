"""The colours of runs and phases can be told apart by readers with any colour vision, on light and on dark paper."""

import re
from importlib import resources
from itertools import combinations

import numpy as np
import pytest

from paratune.reports.figures.canvas import RUN_COLOURS
from paratune.reports.systems.figures import PHASE_COLOURS

# Machado, Oliveira and Fernandes, A Physiologically-based Model for Simulation of Color Vision Deficiency, IEEE TVCG
# 2009, severity 1; for linear RGB.
VISIONS = {
    "usual": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])  # of sRGB, IEC 61966-2-1
STYLE = resources.files("paratune.reports.page").joinpath("style.css").read_text(encoding="utf-8")
LIGHT, DARK = zip(*re.findall(r"--run-\d: light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\)", STYLE), strict=True)


def _linear(colour):
    values = np.array([int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)])
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def _lab(linear):
    """CIE 1976 L*a*b*, D65."""
    ratio = XYZ @ np.clip(linear, 0, 1) / np.array([0.9505, 1.0, 1.089])
    f = np.where(ratio > 0.008856, np.cbrt(ratio), 7.787 * ratio + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def _contrast(first, second):
    """WCAG 2.2, contrast ratio."""
    low, high = sorted((XYZ @ _linear(colour))[1] + 0.05 for colour in (first, second))
    return high / low


@pytest.mark.parametrize("vision", VISIONS)
@pytest.mark.parametrize("colours", [LIGHT, DARK, tuple(PHASE_COLOURS.values())], ids=["light", "dark", "phases"])
def test_colours_differ_for_every_vision(colours, vision):
    seen = [_lab(np.array(VISIONS[vision]) @ _linear(colour)) for colour in colours]
    # A difference of 2.3 is just noticeable; 10 is seen at a glance.
    assert min(np.linalg.norm(first - second) for first, second in combinations(seen, 2)) > 10


@pytest.mark.parametrize(("colours", "paper"), [(LIGHT, "#ffffff"), (DARK, "#15171a")], ids=["light", "dark"])
def test_line_colours_have_contrast_with_the_background(colours, paper):
    assert paper in re.search(r"--paper: light-dark\((.*?)\)", STYLE)[1]
    assert min(_contrast(colour, paper) for colour in colours) >= 3  # WCAG 2.2, 1.4.11, graphical objects


def test_figures_and_page_have_the_same_colours():
    assert RUN_COLOURS == LIGHT
    assert len(DARK) == len(LIGHT)
