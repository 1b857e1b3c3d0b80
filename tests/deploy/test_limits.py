"""Connections are counted when they are accepted, and end when their time is over; on real sockets."""

from __future__ import annotations

import contextlib
import socket
import time

import pytest

from cloister.nodes.limits import Listener, SparseLog


class Door:
    """A listener, and who comes to it from which address."""

    def __init__(self, **limits):
        self.said: list[str] = []
        self.listener = Listener("127.0.0.1", 0, log=SparseLog(self.said.append), **limits)
        self.listener.listen()
        self.came: list[socket.socket] = []
        self.accepted: list[socket.socket] = []

    def come(self, source="127.0.0.1"):
        """Return a new connection as it is accepted; None if it is not."""
        each = socket.socket()
        each.settimeout(5)
        each.bind((source, 0))
        each.connect(self.listener.getsockname())
        self.came.append(each)
        with contextlib.suppress(ConnectionAbortedError):
            self.accepted.append(self.listener.accept()[0])
            return self.accepted[-1]
        return None

    def close(self):
        for each in (*self.came, *self.accepted, self.listener):
            each.close()


@pytest.fixture
def doors():
    made = []

    def door(**limits):
        made.append(Door(**limits))
        return made[-1]

    yield door
    for each in made:
        each.close()


def ended(connection) -> bool:
    """Say whether our side of a connection was ended."""
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def test_an_address_has_its_own_room_and_who_is_known_stays(doors):
    door = doors(each=3, most=100, patience=60.0)
    other = door.come("127.0.0.2")
    first, second, third = door.come(), door.come(), door.come()
    door.listener.asks(first.address, known=True)
    fourth = door.come()
    assert [ended(each) for each in (other, first, second, third, fourth)] == [0, 0, 1, 0, 0]
    for known in (third, fourth):
        door.listener.asks(known.address, known=True)
    assert door.come() is None  # all are known: the new one is sent away
    assert not any(ended(each) for each in (other, first, third, fourth))
    fourth.close()
    assert door.come() is not None
    assert "One address had more than 3 connections" in door.said[0]
    assert not any("127.0.0" in sentence for sentence in door.said)


def test_strangers_from_everywhere_are_sent_away_for_others(doors):
    door = doors(each=3, most=4, patience=60.0)
    node = door.come("127.0.0.9")
    door.listener.asks(node.address, known=True)
    strangers = [door.come(f"127.0.0.{host}") for host in range(2, 8)]
    assert [ended(each) for each in strangers] == [1, 1, 1, 0, 0, 0]
    assert not ended(node)
    assert "More than 4 connections were open in all" in door.said[0]


def test_who_asks_for_nothing_is_let_go_and_who_asks_is_not(doors):
    door = doors(each=9, most=9, patience=0.2)
    silent, stranger, node, quiet = (door.come() for _ in range(4))
    door.listener.asks(stranger.address, known=False)
    for each in (node, quiet):
        door.listener.asks(each.address, known=True)
    door.listener.over(quiet.address, idle=0.1)
    door.listener.over(stranger.address, idle=60.0)  # it is not known: it gains nothing
    door.listener.sweep()
    assert not any(map(ended, (silent, stranger, node, quiet)))
    time.sleep(0.3)
    door.listener.sweep()
    assert [ended(each) for each in (silent, stranger, node, quiet)] == [1, 1, 0, 1]
    for each in (silent, stranger, quiet):
        each.close()
    assert door.said == [
        "A connection asked for nothing: TLS could not be agreed on, or it was slow, or left."
    ]
    door.listener.asks(silent.address, known=True)  # it is gone
    for _ in range(8):
        assert door.come() is not None
