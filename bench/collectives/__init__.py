# SPDX-License-Identifier: Apache-2.0
"""Collectives of ``torch.distributed`` and copies, over Weir and over its peers, on the same links."""

from typing import Final

from weir.bench.case import Case

CASES: Final = (
    Case(
        "collectives",
        "allreduce",
        "All-reduce over Weir, Gloo and MPI, dense and sparse; as root, over shaped links, too.",
        "minutes; more with root",
        {"workers": "2", "megabytes": "0.1", "rates": ""},
        repeats=5,
        counted={
            "workers": "2",
            "megabytes": "4",
            "densities": "1",
            "rates": "1gbit",
            "threads": "",
            "contenders": "gloo",
        },
    ),
    Case(
        "collectives",
        "allreduce-gpu",
        "All-reduce of tensors on a GPU that all ranks share, over Weir, Gloo, 4 and 20 Gloo groups.",
        "minutes, with a GPU",
        {"devices": "cpu", "workers": "2", "megabytes": "0.1", "densities": "1,0.1"},
        repeats=7,
        module="allreduce",
        values={
            "devices": "cuda,cpu",
            "megabytes": "0.064,1,4,16,46,256",
            "densities": "1",
            "contenders": "gloo,gloo-4,gloo-20,weir,weir-16,weir-8,weir-local",
            "rates": "",
            "seconds": "1",
            "limit": "40",
        },
    ),
    Case(
        "collectives",
        "copy",
        "Copies between a GPU and pinned memory, by one rank and by all: the least that a sum takes.",
        "a minute, with a GPU",
        {"device": "cpu", "workers": "2", "megabytes": "1"},
        repeats=7,
    ),
    Case(
        "collectives",
        "latency",
        "Small collectives over Weir and over Gloo; as root, over shaped links, too.",
        "minutes; more with root",
        {"workers": "2", "kilobytes": "4", "rates": "", "calls": "2"},
        repeats=7,
    ),
    Case(
        "collectives",
        "fsdp",
        "Steps of a model whose parameters are sharded (fully_shard), over Weir and over Gloo, over links.",
        "minutes, with root",
        {"workers": "2", "width": "64", "rates": ""},
        repeats=5,
    ),
    Case(
        "collectives",
        "servers",
        "Dense steps of a parameter server against all-reduces over Weir: processor time, packets, batches.",
        "minutes; more with root",
        {"workers": "2", "megabytes": "0.1", "rates": ""},
        repeats=5,
    ),
    Case(
        "collectives",
        "overlap",
        "Training steps with LayersFirst and with DDP alone, over shaped links.",
        "minutes, with root",
        {"models": "lm", "rates": "15mbit", "batch": "2", "steps": "3", "piece": "64", "accelerator": "150"},
        repeats=5,
    ),
    Case(
        "collectives",
        "weights",
        "New weights from a trainer to engines, over Weir, Gloo, a chain and a store, over shaped links.",
        "minutes, with root",
        {"millions": "0.2", "engines": "2", "changed": "0.01", "rates": ""},
        repeats=3,
    ),
    Case(
        "collectives",
        "spines",
        "Sums of two jobs across racks, over real links: slots sprayed over spines, or jobs hashed to one.",
        "minutes, with root",
        {"kilobytes": "16", "draws": "1", "steps": "1"},
    ),
)
