# SPDX-License-Identifier: Apache-2.0
"""The runtime: the C that every program is compiled with, and its face in Python.

`compiler` turns a program into a loaded library, `bindings` has its entry points, `queueing` the limits of
ports. Knows the program model and codegen.
"""
