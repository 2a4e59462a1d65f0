# SPDX-License-Identifier: Apache-2.0
"""A trainer's door: publish a model's weights, version after version."""

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch

from weir.agent_service import PUBLISHER_SLOTS
from weir.agent_service.client import AgentClient, Membership
from weir.host_agent.flows.frames import Address
from weir.host_agent.torch.weights.members import (
    Member,
    PacketThread,
    WeightsError,
    address_of_controller,
    now_ns,
    own_host,
)
from weir.host_agent.torch.weights.shards import own_shard, shard_name
from weir.host_agent.weights.pace import Rates
from weir.host_agent.weights.publisher import Publisher
from weir.host_agent.weights.versions import Source

_BLOCKED_S: Final = 0.001


@dataclass(frozen=True)
class PublisherStats:
    """Numbers of a publication so far.

    versions: published. changed: values. pieces: of updates, by form. packets: by purpose. refused: packets
    that came, by reason. payload_bytes: of UDP, sent. subscribers: who asked for something, and the version
    that each had then.
    """

    versions: int
    changed: int
    pieces: dict[str, int]
    packets: dict[str, int]
    refused: dict[str, int]
    payload_bytes: int
    subscribers: dict[str, int]


class Publication:
    """A model's weights, published to any number of subscribers. Made by ``publish``.

    Args:
        model: whose weights an optimizer changes in place; or tensors by name.
        name: of the publication, under which engines subscribe.
        token: secret that subscribers must know; "": anybody who reaches the controller may subscribe.
        controller, host: by default WEIR_CONTROLLER, and WEIR_HOST.
        rates: of sending, in bytes a second.
        journal_bytes: of recent updates, kept for subscribers that lack packets.
        backlog_bytes: ``update`` waits while more than this is not sent yet.
        timeout_s: how long to wait for the switch to be programmed.
    """

    def __init__(
        self,
        model: torch.nn.Module | Mapping[str, torch.Tensor],
        name: str,
        *,
        token: str = "",
        controller: str | None = None,
        host: str | None = None,
        rates: Rates | None = None,
        journal_bytes: int = 256 << 20,
        backlog_bytes: int = 256 << 20,
        timeout_s: float = 60.0,
    ) -> None:
        place = own_host(host)
        own = own_shard(model)
        self._source = Source(own.tensors)
        name = shard_name(name, own.shard, own.shards)
        self._backlog_bytes, self._payload_bytes = backlog_bytes, 0
        self._making = threading.Lock()  # of a version, until it has its digest
        self._sealing: threading.Thread | None = None
        self._lock = threading.Lock()  # of the machine

        def join(client: AgentClient, udp_port: int) -> Membership:
            return client.join(
                job=name,
                size=1,
                rank=0,
                token=token,
                host=place,
                udp_port=udp_port,
                slots=PUBLISHER_SLOTS,
                timeout_s=timeout_s,
                publishes=True,
            )

        self._member = Member.enter(address_of_controller(controller), join, listens=False)
        membership = self._member.membership
        self._machine: Publisher[Address] = Publisher(
            membership.job_id,
            membership.key,
            self._source.layout.fingerprint,
            self._snapshot,
            journal_bytes=journal_bytes,
            rates=rates,
        )
        self._thread = PacketThread(f"weir-publish-{name}", self._step, lambda: self._member.carrier)
        self._thread.start()

    @property
    def version(self) -> int:
        """Number of the newest version; the first, at the start, is 1."""
        return self._machine.newest

    @property
    def digest(self) -> str:
        """SHA-256 of the newest version, as ``weights_digest`` computes it, in hexadecimal; of a sharded
        model: of this rank's shard.
        """
        with self._making:
            return self._source.digest.hex()

    def update(self) -> int:
        """Publish the weights as they are now; return the version's number.

        Returns when it is known what changed: the weights may change again. Packets follow in the background.

        Raises:
            WeightsError: the controller stopped the publication.
        """
        while True:
            if (reason := self._member.client.stopped) is not None:
                raise WeightsError(f"the publication has ended: {reason}")
            with self._lock:
                if self._machine.backlog <= self._backlog_bytes:
                    break
            time.sleep(0.001)
        self._making.acquire()
        try:
            code = self._source.update()
            with self._lock:
                number = self._machine.publish(code, now_ns())
            self._member.carrier.wake()
            self._sealing = threading.Thread(target=self._seal, name=self._thread.name, daemon=True)
            self._sealing.start()
        except BaseException:
            self._making.release()
            raise
        return number

    def _seal(self) -> None:
        """Add the digest to the newest version, while its packets are sent."""
        try:
            digest = self._source.seal()
            with self._lock:
                self._machine.seal(digest)
            self._member.carrier.wake()
        finally:
            self._making.release()

    @property
    def stats(self) -> PublisherStats:
        """Numbers so far."""
        with self._lock:
            return PublisherStats(
                self._machine.newest,
                self._source.changed,
                {form.name.lower(): count for form, count in self._source.forms.items()},
                dict(self._machine.counts),
                {v.name.lower(): count for v, count in self._machine.verdicts.items() if v},
                self._payload_bytes,
                {f"{ip}:{port}": version for (ip, port), version in self._machine.known.items()},
            )

    def close(self) -> None:
        """End the publication. Closing twice is harmless."""
        if self._sealing is not None:
            self._sealing.join()
        self._thread.end()
        self._member.leave()

    def __enter__(self) -> "Publication":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _snapshot(self) -> tuple[bytes, bytes] | None:
        if not self._making.acquire(blocking=False):
            return None  # a version is being made: anyone who asks will ask again
        try:
            return self._source.snapshot()
        finally:
            self._making.release()

    def _step(self) -> float:
        carrier = self._member.carrier
        sent = carrier.flush()
        with self._lock:
            now = now_ns()
            for batch in carrier.receive():
                for at in range(batch.count):
                    self._machine.on_packet(batch.payload(at), now, Address(*batch.source))
            if not sent:
                return _BLOCKED_S
            datagrams, wake = self._machine.poll(now)
        for each in datagrams:
            self._payload_bytes += each.payloads.size
            carrier.send(each)
        carrier.flush()
        return max(0.0, (wake - now_ns()) / 1e9)


def publish(
    model: torch.nn.Module | Mapping[str, torch.Tensor],
    name: str = "weights",
    *,
    token: str = "",
    controller: str | None = None,
    host: str | None = None,
    rates: Rates | None = None,
) -> Publication:
    """Publish a model's weights to any number of subscribers; the switch makes the copies.

    Of a model that FSDP2 has sharded, each rank publishes its shard. All ranks call it, and later ``update``
    after the same steps; engines subscribe with the number of ranks as ``shards``.

    Args:
        model: whose weights change in place; or tensors by name.
        name: under which engines subscribe.
        token: secret that they must know.
        controller: its address; by default WEIR_CONTROLLER.
        host: this host's name in the topology; by default WEIR_HOST.
        rates: of sending; by default they follow what the paths take.

    Returns:
        The publication. Call ``update()`` after an optimizer's step, and ``close()`` at the end.

    Raises:
        WeightsError, AgentError, ValueError, OSError: it is not possible; the message says why.

    Example::

        publication = weir.torch.publish(model, "policy")
        for batch in data:
            train(batch)
            publication.update()
    """
    return Publication(model, name, token=token, controller=controller, host=host, rates=rates)
