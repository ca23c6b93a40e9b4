"""Ids, directories and table names of catalog objects."""

from __future__ import annotations

import base64
import re
import secrets
import unicodedata
from collections.abc import Collection
from typing import Literal

from inlay.errors import InvalidTableNameError, NotFoundError

Kind = Literal["upload", "dataset", "job", "key"]
_PREFIXES: dict[Kind, str] = {"upload": "upld_", "dataset": "data_", "job": "job_", "key": "key_"}
_RANDOM_BYTES = 15  # 24 characters


def new_id(kind: Kind) -> str:
    return _PREFIXES[kind] + base64.b32encode(secrets.token_bytes(_RANDOM_BYTES)).decode().lower()


def is_id(kind: Kind, text: str) -> bool:
    return re.fullmatch(_PREFIXES[kind] + r"[a-z2-7]{1,64}", text) is not None


def require_id(kind: Kind, text: str) -> str:
    """Return the id, or raise `NotFoundError` if it is malformed."""
    if not is_id(kind, text):
        raise not_found(kind, text)
    return text


def not_found(kind: Kind, text: str) -> NotFoundError:
    name = "API key" if kind == "key" else kind
    return NotFoundError(f"There is no {name} {text[:100]!r}.")


def upload_directory(upload_id: str) -> str:
    """Return the directory of an upload, relative to the storage root."""
    return f"uploads/{upload_id}"


def dataset_directory(dataset_id: str) -> str:
    """Return the directory of a dataset, relative to the storage root."""
    return f"datasets/{dataset_id}"


MAX_NAME_LENGTH = 128
_MAX_SUFFIX_LENGTH = 20
_DEFAULT_NAME = "dataset"
_VALID_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_SQL_STANDARD = """
    abs absent acos all allocate alter and any are array array_agg array_max_cardinality as asensitive asin asymmetric
    at atan atomic authorization avg begin begin_frame begin_partition between bigint binary blob boolean both by call
    called cardinality cascaded case cast ceil ceiling char char_length character character_length check classifier
    clob close coalesce collate collect column commit condition connect constraint contains convert copy corr
    corresponding cos cosh count covar_pop covar_samp create cross cube cume_dist current current_catalog current_date
    current_default_transform_group current_path current_role current_row current_schema current_time
    current_timestamp current_transform_group_for_type current_user cursor cycle date day deallocate dec decfloat
    decimal declare default define delete dense_rank deref describe deterministic disconnect distinct double drop
    dynamic each element else empty end end_frame end_partition equals escape every except exec execute exists exp
    external extract false fetch filter first_value float floor for foreign frame_row free from full function fusion
    get global grant group grouping groups having hold hour identity in indicator initial inner inout insensitive
    insert int integer intersect intersection interval into is join json_array json_arrayagg json_exists json_object
    json_objectagg json_query json_table json_table_primitive json_value lag language large last_value lateral lead
    leading left like like_regex listagg ln local localtime localtimestamp log log10 lower match match_number
    match_recognize matches max measures member merge method min minute mod modifies module month multiset national
    natural nchar nclob new no none normalize not nth_value ntile null nullif numeric occurrences_regex octet_length
    of offset old omit on one only open or order out outer over overlaps overlay parameter partition pattern per
    percent percent_rank percentile_cont percentile_disc period permute portion position position_regex power precedes
    precision prepare primary procedure ptf range rank reads real recursive ref references referencing regr_avgx
    regr_avgy regr_count regr_intercept regr_r2 regr_slope regr_sxx regr_sxy regr_syy release result return returns
    revoke right rollback rollup row row_number rows running savepoint scope scroll search second seek select
    sensitive session_user set show similar sin sinh skip smallint some specific specifictype sql sqlexception
    sqlstate sqlwarning sqrt start static stddev_pop stddev_samp submultiset subset substring substring_regex succeeds
    sum symmetric system system_time system_user table tablesample tan tanh then time timestamp timezone_hour
    timezone_minute to trailing translate translate_regex translation treat trigger trim trim_array true truncate
    uescape union unique unknown unmatched unnest update upper user using value value_of values var_pop var_samp
    varbinary varchar varying versioning when whenever where width_bucket window with within without year
"""
# Words that DataFusion rejects as unquoted names, and words that begin a clause in many SQL dialects.
_OTHER_RESERVED = "analyze explain ilike limit minus pivot qualify returning struct top unpivot"
RESERVED_WORDS = frozenset(_SQL_STANDARD.split()) | frozenset(_OTHER_RESERVED.split())

# Letters that Unicode does not decompose into a base letter and an accent.
_REPLACEMENTS = str.maketrans(
    dict(zip("æœøđðþłħ\u0131ŋ", ["ae", "oe", "o", "d", "d", "th", "l", "h", "i", "n"], strict=True))
    | dict.fromkeys("'\u2018\u2019\u02bc", "")  # bob's -> bobs
)


def validate_table_name(name: str) -> str:
    """Return the name if SQL accepts it without quotes, or raise."""
    problem = _problem(name)
    if problem:
        raise InvalidTableNameError(
            f"{name[: MAX_NAME_LENGTH + 1]!r} is not a valid table name: {problem}.",
            hint="Use letters, digits and underscores. Do not start with a digit, and do not use an SQL keyword.",
        )
    return name


def _problem(name: str) -> str | None:
    if not name:
        return "it is empty"
    if len(name) > MAX_NAME_LENGTH:
        return f"it has {len(name):,} characters, and the limit is {MAX_NAME_LENGTH}"
    if not _VALID_NAME.fullmatch(name):
        return "it must start with a letter or underscore and contain only letters (a-z), digits and underscores"
    return "it is a reserved SQL keyword" if name.lower() in RESERVED_WORDS else None


def table_name_from_label(label: str, taken: Collection[str] = ()) -> str:
    """Derive a valid table name from a label, avoiding the lowercase names in `taken`."""
    base = _base_name(label)
    if base not in taken:
        return base
    number = 2
    while (name := _numbered(base, number)) in taken:
        number += 1
    return name


def _base_name(label: str) -> str:
    folded = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", label).casefold().translate(_REPLACEMENTS))
    plain = "".join(character for character in folded if not unicodedata.combining(character))
    name = "_".join(re.findall(r"[a-z0-9]+", plain)) or _DEFAULT_NAME
    prefix = "_" if name[0].isdigit() or name in RESERVED_WORDS else ""
    return (prefix + name)[:MAX_NAME_LENGTH].rstrip("_")


def _numbered(base: str, number: int) -> str:
    suffix = f"_{number}"
    return base[: MAX_NAME_LENGTH - len(suffix)].rstrip("_") + suffix


def name_prefix(label: str) -> str:
    """Return the prefix of every name that `table_name_from_label` can derive from a label."""
    return _base_name(label)[: MAX_NAME_LENGTH - _MAX_SUFFIX_LENGTH].rstrip("_")
