# SPDX-License-Identifier: Apache-2.0
"""An engine's door: follow published weights, and take a version over between two requests."""

import logging
import os
import time
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch

from weir.agent_service.client import AgentClient, AgentError, JoinRefused, Membership
from weir.host_agent.flows.frames import Address
from weir.host_agent.torch.weights.carriers import Carrier, address_of
from weir.host_agent.torch.weights.follower import Follower
from weir.host_agent.torch.weights.gate import Gate
from weir.host_agent.torch.weights.members import (
    Member,
    PacketThread,
    WeightsError,
    address_of_controller,
    now_ns,
    own_host,
    tensors_of,
)
from weir.host_agent.weights.packets import Datagrams, Verdict
from weir.host_agent.weights.subscriber import Digest, Event, Message, Subscriber
from weir.host_agent.weights.versions import BodyError, Replica

log = logging.getLogger(__name__)

_JOIN_S: Final = 30.0
_PAUSE_S: Final = 0.25
_TOGETHER_S: Final = 0.001
_FEW, _MANY = 16, 200
"""Packets that came together: from the one on, a long message is on its way; from the other on, the engine is
late."""


@dataclass(frozen=True)
class Settled:
    """A version that is here: its number, and the bytes of its first tensor."""

    version: int
    first: bytes


@dataclass(frozen=True)
class SubscriberStats:
    """Numbers of a subscription so far.

    received: version here. swapped: version in the model. counts: of messages, questions and restarts.
    refused: packets, by reason. payload_bytes: of UDP, received.
    """

    received: int
    swapped: int
    counts: dict[str, int]
    refused: dict[str, int]
    payload_bytes: int


