"""The rooms stand on floors, and the house keeps its habits."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import grimp
import pytest

import keyless

ROOT = Path(__file__).parents[1]
MODULES = sorted(module.name for module in pkgutil.walk_packages(keyless.__path__, "keyless."))
SOURCES = sorted((ROOT / "src" / "keyless").rglob("*.py"))


def test_rooms_import_from_lower_floors_only():
    code = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def imports() -> grimp.ImportGraph:
    return grimp.build_graph("keyless", cache_dir=None)


@pytest.mark.parametrize("room", ["metrics", "datasets"])
def test_the_truth_never_reaches_a_solver(imports, room):
    assert f"keyless.{room}" in imports.modules
    users = imports.find_downstream_modules(f"keyless.{room}")
    assert all(user.startswith(("keyless.cli", "keyless.paper.experiments")) for user in users), users


def test_importing_the_package_imports_nothing_heavy():
    code = "import sys, keyless; sys.exit(' '.join({'numpy', 'scipy', 'sklearn', 'rich'} & set(sys.modules)) or 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_module_says_what_is_public():
    wrong = []
    for name in MODULES:
        module = importlib.import_module(name)
        said = getattr(module, "__all__", None)
        if said is None:
            wrong.append(f"{name} has no __all__")
        else:
            wrong += [f"{name} says {public} twice" for public in set(said) if said.count(public) > 1]
            wrong += [f"{name} has no {public}" for public in said if getattr(module, public, None) is None]
    assert not wrong, wrong


def test_the_package_offers_every_public_name():
    for name in keyless.__all__:
        assert getattr(keyless, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = keyless.nonsense


def test_the_library_never_prints_nor_configures_logging():
    wrong = [
        f"{source.relative_to(ROOT)}, line {node.lineno}"
        for source in SOURCES
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {"print", "logging.basicConfig"}
    ]
    assert SOURCES
    assert not wrong, wrong


def test_modules_are_short():
    sizes = {str(source.relative_to(ROOT)): len(source.read_text(encoding="utf-8").splitlines()) for source in SOURCES}
    assert sizes
    assert not {name: size for name, size in sizes.items() if size > 500}


def test_no_two_classes_have_one_name():
    places: dict[str, list[str]] = {}
    for source in SOURCES:
        for node in ast.walk(ast.parse(source.read_text())):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(f"{source.relative_to(ROOT)}:{node.lineno}")
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
