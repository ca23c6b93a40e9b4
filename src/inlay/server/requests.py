"""JSON request bodies of the HTTP API; the OpenAPI document is generated from them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar

import orjson
from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

from inlay.constants import FileFormat, InlineFormat, OnError
from inlay.errors import InvalidRequestError
from inlay.server.problems import ProblemException, field_message, problem_response

if TYPE_CHECKING:
    from inlay.workspace import Deletion, Load, NewDataset, Source
    from inlay.workspace import Inline as InlineRequest


Strategy = Literal["append", "replace", "insert", "update", "upsert", "full_merge", "deduplicate", "delete"]


Body = TypeVar("Body", bound=BaseModel)
IgnoreCase = BeforeValidator(lambda value: value.lower() if isinstance(value, str) else value)


# ------------------------------------------------------------------------------------------------------------- parsing
_MAX_DEPTH = 32
_MAX_FIELDS = 1000  # of one JSON object
_MAX_VALUES = 500_000  # of the whole body, which may describe 50,000 columns


class _LimitedRequest(Request):
    async def json(self) -> Any:
        return parse_json(await self.body())


class JsonRoute(APIRoute):
    """A route that limits the shape of JSON bodies before it validates them."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_limited(request: Request) -> Response:
            return await handle(_LimitedRequest(request.scope, request.receive))

        return handle_limited


async def read_body(request: Request, model: type[Body]) -> Body:
    """Read, parse and validate a JSON body as FastAPI does, without its dependencies."""
    content = await request.body()
    if not content:
        raise RequestValidationError([{"type": "missing", "loc": ("body",), "msg": "Field required", "input": None}])
    try:
        return model.model_validate(parse_json(content))
    except orjson.JSONDecodeError as error:
        detail = {"type": "json_invalid", "loc": ("body", error.pos), "msg": "JSON decode error", "input": {}}
        raise RequestValidationError([detail | {"ctx": {"error": error.msg}}]) from error
    except ValidationError as error:
        details = error.errors(include_url=False)
        raise RequestValidationError([{**each, "loc": ("body", *each["loc"])} for each in details]) from error


def parse_json(body: bytes) -> Any:
    """Parse JSON. Raise if it is nested too deeply or has too many values: each costs time to validate."""
    document = orjson.loads(body)
    level, count = [document], 0
    for _ in range(_MAX_DEPTH):
        if any(isinstance(each, dict) and len(each) > _MAX_FIELDS for each in level):
            raise _refused(f"An object in the request has more than {_MAX_FIELDS:,} fields.")
        objects = [each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list)]
        level = [value for values in objects for value in values]
        count += len(level)
        if count > _MAX_VALUES:
            raise _refused(f"The request has more than {_MAX_VALUES:,} values.")
        if not level:
            return document
    raise _refused(f"The request has more than {_MAX_DEPTH} nested levels.")


def _refused(message: str) -> ProblemException:
    return ProblemException(problem_response(InvalidRequestError(message)))


