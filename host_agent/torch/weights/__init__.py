# SPDX-License-Identifier: Apache-2.0
"""Weights out: a trainer publishes them, engines subscribe."""

from weir.host_agent.torch.weights.joined import JoinedSubscription, subscribe
from weir.host_agent.torch.weights.members import WeightsError, weights_digest
from weir.host_agent.torch.weights.publication import Publication, publish
from weir.host_agent.torch.weights.subscription import Subscription

__all__ = [
    "JoinedSubscription",
    "Publication",
    "Subscription",
    "WeightsError",
    "publish",
    "subscribe",
    "weights_digest",
]
