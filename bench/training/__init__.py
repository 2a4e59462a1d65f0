# SPDX-License-Identifier: Apache-2.0
"""Training: time and accuracy of Weir's methods and of peers, on the same links."""

from typing import Final

from weir.bench.case import Case
from weir.wire.definition import dscp

CASES: Final[tuple[Case, ...]] = (
    Case(
        "training",
        "accuracy",
        "Final accuracy of training over Weir and over Gloo: same seeds, both trained in full.",
        "an hour",
        {"model": "mlp", "workers": "2", "epochs": "1", "max_steps": "2"},
        seeds=3,
    ),
    Case(
        "training",
        "methods",
        "Methods and peers on models that nobody tuned for, each at its best learning rate: the share of "
        "dense training's gain that it keeps, and its bytes.",
        "hours; with --journal it goes on where it was stopped",
        {
            "models": "dlrm",
            "ways": "alone,gloo,powersgd,compress",
            "rates": "1",
            "workers": "2",
            "steps": "3",
        },
        seeds=3,
    ),
    Case(
        "training",
        "links",
        "Time to equal accuracy over bad links: Weir's methods, a loss budget, and dense peers.",
        "an hour, with root",
        {
            "model": "mlp",
            "workers": "2",
            "epochs": "1",
            "max_steps": "3",
            "topology": "single",
            "loss": "0",
            "background": "none",
            "budget": "0",
        },
        seeds=1,
    ),
    Case(
        "training",
        "big",
        "Steps of a large model, GPT-2 small unless told otherwise: time and memory of Weir's methods, Gloo "
        "and torch's hooks.",
        "15 minutes, with root and 20 GB of memory",
        {"model": "mlp", "workers": "2", "max_steps": "3", "peers": "gloo,gloo-powersgd"},
        seeds=1,
        module="links",
        values={
            "model": "gpt2-small",
            "epochs": "1",
            "max_steps": "6",
            "methods": "dense,dfs,compress",
            "peers": "gloo,gloo-fp16,gloo-powersgd",
            "topology": "single",
            "links": "1gbit",
            "loss": "0",
            "background": "none",
            "buckets": "true",
            "budget": "0",
        },
    ),
    Case(
        "training",
        "incast",
        "One job under an incast in its own class, over real links: lossless, with a loss budget; Gloo in "
        "the same queues with the same least time-out.",
        "5 minutes a seed, with root",
        {
            "workers": "2",
            "epochs": "1",
            "max_steps": "3",
            "topology": "single",
            "background": "none",
            "budget": "0",
        },
        seeds=1,
        module="links",
        values={
            "model": "mlp",
            "links": "50mbit",
            "loss": "0",
            "background_load": "0.6",
            "background_dscp": str(dscp(0)),
            "peer_timeout": "50",
        },
    ),
    Case(
        "training",
        "flows",
        "Asynchronous servers by flows over racks and spines with incast, with a loss budget and without; a "
        "dense server over TCP.",
        "ten minutes, with root",
        {"workers": "2", "epochs": "1", "max_steps": "3", "servers": "1"},
        seeds=1,
        module="links",
        values={
            "mode": "ps",
            "servers": "2",
            "consistency": "async",
            "peers": "ps",
            "model": "mlp",
            "links": "50mbit",
            "loss": "0",
        },
    ),
    Case(
        "training",
        "servers",
        "Time and bytes to equal accuracy with a parameter server: Weir's, a dense one over TCP, Gloo's "
        "ring.",
        "an hour, with root",
        {
            "workers": "2",
            "epochs": "1",
            "max_steps": "3",
            "methods": "",
            "filter": "",
            "consistencies": "async",
        },
        seeds=3,
    ),
    Case(
        "training",
        "filters",
        "Data and accuracy of Parameter Flow by threshold and schedule of its filter, by direction.",
        "an hour",
        {"workers": "2", "epochs": "1", "max_steps": "4", "thresholds": "0.01", "schedules": "sqrt"},
        seeds=3,
    ),
    Case(
        "training",
        "gpt",
        "Steps of GPT-2 under DDP on a GPU that all ranks share: Weir, Gloo, torch's hooks.",
        "10 minutes, with a GPU",
        {
            "device": "cpu",
            "model": "tiny",
            "workers": "2",
            "contenders": "powersgd-2,weir",
            "batch": "2",
            "length": "16",
        },
        repeats=10,
    ),
)
