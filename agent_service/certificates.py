# SPDX-License-Identifier: Apache-2.0
"""The reasons why TLS fails, as text: of gRPC one hears only that the other side is unavailable."""

import contextlib
import math
import socket
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path
from typing import Any, Final

PROBE_TIMEOUT_S: Final = 3.0
_NO_CHECK_TIME: Final = 0x200000  # X509_V_FLAG_NO_CHECK_TIME of OpenSSL
_LOCAL: Final = "localhost"  # what gRPC calls the other end of a unix socket


@dataclass(frozen=True)
class Certificate:
    """A certificate: who it is for, by its names, who signed it, and from when until when (Unix time)."""

    subject: str
    issuer: str
    names: tuple[str, ...]
    begins: float
    ends: float

    @classmethod
    def of(cls, decoded: Any) -> "Certificate":
        """Return the certificate that ``ssl`` has decoded to a dictionary."""
        return cls(
            _name(decoded.get("subject", ())),
            _name(decoded.get("issuer", ())),
            tuple(value for _, value in decoded.get("subjectAltName", ())),
            ssl.cert_time_to_seconds(decoded["notBefore"]),
            ssl.cert_time_to_seconds(decoded["notAfter"]),
        )

    def problem(self, now: float) -> str:
        """Return why it is not valid at a time; "" if it is."""
        if now > self.ends:
            return f"expired on {_date(self.ends)} (valid from {_date(self.begins)})"
        if now < self.begins:
            return (
                f"is not valid before {_date(self.begins)} (until {_date(self.ends)}); "
                f"this machine's clock says {_date(now)}"
            )
        return ""


def of_authorities(ca: Path) -> list[Certificate]:
    """Return the certificates of authorities in a file. Raises OSError, ssl.SSLError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(ca)
    return [Certificate.of(found) for found in context.get_ca_certs()]


def of_pair(cert: Path, key: Path) -> Certificate:
    """Return the first certificate in a file with its key, by handshakes in memory.

    It may be for servers or for clients: ``ssl`` decodes none that is verified in the other role.

    Raises:
        OSError: a file cannot be read.
        ssl.SSLError: a file is no certificate or key, or they do not belong together.
        ssl.SSLCertVerificationError: the pair can be loaded, but is good in neither role.
    """
    serving, asking = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), _curious()
    for context in (serving, asking):
        context.load_cert_chain(cert, key)
    offered, _ = _handshake(serving, _curious())
    shown = offered.getpeercert(binary_form=True)
    assert shown is not None, "a server always shows one"
    try:
        return Certificate.of(_handshake(serving, _trusting(shown))[0].getpeercert())
    except ssl.SSLCertVerificationError:
        _trust(serving, shown)
        serving.verify_mode = ssl.CERT_REQUIRED
        return Certificate.of(_handshake(serving, asking)[1].getpeercert())


def file_problem(cert: Path | None, key: Path | None, ca: Path | None, now: float | None = None) -> str:
    """Return what is wrong with one's own files, with their dates; "" if they are in order."""
    now = time.time() if now is None else now
    if cert is not None and key is not None:
        try:
            if why := of_pair(cert, key).problem(now):
                return f"the certificate {cert} {why}"
        except ssl.SSLCertVerificationError:
            pass  # the pair is one, and who it is shown to judges what it is for: only its dates are unknown
        except (ssl.SSLError, OSError) as error:
            return f"the certificate {cert} and the key {key} cannot be used: {_reason(error)}"
    if ca is not None:
        try:
            found = of_authorities(ca)
        except (ssl.SSLError, OSError) as error:
            return f"the authority's certificate {ca} cannot be used: {_reason(error)}"
        problems = [why for one in found if (why := one.problem(now))]
        if problems and len(problems) == len(found):
            return f"the authority's certificate {ca} {problems[0]}"
    return ""


