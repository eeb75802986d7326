"""The cluster key: one secret, the same on every node, and its file format.

Any node with the key may join. Both ends of the link derive their CURVE secret keys from it, so
this one file is all that needs copying to the other nodes.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from typing import Literal

from caovand.core.problem import ProblemError

SECRET_BYTES = 32
FORMAT = "caovan-cluster-1"
NOTES = (
    "# The key of a caovan cluster, the same on all nodes. Whoever has this key can join.",
    "# Copy this file unchanged to the other nodes; `caovanctl cluster init` created it.",
)
COPY = "copy the file from the head again, unchanged"
Side = Literal["head", "worker"]


class BadKey(ProblemError):
    """A cluster key cannot be used or created; no message contains any part of it."""


@dataclass(frozen=True)
class ClusterKey:
    """A cluster's secret of 32 bytes; neither repr nor messages show it."""

    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.secret) != SECRET_BYTES:
            raise ValueError(f"a cluster's secret has {SECRET_BYTES} bytes, not {len(self.secret)}")

    def text(self) -> str:
        """The content of its file; `parse` reads it back."""
        return "\n".join((*NOTES, f"{FORMAT} {self.secret.hex()}", ""))

    def curve_secret(self, side: Side) -> bytes:
        """Derive the 32-byte CURVE secret key of the head or of the workers."""
        person = f"caovan-{side}".encode()
        return hashlib.blake2b(self.secret, person=person, digest_size=SECRET_BYTES).digest()

    def token(self) -> str:
        """A hexadecimal token by which the engine's processes on all nodes recognise each other."""
        person = b"caovan-token"
        return hashlib.blake2b(self.secret, person=person, digest_size=SECRET_BYTES).hexdigest()


def parse(text: str, source: str = "") -> ClusterKey:
    """Parse the key file: one line with the key, and comments; raises BadKey.

    `source` names the file in the message.
    """

    def refuse(fact: str, remedy: str = COPY) -> BadKey:
        return BadKey(f"use the cluster key {source}".rstrip(), fact, remedy)

    lines = [line.strip() for line in text.split("\n")]
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys:
        raise refuse("the file contains no key")
    if len(keys) > 1:
        raise refuse(f"the file has {len(keys)} lines where one key is expected")
    name, _, digits = keys[0].partition(" ")
    if name != FORMAT:
        if re.fullmatch(r"caovan-cluster-[0-9]{1,3}", name):
            newer = "run the same release of caovan on every node"
            raise refuse(f"its format is {name}, but this caovan reads {FORMAT}", newer)
        raise refuse(f'its line does not begin with "{FORMAT} "')
    if len(digits) != 2 * SECRET_BYTES:
        count = f"it has {len(digits)} of {2 * SECRET_BYTES} characters"
        raise refuse(f"{count}: the file was truncated or changed")
    if not re.fullmatch(r"[0-9a-f]+", digits):
        raise refuse("it has characters other than 0-9 and a-f: the file was changed")
    return ClusterKey(bytes.fromhex(digits))
