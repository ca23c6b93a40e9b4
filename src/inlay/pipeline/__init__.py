"""Convert an upload to typed Parquet: Spark tasks decode, parse and write its bytes."""

from inlay.pipeline.conversion import Conversion, ConvertedFile, convert
from inlay.pipeline.decode import InlineFile, RawFile
from inlay.pipeline.options import Limits, ReadOptions
from inlay.pipeline.previews import Preview, PreviewColumn, preview
from inlay.pipeline.reader import BadCell, read_rejects, scan_rejects

__all__ = [
    "BadCell",
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
