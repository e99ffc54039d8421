"""How archives on the network are asked."""

from typing import Annotated

from pydantic import Field

from paratune.config.section import Duration, Positive, Section, Text
from paratune.corpus.rate import LONGEST_HOLD_S

Endpoint = Annotated[str, Field(pattern=r"""^https?://[!"$-.0->A-~]+(/[!"$->@-~]*)?$""")]
"""Address of a service, in ASCII; no name or password in it."""


class Network(Section):
    """How archives on the network are asked."""

    contact: Annotated[str, Field(pattern=r"^[!-~][ -~]*$")] | None = None
    """Whom the archive can write to when it minds what we do: an address of mail or a page. Sent with each request.

    In ASCII, as headers are.
    """
    requests_per_minute: Annotated[int, Field(ge=2)] = 200
    """Most requests that one archive gets in any minute, from all processes of this user on this machine.

    Arquivo.pt allows 250 and blocks addresses above for good; the rest is room for requests that arrive up to 15
    seconds late.
    """
    connections: Positive = 4
    """Requests that one process has under way at the same time."""
    tries: Positive = 6
    """How often a request is sent that is answered with 429, 500, 502, 503 or 504, or breaks."""
    first_wait_s: Duration = 2.0
    """Seconds before the second try; twice as long before each further one. Retry-After of the archive goes first."""
    timeout_s: Duration = 60.0
    """Longest silence of the archive within an answer."""
    deadline_s: Duration = 600.0
    """Longest time that one answer may take as a whole."""
    max_hold_s: Annotated[float, Field(gt=0, le=LONGEST_HOLD_S)] = 3600.0
    """Longest Retry-After that is waited for; a longer one ends the command, which can be started again then.

    At most a day: a longer Retry-After counts as a day.
    """
    limit_folder: Text | None = None
    """Folder of the files by which processes keep the limit together; one of this user's cache when not given."""
