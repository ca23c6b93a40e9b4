"""What holds for the repository itself: nothing of one machine in it, and a lock that is complete."""

from __future__ import annotations

import re
import subprocess
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
LOCKS = sorted((ROOT / "requirements").glob("*.txt"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

# Each pattern is written so that it does not match itself.
FORBIDDEN = {
    "an address of a package index": re.compile(
        r"https?://[^\s\"'<>)]*(?:[p]ypi|[p]ythonhosted|/[s]imple\b|[a]rtifactory|[n]exus|[d]evpi)",
        re.IGNORECASE,
    ),
    "a registry host": re.compile(r"\b(?:files\.)?[p]ythonhosted\.org|\b[p]ypi\.org", re.IGNORECASE),
    "an index option": re.compile(
        r"^\s*--?(?:[e]xtra-[i]ndex-url|[i]ndex-url|[f]ind-links|[t]rusted-host)\b", re.MULTILINE
    ),
    "a path of one machine": re.compile(
        r"(?<![\w.}])/(?:[r]oot|[h]ome/\w+|[U]sers/\w+|[w]ork/(?:main|shared)|[o]pt/wheels)\b"
    ),
}


def tracked_files() -> list[Path]:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: nothing is tracked")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    paths = [ROOT / name for name in listed.decode().split("\0") if name]
    return [path for path in paths if path.is_file()]  # deleted, not yet committed


# A comment between the mark and the blank line above it, other than a command to a tool or a line across the page.
REASON = re.compile(r"# (?!noqa|type:|fmt:|-)\S")


@pytest.mark.parametrize("path", sorted((ROOT / "tests").rglob("*.py")), ids=lambda path: path.stem)
def test_every_long_test_has_its_reason_beside_it(path: Path) -> None:
    without = []
    for paragraph in re.split(r"\n\s*\n", path.read_text()):
        lines = paragraph.splitlines()
        for number, line in enumerate(lines):
            if re.search(r"\bmark\.long(_on)?\b", line) and not REASON.search("\n".join(lines[: number + 1])):
                without.append(line.strip())
    assert without == []


def pins(lock: Path) -> dict[str, list[tuple[Requirement, str]]]:
    """Per package its pinned requirements (several if markers split it), each with the text of its entry."""
    found: dict[str, list[tuple[Requirement, str]]] = {}
    for entry in re.split(r"^(?=[A-Za-z0-9])", lock.read_text(), flags=re.MULTILINE):
        if not entry.strip() or entry.lstrip().startswith("#"):
            continue
        requirement = Requirement(entry.split("\\\n")[0].split("--hash")[0].split("#")[0].strip())
        found.setdefault(canonicalize_name(requirement.name), []).append((requirement, entry))
    return found


def declared_requirements() -> list[Requirement]:
    """The project's requirements with all extras, without its references to itself."""
    groups = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    requirements = [Requirement(text) for group in groups for text in group]
    return [r for r in requirements if r.name != PROJECT["name"]]


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_tracked_file_contains(what: str) -> None:
    pattern = FORBIDDEN[what]
    hits = [
        f"{path.relative_to(ROOT)}: {match.group()!r}"
        for path in tracked_files()
        for match in pattern.finditer(path.read_bytes().decode("utf-8", errors="replace"))
    ]
    assert not hits, f"{what} in:\n" + "\n".join(hits)


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("an address of a package index", "https:" + "//mirror.example/si" + "mple/numpy"),
        ("a registry host", "from py" + "pi.org"),
        ("an index option", "--ind" + "ex-url x"),
        ("an index option", "--fi" + "nd-links x"),
        ("a path of one machine", "see /ro" + "ot/x"),
        ("a path of one machine", "`/ho" + "me/someone/x`"),
    ],
)
def test_the_patterns_match_forbidden_text(what: str, text: str) -> None:
    assert FORBIDDEN[what].search(text)


def test_no_other_lock_is_tracked() -> None:
    names = {path.name for path in tracked_files()}
    assert not names & {"uv.lock", "pylock.toml", "poetry.lock", "Pipfile.lock"}


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_every_pin_is_exact_and_hashed(lock: Path) -> None:
    packages = pins(lock)
    assert packages
    for requirement, entry in (pin for found in packages.values() for pin in found):
        assert re.fullmatch(r"==[^*,]+", str(requirement.specifier)), f"{requirement} is not one exact version"
        assert not requirement.url, f"{requirement} comes from an address"
        assert re.search(r"--hash=sha256:[0-9a-f]{64}\b", entry), f"{requirement} has no hash"


def installed_requirements(environment: Path) -> dict[tuple[str, str], list[Requirement]]:
    """Read the requirements of every package that is installed in a virtual environment, by name and version."""
    folders = [str(path) for path in environment.glob("lib/python*/site-packages")]
    return {
        (canonicalize_name(found.name), found.version): [Requirement(text) for text in found.requires or []]
        for found in metadata.distributions(path=folders)
    }


def python_of(environment: Path) -> dict[str, str]:
    """Return the values of the markers that depend on the Python of an environment."""
    version = re.search(r"^version(?:_info)? = (3\.\d+)(\S*)", (environment / "pyvenv.cfg").read_text(), re.MULTILINE)
    assert version
    return {"python_version": version[1], "python_full_version": version[1] + version[2]}


