# SPDX-License-Identifier: Apache-2.0
"""Placement of samples on workers and of parameters on servers, so that little travels."""
