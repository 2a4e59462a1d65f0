# SPDX-License-Identifier: Apache-2.0
"""The workers' side: gradients become packets, and the switches' results become gradients.

Each room is a package of its own. An arrow points at what a room may import; none points back::

    torch ──▶ compression ──▶ collectives ──▶ transport
    flows ──▶ transport

Nothing here knows P4Runtime, the controller or the façade.
"""
