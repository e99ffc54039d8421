"""Requests to archives on the network."""

from typing import Annotated

from pydantic import Field

from paratune.config.section import Duration, Positive, Section, Text
from paratune.corpus.rate import LONGEST_HOLD_S

Endpoint = Annotated[str, Field(pattern=r"""^https?://[!"$-.0->A-~]+(/[!"$->@-~]*)?$""")]
"""URL of a service, in ASCII, without user name and password."""


class Network(Section):
    """Requests to archives on the network."""

    contact: Annotated[str, Field(pattern=r"^[!-~][ -~]*$")] | None = None
    """Your e-mail address or web page, in ASCII, sent with each request, so that the archive can contact you."""
    requests_per_minute: Annotated[int, Field(ge=2)] = 200
    """Maximum number of requests to an archive in any minute, from all processes of this user on this machine.

    Arquivo.pt permanently blocks addresses with more than 250; the default allows for requests that arrive up to 15
    seconds late.
    """
    connections: Positive = 4
    """Parallel requests of one process."""
    tries: Positive = 6
    """Maximum number of attempts after status 429, 500, 502, 503 or 504, or a connection error."""
    first_wait_s: Duration = 2.0
    """Seconds before the second attempt, doubled for each further one. Retry-After of the archive has priority."""
    timeout_s: Duration = 60.0
    """Maximum seconds without data during a response."""
    deadline_s: Duration = 600.0
    """Maximum seconds for a whole response."""
    max_hold_s: Annotated[float, Field(gt=0, le=LONGEST_HOLD_S)] = 3600.0
    """Longest Retry-After to wait for, at most a day; a longer one ends the command, which can be repeated later."""
    limit_folder: Text | None = None
    """Folder of the files with which processes share the limit; by default in the cache of this user."""
