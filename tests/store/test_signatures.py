"""Keys of an operator, and what is signed with them: read back, or refused."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from cloister.core.roster import Roster
from cloister.errors import InputError, SignatureError
from cloister.store.signatures import Operator, SignedHead, SignedRoster, public_key

OPERATOR = Operator("exam-2026", bytes(range(32)))
ROSTER = OPERATOR.sign_roster("p" * 64, Roster(["Elm", "Oak"], ["north", "south"]), "c" * 64)


def test_a_key_is_kept_for_its_owner_alone(tmp_path):
    path = OPERATOR.save(tmp_path / "operator.key")
    assert Operator.load(path, OPERATOR.run) == OPERATOR
    assert path.stat().st_mode & 0o077 == 0
    assert OPERATOR.secret.hex() not in repr(OPERATOR)
    assert public_key(OPERATOR.public.hex() + "\n") == OPERATOR.public
    path.write_text("5ec4e7" * 10)
    with pytest.raises(InputError, match="must hold the operator's secret key") as told:
        Operator.load(path, OPERATOR.run)
    assert "5ec4e7" not in str(told.value)
    with pytest.raises(InputError, match="A secret key must be 32 bytes"):
        Operator("exam-2026", b"short")


def test_a_roster_is_read_back_as_it_was_signed():
    assert SignedRoster.from_bytes(ROSTER.to_bytes()) == ROSTER
    ROSTER.verify(OPERATOR.public)
    for change in (
        {"run": "other"},
        {"plan": "q" * 64},
        {"roster": Roster(["Elm", "Ash"])},
        {"codebook": ""},
    ):
        changed = SignedRoster.from_bytes(replace(ROSTER, **change).to_bytes())
        with pytest.raises(SignatureError, match="This roster is not signed by the operator"):
            changed.verify(OPERATOR.public)
    document = json.loads(ROSTER.to_bytes())
    for edited in (
        document | {"more": 1},
        document | {"names": ["Elm", "Elm"]},
        [],
        document | {"run": "../x"},
    ):
        with pytest.raises(InputError, match="not a signed roster"):
            SignedRoster.from_bytes(json.dumps(edited).encode())


def test_heads_prove_a_fork_or_nothing():
    head = OPERATOR.sign_head(ROSTER.fingerprint, 3, bytes(32))
    assert SignedHead.from_dict(json.loads(json.dumps(head.to_dict()))) == head
    other_roster = OPERATOR.sign_head("f" * 64, 9, bytes(32))
    assert head.forks(other_roster, OPERATOR.public)  # two rosters of one run, whatever the lengths
    stranger = Operator("exam-2026", bytes(32)).sign_head(ROSTER.fingerprint, 3, bytes(range(32)))
    with pytest.raises(SignatureError, match="Record 2 is not signed by the operator"):
        head.forks(stranger, OPERATOR.public)
    later = Operator("exam-2027", OPERATOR.secret).sign_head(ROSTER.fingerprint, 3, bytes(range(32)))
    with pytest.raises(InputError, match="compared within one run"):
        head.forks(later, OPERATOR.public)
    for edited in ({}, head.to_dict() | {"length": "many"}, head.to_dict() | {"more": 1}):
        with pytest.raises(InputError, match="not a signed head"):
            SignedHead.from_dict(edited)
