"""What clients send as JSON. These classes are also the OpenAPI description."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ModelWrapValidatorHandler, ValidationError, model_validator
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

from inlay.choices import FileFormat, InlineFormat, OnError

if TYPE_CHECKING:
    from inlay.workspace import Inline as InlineRequest
    from inlay.workspace import Load, NewDataset, Source

Strategy = Literal["append", "replace", "insert", "update", "upsert", "full_merge", "deduplicate"]


def _texts(given: Any) -> Iterator[str]:
    """All texts of a document, names included."""
    if isinstance(given, str):
        yield given
    elif isinstance(given, (list, tuple)):
        for each in given:
            yield from _texts(each)
    elif isinstance(given, dict):
        yield from _texts([*given, *given.values()])


class Request(BaseModel):
    """Unknown fields and values of another type are errors: a misspelt option must not be silently ignored."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _require_characters(cls, given: Any) -> Any:
        """JSON can escape half a surrogate pair, which is no character and cannot be stored."""
        for text in _texts(given):
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise ValueError(f"half a surrogate pair in {text[:50]!r}") from error
        return given

    @model_validator(mode="wrap")
    @classmethod
    def _name_fields(cls, given: Any, validate: ModelWrapValidatorHandler[Self]) -> Self:
        """Who writes a field that is not there is told which ones there are."""
        try:
            return validate(given)
        except ValidationError as error:
            fields = [field.alias or name for name, field in cls.model_fields.items()]
            found = [_with_fields(each, fields) for each in error.errors(include_url=False)]
            raise ValidationError.from_exception_data(error.title, found) from None


def _with_fields(error: ErrorDetails, fields: list[str]) -> InitErrorDetails:
    kind, message = error["type"], error["msg"]
    if kind == "extra_forbidden" and len(error["loc"]) == 1:
        kind, message = "unknown_field", f"There is no such field. Fields: {', '.join(fields)}"
    custom = PydanticCustomError(kind, "{message}", {"message": message})
    return InitErrorDetails(type=custom, loc=error["loc"], input=error["input"])


class Inline(Request):
    """Data within the request, at most 1 MiB."""

    format: InlineFormat
    content: Annotated[str, Field(examples=["code,name\nUS,United States\nCA,Canada\n"])]

    def request(self) -> InlineRequest:
        from inlay.workspace import Inline

        return Inline(self.format, self.content)


_OPTIONS = (
    "How to read it; what is not given is found out. CSV: delimiter, header, quote, escape, null_values, encoding, "
    "day_first. JSON: layout (lines, array, objects), encoding, day_first."
)


class SourceBody(Request):
    """Where rows come from: exactly one of `upload_id`, `inline` and `sql`."""

    upload_id: Annotated[str | None, Field(examples=["upld_4x7mzq2k5w3nvyrt6ahb2dce"])] = None
    inline: Inline | None = None
    sql: Annotated[str | None, Field(description="A SELECT over `datasets.<table_name>`.")] = None
    format: Annotated[
        FileFormat | None,
        Field(description="Of an upload. Without it the upload's content type decides."),
    ] = None
    options: Annotated[dict[str, Any], Field(description=_OPTIONS, examples=[{"delimiter": ";"}])] = {}

    def request(self) -> Source:
        from inlay.workspace import Source

        inline = self.inline.request() if self.inline is not None else None
        return Source(self.upload_id, inline, self.sql, self.format, self.options)


class ColumnBody(Request):
    name: str
    type: Annotated[str, Field(examples=["decimal(10,2)", "timestamp", "text"])]


class SchemaBody(Request):
    """Types of columns that are not to be inferred; the others are."""

    columns: list[ColumnBody]

    def pairs(self) -> list[tuple[str, str]]:
        return [(column.name, column.type) for column in self.columns]


_Label = Annotated[str, Field(min_length=1, max_length=1000, examples=["Q1 Sales Report"])]
_OnError = Annotated[
    OnError,
    Field(
        description="`fail`: a bad row stops it, nothing changes. `quarantine`: the others are loaded; see the rejects."
    ),
]


class DatasetBody(Request):
    label: _Label
    table_name: Annotated[str | None, Field(description="Made from the label if omitted.", examples=["q1_sales"])] = (
        None
    )
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


class ChangeBody(Request):
    """At least one of both."""

    label: _Label | None = None
    table_name: Annotated[str | None, Field(examples=["quarterly_sales"])] = None


class LoadBody(Request):
    source: SourceBody
    strategy: Annotated[Strategy, Field(description="append and replace take all rows; the others need key_columns.")]
    key_columns: Annotated[list[str], Field(examples=[["id"]])] = []
    dedup_order_by: Annotated[
        str | list[str], Field(description="With deduplicate: the row that is last in this order wins.")
    ] = []
    dry_run: Annotated[bool, Field(description="Only say what would be done.")] = False
    on_error: _OnError = "fail"

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
        from inlay.workspace import Load

        order = [self.dedup_order_by] if isinstance(self.dedup_order_by, str) else self.dedup_order_by
        return Load(self.source.request(), self.strategy, self.key_columns, order, self.dry_run, self.on_error)


class RestoreBody(Request):
    version: Annotated[int, Field(ge=1, examples=[1])]


class PreviewBody(Request):
    """How to read the upload, as for a dataset; what is not given is found out, here also the format."""

    format: FileFormat | None = None
    options: Annotated[dict[str, Any], Field(description=_OPTIONS, examples=[{"delimiter": ";"}])] = {}
    schema_: Annotated[SchemaBody | None, Field(alias="schema")] = None
    dataset_id: Annotated[
        str | None, Field(description="A dataset to load it into: its columns have their types here.")
    ] = None


class QueryBody(Request):
    sql: Annotated[str, Field(examples=["SELECT count(*) FROM datasets.q1_sales"])]
    limit: Annotated[int | None, Field(ge=0, description="Rows at most; `truncated` tells if there were more.")] = None
    timeout_seconds: Annotated[float | None, Field(gt=0, description="Can only lower the service's own limit.")] = None
