# SPDX-License-Identifier: Apache-2.0
"""A hub: one machine whose software switch sums for workers anywhere on an IP network, and how to join it."""

import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

import typer
from rich.console import Console
from rich.table import Table

from softp4.native.claims import reach, write_secret
from weir.agent_service.client import AgentClient, AgentError, claimed_port
from weir.agent_service.tls import TlsError, TlsFiles
from weir.cluster import ClusterError, LocalCluster
from weir.controller.cli import TlsCa, TlsCert, TlsKey
from weir.network import NetworkPlan, make_plan, over_ip
from weir.report.tables import Json, print_json
from weir.wire.definition import MAX_CHILDREN

if TYPE_CHECKING:
    from weir.controller.wiring import Host

LISTEN: Final = "127.0.0.1:9600"
FIRST_UDP: Final = 9701
_SECRET: Final = "secret"
_CHECK_S: Final = 0.5
_PROBE_S: Final = 2.0


class Hub(LocalCluster):
    """A switch and a controller on this machine, whose workers are on others.

    Args:
        workers: how many workers can join, 1 to 32.
        listen: address of the controller, as workers reach it: HOST:PORT. The switch is at the same host.
        udp: the first of the UDP ports, one a worker.
        tls: files of the controller's TLS; None: it serves without.

    Raises:
        ValueError: an address or a number that cannot be.
    """

    def __init__(
        self, workers: int, *, listen: str = LISTEN, udp: int = FIRST_UDP, tls: TlsFiles | None = None
    ) -> None:
        super().__init__(workers)
        host, colon, port = listen.rpartition(":")
        if not (host and colon and port.isdecimal()):
            raise ValueError(f"{listen!r} is no address: write HOST:PORT, and [HOST]:PORT for IPv6")
        if host.strip("[]") in ("0.0.0.0", "::"):
            raise ValueError(f"{listen}: name the one address at which workers reach this machine")
        if not 0 < udp <= 0xFFFF + 1 - workers:
            raise ValueError(f"{workers} UDP ports from {udp} on: ports are 1 to 65535")
        self._listen, self._host, self._udp, self._tls = listen, host, udp, tls

    @property
    def controller(self) -> str:
        """The controller's address, for WEIR_CONTROLLER."""
        return self._listen

    @property
    def udp_ports(self) -> range:
        """The UDP ports at which workers claim their ports."""
        return range(self._udp, self._udp + self.workers)

    def _make_plan(self) -> NetworkPlan:
        secret = self.directory / _SECRET
        write_secret(secret)
        return over_ip(make_plan(self.network, self.workers, grpc=self._grpc), str(secret), self._udp)

    def _attached(self, host: "Host") -> str:
        return f"claim:{self._host}:{host.claimed}:{self.directory / _SECRET}"


def hub(
    workers: Annotated[
        int, typer.Option(min=1, max=MAX_CHILDREN, help="Number of workers that can join.")
    ] = 8,
    listen: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS",
            help="HOST:PORT at which workers reach this machine. The default serves this machine only.",
        ),
    ] = LISTEN,
    udp: Annotated[
        int,
        typer.Option(metavar="PORT", min=1, max=0xFFFF, help="First UDP port; each worker has one."),
    ] = FIRST_UDP,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_ca: TlsCa = None,
) -> None:
    """Run a switch and a controller for workers anywhere on an IP network, until interrupted.

    The command prints the environment variable that workers need. It needs neither root nor a topology file.
    With `--tls-ca`, only workers with a certificate of that authority can join.
    """
    stop = threading.Event()
    try:
        here = Hub(workers, listen=listen, udp=udp, tls=TlsFiles.given(tls_cert, tls_key, tls_ca))
        with Console(stderr=True).status("starting the switch and the controller"):
            here.start()
        try:
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, lambda *_: stop.set())
            _say_how_to_join(here)
            while not stop.wait(_CHECK_S):
                here.check()
        finally:
            here.stop()
    except (AgentError, ClusterError, TlsError, ValueError) as error:
        _fail(str(error))


def _say_how_to_join(here: Hub) -> None:
    tcp = here.controller.rpartition(":")[2]
    first, last = here.udp_ports[0], here.udp_ports[-1]
    udp = f"{first} to {last}" if last != first else f"{first}"
    typer.echo(
        f"The switch sums for up to {here.workers} workers. The firewall must open TCP {tcp} "
        f"and UDP {udp}. Interrupt to stop.\n"
        f"On each worker:\n\n    export WEIR_CONTROLLER={here.controller}\n\n"
        'and run a program under torchrun that calls init_process_group("weir"). '
        f"`weir join {here.controller}` checks the path."
    )


def join(
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="HOST:PORT of the hub's controller.")],
    as_json: Json = False,
) -> None:
    """Check the path from this machine to a hub, and print what its workers need."""
    try:
        with AgentClient(address) as client:
            status = client.status()
    except AgentError as error:
        _fail(str(error))
    ports = [port for switch in status.switches for port in switch.ports if port.HasField("claimed")]
    if not ports:
        _fail(f"the controller at {address} has no ports over IP: start `weir hub` there")
    with ThreadPoolExecutor(len(ports)) as pool:
        found = pool.map(lambda port: _delay(port.claimed, address), ports)
    delays = dict(zip((port.host for port in ports), found, strict=True))
    if as_json:
        print_json(
            [
                {"host": port.host, "udp_port": port.claimed.udp_port, "round_trip_s": delays[port.host]}
                for port in ports
            ]
        )
    else:
        _show(ports, delays)
    if None in delays.values():
        silent = ", ".join(str(port.claimed.udp_port) for port in ports if delays[port.host] is None)
        _fail(f"no answer from UDP {silent}: do the firewalls of the hub and of this machine let them pass?")
    if not as_json:
        typer.echo(f"On each worker:\n\n    export WEIR_CONTROLLER={address}\n")


def _delay(claimed: Any, address: str) -> float | None:
    """Return the seconds until a port answers, or None."""
    place = claimed_port(claimed, address)
    try:
        return reach((place.host, place.udp_port), _PROBE_S)
    except OSError:
        return None


def _show(ports: list[Any], delays: dict[str, float | None]) -> None:
    table = Table("host", "UDP port", "round trip")
    for port in ports:
        delay = delays[port.host]
        shown = "no answer" if delay is None else f"{delay * 1e3:.1f} ms"
        table.add_row(port.host, str(port.claimed.udp_port), shown)
    Console().print(table)


def _fail(message: str) -> NoReturn:
    typer.secho(f"weir: {message}", err=True, fg=typer.colors.RED)
    raise typer.Exit(1)
