"""A corpus of texts from a web archive: stages that turn shards of rows into shards of rows."""

import os

# Arrow's own pool keeps what is freed, 70 MiB and more in a process, and asks for this when it is first imported.
os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
