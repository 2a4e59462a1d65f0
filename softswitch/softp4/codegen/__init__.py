# SPDX-License-Identifier: Apache-2.0
"""Code generation: a `Program` to C, one module per part of a packet's way. Knows the program model only.

`module.generate` writes the whole file, to be compiled with the C of the runtime. `keys`, `digests` and
`value_sets` also tell the control plane how the generated code lays out what it stores.
"""