def connection_problem(address: str, cert: Path | None, key: Path | None, ca: Path | None) -> str:
    """Return why TLS with the server at an address fails, as text; "" if nothing is known to be wrong.

    Connects to it, so it takes up to some seconds. ``address``: ``host:port`` or ``unix:/path``.
    """
    if why := file_problem(cert, key, ca):
        return why
    host = _LOCAL if address.startswith("unix:") else address.rpartition(":")[0].strip("[]")
    try:
        served = _served(address, cert, key)
    except ssl.SSLError as error:
        return f"the server at {address} does not speak TLS, or not as this client does: {_reason(error)}"
    except (OSError, ValueError, OverflowError):  # the latter: no address of host and port, but gRPC's own
        return ""
    if why := served.problem(time.time()):
        return f"the certificate of the server at {address} ({served.subject}) {why}: renew it there"
    context = ssl.create_default_context(cafile=ca)
    if cert is not None:
        context.load_cert_chain(cert, key)
    refused = (
        f"the server at {address} refuses {f'the certificate {cert}' if cert else 'clients without one'}"
    )
    try:
        with _connected(address, context, host) as connection:
            greeting = connection.recv(1)
    except ssl.SSLCertVerificationError as error:
        return _verification(error, address, host, served, ca)
    except ssl.SSLError as error:
        return f"{refused}: {_reason(error)}"
    except OSError:
        return ""
    return "" if greeting else f"{refused}: it closed the connection"


def _verification(
    error: ssl.SSLCertVerificationError, address: str, host: str, served: Certificate, ca: Path | None
) -> str:
    which = f"the certificate of the server at {address} ({served.subject})"
    if "ostname" in error.verify_message or "IP address" in error.verify_message:
        return f"{which} is for {', '.join(served.names) or 'no name'}, not for {host}"
    trusted = str(ca) if ca else "the system's authorities (no authority was given)"
    return (
        f"{which} was signed by {served.issuer}, which is none of {trusted}: {error.verify_message} "
        f"(valid from {_date(served.begins)} to {_date(served.ends)})"
    )


def _served(address: str, cert: Path | None, key: Path | None) -> Certificate:
    """Return the certificate that a server shows. Raises OSError, ssl.SSLError."""
    curious = _curious()
    if cert is not None:
        curious.load_cert_chain(cert, key)
    with _connected(address, curious, None) as connection:
        offered = connection.getpeercert(binary_form=True)
    assert offered is not None, "a server always shows one"
    trusting = _trusting(offered)
    if cert is not None:
        trusting.load_cert_chain(cert, key)
    with _connected(address, trusting, None) as connection:
        return Certificate.of(connection.getpeercert())


@contextlib.contextmanager
def _connected(address: str, context: ssl.SSLContext, host: str | None) -> Iterator[ssl.SSLSocket]:
    """Yield a TLS connection to a server of gRPC's."""
    context.set_alpn_protocols(["h2"])
    if address.startswith("unix:"):
        plain = socket.socket(socket.AF_UNIX)
        plain.settimeout(PROBE_TIMEOUT_S)
        plain.connect(address.removeprefix("unix:").removeprefix("//"))
    else:
        name, _, port = address.rpartition(":")
        plain = socket.create_connection((name.strip("[]"), int(port)), PROBE_TIMEOUT_S)
    with plain, context.wrap_socket(plain, server_hostname=host) as connection:
        yield connection


def _curious() -> ssl.SSLContext:
    """Return a client's context that takes any certificate, to look at it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _trusting(certificate: bytes) -> ssl.SSLContext:
    """Return a client's context that trusts one certificate, whatever its dates: only then is it decoded."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    _trust(context, certificate)
    return context


def _trust(context: ssl.SSLContext, certificate: bytes) -> None:
    context.load_verify_locations(cadata=certificate)
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | _NO_CHECK_TIME


def _handshake(serving: ssl.SSLContext, asking: ssl.SSLContext) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Return both ends of a handshake in memory, the client's first."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = serving.wrap_bio(to_server, to_client, server_side=True)
    client = asking.wrap_bio(to_client, to_server)
    left = [client, server]
    for _ in range(10):
        for end in list(left):
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
                left.remove(end)
        if not left:
            break
    return client, server


def _name(parts: Any) -> str:
    """Return a distinguished name as text: its common name, else its organization, else all of it."""
    found = {key: value for part in parts for key, value in part}
    for key in ("commonName", "organizationalUnitName", "organizationName"):
        if key in found:
            return str(found[key])
    return ", ".join(f"{key} {value}" for key, value in found.items()) or "nobody"


def _date(when: float) -> str:
    return formatdate(math.floor(when), usegmt=True)


def _reason(error: OSError) -> str:
    return str(getattr(error, "reason", None) or error.strerror or error).replace("_", " ").lower()
