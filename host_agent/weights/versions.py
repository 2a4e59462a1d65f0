# SPDX-License-Identifier: Apache-2.0
"""Versions of weights: what a trainer sends of a new one, and an engine's copy, which follows.

Weights are named tensors of any dtype. Values are compared bit by bit; an update has those that changed, in
the code of ``compression.change_code``; a snapshot has the bytes of all tensors. The digest of a version is
the SHA-256 of the tensors' layout and of the SHA-256 of each tensor. To compute it takes longer than to send
a short update, so trainer and engines do it at the same time: a message's code is made and used without it.
"""

import hashlib
import struct
from collections import Counter
from collections.abc import Mapping
from typing import Final

import torch

from weir.host_agent.collectives.tensor_memory import byte_view
from weir.host_agent.compression.change_code import CodeError, Form, read, write
from weir.host_agent.compression.changes import Changes, apply, renew, take

_LENGTH: Final = struct.Struct("!Q")
_WORDS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int32, 16: torch.int32}


class BodyError(ValueError):
    """A message that does not make the version that it names from the one that is here."""


class Layout:
    """The names, dtypes and shapes of tensors, in order.

    Attributes:
        description: of them, in bytes.
        fingerprint: 8 bytes of its hash, which packets carry.
        nbytes: of all tensors.
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        lines = [f"{name} {tensor.dtype} {tuple(tensor.shape)}" for name, tensor in tensors.items()]
        self.description = "\n".join(lines).encode()
        self.fingerprint = hashlib.sha256(self.description).digest()[:8]
        self.nbytes = sum(tensor.nbytes for tensor in tensors.values())

    @property
    def most_bytes(self) -> int:
        """Bytes of the longest message's code."""
        return self.nbytes + self.nbytes // 1024 + 64 * (self.description.count(b"\n") + 2)


def words_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's values as flat integers of 1, 2 or 4 bytes: its own memory where it is contiguous."""
    return tensor.detach().contiguous().view(-1).view(_WORDS[tensor.element_size()])


def digest_of(tensors: Mapping[str, torch.Tensor]) -> bytes:
    """Return the digest of weights."""
    return _whole(Layout(tensors), [_sha256(words_of(tensor).cpu()) for tensor in tensors.values()])


def _sha256(words: torch.Tensor) -> bytes:
    return hashlib.sha256(byte_view(words).data).digest()


def _whole(layout: Layout, parts: list[bytes]) -> bytes:
    return hashlib.sha256(b"".join((layout.description, *parts))).digest()


class Source:
    """A trainer's weights, and a copy of the version that was published last, on their devices.

    Args:
        tensors: which the trainer changes in place.
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._tensors = dict(tensors)
        self.layout = Layout(tensors)
        self._published = [words_of(tensor).clone() for tensor in tensors.values()]
        self._digests = [_sha256(words.cpu()) for words in self._published]
        self._unsealed: set[int] = set()  # tensors whose digests are those of the version before
        self.forms: Counter[Form] = Counter()
        """Pieces of updates, by their form."""
        self.changed = 0
        """Values that changed, in all updates."""

    @property
    def digest(self) -> bytes:
        """Digest of the version that was sealed last."""
        return _whole(self.layout, self._digests)

    def update(self) -> bytes:
        """Make the weights as they are now the published version; return the code of what changed.

        The weights may change again. ``seal`` comes before the next call.
        """
        codes = []
        for at, (tensor, old) in enumerate(zip(self._tensors.values(), self._published, strict=True)):
            new = words_of(tensor)
            changes, before = renew(old, new)
            if not changes.count:
                codes.append(_LENGTH.pack(0))
                continue
            there, past = changes.on_host(), before.cpu()
            code = write(there, past, old, self.forms)
            self._unsealed.add(at)
            self.changed += changes.count
            codes += [_LENGTH.pack(len(code)), code]
        return b"".join(codes)

    def seal(self) -> bytes:
        """Compute and return the published version's digest."""
        for at in self._unsealed:
            self._digests[at] = _sha256(self._published[at].cpu())
        self._unsealed.clear()
        return self.digest

    def snapshot(self) -> tuple[bytes, bytes]:
        """Return the code that makes the published version from any other, and its digest."""
        return b"".join(byte_view(words.cpu()).data for words in self._published), self.digest


