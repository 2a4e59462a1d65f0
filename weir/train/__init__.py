# SPDX-License-Identifier: Apache-2.0
"""``weir train``: a real model on real data, its gradients summed by the switch, beside plain Gloo."""
