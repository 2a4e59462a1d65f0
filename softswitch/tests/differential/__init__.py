# SPDX-License-Identifier: Apache-2.0
"""The soft switch against BMv2: random table entries and frames, made from the program, into both of them.

``python -m tests.differential --help`` says how to run it for long and how to record.
"""
