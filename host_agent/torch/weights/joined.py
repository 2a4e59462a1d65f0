# SPDX-License-Identifier: Apache-2.0
"""An engine's door to weights that the ranks of an FSDP job publish by shards, each its own."""

import hashlib
import time
from typing import Literal, overload

from weir.host_agent.torch.weights.gate import Gate
from weir.host_agent.torch.weights.members import WeightsError
from weir.host_agent.torch.weights.shards import Model, cut, shard_name
from weir.host_agent.torch.weights.subscription import SubscriberStats, Subscription


class JoinedSubscription:
    """Shards of weights that come into a model at one version when ``swap`` is called. Made by ``subscribe``.

    A version of a shard is used when all shards have it. If a shard's publisher is gone, the model keeps its
    version. Publishers of two jobs are never mixed.
    """

    def __init__(
        self, model: Model, name: str, shards: int, *, token: str, controller: str | None, host: str | None
    ) -> None:
        self._gate = Gate(shards)
        self._swapped, self._digest = 0, ""
        parts = [cut(model, shard, shards) for shard in range(shards)]
        self._parts: list[Subscription] = []
        try:
            for shard, part in enumerate(parts):
                made = Subscription(
                    part,
                    shard_name(name, shard, shards),
                    token=token,
                    controller=controller,
                    host=host,
                    gate=self._gate,
                    shard=shard,
                )
                self._parts.append(made)
        except BaseException:
            self.close()
            raise

    @property
    def version(self) -> int:
        """Number of the version that is in the model; 0: none yet."""
        return self._swapped

    @property
    def digest(self) -> str:
        """SHA-256 of all shards' digests, of the version in the model, in hexadecimal; empty: none yet."""
        return self._digest

    @property
    def received(self) -> int:
        """Number of the newest version of which all shards have come, whole and checked; 0: none yet."""
        return min(part.received for part in self._parts)

    def wait(self, version: int = 1, timeout_s: float = 60.0) -> int:
        """Wait until a version, or a later one, of all shards is here; return its number.

        Args:
            version: its number.
            timeout_s: how long to wait, in seconds.

        Raises:
            TimeoutError: it did not come in time.
            WeightsError: a subscription is refused.
        """
        until = time.monotonic() + timeout_s
        return min(part.wait(version, max(0.0, until - time.monotonic())) for part in self._parts)

    def swap(self) -> bool:
        """Put the newest version of all shards into the model; return whether the weights are others now.

        Call it where no forward pass runs. It returns False at once if shards have no version in common.

        Raises:
            WeightsError: a subscription is refused.
        """
        with self._gate.changed, self._gate.still():
            self._gate.changed.wait_for(self._nothing_to_wait_for)
            found = {part.settled for part in self._parts}
            one = found.pop()
            if found or one is None:
                return False
            changed = [part.put() for part in self._parts]
            self._swapped = one.version
            self._digest = hashlib.sha256(
                bytes.fromhex("".join(part.digest for part in self._parts))
            ).hexdigest()
            return any(changed)

    def _nothing_to_wait_for(self) -> bool:
        """Return whether no shard will come to a version soon at which others are."""
        for part in self._parts:
            part.raise_failure()
        newest = self._gate.newest
        if not newest:
            return True
        versions = [part.settled.version if part.settled is not None else 0 for part in self._parts]
        return min(versions) >= newest

    @property
    def stats(self) -> list[SubscriberStats]:
        """Numbers so far, of each shard."""
        return [part.stats for part in self._parts]

    def close(self) -> None:
        """End the subscription; the model keeps its version. Closing twice is harmless."""
        for part in self._parts:
            part.close()

    def __enter__(self) -> "JoinedSubscription":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@overload
def subscribe(
    model: Model,
    name: str = ...,
    *,
    token: str = ...,
    controller: str | None = ...,
    host: str | None = ...,
    shards: Literal[1] = ...,
) -> Subscription: ...
@overload
def subscribe(
    model: Model,
    name: str = ...,
    *,
    token: str = ...,
    controller: str | None = ...,
    host: str | None = ...,
    shards: int,
) -> Subscription | JoinedSubscription: ...
def subscribe(
    model: Model,
    name: str = "weights",
    *,
    token: str = "",
    controller: str | None = None,
    host: str | None = None,
    shards: int = 1,
) -> Subscription | JoinedSubscription:
    """Follow weights that a trainer publishes.

    Args:
        model: with the same tensors as the trainer's; or tensors by name.
        name: of the publication.
        token: its secret.
        controller: its address; by default WEIR_CONTROLLER.
        host: this host's name in the topology; by default WEIR_HOST.
        shards: ranks of an FSDP job, each of which publishes its shard; the model here is whole.

    Returns:
        The subscription, at once: the publisher may come later. Call ``swap()`` between requests.

    Example::

        subscription = weir.torch.subscribe(model, "policy")
        subscription.wait()
        while True:
            subscription.swap()
            serve(model)
    """
    if shards < 1:
        raise WeightsError(f"{shards} shards: there is at least one")
    if shards == 1:
        return Subscription(model, name, token=token, controller=controller, host=host)
    return JoinedSubscription(model, name, shards, token=token, controller=controller, host=host)
