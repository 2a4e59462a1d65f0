# SPDX-License-Identifier: Apache-2.0
"""The host's side of a claimed port, written from native/claim.h's words."""

import socket
import struct
from typing import Final

ASK, CHALLENGE, PROOF, TAKEN = range(1, 5)
_FORM: Final = struct.Struct(">8sBxxxIQQ")
_WORD: Final = (1 << 64) - 1


def siphash(key: bytes, word: int) -> int:
    """Return SipHash-2-4 of a word of 64 bits (Aumasson and Bernstein, 2012)."""
    k0, k1 = struct.unpack("<QQ", key)
    v = [k0 ^ 0x736F6D6570736575, k1 ^ 0x646F72616E646F6D, k0 ^ 0x6C7967656E657261, k1 ^ 0x7465646279746573]

    def rotate(x: int, bits: int) -> int:
        return (x << bits | x >> (64 - bits)) & _WORD

    def rounds(count: int) -> None:
        for _ in range(count):
            v[0] = (v[0] + v[1]) & _WORD
            v[2] = (v[2] + v[3]) & _WORD
            v[1] = rotate(v[1], 13) ^ v[0]
            v[3] = rotate(v[3], 16) ^ v[2]
            v[0] = rotate(v[0], 32)
            v[2] = (v[2] + v[1]) & _WORD
            v[0] = (v[0] + v[3]) & _WORD
            v[1] = rotate(v[1], 17) ^ v[2]
            v[3] = rotate(v[3], 21) ^ v[0]
            v[2] = rotate(v[2], 32)

    for block in (word, 8 << 56):
        v[3] ^= block
        rounds(2)
        v[0] ^= block
    v[2] ^= 0xFF
    rounds(4)
    return v[0] ^ v[1] ^ v[2] ^ v[3]


def message(kind: int, number: int = 0, label: int = 0, key: bytes | None = None) -> bytes:
    """Return a message of the claim; with a key, its tag."""
    tag = 0 if key is None else siphash(key, siphash(key, number) ^ (kind << 32 | label))
    return _FORM.pack(b"sp4claim", kind, label, number, tag)


def ask(end: socket.socket, label: int = 0) -> int:
    """Ask on a connected socket, and return the number of the challenge."""
    end.send(message(ASK, label=label))
    magic, kind, answered, number, tag = _FORM.unpack(end.recv(64))
    assert (magic, kind, answered, tag) == (b"sp4claim", CHALLENGE, label, 0)
    return int(number)


def claim(end: socket.socket, key: bytes, label: int = 0) -> bytes:
    """Take a port by a connected socket, and return the proof."""
    number = ask(end, label)
    proof = message(PROOF, number, label, key)
    end.send(proof)
    assert end.recv(64) == message(TAKEN, number, label, key)
    return proof
