"""From an upload to typed Parquet: raw bytes are decoded, understood, parsed and written by Spark tasks."""

from inlay.pipeline.conversion import Conversion, ConvertedFile, convert
from inlay.pipeline.decode import InlineFile, RawFile
from inlay.pipeline.options import Limits, ReadOptions
from inlay.pipeline.previewing import Preview, PreviewColumn, preview
from inlay.pipeline.rejects import BadCell, read_rejects, scan_rejects

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
