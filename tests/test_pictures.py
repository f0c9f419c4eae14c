"""The pictures of docs/how-it-works.md and docs/limits.md: all are there and used, and are what the code makes."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType

import matplotlib
import pytest

DOCS = Path(__file__).parents[1] / "docs"
TEXT = "\n".join((DOCS / page).read_text(encoding="utf-8") for page in ("how-it-works.md", "limits.md"))
IMAGES = re.findall(r"!\[([^]]*)\]\(([^)]*)\)", TEXT)
PICTURES = sorted((DOCS / "pictures").glob("*.svg"))


@pytest.fixture(scope="module")
def maker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_pictures", DOCS / "make_pictures.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_pages_show_pictures_that_exist():
    assert IMAGES
    for _, target in IMAGES:
        assert (DOCS / target).is_file(), target


def test_every_picture_is_shown_once_and_has_code(maker):
    shown = sorted(target for _, target in IMAGES)
    assert shown == [f"pictures/{picture.name}" for picture in PICTURES]
    assert sorted(maker.PICTURES) == [picture.stem for picture in PICTURES]


def test_every_picture_is_described_for_who_cannot_see_it():
    for text, target in IMAGES:
        assert len(text.split()) >= 10, target


def test_the_pages_state_the_figures_that_the_code_printed(maker):
    """After a change to the pictures: `python docs/make_pictures.py`, and mend the text."""
    words = " ".join(TEXT.split())
    printed = json.loads(maker.FIGURES.read_text(encoding="utf-8"))
    assert list(printed) == list(maker.PICTURES)
    absent = [f"{key}: {value}" for stated in printed.values() for key, value in stated.items() if value not in words]
    assert not absent


def test_pictures_carry_no_date():
    for picture in PICTURES:
        assert "dc:date" not in picture.read_text(encoding="utf-8"), picture.name


def test_a_picture_made_again_is_the_same(maker, tmp_path):
    kept = (DOCS / "pictures" / "problem.svg").read_bytes()
    version = re.search(rb"Matplotlib v([\d.]+\w*)", kept)
    assert version is not None
    if version[1].decode() != matplotlib.__version__:
        pytest.skip(f"the picture was made by matplotlib {version[1].decode()}; this is {matplotlib.__version__}")
    stated = maker.draw("problem", tmp_path)
    assert (tmp_path / "problem.svg").read_bytes() == kept
    assert stated == json.loads(maker.FIGURES.read_text(encoding="utf-8"))["problem"]


@pytest.mark.parametrize(
    "name", [pytest.param("likelihood", marks=pytest.mark.slow), pytest.param("crossing", marks=pytest.mark.soak)]
)
def test_pictures_of_the_engine_can_be_made(maker, tmp_path, name):
    """They call parts of the engine directly, which a change of those parts may break."""
    stated = maker.draw(name, tmp_path)
    assert (tmp_path / f"{name}.svg").stat().st_size > 0
    assert list(stated) == list(json.loads(maker.FIGURES.read_text(encoding="utf-8"))[name])
