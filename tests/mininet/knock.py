# SPDX-License-Identifier: Apache-2.0
"""``knock.py HOST``: a ping without ping. A host where nobody listens refuses a datagram."""

import socket
import sys

with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as knocker:
    knocker.settimeout(10)
    knocker.connect((sys.argv[1], 9))
    knocker.send(b"anybody there?")
    try:
        knocker.recv(1)
    except ConnectionRefusedError:
        print("refused")
