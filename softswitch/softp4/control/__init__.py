# SPDX-License-Identifier: Apache-2.0
"""The control channel of a running switch: ports, limits and captures, changed while frames pass.

A Unix socket that only its owner may open. A request is one line of JSON, ``{"call": NAME, "args": {…}}``;
so is the answer, ``{"result": …}`` or ``{"error": MESSAGE}``. A connection carries any number of requests,
one after the other. `operations` has the calls, ``softp4 ctl`` makes them. Knows a `Device` and what
that is made of.
"""
