"""The diagrams of the documentation: the files are those that are drawn, and can be read."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Final

import pytest

from docs.pictures import diagrams

PICTURES: Final = sorted(diagrams.PICTURES)
#: WCAG's level AA, for text.
ENOUGH: Final = 4.5
SVG: Final = "{http://www.w3.org/2000/svg}"


def luminance(colour: str) -> float:
    parts = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("name", PICTURES)
def test_a_file_is_what_is_drawn(name: str) -> None:
    file = Path(diagrams.__file__).parent / name
    assert file.read_text() == str(diagrams.PICTURES[name]()), "Run `python -m docs.pictures.diagrams`."


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_stands_alone(name: str) -> None:
    drawn = str(diagrams.PICTURES[name]())
    picture = ET.fromstring(drawn)
    assert picture.findtext(f"{SVG}title")
    assert picture.findtext(f"{SVG}desc")
    assert len(drawn.encode()) < 12_000
    assert "url(" not in drawn
    assert "href" not in drawn


@pytest.mark.parametrize("name", PICTURES)
def test_no_line_is_cut_off(name: str) -> None:
    """By a width of letters that is a little above that of common fonts."""
    picture = ET.fromstring(str(diagrams.PICTURES[name]()))
    for line in picture.iter(f"{SVG}text"):
        words, shapes = str(line.text), str(line.get("class")).split()
        width = len(words) * 0.53 * diagrams.SMALLEST
        begin = float(str(line.get("x"))) - width * ("e" in shapes or ("m" in shapes) / 2)
        assert begin >= 0, words
        assert begin + width <= diagrams.WIDTH, words


@pytest.mark.parametrize("name", PICTURES)
def test_no_text_is_too_small_for_a_phone(name: str) -> None:
    drawn = str(diagrams.PICTURES[name]())
    sizes = {int(size) for size in re.findall(r"font(?:-size)?:(\d+)px", drawn)}
    assert min(sizes) * 390 / diagrams.WIDTH >= 15


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("kind", sorted(diagrams.COLOURS))
def test_colours_have_enough_contrast(kind: str, theme: int) -> None:
    """Text on the page, in a box of its kind, and in a box of what is stored; lines on the page."""
    page, stored = diagrams.COLOURS["page"][theme][0], diagrams.COLOURS["stored"][theme][0]
    fill, line, text = diagrams.COLOURS[kind][theme]
    assert min(contrast(text, ground) for ground in (page, stored, fill)) >= ENOUGH
    assert kind in {"page", "note"} or contrast(line, page) >= 3