# -------------------------------------------------------------------------------------------------------------- bodies
class RequestBody(BaseModel):
    """Base of all request bodies. Rejects unknown fields and values of another type."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="wrap")
    @classmethod
    def _list_fields(cls, body: Any, validate: ModelWrapValidatorHandler[Self]) -> Self:
        """List the valid fields in the error for an unknown field."""
        try:
            return validate(body)
        except ValidationError as error:
            fields = [field.alias or name for name, field in cls.model_fields.items()]
            details = [_with_fields(each, fields) for each in error.errors(include_url=False)]
            raise ValidationError.from_exception_data(error.title, details) from None


def _with_fields(error: ErrorDetails, fields: list[str]) -> InitErrorDetails:
    kind, message = error["type"], field_message(error)
    if kind == "literal_error":
        kind = "unknown_value"
    elif kind == "extra_forbidden" and len(error["loc"]) == 1:
        kind, message = "unknown_field", f"Unknown field. Valid fields: {', '.join(fields)}"
    custom = PydanticCustomError(kind, "{message}", {"message": message})
    return InitErrorDetails(type=custom, loc=error["loc"], input=error["input"])


class Inline(RequestBody):
    """Data inside the request: at most 1 MiB of UTF-8, unless `INLAY_MAX_INLINE_BYTES` sets another limit."""

    format: Annotated[InlineFormat, IgnoreCase]
    content: Annotated[str, Field(examples=["code,name\nUS,United States\nCA,Canada\n"])]

    def request(self) -> InlineRequest:
        from inlay.workspace import Inline

        return Inline(self.format, self.content)


_Options = Annotated[
    dict[str, Any],
    Field(
        description="Read options; inlay detects the options that are left out. CSV: delimiter, header, quote, escape, "
        "null_values, encoding, day_first. JSON: layout (lines, array, objects), encoding, day_first.",
        examples=[{"delimiter": ";"}],
    ),
]


class SourceBody(RequestBody):
    """The rows to load: exactly one of `upload_id`, `inline` and `sql`."""

    upload_id: Annotated[
        str | None, Field(description="A pending upload.", examples=["upld_4x7mzq2k5w3nvyrt6ahb2dce"])
    ] = None
    inline: Inline | None = None
    sql: Annotated[str | None, Field(description="A SELECT over `datasets.<table_name>`.")] = None
    format: Annotated[
        FileFormat | None,
        IgnoreCase,
        Field(description="Format of the upload. Default: derived from its content type."),
    ] = None
    options: _Options = {}

    def request(self) -> Source:
        from inlay.workspace import Source

        inline = self.inline.request() if self.inline is not None else None
        return Source(self.upload_id, inline, self.sql, self.format, self.options)


class ColumnBody(RequestBody):
    name: str
    type: Annotated[str, Field(examples=["decimal(10,2)", "timestamp", "text"])]


class SchemaBody(RequestBody):
    """Explicit column types. inlay infers the types of all other columns."""

    columns: list[ColumnBody]

    def pairs(self) -> list[tuple[str, str]]:
        return [(column.name, column.type) for column in self.columns]


_Label = Annotated[str, Field(min_length=1, max_length=1000, examples=["Q1 Sales Report"])]
_OnError = Annotated[
    OnError,
    Field(
        description="`fail`: one invalid row fails the request, and nothing changes. "
        "`quarantine`: valid rows are loaded, invalid rows are listed under `rejects`."
    ),
]


class DatasetBody(RequestBody):
    label: _Label
    table_name: Annotated[
        str | None, Field(description="Table name in SQL. Default: derived from the label.", examples=["q1_sales"])
    ] = None
    source: SourceBody
    schema_: Annotated[SchemaBody | None, Field(alias="schema")] = None
    on_error: _OnError = "fail"

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "label": "Q1 Sales Report",
                    "table_name": "q1_sales",
                    "source": {
                        "upload_id": "upld_4x7mzq2k5w3nvyrt6ahb2dce",
                        "format": "csv",
                        "options": {"delimiter": ",", "header": True, "null_values": ["", "NULL"]},
                    },
                    "schema": {"columns": [{"name": "revenue", "type": "decimal(10,2)"}]},
                },
                {
                    "label": "Country Codes",
                    "source": {"inline": {"format": "csv", "content": "code,name\nUS,United States\nCA,Canada\n"}},
                },
            ]
        }
    )

    def request(self) -> NewDataset:
        from inlay.workspace import NewDataset

        columns = self.schema_.pairs() if self.schema_ is not None else []
        return NewDataset(self.label, self.source.request(), self.table_name, columns, self.on_error)


class ChangeBody(RequestBody):
    """A new label, a new table name, or both."""

    label: _Label | None = None
    table_name: Annotated[str | None, Field(examples=["quarterly_sales"])] = None


class NewColumnBody(RequestBody):
    """A column that the load adds to the dataset. Rows of other files are NULL in it."""

    name: Annotated[str | None, Field(description="Default: the name in the file.", examples=["country"])] = None
    type: Annotated[str, Field(examples=["text", "decimal(10,2)"])]


_MaxDeleted = Annotated[
    int | float | None,
    Field(
        description="The maximum number of rows to delete as an integer, or their maximum share as a number with a "
        "decimal point. More are refused before anything changes.",
        examples=[1000, 0.05],
    ),
]


class LoadBody(RequestBody):
    source: SourceBody
    strategy: Annotated[
        Strategy,
        Field(description="`append` and `replace` load all rows. Every other strategy requires `key_columns`."),
    ]
    key_columns: Annotated[list[str], Field(examples=[["id"]])] = []
    dedup_order_by: Annotated[
        str | list[str],
        Field(
            description="Order columns for `deduplicate`: of the source rows with the same key, the last row in "
            "this order is loaded."
        ),
    ] = []
    dry_run: Annotated[bool, Field(description="Return the plan of the load and change nothing.")] = False
    on_error: _OnError = "fail"
    columns: Annotated[
        dict[str, str | NewColumnBody | None],
        Field(
            description="What columns of the file become, by their names in the file: the name of a column of the "
            "dataset, null to ignore the column, or a new column with its type. Other columns keep their names.",
            examples=[{"Order ID": "id", "comment": None, "country": {"type": "text"}}],
        ),
    ] = {}
    missing_columns: Annotated[
        Literal["error", "null", "keep"],
        Field(
            description="How to treat columns that the source lacks, and fields that a JSON record lacks: `error`, "
            "`null` (set them to NULL), or `keep` (keep the stored values of matching rows)."
        ),
    ] = "error"
    operation_column: Annotated[
        str | None,
        Field(
            description="The column of the source that says what each row does, for `upsert` and `deduplicate`: "
            "insert, update or delete, I, U or D, or c, r, u or d. The dataset doesn't store it.",
            examples=["op"],
        ),
    ] = None
    newer_by: Annotated[
        str | None,
        Field(
            description="Replace or delete a row only if the source has a greater value in this column.",
            examples=["updated_at"],
        ),
    ] = None
    max_deleted: _MaxDeleted = None
    scope: Annotated[
        dict[str, list[Any]] | None,
        Field(
            description="For `full_merge` and `delete`: values of columns of the rows that the load is about. It never "
            "touches other rows.",
            examples=[{"day": ["2025-01-01"]}],
        ),
    ] = None

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "source": {"upload_id": "upld_4x7mzq2k5w3nvyrt6ahb2dce", "format": "csv"},
                    "strategy": "upsert",
                    "key_columns": ["id"],
                }
            ]
        }
    )

    def request(self) -> Load:
        from inlay.workspace import Load, NewColumn

        columns: dict[str, str | NewColumn | None] = {
            source: NewColumn(to.name or source, to.type) if isinstance(to, NewColumnBody) else to
            for source, to in self.columns.items()
        }
        order = [self.dedup_order_by] if isinstance(self.dedup_order_by, str) else self.dedup_order_by
        return Load(
            self.source.request(), self.strategy, self.key_columns, order, self.dry_run, self.on_error, columns,
            self.missing_columns, self.operation_column, self.newer_by, self.max_deleted,
            self.scope,
        )  # fmt: skip


class DeletionBody(RequestBody):
    """The rows to delete: exactly one of `keys` and `where`."""

    keys: Annotated[
        list[dict[str, Any]],
        Field(description="Keys of the rows, each with the same columns.", examples=[[{"id": 7}, {"id": 8}]]),
    ] = []
    where: Annotated[
        str | None,
        Field(
            description="A condition in SQL notation with comparisons of columns and values, `AND`, `OR`, `NOT`, `IN`, "
            "`BETWEEN`, `LIKE` and `IS NULL`. Rows for which it is true are deleted.",
            examples=["day < '2025-01-01' AND status = 'closed'"],
        ),
    ] = None
    dry_run: Annotated[bool, Field(description="Return the plan of the deletion and change nothing.")] = False
    max_deleted: _MaxDeleted = None

    def request(self) -> Deletion:
        from inlay.workspace import Deletion

        return Deletion(self.keys, self.where, self.dry_run, self.max_deleted)


class RestoreBody(RequestBody):
    version: Annotated[int, Field(ge=1, description="The version to restore.", examples=[1])]


class PreviewBody(RequestBody):
    """Format, options and types to read an upload with. inlay detects those left out."""

    format: Annotated[FileFormat | None, IgnoreCase] = None
    options: _Options = {}
    schema_: Annotated[SchemaBody | None, Field(alias="schema")] = None
    dataset_id: Annotated[
        str | None, Field(description="Preview a load into this dataset, with the types of its columns.")
    ] = None


class QueryBody(RequestBody):
    sql: Annotated[str, Field(examples=["SELECT count(*) FROM datasets.q1_sales"])]
    limit: Annotated[
        int | None, Field(ge=0, description="Maximum number of rows. `truncated` tells whether there are more.")
    ] = None
    timeout_seconds: Annotated[
        float | None, Field(gt=0, description="Timeout in seconds. Cannot exceed the limit of the service.")
    ] = None
