"""The docstrings of exported names: complete, in Google style, with examples that run."""

from __future__ import annotations

import builtins
import dataclasses
import doctest
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import inlay
from inlay import errors, incremental, spark
from tests.pages import load_generator

GENERATOR = load_generator()
SUMMARY_LENGTH = 88
REFERENCE = re.compile(r"[Ss]ee (`[\w.]+`(?: and `[\w.]+`)*)")


def exported() -> dict[str, Any]:
    """The functions and classes that `inlay`, `inlay.incremental` and `inlay.spark` export, each once."""
    found: dict[int, tuple[str, Any]] = {}
    for module in (inlay, incremental, spark):
        for name in module.__all__:
            value = getattr(module, name)
            if inspect.isfunction(value) or inspect.isclass(value):
                found.setdefault(id(value), (name, value))
    return dict(found.values())


def methods() -> Iterator[tuple[str, Any]]:
    for name, value in EXPORTED.items():
        if inspect.isclass(value):
            yield from ((f"{name}.{method}", member) for method, member in GENERATOR.public_methods(value))


EXPORTED = exported()
METHODS = dict(methods())
CALLABLES = {name: value for name, value in EXPORTED.items() if inspect.isfunction(value)} | METHODS
CLASSES = {name: value for name, value in EXPORTED.items() if inspect.isclass(value)}
NEVER_RAISE = {"cleanup_staging_files", "name", "parse_hive_partition_path", "to_dict"}
FUNCTIONS = {  # the methods of every DatasetIO class, with the function that they call
    "merge": inlay.merge,
    "plan_merge": inlay.plan_merge,
    "write_dataset": inlay.write_dataset,
    "alter": inlay.alter,
    "plan_alter": inlay.plan_alter,
    "compact": inlay.compact,
    "delete": inlay.delete,
    "plan_delete": inlay.plan_delete,
    "read_parquet": inlay.read_parquet,
}


def docstring(value: Any) -> str:
    """The value's own docstring, or for methods that of the method it overrides."""
    own = value.__doc__ if inspect.isclass(value) else inspect.getdoc(value)
    return inspect.cleandoc(own or "")


def section(value: Any, title: str) -> dict[str, str]:
    return {
        name: text
        for found, lines in GENERATOR._sections(docstring(value))
        if found == title
        for name, text in GENERATOR._entry_texts(lines).items()
    }


def resolve(name: str) -> Any:
    value: Any = inlay
    for part in name.removeprefix("inlay.").split("."):
        value = getattr(value, part, None) or getattr(incremental, part)
    return value


def referenced(value: Any) -> list[Any]:
    names = [name for found in REFERENCE.findall(docstring(value)) for name in re.findall(r"`([\w.]+)`", found)]
    return [resolve(name) for name in names if name.startswith("inlay.") or "." in name]


def parameters(value: Any) -> set[str]:
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    found = inspect.signature(value).parameters.values()
    return {stars.get(each.kind, "") + each.name for each in found} - {"self", "cls"}


def check_arguments(value: Any, signature: Any) -> None:
    described = set(section(value, "Args"))
    assert described <= parameters(signature), "Args names a parameter that does not exist"
    for other in referenced(value):
        described |= set(section(other, "Args"))
    assert parameters(signature) - described == set(), "Args lacks a parameter"


@pytest.mark.parametrize("name", EXPORTED | METHODS)
def test_the_summary_is_one_sentence(name: str) -> None:
    first = docstring((EXPORTED | METHODS)[name]).partition("\n\n")[0]
    assert first.endswith(".")
    assert "\n" not in first
    assert len(first) <= SUMMARY_LENGTH


@pytest.mark.parametrize("name", CALLABLES)
def test_every_parameter_is_described(name: str) -> None:
    check_arguments(CALLABLES[name], CALLABLES[name])


@pytest.mark.parametrize("name", [name for name, kind in CLASSES.items() if GENERATOR._has_constructor(kind)])
def test_every_parameter_of_a_constructor_is_described(name: str) -> None:
    kind = CLASSES[name]
    if kind.__init__.__qualname__.startswith(kind.__name__):
        check_arguments(kind, kind.__init__)


@pytest.mark.parametrize("name", [name for name, kind in CLASSES.items() if dataclasses.is_dataclass(kind)])
def test_every_field_is_described(name: str) -> None:
    texts = GENERATOR._attribute_texts(CLASSES[name])
    assert {field.name for field in dataclasses.fields(CLASSES[name])} - set(texts) == set()


@pytest.mark.parametrize("name", CALLABLES)
def test_every_result_is_described(name: str) -> None:
    returns = inspect.signature(CALLABLES[name]).return_annotation
    assert (returns == "None") != ("\nReturns:\n" in docstring(CALLABLES[name]))


@pytest.mark.parametrize("name", EXPORTED | METHODS)
def test_every_error_that_is_named_exists(name: str) -> None:
    for error in section((EXPORTED | METHODS)[name], "Raises"):
        assert hasattr(errors, error) or hasattr(builtins, error), error


@pytest.mark.parametrize("name", EXPORTED | METHODS)
def test_every_name_has_an_example(name: str) -> None:
    """A method that only calls a function of inlay refers to it, because the function has the example."""
    value = (EXPORTED | METHODS)[name]
    function = FUNCTIONS.get(name.rpartition(".")[2]) if name in METHODS else None
    assert function is None or function in referenced(value)
    assert "\nExample:\n    >>> " in docstring(function or value)


@pytest.mark.parametrize("name", CALLABLES)
def test_every_error_is_described(name: str) -> None:
    method = name.rpartition(".")[2]
    assert bool(section(CALLABLES[name], "Raises")) != (method in NEVER_RAISE)
    if name in METHODS and method in FUNCTIONS:
        assert section(CALLABLES[name], "Raises") == section(FUNCTIONS[method], "Raises")


WITH_EXAMPLES = {name: value for name, value in (EXPORTED | METHODS).items() if ">>> " in docstring(value)}


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_every_example_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    example = doctest.DocTestParser().get_doctest(docstring(WITH_EXAMPLES[name]), {}, name, None, None)
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    runner.run(example, out=report.append)
    assert runner.failures == 0, "".join(report)


@pytest.mark.parametrize("kind", [inlay.PyArrowDatasetIO, inlay.DuckDBDatasetIO, inlay.SparkDatasetIO])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_methods_have_the_parameters_of_functions(kind: type, name: str) -> None:
    _, *own = inspect.signature(getattr(kind, name)).parameters.values()
    assert own == [p for p in inspect.signature(FUNCTIONS[name]).parameters.values() if p.name != "engine"]


def test_the_help_of_merge_explains_every_choice() -> None:
    text = section(inlay.merge, "Args")
    for strategy in incremental.STRATEGIES:
        assert f'`"{strategy}"`' in text["strategy"]
    for engine in ("auto", "pyarrow", "duckdb", "spark"):
        assert f'`"{engine}"`' in text["engine"]
    for mode in ("strict", "evolve"):
        assert f'`"{mode}"`' in text["schema_mode"]
    for choice in ("None", "True", "callback", "Return False"):
        assert choice in text["progress"]