def missing_requirements(lock: Path, environment: Path) -> list[str]:
    """Name each requirement of a locked package, with the extras that the lock requires, that the lock lacks."""
    packages = pins(lock)
    known, python = installed_requirements(environment), python_of(environment)
    problems = []
    for pin, _ in (pin for found in packages.values() for pin in found):
        if pin.marker and not pin.marker.evaluate(python):
            continue  # not installed on this platform
        installed = known.get((canonicalize_name(pin.name), str(pin.specifier).removeprefix("==")))
        if installed is None:
            problems.append(f"{pin} is not installed in {environment.name}")
            continue
        for needed in installed:
            if needed.marker and not any(
                needed.marker.evaluate(python | {"extra": extra}) for extra in {"", *pin.extras}
            ):
                continue
            locked = [candidate for candidate, _ in packages.get(canonicalize_name(needed.name), [])]
            if not any(needed.extras <= candidate.extras for candidate in locked):
                problems.append(f"{pin.name} needs {needed}")
    return problems


@pytest.mark.parametrize(
    ("lock", "environment"),
    [
        ("lock.txt", ".venv"),
        ("serve.txt", ".venv"),
        ("build.txt", ".venv"),
        # `make test-all` installs the environments of the benchmarks; `make test` does not.
        pytest.param("bench.txt", ".venv-bench", marks=pytest.mark.long),
        pytest.param("ducklake.txt", ".venv-ducklake", marks=pytest.mark.long),
        pytest.param("compat-oldest.txt", ".venv-compat-oldest", marks=pytest.mark.long),
        pytest.param("compat-newest.txt", ".venv-compat-newest", marks=pytest.mark.long),
    ],
)
def test_the_lock_holds_every_requirement_of_its_packages(lock: str, environment: str) -> None:
    if "compat" in lock and not (ROOT / environment).exists():
        pytest.skip(f"{environment} is missing: `make compat` found no Python for it")
    assert not missing_requirements(ROOT / "requirements" / lock, ROOT / environment)


def test_a_lock_that_lost_an_extra_is_found(tmp_path: Path) -> None:
    text = (ROOT / "requirements/lock.txt").read_text()
    stripped = tmp_path / "lock.txt"
    stripped.write_text(text.replace("coverage[toml]==", "coverage=="))
    problems = missing_requirements(stripped, ROOT / ".venv")
    assert [problem.split(">")[0] for problem in problems] == ["pytest-cov needs coverage[toml]"]


def test_a_lock_that_lost_a_package_is_found(tmp_path: Path) -> None:
    entries = re.split(r"^(?=[A-Za-z0-9])", (ROOT / "requirements/lock.txt").read_text(), flags=re.MULTILINE)
    short = tmp_path / "lock.txt"
    short.write_text("".join(entry for entry in entries if not entry.startswith("python-dateutil==")))
    assert any("python-dateutil" in problem for problem in missing_requirements(short, ROOT / ".venv"))


@pytest.mark.parametrize("requirement", declared_requirements(), ids=str)
def test_the_lock_satisfies_pyproject(requirement: Requirement) -> None:
    found = pins(ROOT / "requirements/lock.txt").get(canonicalize_name(requirement.name))
    assert found, f"{requirement.name} is not in requirements/lock.txt; run `make lock`"
    for pin, _ in found:
        version = Version(str(pin.specifier).removeprefix("=="))
        assert version in requirement.specifier, f"{pin} is outside {requirement}; run `make lock`"


@pytest.mark.parametrize(
    "requirement",
    [Requirement(text) for text in [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["s3"]]],
    ids=str,
)
def test_the_oldest_lock_holds_the_lower_bounds(requirement: Requirement) -> None:
    ((pin, _),) = pins(ROOT / "requirements/compat-oldest.txt")[canonicalize_name(requirement.name)]
    (lower,) = [Version(bound.version) for bound in requirement.specifier if bound.operator == ">="]
    assert Version(str(pin.specifier).removeprefix("==")) == lower, (
        "change requirements/compat-oldest.in, run `make lock`"
    )


@pytest.mark.parametrize("part", ["build", "serve"])
def test_the_other_locks_agree_with_the_lock(part: str) -> None:
    lock = pins(ROOT / "requirements/lock.txt")
    for name, found in pins(ROOT / f"requirements/{part}.txt").items():
        assert {str(pin.specifier) for pin, _ in found} <= {str(pin.specifier) for pin, _ in lock[name]}, name


def test_serving_installs_what_serving_needs() -> None:
    served = pins(ROOT / "requirements/serve.txt")
    extras = PROJECT["optional-dependencies"]
    needed = [Requirement(text).name for part in ("server", "spark", "s3") for text in extras[part]]
    assert {canonicalize_name(name) for name in needed if name != PROJECT["name"]} <= served.keys()
    assert not {"pytest", "mypy", "playwright", "zensical"} & served.keys()


def test_make_help_names_every_target_people_use() -> None:
    shown = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for target in ("serve", "setup", "setup-test", "test", "test-all", "compat", "lint", "format", "bench", "clean"):
        assert f"make {target} " in shown
