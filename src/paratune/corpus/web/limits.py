"""Makes clients that share one request limit per archive, over all processes of a user."""

import os
import re
from pathlib import Path
from urllib.parse import urlsplit

from paratune.corpus.rate import RateLimit
from paratune.corpus.web.client import Client
from paratune.corpus.web.settings import Network
from paratune.errors import CheckpointError, os_error_as


def archive_client(endpoint: str, network: Network) -> Client:
    """Return a client for a service of an archive, which shares the limit of its host.

    Raises:
        CheckpointError: The folder of the limits cannot be made.
    """
    folder = limit_folder(network)
    with os_error_as(
        CheckpointError,
        f"{folder} cannot be made",
        "name network.limit_folder",
        code="corpus.not_writable",
        folder=folder,
    ):
        folder.mkdir(parents=True, exist_ok=True)
    # Without the port: arquivo.pt and arquivo.pt:443 are the same archive, and so are services on other ports.
    host = re.sub(r"[^a-z0-9.-]", "_", (urlsplit(endpoint).hostname or "").rstrip("."))
    return Client(endpoint, network, RateLimit(folder / host, network.requests_per_minute))


def limit_folder(network: Network) -> Path:
    """Return the folder of the limits, shared by all corpora, since archives count requests per IP address."""
    if network.limit_folder is not None:
        return Path(network.limit_folder)
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "paratune" / "limits"
