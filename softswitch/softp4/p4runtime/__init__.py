# SPDX-License-Identifier: Apache-2.0
"""P4Runtime 1.5.0: its messages under any protobuf from 3.20 to 7, its errors, and a client's session.

It may know protobuf and gRPC. Both sides speak through it: the soft switch serves what it
defines, the controller, the tests and the benchmarks are clients.
"""
