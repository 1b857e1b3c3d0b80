"""Whether anybody answers at an address, before Ray tries it for minutes."""

from __future__ import annotations

import re
import socket

__all__ = ["check_answers"]

#: Seconds that a cluster has to answer.
WAIT = 3.0


def check_answers(address: str) -> None:
    """Refuse ``host:port`` or ``ray://host:port`` where nobody answers; other addresses are Ray's to find."""
    found = re.fullmatch(r"(?:ray://)?\[?(?P<host>.+?)\]?:(?P<port>\d+)", address)
    if found is None:
        return
    try:
        socket.create_connection((found["host"], int(found["port"])), timeout=WAIT).close()
    except (OSError, OverflowError) as error:
        raise ConnectionError(f"Nobody answers at {address}.") from error
