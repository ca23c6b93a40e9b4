"""From an upload to typed Parquet: raw bytes are decoded, understood, parsed and written by Spark tasks."""

from inlay.pipeline.convert import Conversion, ConvertedFile, convert
from inlay.pipeline.decode import InlineFile, RawFile
from inlay.pipeline.options import FORMATS, Limits, ReadOptions
from inlay.pipeline.rejects import read_rejects

__all__ = [
    "FORMATS",
    "Conversion",
    "ConvertedFile",
    "InlineFile",
    "Limits",
    "RawFile",
    "ReadOptions",
    "convert",
    "read_rejects",
]
