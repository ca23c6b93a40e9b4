"""Convert an upload to typed Parquet: Spark tasks decode, parse and write its bytes."""

from inlay.pipeline.conversion import Conversion, ConvertedFile, convert
from inlay.pipeline.mapping import ColumnMapping
from inlay.pipeline.previews import Preview, PreviewColumn, preview
from inlay.pipeline.rejects import read_rejects, scan_rejects
from inlay.text.decode import InlineFile, RawFile
from inlay.text.options import Limits, ReadOptions
from inlay.text.reader import BadCell

__all__ = [
    "BadCell",
    "ColumnMapping",
    "Conversion",
    "ConvertedFile",
    "InlineFile",
    "Limits",
    "Preview",
    "PreviewColumn",
    "RawFile",
    "ReadOptions",
    "convert",
    "preview",
    "read_rejects",
    "scan_rejects",
]
