"""Nobody at an address is said at once."""

from __future__ import annotations

import socket

import pytest

from cloister.cluster.engine import check_answers


@pytest.mark.parametrize("address", ["127.0.0.1:{}", "ray://127.0.0.1:{}"])
def test_an_address_where_nobody_answers(address):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        check_answers(address.format(port))
    with pytest.raises(ConnectionError, match="Nobody answers"):
        check_answers(address.format(port))


def test_other_addresses_are_left_to_ray():
    check_answers("auto")
    with pytest.raises(ConnectionError):
        check_answers("127.0.0.1:123456")  # no port
