"""All readers of the soak."""

from . import read_archives, read_records, read_settings, read_tables
from .fuzz import Reader

READERS: tuple[Reader, ...] = (
    *read_tables.READERS,
    *read_settings.READERS,
    *read_archives.READERS,
    *read_records.READERS,
)
