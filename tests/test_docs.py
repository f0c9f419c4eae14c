"""What is written for readers stays true."""

from __future__ import annotations

import doctest
import importlib
import importlib.metadata
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import keyless

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
MODULES = sorted(module.name for module in pkgutil.walk_packages(keyless.__path__, "keyless."))


def test_readme_starts_with_two_commands():
    _, commands = BLOCKS[0]
    assert commands.splitlines() == ["pip install . && keyless demo", 'pip install ".[test]" && pytest']


def test_readme_code_runs():
    """All Python blocks, in order, as one reader would type them."""
    code = [block for language, block in BLOCKS if language == "python"]
    assert code
    names: dict[str, object] = {}
    for block in code:
        exec(compile(block, "README.md", "exec"), names)


SLOW_PAGES = {"architecture.md", "python.md", "report.md"}
"""Pages whose code takes more than three seconds."""

NEEDED_LIBRARIES = {"python.md": ["anndata"]}
"""Libraries of extras that the code of a page imports."""


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.slow if page.name in SLOW_PAGES else (), id=page.name)
        for page in sorted((ROOT / "docs").rglob("*.md"))
    ],
)
def test_code_in_the_docs_runs(page, capsys):
    """All Python blocks, in order; a block of text right behind one of them is what it prints."""
    for library in NEEDED_LIBRARIES.get(page.name, ()):
        pytest.importorskip(library)
    names: dict[str, object] = {}
    for block, printed in re.findall(
        r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```$)?",
        page.read_text(encoding="utf-8"),
        flags=re.MULTILINE | re.DOTALL,
    ):
        exec(compile(block, page.name, "exec"), names)
        said = capsys.readouterr().out
        assert not printed or said == printed


def test_the_architecture_page_names_every_room():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rooms = {name.split(".")[1] for name in MODULES}
    assert not [room for room in sorted(rooms) if not re.search(rf"`{room}\b", page)]


def test_the_benchmark_page_is_what_the_results_say():
    code = "import make_page; assert make_page.page() == make_page.PAGE.read_text(encoding='utf-8')"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT / "benchmarks", capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, "run `python benchmarks/make_page.py`: " + done.stderr


def test_readme_python_blocks_say_so():
    assert {language for language, _ in BLOCKS} <= {"sh", "python"}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
        if not target.startswith(("https://", "http://", "mailto:")):
            assert (page.parent / target).exists(), target


def test_contributing_names_files_tests_and_lists_that_exist():
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    paths = re.findall(r"`(?:python )?((?:src|tests|docs|benchmarks)/[\w/.]+)[` ]", page)
    assert paths
    assert not [path for path in paths if not (ROOT / path).exists()]
    code = "\n".join(
        path.read_text(encoding="utf-8") for room in ("src", "tests") for path in ROOT.glob(f"{room}/**/*.py")
    )
    names = re.findall(r"`(test_\w+|_\w+|(?!KEYLESS_)[A-Z_]{5,})`", page)
    assert not [
        name for name in names if not re.search(rf"^(?:    )?(?:def {name}\(|{name}\b.* = )", code, re.MULTILINE)
    ]


def test_docstring_examples_run():
    ran = {name: doctest.testmod(importlib.import_module(name)) for name in MODULES}
    assert sum(results.attempted for results in ran.values())
    assert not [name for name, results in ran.items() if results.failed]


def test_one_version_everywhere():
    assert importlib.metadata.version("keyless") == keyless.__version__
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^version: (\S+)$", citation, flags=re.MULTILINE) == [keyless.__version__]
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## \[(\d[^]]*)\]", changelog, flags=re.MULTILINE)[0] == keyless.__version__
