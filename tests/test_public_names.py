"""The public names: complete, fast to import, with the signatures of the requirements."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import inlay
from inlay import errors, incremental
from inlay.errors import DatasetMergeError, InlayError, InvalidArgumentError, QueryError, RejectedDataError

# -------------------------------------------------------------------------------------------------------------- names
FIXED = [  # of `import inlay`, fixed by the design
    "merge",
    "plan_merge",
    "delete",
    "plan_delete",
    "write_dataset",
    "read_parquet",
    "open_dataset",
    "recover",
    "compact",
    "PyArrowDatasetIO",
    "merge_parquet_dataset_pyarrow",
    "PathValidator",
    "InlayError",
    "DatasetMergeError",
]

INCREMENTAL = [  # of the incremental core and the merge layer
    "MergeFileMetadata",
    "MergeResult",
    "merge",
    "list_dataset_files",
    "parse_hive_partition_path",
    "ParquetFileMetadata",
    "ParquetMetadataAnalyzer",
    "PartitionPruner",
    "ConservativeMembershipChecker",
    "confirm_affected_files",
    "IncrementalFileManager",
    "validate_no_null_keys",
    "validate_partition_column_immutability",
    "IncrementalRewritePlan",
    "plan_incremental_rewrite",
    "MergeStrategy",
    "TableLike",
    "MergeStats",
    "normalize_keys",
    "validate_keys_and_schema",
    "compute_merge_stats",
]


@pytest.mark.parametrize("module", [inlay, incremental, errors], ids=lambda module: module.__name__)
def test_every_public_name_can_be_imported(module: Any) -> None:
    for name in module.__all__:
        assert getattr(module, name) is not None
    assert set(module.__all__) <= set(dir(module))
    assert len(set(module.__all__)) == len(module.__all__)


@pytest.mark.parametrize("name", FIXED)
def test_the_fixed_names_of_the_package(name: str) -> None:
    assert name in inlay.__all__


@pytest.mark.parametrize("name", INCREMENTAL)
def test_the_fixed_names_of_the_incremental_core(name: str) -> None:
    assert name in incremental.__all__


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        inlay.nothing  # noqa: B018
    assert not hasattr(inlay, "os")


def test_names_of_the_package_are_the_names_of_their_modules() -> None:
    for name in set(inlay.__all__) & set(incremental.__all__):
        assert getattr(inlay, name) is getattr(incremental, name)
    assert inlay.InlayError is errors.InlayError


def modules() -> Iterator[str]:
    root = Path(inlay.__file__).parent
    for file in sorted(root.rglob("*.py")):
        parts = ("inlay", *file.relative_to(root).with_suffix("").parts)
        if parts[-1] != "__main__" and "spark" not in parts[-1] and "duckdb" not in parts[-1]:
            yield ".".join(part for part in parts if part != "__init__")


@pytest.mark.parametrize("name", list(modules()))
def test_every_name_in_all_exists(name: str) -> None:
    module = importlib.import_module(name)
    missing = [public for public in getattr(module, "__all__", []) if not hasattr(module, public)]
    assert missing == []


CLIENTS = {"pandas", "polars", "duckdb", "s3fs", "pyspark", "typer", "rich"}
HEAVY = CLIENTS | {"pyarrow", "numpy", "fsspec", "sqlite3"}


def loaded(code: str, names: set[str]) -> list[str]:
    """Return the modules among `names` that a new process has imported after running the code."""
    command = f"import sys\n{code}\nprint(*sorted({names!r} & set(sys.modules)))"
    child = [sys.executable, "-W", "error", "-c", command]
    return subprocess.run(child, capture_output=True, text=True, check=True, timeout=120).stdout.split()


def test_importing_the_package_imports_nothing_heavy() -> None:
    assert loaded("import inlay", HEAVY) == []
    assert loaded("import inlay; dir(inlay); inlay.__all__; inlay.__version__", HEAVY) == []
    assert "pyarrow" in loaded("import inlay; inlay.merge", HEAVY)


def test_a_merge_imports_no_client_and_no_other_engine(tmp_path: Path) -> None:
    assert loaded("import inlay; inlay.merge; inlay.compact; inlay.PyArrowDatasetIO", CLIENTS) == []
    pq.write_table(pa.table({"id": [1], "v": ["a"], "p": ["x"]}), tmp_path / "rows.parquet")
    rows = f"pyarrow.parquet.ParquetFile({str(tmp_path / 'rows.parquet')!r}).read()"
    for options in ("", ", partition_columns=['p']"):
        merge = f"inlay.merge({rows}, {str(tmp_path / ('d' + options[-4:-2]))!r}, 'upsert', ['id']{options})"
        assert loaded(f"import inlay, pyarrow, pyarrow.parquet; {merge}; {merge}", CLIENTS) == []


# --------------------------------------------------------------------------------------------------------- signatures
NOTHING = inspect.Parameter.empty

#: every signature of the requirement documents 000 and 002: arguments in order, with their defaults
SIGNATURES: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "merge": (
        incremental.merge,
        {
            "data": NOTHING,
            "path": NOTHING,
            "strategy": NOTHING,
            "key_columns": NOTHING,
            "partition_columns": None,
            "filesystem": None,
            "compression": None,  # a departure: as the dataset's own files are; a new dataset gets snappy
            "max_rows_per_file": 5_000_000,
            "row_group_size": None,  # likewise: 500,000
        },
    ),
    "list_dataset_files": (incremental.list_dataset_files, {"dataset_path": NOTHING, "filesystem": None}),
    "parse_hive_partition_path": (
        incremental.parse_hive_partition_path,
        {"file_path": NOTHING, "partition_columns": None},
    ),
    "analyze_dataset_files": (
        incremental.ParquetMetadataAnalyzer().analyze_dataset_files,
        {"dataset_path": NOTHING, "filesystem": None},
    ),
    "identify_candidate_files": (
        incremental.PartitionPruner().identify_candidate_files,
        {"file_metadata": NOTHING, "key_columns": NOTHING, "source_keys": NOTHING, "partition_schema": None},
    ),
    "file_might_contain_keys": (
        incremental.ConservativeMembershipChecker().file_might_contain_keys,
        {"file_metadata": NOTHING, "key_columns": NOTHING, "source_keys": NOTHING},
    ),
    "confirm_affected_files": (
        incremental.confirm_affected_files,
        {"candidate_files": NOTHING, "key_columns": NOTHING, "source_keys": NOTHING, "filesystem": None},
    ),
    "create_staging_directory": (
        incremental.IncrementalFileManager().create_staging_directory,
        {"base_path": NOTHING},
    ),
    "atomic_replace_files": (
        incremental.IncrementalFileManager().atomic_replace_files,
        {"source_files": NOTHING, "target_files": NOTHING, "filesystem": None},
    ),
    "cleanup_staging_files": (incremental.IncrementalFileManager().cleanup_staging_files, {}),
    "validate_no_null_keys": (
        incremental.validate_no_null_keys,
        {"source_table": NOTHING, "key_columns": NOTHING},
    ),
    "validate_partition_column_immutability": (
        incremental.validate_partition_column_immutability,
        {"source_table": NOTHING, "target_table": NOTHING, "key_columns": NOTHING, "partition_columns": NOTHING},
    ),
    "plan_incremental_rewrite": (
        incremental.plan_incremental_rewrite,
        {
            "dataset_path": NOTHING,
            "source_keys": NOTHING,
            "key_columns": NOTHING,
            "filesystem": None,
            "partition_schema": None,
        },
    ),
    "validate_keys_and_schema": (
        incremental.validate_keys_and_schema,
        {"source": NOTHING, "target": NOTHING, "key_columns": NOTHING},
    ),
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_documented_arguments_come_first_and_additions_are_keywords(name: str) -> None:
    function, documented = SIGNATURES[name]
    parameters = inspect.signature(function).parameters
    first = {n: p.default for n, p in list(parameters.items())[: len(documented)]}
    assert list(first.items()) == list(documented.items())
    for parameter in list(parameters.values())[: len(documented)]:
        assert parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    for parameter in list(parameters.values())[len(documented) :]:
        assert parameter.kind is inspect.Parameter.KEYWORD_ONLY
        assert parameter.default is not NOTHING


def test_normalize_keys_takes_keys_first() -> None:
    parameters = list(inspect.signature(incremental.normalize_keys).parameters.values())
    assert parameters[0].name == "key_columns"
    assert all(parameter.default is not NOTHING for parameter in parameters[1:])


def test_statistics_are_computed_from_keywords_only() -> None:
    parameters = inspect.signature(incremental.compute_merge_stats).parameters
    names = ["strategy", "target_before", "target_after", "inserted_rows", "updated_rows", "deleted_rows"]
    assert list(parameters) == names
    assert {p.kind for p in parameters.values()} == {inspect.Parameter.KEYWORD_ONLY}
    assert {p.default for p in parameters.values()} == {NOTHING}


#: dataclasses of the documents: fields in order, and which have defaults
FIELDS: dict[type, tuple[list[str], list[str]]] = {
    incremental.MergeFileMetadata: (["path", "row_count", "operation"], ["size_bytes"]),
    incremental.MergeResult: (
        ["strategy", "source_count", "target_count_before", "target_count_after", "inserted", "updated", "deleted"],
        ["files", "rewritten_files", "inserted_files", "preserved_files"],
    ),
    incremental.ParquetFileMetadata: (["path", "row_group_count", "total_rows", "column_stats"], ["partition_values"]),
    incremental.IncrementalRewritePlan: (["affected_files", "unaffected_files", "new_files", "affected_rows"], []),
}


@pytest.mark.parametrize("kind", FIELDS, ids=lambda kind: kind.__name__)
def test_documented_fields_come_first_and_additions_have_defaults(kind: type) -> None:
    required, optional = FIELDS[kind]
    fields = dataclasses.fields(kind)
    assert [field.name for field in fields][: len(required) + len(optional)] == required + optional
    for field in fields[len(required) :]:
        assert field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING


def test_the_strategies_are_the_documented_ones() -> None:
    names = {"upsert", "insert", "update", "full_merge", "deduplicate", "delete"}
    assert set(get_args(incremental.MergeStrategy)) == names
    assert set(incremental.STRATEGIES) == names


#: the signatures that the design fixes: positional arguments, then keywords with their defaults
DESIGN: dict[str, tuple[list[str], dict[str, Any]]] = {
    "merge": (
        list(SIGNATURES["merge"][1]),
        {"partition_by": None, "engine": "auto", "storage_options": None, "schema_mode": "strict",
         "dedup_order_by": None, "progress": None},
    ),
    "write_dataset": (["source", "path", "mode"], {"partition_columns": None, "engine": "auto"}),
    "read_parquet": (["path"], {"columns": None, "filter": None}),
    "recover": (["path"], {"filesystem": None}),
    "compact": (["path"], {}),
    "delete": (["path", "where"], {"filesystem": None, "engine": "auto", "storage_options": None}),
}  # fmt: skip


@pytest.mark.parametrize("name", DESIGN)
def test_signatures_of_the_design(name: str) -> None:
    positional, keywords = DESIGN[name]
    parameters = inspect.signature(getattr(inlay, name)).parameters
    assert [n for n, p in parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD] == positional
    only = {n: p.default for n, p in parameters.items() if p.kind is p.KEYWORD_ONLY}
    assert {n: only.get(n, NOTHING) for n in keywords} == keywords


def test_a_plan_takes_the_arguments_of_a_merge() -> None:
    merge, plan = (inspect.signature(f).parameters for f in (inlay.merge, inlay.plan_merge))
    assert [(n, p.kind, p.default) for n, p in merge.items()] == [(n, p.kind, p.default) for n, p in plan.items()]
    delete, plan = (inspect.signature(f).parameters for f in (inlay.delete, inlay.plan_delete))
    assert [(n, p.kind, p.default) for n, p in delete.items()] == [(n, p.kind, p.default) for n, p in plan.items()]
    assert issubclass(inlay.MergePlan, incremental.IncrementalRewritePlan)


# -------------------------------------------------------------------------------------------------------------- errors
ERRORS = [getattr(errors, name) for name in errors.__all__]
MIXED_IN: dict[str, type[BaseException]] = {
    "BadRowsError": ValueError,
    "DeletionLimitError": ValueError,
    "DuplicateKeyError": ValueError,
    "InvalidArgumentError": ValueError,
    "InvalidRequestError": ValueError,
    "InvalidTableNameError": ValueError,
    "NullKeyError": ValueError,
    "OutsideScopeError": ValueError,
    "PartitionMoveError": ValueError,
    "QueryBusyError": ValueError,
    "QueryCancelledError": ValueError,
    "QueryError": ValueError,
    "QueryFailedError": ValueError,
    "QueryLimitError": ValueError,
    "RejectedDataError": ValueError,
    "SchemaMismatchError": ValueError,
    "UnknownOperationError": ValueError,
    "UnreadableSourceError": ValueError,
    "NotUtf8Error": ValueError,
    "UnreadableUploadError": ValueError,
    "UploadConsumedError": ValueError,
    "UploadTooLargeError": ValueError,
    "NotFoundError": FileNotFoundError,
    "EngineNotInstalledError": ImportError,
    "DatasetIOError": OSError,
    "UnreadableFileError": OSError,
    "LockTimeoutError": TimeoutError,
    "QueryTimeoutError": TimeoutError,
    "RequestTimeoutError": TimeoutError,
}
EXIT_CODES = {
    1: ["CatalogUnavailableError", "CatalogVersionError", "CommitPendingError", "CommitStateUnknownError",
        "ConversionFailedError", "CorruptJournalError", "DamagedVersionError", "DatasetIOError", "DatasetMergeError",
        "HistoryUnavailableError", "InlayError",
        "JobCancelledError", "JobInterruptedError", "MemoryLimitError", "MergeCancelledError", "QueryCancelledError",
        "QueryFailedError", "QueryTimeoutError", "RequestTimeoutError", "ServiceBusyError",
        "ServiceStoppingError", "ServiceUnreachableError", "SparkUnavailableError", "StorageFullError",
        "StorageUnavailableError", "UnreadableFileError"],
    2: ["EngineNotInstalledError", "ForbiddenError", "InvalidArgumentError", "InvalidRequestError",
        "InvalidTableNameError", "MethodNotAllowedError", "NotAcceptableError", "QueryError", "QueryLimitError",
        "RequestError", "RequestTooLargeError", "UnauthorizedError", "UnsupportedMediaTypeError",
        "UploadConsumedError", "UploadTooLargeError"],
    3: ["BadRowsError", "DeletionLimitError", "DuplicateKeyError", "NotUtf8Error", "NullKeyError", "PartitionMoveError",
        "OutsideScopeError", "RejectedDataError", "SchemaMismatchError", "UnknownOperationError",
        "UnreadableSourceError", "UnreadableUploadError"],
    4: ["ConcurrentModificationError", "ConflictError", "IdempotencyKeyReusedError", "JobEndedError",
        "LockTimeoutError", "QueryBusyError", "TableNameTakenError", "UploadInUseError"],
    5: ["NotFoundError"],
}  # fmt: skip


def subclasses(kind: type) -> set[type]:
    return {kind}.union(*(subclasses(child) for child in kind.__subclasses__()))


def test_all_errors_are_in_one_tree_and_public() -> None:
    for module in modules():
        importlib.import_module(module)
    ours = {kind for kind in subclasses(InlayError) if kind.__module__.startswith("inlay")}
    assert {kind.__name__ for kind in ours} == {kind.__name__ for kind in ERRORS}


def test_codes_are_unique_and_are_names() -> None:
    codes = [kind.code for kind in ERRORS]
    assert len(set(codes)) == len(codes)
    assert all(code.isidentifier() and code == code.lower() for code in codes)


@pytest.mark.parametrize("code", EXIT_CODES)
def test_exit_codes(code: int) -> None:
    assert sorted(kind.__name__ for kind in ERRORS if kind.exit_code == code) == sorted(EXIT_CODES[code])


def test_every_error_has_an_exit_code_and_an_http_status() -> None:
    assert sorted(name for names in EXIT_CODES.values() for name in names) == sorted(errors.__all__)
    assert {kind.http_status for kind in ERRORS} <= {
        400, 401, 403, 404, 405, 406, 408, 409, 413, 415, 422, 499, 500, 503, 507,
    }  # fmt: skip
    arguments = {k.http_status for k in ERRORS if issubclass(k, InvalidArgumentError | RejectedDataError)}
    assert arguments == {400, 422}


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_errors_are_what_callers_catch(kind: type[InlayError]) -> None:
    builtin = (ValueError, OSError, ImportError)
    expected = MIXED_IN.get(kind.__name__)
    assert expected is None or issubclass(kind, expected)
    assert expected is not None or not issubclass(kind, builtin)
    if issubclass(kind, OSError) and not issubclass(kind, FileNotFoundError | TimeoutError):
        assert issubclass(kind, DatasetMergeError)


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_errors_carry_their_message_and_hint(kind: type[InlayError]) -> None:
    error = kind("It broke.", hint="Mend it.")
    assert str(error) == "It broke.\nHint: Mend it."
    assert str(kind("It broke.")) == "It broke."
    found = error.to_dict()
    assert (found["code"], found["message"], found["hint"]) == (kind.code, "It broke.", "Mend it.")
    assert kind.__doc__


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_errors_survive_serialization(kind: type[InlayError]) -> None:
    error = kind("It broke.", hint="Mend it.")
    again = errors.error_from_dict(error.to_dict() | {"files": ["a"]})
    assert type(again) is kind
    assert (str(again), again.hint, vars(again)["files"]) == (str(error), "Mend it.", ["a"])


def test_the_position_of_an_error_survives_serialization() -> None:
    error = QueryError("Not SQL.", position=(1, 8))
    assert errors.error_from_dict(error.to_dict()).to_dict() == error.to_dict()


def test_an_unknown_error_code_is_an_inlay_error() -> None:
    assert str(errors.error_from_dict({"code": "of_the_future", "message": "Oh."})) == "Oh."


def test_merge_errors_name_the_operation() -> None:
    error = DatasetMergeError("x", operation="commit", strategy="upsert", key_columns=("a",), files=("f",))
    assert error.to_dict() == {
        "code": "merge_failed",
        "message": "x",
        "hint": None,
        "operation": "commit",
        "strategy": "upsert",
        "key_columns": ["a"],
        "files": ["f"],
    }
