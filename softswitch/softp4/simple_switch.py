# SPDX-License-Identifier: Apache-2.0
"""``softp4``: the soft switch by the command lines of BMv2's simple_switch(_grpc).

Scripts made for those, such as the P4 tutorials', start it as it is. Options that have no meaning here are
accepted and said to be ignored; those whose effect would be missed are refused by name.
"""

import argparse
import logging
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from softp4.dataplane.port_spec import Interface, Pcap, PortSpec
from softp4.dataplane.ports import MAX_PORT, Directions

if TYPE_CHECKING:
    from softp4.tracing.tracer import Tracing

ADDRESS: Final = "127.0.0.1:9559"
"""Where P4Runtime is served by default. BMv2's is that port on every address of the machine."""

_COMMANDS: Final = """Other commands:
  softp4 run --help  a switch with other kinds of ports, captures, traces and threads
  softp4 ctl --help  look at a running switch and change it"""
_JSON_VERSION: Final = "2.23"
_DROP_PORT: Final = 511
_QUEUES: Final = 8
_INTERFACE: Final = re.compile(r"(\d+)@(.+)")
_LEVELS: Final = {
    "trace": logging.DEBUG,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "error": logging.ERROR,
    "off": logging.CRITICAL + 1,
}

# Option -> why it does nothing, or why it is refused.
_IGNORED: Final = {
    "thrift-port": "there is no Thrift server; use P4Runtime, and `softp4 ctl`",
    "nanolog": "there are no nanomsg logs",
    "notifications-addr": "there are no nanomsg notifications",
    "log-file-max-size": "log files are not rotated",
    "log-file-max-files": "log files are not rotated",
    "dump-packet-data": "packets are not logged; use --pcap",
}
_IGNORED_TARGET: Final = {
    "max-mc-groups": "there is no such limit",
    "max-l1-entries": "there is no such limit",
    "max-l2-entries": "there is no such limit",
}
_REFUSED: Final = {
    "packet-in": "frames come through interfaces (-i) or files (--use-files)",
    "restore-state": "state is not saved",
}
_REFUSED_TARGET: Final = {
    "load-modules": "BMv2's extern modules are C++ for BMv2",
    "dp-grpc-server-addr": "frames come through interfaces (-i) or files (--use-files)",
}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(1, f"{self.prog}: {message}\n")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run as simple_switch_grpc would with these arguments, by default the process's."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    split = given.index("--") if "--" in given else len(given)
    general, target = _general_parser(), _target_parser()
    if {"-h", "--help"} & set(given):
        print(f"{general.format_help()}\nAfter --:\n\n{target.format_help()}\n{_COMMANDS}")
        return
    options = general.parse_intermixed_args(given[:split])
    options = target.parse_args(given[split + 1 :], options)
    if options.version or options.json_version:
        print(_JSON_VERSION if options.json_version else "softp4, in place of BMv2 1.15")
        return
    if (options.program is None) != options.no_p4:
        general.error(
            "give a JSON file, or --no-p4 to wait for a controller's" + (", not both" * options.no_p4)
        )
    _refuse(general, options)
    _start_log(options)
    _run(general, options)


def _general_parser() -> _Parser:
    parser = _Parser(
        prog="softp4", add_help=False, usage="%(prog)s [options] PROGRAM.json [-- target options]"
    )
    add = parser.add_argument
    add("program", nargs="?", type=Path, metavar="PROGRAM.json", help="BMv2 JSON, as p4c-bm2-ss makes it")
    add("-h", "--help", action="store_true", help="show this and end")
    add(
        "-i",
        "--interface",
        action="append",
        default=[],
        metavar="N@IFACE",
        help="attach an interface as port N",
    )
    add(
        "--pcap",
        nargs="?",
        const=".",
        metavar="DIR",
        help="write IFACE_in.pcap and IFACE_out.pcap there (default .)",
    )
    add(
        "--use-files",
        type=float,
        metavar="SECONDS",
        help="wait, then play X_in.pcap and write X_out.pcap for each -i N@X",
    )
    add("--device-id", type=int, default=0, help="P4Runtime device id (default 0)")
    add("--no-p4", action="store_true", help="start without a program")
    add("--log-console", action="store_true", help="log to standard output")
    add("--log-file", metavar="FILE", help="log to FILE.txt")
    add(
        "-L",
        "--log-level",
        choices=_LEVELS,
        help="log level; trace also logs every frame's path",
    )
    add("--log-flush", action="store_true", help="accepted: logs are always flushed")
    add("--max-port-count", type=int, help=f"accepted: ports are 0 to {MAX_PORT}")
    add("-v", "--version", action="store_true", help="print the version and end")
    add(
        "--json-version",
        action="store_true",
        help="print the newest version of JSON that is understood and end",
    )
    _add_others(parser, _IGNORED, _REFUSED)
    return parser


def _target_parser() -> _Parser:
    parser = _Parser(prog="softp4", add_help=False, usage=argparse.SUPPRESS)
    add = parser.add_argument
    add(
        "--grpc-server-addr",
        default=ADDRESS,
        metavar="HOST:PORT",
        help=f"where P4Runtime is served (default {ADDRESS})",
    )
    add("--grpc-server-ssl", action="store_true", help="serve P4Runtime over TLS")
    add("--grpc-server-cacert", type=Path, metavar="FILE", help="PEM of the authority that signed clients")
    add("--grpc-server-cert", type=Path, metavar="FILE", help="PEM of the server's certificate")
    add("--grpc-server-key", type=Path, metavar="FILE", help="PEM of its key")
    add("--grpc-server-with-client-auth", action="store_true", help="let in only clients with a certificate")
    add("--cpu-port", type=int, help="port that leads to the controller")
    add("--drop-port", type=int, default=_DROP_PORT, help=f"only {_DROP_PORT}")
    add(
        "--priority-queues",
        type=int,
        default=1,
        help=f"accepted up to {_QUEUES}: a limited port always has {_QUEUES}",
    )
    add("--disable-swap", action="store_true", help="accepted: P4Runtime can always set the program")
    _add_others(parser, _IGNORED_TARGET, _REFUSED_TARGET)
    return parser


