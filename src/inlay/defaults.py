"""What Python and the command line do unless told otherwise. Kept apart: the command line starts without PyArrow."""

LOCK_TIMEOUT = 300.0  # seconds to wait for another writer
MAX_ROWS_PER_FILE = 5_000_000
TARGET_FILE_SIZE = 128 << 20
