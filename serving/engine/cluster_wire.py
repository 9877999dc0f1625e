"""What the hosts of one replica say to each other, and how each knows that it is the other who speaks.

    follower                                   leader
    Greet                                ->
                                         <-    its epoch: random, new with each leader process
    Follow: process, nonce, proof        ->    refused where the proof is not of this token and this epoch
                                         <-    Seated: at once
    Hello: what runs here                ->    refused where it is not what the leader runs
                                         <-    Begin: where JAX's own coordinator listens; all hosts are here
    Loaded: what came of loading         ->
                                         <-    PlanChange, and Masks after one that waits for them ...
                                         <-    Goodbye

Every message of the stream is sealed: an HMAC under a key of this token, epoch, process and nonce, over its number and
its bytes. None can be forged, replayed, left out or exchanged. They can be read: tokens pass as they are.
"""

import hashlib
import hmac

import msgspec
import numpy as np

from serving.engine.limits import ExecutorLimits
from serving.engine.plan_wire import PlanChange
from serving.errors import EngineUnavailableError

SERVICE, GREET, FOLLOW = "weft.Cluster", "Greet", "Follow"
PROCESS_KEY, NONCE_KEY, PROOF_KEY = "weft-process", "weft-nonce-bin", "weft-proof-bin"
NONCE_BYTES = 16
_MAC_BYTES = 16


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """What must be the same on all hosts, by name."""

    runs: dict[str, str]


class Seated(msgspec.Struct, frozen=True, tag="seated"):
    """The leader knows of this follower, which may wait for the other hosts as long as it takes."""


class Begin(msgspec.Struct, frozen=True, tag="begin"):
    runtime: str  # HOST:PORT of JAX's coordinator


class Loaded(msgspec.Struct, frozen=True, tag="loaded"):
    """What an executor was built for. Hosts that differ in it would run different programs."""

    limits: ExecutorLimits
    vocab_size: int
    programs: int


class Masks(msgspec.Struct, frozen=True, tag="masks"):
    """For the draw of the plan before: a row of bits over the vocabulary for each of its constrained ranges."""

    rows: int
    bits: bytes  # [rows, W] uint32, little-endian

    @classmethod
    def of(cls, masks: np.ndarray) -> "Masks":
        return cls(masks.shape[0], masks.astype("<u4").tobytes())

    def array(self) -> np.ndarray:
        return np.frombuffer(self.bits, "<u4").reshape(self.rows, -1)


class Goodbye(msgspec.Struct, frozen=True, tag="goodbye"):
    """The replica ends in order."""


FromFollower = Hello | Loaded
FromLeader = Seated | Begin | PlanChange | Masks | Goodbye

encode = msgspec.msgpack.Encoder().encode
decode_from_follower = msgspec.msgpack.Decoder(FromFollower).decode
decode_from_leader = msgspec.msgpack.Decoder(FromLeader).decode


class Seal:
    """One direction of one stream: what `close` makes, `open` of the other end's takes, in the same order."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._number = 0

    def close(self, message: bytes) -> bytes:
        return self._mac(message) + message

    def open(self, sealed: bytes) -> bytes:
        """Raises EngineUnavailableError for what was not sealed as the next message with this key."""
        message = sealed[_MAC_BYTES:]
        if not hmac.compare_digest(self._mac(message), sealed[:_MAC_BYTES]):
            raise EngineUnavailableError("a message was not sealed by the other host", code="bad_seal")
        return message

    def _mac(self, message: bytes) -> bytes:
        self._number += 1
        return hmac.digest(self._key, self._number.to_bytes(8, "big") + message, "sha256")[:_MAC_BYTES]


class Keys:
    """Of one follower's stream. Only who has the token can make them, and no two streams have the same."""

    def __init__(self, token: bytes, epoch: bytes, process: int, nonce: bytes) -> None:
        stream = hashlib.sha256(b"%b%d.%b" % (epoch, process, nonce)).digest()
        self.proof, self.of_leader, self.of_follower = (
            hmac.digest(token, use + stream, "sha256") for use in (b"proof", b"leader", b"follower")
        )