def _add_others(parser: _Parser, ignored: dict[str, str], refused: dict[str, str]) -> None:
    for name, why in ignored.items():
        parser.add_argument(f"--{name}", metavar="X", help=f"ignored: {why}")
    for name, why in refused.items():
        parser.add_argument(f"--{name}", metavar="X", help=f"refused: {why}")


def _refuse(parser: _Parser, options: argparse.Namespace) -> None:
    for name, why in (*_REFUSED.items(), *_REFUSED_TARGET.items()):
        if getattr(options, name.replace("-", "_")) is not None:
            parser.error(f"--{name} is not supported: {why}")
    if options.drop_port != _DROP_PORT:
        parser.error(f"--drop-port {options.drop_port} is not supported: it is {_DROP_PORT}")
    if not 1 <= options.priority_queues <= _QUEUES:
        parser.error(f"--priority-queues {options.priority_queues} is not supported: 1 to {_QUEUES}")
    if options.cpu_port is not None and not 0 < options.cpu_port <= MAX_PORT:
        parser.error(f"--cpu-port {options.cpu_port}: 1 to {MAX_PORT}")
    if options.pcap is not None and not Path(options.pcap).is_dir():
        parser.error(f"--pcap: there is no directory {options.pcap}")
    if options.grpc_server_with_client_auth and options.grpc_server_cacert is None:
        parser.error("--grpc-server-with-client-auth needs --grpc-server-cacert")
    if options.grpc_server_ssl and not (options.grpc_server_cert and options.grpc_server_key):
        parser.error("--grpc-server-ssl needs --grpc-server-cert and --grpc-server-key")


def _start_log(options: argparse.Namespace) -> None:
    handlers: list[logging.Handler] = []
    if options.log_console:
        handlers.append(logging.StreamHandler(sys.stdout))
    if options.log_file:
        handlers.append(logging.FileHandler(f"{options.log_file}.txt", "w"))
    logging.basicConfig(
        level=_LEVELS[options.log_level or "debug"],
        format="[%(asctime)s.%(msecs)03d] [%(levelname)s] %(message)s",
        datefmt="%H:%M:%S",
        handlers=handlers or [logging.NullHandler()],
    )


def _ports(parser: _Parser, options: argparse.Namespace) -> tuple[dict[int, str], list[PortSpec]]:
    """Return the interfaces by port, and as what they are opened."""
    names: dict[int, str] = {}
    for text in options.interface:
        match = _INTERFACE.fullmatch(text)
        if match is None or int(match[1]) > MAX_PORT:
            parser.error(f"-i {text}: expected N@IFACE with N from 0 to {MAX_PORT}")
        if int(match[1]) in names:
            parser.error(f"-i {text}: port {match[1]} is {names[int(match[1])]} already")
        names[int(match[1])] = match[2]
    if options.use_files is None:
        return names, [PortSpec(number, Interface(name)) for number, name in names.items()]
    return names, [
        PortSpec(number, Pcap(Path(f"{name}_in.pcap"), Path(f"{name}_out.pcap"), pcapng=False))
        for number, name in names.items()
    ]


def _tracing(options: argparse.Namespace) -> "Tracing | None":
    """Trace only when asked for by name: it is BMv2's default, but traced frames are slow."""
    from softp4.tracing.tracer import Tracing

    if options.log_level != "trace" or not (options.log_console or options.log_file):
        return None
    return Tracing(None if options.log_console else Path(f"{options.log_file}.trace.txt"))


def _run(parser: _Parser, options: argparse.Namespace) -> None:
    from softp4.control.address import ControlAddressError, own_socket
    from softp4.p4rt.server import Tls
    from softp4.serving import CaptureFile, Settings, StartError, run

    for name, why in (*_IGNORED.items(), *_IGNORED_TARGET.items()):
        if getattr(options, name.replace("-", "_")) is not None:
            print(f"--{name} is ignored: {why}", flush=True)
    names, specs = _ports(parser, options)
    captures = [
        CaptureFile(
            Path(options.pcap, f"{name}_{direction.name.lower()}.pcap"), (number,), direction, pcapng=False
        )
        for number, name in names.items()
        for direction in (Directions.IN, Directions.OUT)
        if options.pcap is not None and direction.name
    ]
    tls = None
    if options.grpc_server_ssl:
        authority = options.grpc_server_cacert if options.grpc_server_with_client_auth else None
        tls = Tls(options.grpc_server_cert, options.grpc_server_key, authority)
    try:
        control = own_socket()
    except ControlAddressError as error:
        print(f"{error}: softp4 ctl cannot reach this switch", flush=True)
        control = None
    settings = Settings(
        program=options.program,
        ports=specs,
        grpc=options.grpc_server_addr,
        tls=tls,
        device_id=options.device_id,
        cpu_port=options.cpu_port or next(port for port in range(MAX_PORT, 0, -1) if port not in names),
        captures=captures,
        play_after=options.use_files or 0.0,
        end_after_files=False,
        control=control,
        trace=_tracing(options),
    )
    try:
        run(settings, lambda text: print(text, flush=True))
    except StartError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