class Replica:
    """An engine's copy of the weights in main memory, beside those that it works with.

    Args:
        tensors: the engine's own, for their layout.
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self.layout = Layout(tensors)
        self._words = [torch.zeros_like(words_of(tensor), device="cpu") for tensor in tensors.values()]
        self._digests = [b""] * len(self._words)
        self._fresh: set[int] = set()
        self._made: bytes | None = None  # digest of what is here, while it is not confirmed
        self._before: bytes | None = None  # digest of the version before
        self._undo: list[tuple[int, Changes, bytes]] = []  # for each tensor: what makes it the one before
        self.digest: bytes | None = None
        """Digest of the version that is here, if ``confirm`` said that it is one; else None."""

    def follow(self, code: memoryview, *, snapshot: bool) -> None:
        """Become the version that a message makes, which is none until ``confirm``.

        Raises:
            BodyError: the message does not fit. No version is here then.
        """
        self._before, self.digest, self._made = None if snapshot else self.digest, None, None
        self._undo.clear()
        try:
            (self._replace if snapshot else self._patch)(code)
        except CodeError as error:
            raise BodyError(str(error)) from None
        self._made = _whole(self.layout, self._digests)

    def confirm(self, digest: bytes) -> None:
        """Compare what is here with the publisher's digest of the version.

        Raises:
            BodyError: this is something else. No version is here then.
        """
        if digest != self._made:
            raise BodyError("these weights are not the version that the message makes")
        self.digest, self._made = digest, None
        self._undo.clear()

    def first_bytes(self) -> bytes:
        """Return the bytes of the first tensor here."""
        return bytes(byte_view(self._words[0]).data)

    @property
    def waits(self) -> bool:
        """True between ``follow`` and ``confirm``."""
        return self._made is not None

    def undo(self) -> None:
        """Become the version before again, if nobody will confirm what is here. None is here if that was a
        snapshot.
        """
        if not self.waits:
            return
        for at, changes, digest in self._undo:
            apply(self._words[at], changes)
            self._digests[at] = digest
        self.digest, self._made = self._before, None
        self._undo.clear()

    def _replace(self, body: memoryview) -> None:
        if len(body) != self.layout.nbytes:
            raise BodyError(f"{len(body)} bytes for weights of {self.layout.nbytes}")
        start = 0
        for at, words in enumerate(self._words):
            memory = byte_view(words)
            memory.data[:] = body[start : start + memory.size]
            start += memory.size
            self._digests[at] = _sha256(words)
        self._fresh.update(range(len(self._words)))

    def _patch(self, body: memoryview) -> None:
        for at, words in enumerate(self._words):
            if len(body) < _LENGTH.size:
                raise BodyError("the message is too short")
            (length,) = _LENGTH.unpack_from(body)
            code, body = body[_LENGTH.size : _LENGTH.size + length], body[_LENGTH.size + length :]
            if len(code) != length:
                raise BodyError("the message is too short")
            if length:
                changes = read(code, words)
                before = Changes(changes.mask, changes.count, take(words, changes))
                self._undo.append((at, before, self._digests[at]))
                apply(words, changes)
                self._digests[at] = _sha256(words)
                self._fresh.add(at)

    def copy_to(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Overwrite the engine's tensors by those that changed since the last time."""
        assert self.digest is not None
        for at, tensor in enumerate(tensors.values()):
            if at in self._fresh:
                with torch.no_grad():
                    tensor.detach().copy_(self._words[at].view(tensor.dtype).view(tensor.shape))
        self._fresh.clear()
