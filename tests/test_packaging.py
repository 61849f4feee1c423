"""What a user installs and what a newcomer types: versions, the wheel's files, the make targets."""

import importlib.metadata
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import tiercache

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
MAKE_TARGETS = {"demo", "test", "soak", "lint", "types", "format", "wheel", "clean", "help"}


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_versions_agree():
    version = PROJECT["version"]
    newest = re.search(r"^## \[?(\d[^\]\s]*)", read("CHANGELOG.md"), re.MULTILINE)
    assert newest is not None and newest.group(1) == version
    assert importlib.metadata.version("tiercache") == version
    assert getattr(tiercache, "__version__", version) == version


def test_the_changelog_leads_with_what_is_unreleased():
    headings = re.findall(r"^## \[?([^\]\s]+)", read("CHANGELOG.md"), re.MULTILINE)
    assert headings[0] == "Unreleased"


def test_readme_shows_the_two_commands_a_newcomer_needs():
    readme = read("README.md")
    assert "make demo" in readme
    assert "make test" in readme


def test_every_make_target_exists_and_is_explained():
    shown = subprocess.run(
        ["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert set(re.findall(r"^  make (\w+) +\S", shown, re.MULTILINE)) >= MAKE_TARGETS


def test_extras_name_what_they_add():
    extras = PROJECT["optional-dependencies"]
    assert extras["cuda12"] == ["jax[cuda12]"]
    assert extras["cuda13"] == ["jax[cuda13]"]
    assert extras["triton"] == ["jax-triton<0.4"]
    assert extras["testing"] == ["hypothesis"]
    assert "tiercache[testing]" in extras["test"]


def fake_python(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)


def find_python(folder: Path, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/sh", ROOT / "tools/find-python", *args],
        env={"PATH": str(folder), "HOME": str(folder), **env},
        capture_output=True,
        text=True,
    )


REAL = f'exec "{sys.executable}" "$@"'
ABSENT = "echo 'command not found' >&2; exit 127"


def test_find_python_passes_over_names_that_lie(tmp_path):
    fake_python(tmp_path, "python3.13", ABSENT)
    fake_python(tmp_path, "python3.12", ABSENT)
    fake_python(tmp_path, "python3", "exit 1")
    fake_python(tmp_path, "python", REAL)
    found = find_python(tmp_path)
    assert (found.returncode, found.stdout.strip()) == (0, sys.executable)


def test_find_python_takes_an_exact_version_or_none(tmp_path):
    fake_python(tmp_path, "python3", REAL)
    major, minor = sys.version_info[:2]
    assert find_python(tmp_path, f"{major}.{minor}").stdout.strip() == sys.executable
    missing = find_python(tmp_path, f"{major}.{minor + 40}")
    assert (missing.returncode, missing.stdout) == (1, "")
    assert f"No Python {major}.{minor + 40}" in missing.stderr


def test_find_python_looks_among_the_versions_of_pyenv(tmp_path):
    folder = tmp_path / "pyenv/versions/3.12.99/bin"
    folder.mkdir(parents=True)
    fake_python(folder, "python", REAL)
    found = find_python(tmp_path, PYENV_ROOT=str(tmp_path / "pyenv"))
    assert found.stdout.strip() == sys.executable


def test_find_python_heeds_the_given_one_and_says_why_not(tmp_path):
    fake_python(tmp_path, "python3", ABSENT)
    fake_python(tmp_path, "mine", REAL)
    assert find_python(tmp_path, PYTHON=str(tmp_path / "mine")).stdout.strip() == sys.executable
    refused = find_python(tmp_path, PYTHON=str(tmp_path / "python3"))
    assert refused.returncode == 1
    assert "is not a Python >= 3.12" in refused.stderr
    assert find_python(tmp_path).returncode == 1


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT],
        check=True,
        capture_output=True,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
    )
    (path,) = folder.glob("*.whl")
    return zipfile.ZipFile(path)


@pytest.mark.slow
def test_the_wheel_ships_both_packages_whole_and_nothing_else(wheel):
    names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    for package in ("tiercache", "pallas_kernels"):
        expected = {
            path.relative_to(ROOT).as_posix()
            for path in (ROOT / package).rglob("*")
            if path.suffix == ".py" or path.name == "py.typed"
        }
        assert expected <= names
        assert f"{package}/py.typed" in names
    assert {name.split("/")[0] for name in names} == {"tiercache", "pallas_kernels"}


@pytest.mark.slow
def test_the_wheel_carries_its_licence_and_its_needs(wheel):
    (metadata,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    text = wheel.read(metadata).decode()
    needs = {
        re.split(r"[<>=\[; ]", line.removeprefix("Requires-Dist: "))[0]
        for line in text.splitlines()
        if line.startswith("Requires-Dist: ") and "extra ==" not in line
    }
    assert needs == {"jax", "numpy", "flax", "jaxtyping"}
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in wheel.namelist())
