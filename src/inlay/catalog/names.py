"""Table names: what may be one, and how a label becomes one."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection

from inlay.errors import InvalidTableNameError

__all__ = ["LONGEST_NAME", "RESERVED_WORDS", "table_name_from_label", "validate_table_name"]

LONGEST_NAME = 128
_NAMELESS = "dataset"
_SHAPE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

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
# Words that DataFusion refuses as bare names, and those that begin a clause in most dialects.
_OTHERS = "analyze explain ilike limit minus pivot qualify returning struct top unpivot"
RESERVED_WORDS = frozenset(_SQL_STANDARD.split()) | frozenset(_OTHERS.split())

# Letters that Unicode does not take apart into a base letter and an accent.
_SPELLINGS = str.maketrans(
    dict(zip("æœøđðþłħ\u0131ŋ", ["ae", "oe", "o", "d", "d", "th", "l", "h", "i", "n"], strict=True))
    | dict.fromkeys("'\u2018\u2019\u02bc", "")  # bob's -> bobs
)


def validate_table_name(name: str) -> str:
    """The name, if SQL can use it as it is."""
    problem = _problem(name)
    if problem:
        raise InvalidTableNameError(
            f"{name[: LONGEST_NAME + 1]!r} cannot be a table name: {problem}.",
            hint="A table name has letters, digits and underscores, begins with no digit, and is no word of SQL.",
        )
    return name


def _problem(name: str) -> str | None:
    if not name:
        return "it is empty"
    if len(name) > LONGEST_NAME:
        return f"it has {len(name):,} characters, and {LONGEST_NAME} are allowed"
    if not _SHAPE.fullmatch(name):
        return "it must begin with a letter or underscore and have only letters (a-z), digits and underscores"
    return "it is a reserved word of SQL" if name.lower() in RESERVED_WORDS else None


def table_name_from_label(label: str, taken: Collection[str] = ()) -> str:
    """A valid name that reads like the label and is none of those taken (which are in lower case)."""
    base = _base_name(label)
    if base not in taken:
        return base
    number = 2
    while (name := _numbered(base, number)) in taken:
        number += 1
    return name


def _base_name(label: str) -> str:
    folded = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", label).casefold().translate(_SPELLINGS))
    plain = "".join(character for character in folded if not unicodedata.combining(character))
    name = "_".join(re.findall(r"[a-z0-9]+", plain)) or _NAMELESS
    prefix = "_" if name[0].isdigit() or name in RESERVED_WORDS else ""
    return (prefix + name)[:LONGEST_NAME].rstrip("_")


def _numbered(base: str, number: int) -> str:
    suffix = f"_{number}"
    return base[: LONGEST_NAME - len(suffix)].rstrip("_") + suffix


def name_family(label: str) -> str:
    """What all names begin with that `table_name_from_label` could choose for this label."""
    return _base_name(label)[: LONGEST_NAME - _LONGEST_SUFFIX].rstrip("_")


_LONGEST_SUFFIX = 20