class Subscription:
    """Published weights that come into a model when ``swap`` is called. Made by ``subscribe``.

    One thread receives messages, another puts them into a copy in main memory, and checks each version by its
    SHA-256. The publisher may come later than the subscriber, and go and come again: the engine goes on with
    the version that it has.

    Args:
        model, name, token, controller, host: as of ``subscribe``.
        gate, shard: of shards that are joined, which all have one gate, and this one's number.
    """

    def __init__(
        self,
        model: torch.nn.Module | Mapping[str, torch.Tensor],
        name: str,
        *,
        token: str = "",
        controller: str | None = None,
        host: str | None = None,
        gate: Gate | None = None,
        shard: int = 0,
    ) -> None:
        self._tensors = tensors_of(model)
        self._name, self._token, self._place = name, token, own_host(host)
        self._controller = address_of_controller(controller)
        self._replica = Replica(self._tensors)
        self._gate, self._shard = gate or Gate(1), shard
        self._changed = self._gate.changed  # of all that follows
        self._held: deque[Event] = deque()  # messages behind one that the gate does not let through yet
        self._received = self._swapped = 0
        self._swapped_digest: bytes | None = None
        self._failure: Exception | None = None
        self._payload_bytes = 0
        self._counts: Counter[str] = Counter()
        self._verdicts: Counter[Verdict] = Counter()
        self._joining: AgentClient | None = None
        self._member: Member | None = None
        self._machine: Subscriber | None = None
        self._follower = Follower(f"weir-follow-{name}", self._follow)
        self._follower.start()
        self._thread = PacketThread(f"weir-subscribe-{name}", self._step, self._carrier)
        self._thread.start()

    @property
    def version(self) -> int:
        """Number of the version that is in the model; 0: none yet."""
        return self._swapped

    @property
    def digest(self) -> str:
        """SHA-256 of the version that is in the model, in hexadecimal; empty: none yet."""
        return self._swapped_digest.hex() if self._swapped_digest is not None else ""

    @property
    def received(self) -> int:
        """Number of the newest version that is here, whole and checked; 0: none yet."""
        return self._received

    def wait(self, version: int = 1, timeout_s: float = 60.0) -> int:
        """Wait until a version, or a later one, is here; return its number.

        Args:
            version: its number.
            timeout_s: how long to wait, in seconds.

        Raises:
            TimeoutError: it did not come in time.
            WeightsError: the subscription is refused.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._received >= version or self._failure is not None, timeout_s)
            if self._received < version:
                self.raise_failure()
                raise TimeoutError(
                    f"version {version} of {self._name!r} did not come within {timeout_s:g} s; "
                    f"here is {self._received or 'none'}"
                )
            return self._received

    def swap(self) -> bool:
        """Put the newest version that is here into the model; return whether the weights are others now.

        Call it where no forward pass runs: until it returns, the model is between two versions.

        Raises:
            WeightsError: the subscription is refused.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: not self._replica.waits
            )  # for its digest, which follows it closely
            self.raise_failure()
            return self.put()

    def put(self) -> bool:
        """Do what ``swap`` does, without waiting, for a caller that holds the gate's condition."""
        digest = self._replica.digest
        if digest is None:
            return False
        self._swapped = self._received
        if digest == self._swapped_digest:
            return False
        self._replica.copy_to(self._tensors)
        self._swapped_digest = digest
        return True

    @property
    def settled(self) -> Settled | None:
        """Version that is here, whole and checked, with its first tensor; None: a message is being used.

        For a caller that holds the gate's condition.
        """
        if self._replica.digest is None:
            return None
        return Settled(self._received, self._replica.first_bytes())

    def raise_failure(self) -> None:
        """Raise WeightsError if the subscription is refused."""
        if self._failure is not None:
            raise WeightsError(f"no subscription to {self._name!r}: {self._failure}") from self._failure

    @property
    def stats(self) -> SubscriberStats:
        """Numbers so far."""
        with self._changed:
            counts, verdicts = self._counts.copy(), self._verdicts.copy()
            if self._machine is not None:
                counts += self._machine.counts
                verdicts += self._machine.verdicts
            refused = {v.name.lower(): n for v, n in verdicts.items() if v > Verdict.DUPLICATE}
            return SubscriberStats(self._received, self._swapped, dict(counts), refused, self._payload_bytes)

    def close(self) -> None:
        """End the subscription; the model keeps its version. Closing twice is harmless."""
        self._thread.end(self._give_up_joining)
        self._leave()
        self._follower.end()

    def __enter__(self) -> "Subscription":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- the thread of packets

    def _carrier(self) -> Carrier | None:
        return self._member.carrier if self._member is not None else None

    def _step(self) -> float:
        if self._failure is not None:
            return _PAUSE_S
        if self._member is not None and self._member.client.stopped is not None:
            log.info("%s: %s", self._name, self._member.client.stopped)
            self._leave()
        if self._member is None and not self._enter():
            return _PAUSE_S
        member, machine = self._member, self._machine
        assert member is not None and machine is not None
        now, packets = now_ns(), 0
        for batch in member.carrier.receive():
            self._payload_bytes += batch.nbytes
            packets += batch.count
            machine.on_batch(batch, now)
        if machine.verdicts[Verdict.WRONG_LAYOUT]:
            self._fail(WeightsError("the publisher's tensors have other names, dtypes or shapes"))
        if self._follower.failed:
            self._forget()
            machine.restart()
        if self._follower.has_room:
            self._give(machine)
        payloads, wake = machine.poll(now)
        for payload in payloads:
            member.carrier.send(Datagrams.single(payload, machine_publisher(member.membership)))
        member.carrier.flush()
        if _FEW <= packets < _MANY:  # more comes at once: to wake for each batch of it would cost more
            time.sleep(_TOGETHER_S)
        return max(0.0, (wake - now) / 1e9)

    def _give(self, machine: Subscriber) -> None:
        """Have messages used, in order, as far as the gate lets them through."""
        if not self._held:
            self._held.extend(machine.messages())
        while self._held and self._gate.lets_through(self._shard, self._held[0]):
            self._follower.give(self._held.popleft())

    def _forget(self) -> None:
        """Forget all messages that are not used yet."""
        self._held.clear()
        self._gate.forget(self._shard)
        self._follower.reset()

    def _follow(self, message: Event) -> bool:
        """Use a message, or have its digest confirm the version; return whether it is right."""
        number = message.name.number
        with self._changed:
            try:
                if isinstance(message, Message):
                    self._replica.follow(message.code, snapshot=message.name.snapshot)
                elif isinstance(message, Digest):
                    self._replica.confirm(message.digest)
                    self._received = number
                else:
                    self._replica.undo()
            except BodyError as error:
                log.warning("%s: version %d: %s", self._name, number, error)
                self._received = 0
                return False
            finally:
                self._changed.notify_all()
            return True

    def _enter(self) -> bool:
        def join(client: AgentClient, udp_port: int) -> Membership:
            self._joining = client
            return client.subscribe(
                job=self._name, token=self._token, host=self._place, udp_port=udp_port, timeout_s=_JOIN_S
            )

        try:
            member = Member.enter(self._controller, join, listens=True)
        except (JoinRefused, ValueError) as error:
            self._fail(error)
            return False
        except (AgentError, OSError) as error:
            log.debug("%s: %s", self._name, error)
            return False
        membership = member.membership
        layout = self._replica.layout
        seed = int.from_bytes(os.urandom(4), "big")
        with self._changed:
            self._member = member
            self._machine = Subscriber(
                membership.job_id,
                membership.key,
                layout.fingerprint,
                machine_publisher(membership),
                layout.most_bytes,
                seed,
            )
        return True

    def _give_up_joining(self) -> None:
        if self._joining is not None and self._member is None:
            self._joining.close()

    def _leave(self) -> None:
        self._forget()
        with self._changed:
            member, machine, self._member, self._machine = self._member, self._machine, None, None
            if machine is not None:
                self._counts += machine.counts
                self._verdicts += machine.verdicts
            self._replica.undo()
            self._changed.notify_all()
        if member is not None:
            member.leave()

    def _fail(self, error: Exception) -> None:
        with self._changed:
            self._failure = error
            self._changed.notify_all()


def machine_publisher(membership: Membership) -> Address:
    """Return the address from which alone a subscriber takes packets."""
    assert membership.publisher is not None
    return address_of(membership.publisher)
