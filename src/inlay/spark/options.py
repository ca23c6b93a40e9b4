"""The options of the format `inlay`, which are texts, as arguments of inlay's functions."""

from __future__ import annotations

import contextlib
import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from inlay import incremental
from inlay.errors import InvalidArgumentError, unknown
from inlay.incremental import MergeStrategy
from inlay.incremental.strategies import get_strategy

__all__ = ["ReadOptions", "WriteOptions", "merge_options"]

# Spark passes these to every data source.
_OF_SPARK = ("path", "checkpointlocation", "queryname")
# Objects, arguments that the format itself passes, and settings of other engines or sources.
_NOT_TEXT = ("data", "source", "path", "mode", "filesystem", "engine", "progress", "use_merge", "read_options")


def merge_options() -> dict[str, inspect.Parameter]:
    """Return the arguments of `merge` that a stream or a Spark write can set, except strategy and keys."""
    found = _arguments(incremental.merge)
    return {name: found[name] for name in found if name not in ("strategy", "key_columns")}


def _arguments(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    return {name: each for name, each in inspect.signature(function).parameters.items() if name not in _NOT_TEXT}


@dataclass(frozen=True)
class WriteOptions:
    """A write through the format `inlay`: a merge if it has key columns, otherwise new files."""

    path: str
    mode: Literal["append", "overwrite"]
    key_columns: list[str] | None
    strategy: MergeStrategy
    arguments: dict[str, Any]

    @classmethod
    def parse(cls, options: Mapping[str, str], *, overwrite: bool) -> WriteOptions:
        texts = _without_spark_options(options)
        path = _require_path(options)
        if "keys" in texts and "key_columns" in texts:
            raise InvalidArgumentError("The options keys and key_columns mean the same.", hint="Pass only keys.")
        keys = texts.pop("keys", None) or texts.pop("key_columns", None)
        mode: Literal["append", "overwrite"] = "overwrite" if overwrite else "append"
        if keys is None:
            if "strategy" in texts:
                raise InvalidArgumentError(
                    f"strategy={texts['strategy']!r} needs key columns.",
                    hint='Name them, separated by commas: option("keys", "id").',
                )
            return cls(
                path, mode, None, "upsert", _parse(texts, _arguments(incremental.write_dataset), ["keys", "strategy"])
            )
        if overwrite:
            raise InvalidArgumentError(
                'mode("overwrite") replaces all rows, so it compares no keys.',
                hint='Remove the option keys, or merge with mode("append"): strategy "full_merge" deletes the rows'
                " whose keys the source lacks.",
            )
        strategy = get_strategy(texts.pop("strategy", "upsert")).name
        return cls(path, mode, _names("keys", keys), strategy, _parse(texts, merge_options(), ["keys", "strategy"]))

    @property
    def storage_options(self) -> Mapping[str, Any] | None:
        return self.arguments.get("storage_options")


@dataclass(frozen=True)
class ReadOptions:
    """A read through the format `inlay`: all columns if `columns` is None, and the rows that meet the condition."""

    path: str
    columns: list[str] | None
    condition: str | None
    version: int | None
    storage_options: Mapping[str, Any] | None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> ReadOptions:
        found = _parse(_without_spark_options(options), _arguments(incremental.read_parquet))
        names = ("columns", "filter", "version", "storage_options")
        return cls(_require_path(options), *(found.get(name) for name in names))


def _without_spark_options(options: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): text for name, text in options.items() if name.lower() not in _OF_SPARK}


def _require_path(options: Mapping[str, str]) -> str:
    path = options.get("path")
    if not path:
        raise InvalidArgumentError("The dataset has no path.", hint="Pass it to load(path), save(path) or start(path).")
    return path


def _parse(
    texts: Mapping[str, str], known: Mapping[str, inspect.Parameter], more: list[str] | None = None
) -> dict[str, Any]:
    for name in texts:
        if name not in known:
            raise unknown("option", name, [*(more or []), *known])
    return {name: _value(name, text, str(known[name].annotation)) for name, text in texts.items()}


def _value(name: str, text: str, annotation: str) -> Any:
    """Convert the text of an option to the type of its argument."""
    if "Mapping" in annotation or "Scope" in annotation:
        return _json(name, text, dict, 'an object such as {"key": "value"}')
    if "Sequence" in annotation:
        return _names(name, text)
    if annotation.startswith("bool"):
        return _boolean(name, text)
    if annotation.startswith(("int", "float")):
        return _number(name, text, annotation)
    return text


def _names(name: str, text: str) -> list[str]:
    """Split names at commas. A JSON list can hold names that contain commas."""
    if text.lstrip().startswith("["):
        return [str(each) for each in _json(name, text, list, 'a list such as ["a", "b"]')]
    return [part.strip() for part in text.split(",")]


def _json(name: str, text: str, kind: type, example: str) -> Any:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, kind):
        raise InvalidArgumentError(f"The option {name} is not JSON: {text!r}.", hint=f"Pass {example}.")
    return found


def _boolean(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise InvalidArgumentError(f"The option {name} is neither true nor false: {text!r}.")
    return text.lower() == "true"


def _number(name: str, text: str, annotation: str) -> float:
    """Convert a number. An integer stays one: max_deleted=1 is one row, and 1.0 is all rows."""
    for kind in (int, float) if "float" in annotation else (int,):
        with contextlib.suppress(ValueError):
            return kind(text)
    raise InvalidArgumentError(f"The option {name} is not a number: {text!r}.")
