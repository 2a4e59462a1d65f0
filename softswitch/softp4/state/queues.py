# SPDX-License-Identifier: Apache-2.0
"""The queues of a port: its limits, and what its queues have seen."""

from softp4.errors import Code, ControlError
from softp4.runtime.bindings import NativeSwitch, exclusive
from softp4.runtime.queueing import QUEUE_PORTS, Queueing, QueueStatistics


class PortQueues:
    """The eight queues that a limited port has. Thread-safe.

    Where a `PortLoop` drives the switch, set limits by its own `set_queueing`: these methods do not wake it.

    Raises:
        ControlError: INVALID_ARGUMENT, the port cannot have queues.
    """

    def __init__(self, native: NativeSwitch, port: int) -> None:
        if not 0 <= port < QUEUE_PORTS:
            raise ControlError(
                Code.INVALID_ARGUMENT, f"port {port} cannot have queues: ports are 0 to {QUEUE_PORTS - 1}"
            )
        self._native = native
        self._port = port

    @exclusive
    def set(self, queueing: Queueing) -> None:
        """Limit the port, or change its limits.

        What waits stays and leaves under the new limits, which count from the last `process` or `step`.
        """
        self._native.set_queueing(self._port, queueing)

    @exclusive
    def clear(self) -> None:
        """Lift the limits: what waits is due at once, and what follows waits no more."""
        self._native.set_queueing(self._port, None)

    @exclusive
    def statistics(self) -> tuple[QueueStatistics, ...]:
        """Return what each queue has seen, by priority; zeros for a port without limits."""
        return self._native.queue_statistics(self._port)
