"""Who is let in to the operator's service: nodes and the operator, each by their own key.

A request without a valid signature has status 401 and bears a challenge. Whoever is to be let in signs it,
together with the address that they believe to speak to, and sends that along from then on, until the service
starts anew. Nobody's clock matters, nothing is kept of strangers, and what one service was sent lets nobody
in to another. TLS hides it on the way.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable, Generator, Mapping
from typing import Any
from urllib.parse import quote, unquote

from cloister.core.errors import MissingExtraError
from cloister.nodes.identity import Identity, PublicIdentity
from cloister.store.signatures import Operator

try:
    import httpx as httpx
except ImportError as error:
    raise MissingExtraError("httpx", "nodes", "A run between institutions") from error

_STATEMENT = b"cloister entry 1\0"
#: Seconds that a challenge can be used; bytes of its random part, and of the tag by which it is known again.
LIFETIME, _RANDOM, _TAG = 3600.0, 16, 16


def _statement(address: str, who: str, challenge: bytes) -> bytes:
    return _STATEMENT + hashlib.sha256(f"{address}\0{who}".encode()).digest() + challenge


class Challenges:
    """Challenges that are known again without being kept, for as long as this object lives.

    Examples
    --------
    >>> challenges = Challenges()
    >>> one = challenges.new(now=0.0)
    >>> challenges.accepts(one, now=10.0), challenges.accepts(one, now=2 * LIFETIME)
    (True, False)
    >>> Challenges().accepts(one, now=10.0), challenges.accepts(b"", now=0.0)
    (False, False)
    """

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

    def new(self, now: float) -> bytes:
        body = int(now + LIFETIME).to_bytes(8, "big") + secrets.token_bytes(_RANDOM)
        return body + self._tag(body)

    def accepts(self, challenge: bytes, now: float) -> bool:
        body, tag = challenge[:-_TAG], challenge[-_TAG:]
        return hmac.compare_digest(tag, self._tag(body)) and now < int.from_bytes(body[:8], "big")

    def _tag(self, body: bytes) -> bytes:
        return hmac.digest(self._key, body, "sha256")[:_TAG]


#: The operator, among the names of nodes; no task has this name, as names are not empty.
OPERATOR = ""


class Gate:
    """Says who has signed a request.

    Parameters
    ----------
    address : str
        ``host:port`` of the service, as nodes know it.
    operator : bytes
        The operator's public key.
    keys : callable
        Returns the public keys of the nodes that are registered now, by their names.
    """

    def __init__(self, address: str, operator: bytes, keys: Callable[[], Mapping[str, str]]) -> None:
        self.address, self.operator, self.keys = address, operator, keys
        self.challenges = Challenges()
        self._known: dict[str, tuple[str, str, float]] = {}  # who, by which key, until when

    def sender(self, header: str) -> str | None:
        """Return the name of whoever has signed a header ``authorization``: `OPERATOR`, a node's, or None."""
        keys, now = self.keys(), time.monotonic()
        who, key, until = self._known.get(header, (None, "", 0.0))
        if who is not None and now < until and key == keys.get(who, ""):
            return who
        self._known.pop(header, None)
        try:
            scheme, name, challenge, signature = header.split(" ")
            who, signed = unquote(name), bytes.fromhex(challenge)
            if scheme != "cloister" or not self.challenges.accepts(signed, now):
                return None
            self._verify(who, keys, bytes.fromhex(signature), _statement(self.address, who, signed))
        except (ValueError, KeyError):
            return None
        if len(self._known) > 4 * (len(keys) + 1):
            self._known.clear()
        self._known[header] = who, keys.get(who, ""), float(int.from_bytes(signed[:8], "big"))
        return who

    def _verify(self, who: str, keys: Mapping[str, str], signature: bytes, statement: bytes) -> None:
        """Raise ValueError or KeyError unless this name's key has signed a statement."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
        from cryptography.hazmat.primitives.hashes import SHA256

        try:
            if who == OPERATOR:
                Ed25519PublicKey.from_public_bytes(self.operator).verify(signature, statement)
            else:
                key = PublicIdentity.from_text(keys[who]).signing
                key.verify(signature, statement, ECDSA(SHA256()))
        except InvalidSignature:
            raise ValueError(who) from None

    def challenge(self) -> dict[str, str]:
        """Return the header that a request without a valid signature is answered with."""
        return {"www-authenticate": f"cloister {self.challenges.new(time.monotonic()).hex()}"}


class KeyAuth(httpx.Auth):
    """Signs the requests of a client of httpx, when the service asks for it.

    Parameters
    ----------
    address : str
        ``host:port`` of the service.
    who : str
        A node's name, or `OPERATOR`.
    sign : callable
        Signs bytes with the key of that name.
    """

    def __init__(self, address: str, who: str, sign: Callable[[bytes], bytes]) -> None:
        self.address, self.who, self.sign, self._header = address, who, sign, "cloister"

    @classmethod
    def of_node(cls, address: str, name: str, identity: Identity) -> KeyAuth:
        from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
        from cryptography.hazmat.primitives.hashes import SHA256

        return cls(address, name, lambda statement: identity.key.sign(statement, ECDSA(SHA256())))

    @classmethod
    def of_operator(cls, address: str, operator: Operator) -> KeyAuth:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        key = Ed25519PrivateKey.from_private_bytes(operator.secret)
        return cls(address, OPERATOR, key.sign)

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        request.headers["authorization"] = self._header
        response = yield request
        challenge = self._challenge(response)
        if challenge is None:
            return
        signature = self.sign(_statement(self.address, self.who, challenge))
        self._header = f"cloister {quote(self.who, safe='')} {challenge.hex()} {signature.hex()}"
        request.headers["authorization"] = self._header
        yield request

    @staticmethod
    def _challenge(response: Any) -> bytes | None:
        """Return what a response of status 401 asks to be signed; of anything else, nothing."""
        scheme, _, text = response.headers.get("www-authenticate", "").partition(" ")
        if response.status_code != 401 or scheme != "cloister":
            return None
        try:
            return bytes.fromhex(text)
        except ValueError:
            return None
