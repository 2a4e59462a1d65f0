# SPDX-License-Identifier: Apache-2.0
"""Gradients without a network: what is chosen, coded and sent, and how long choosing takes."""

from typing import Final

from weir.bench.case import Case, Floor

_FOUR: Final = {"models": "mlp", "densities": "0.05", "workers": "4", "steps": "3"}

CASES: Final[tuple[Case, ...]] = (
    Case(
        "gradients",
        "cost",
        "Bytes that Weir, OmniReduce and lists of values send for the same recorded gradients.",
        "minutes",
        {"models": "mlp", "densities": "0.05", "workers": "2", "steps": "3"},
        floors=(
            Floor("bytes", "DFS", "OmniReduce-256", 20, _FOUR),
            Floor("bytes", "DFS", "best packed", 2.2, _FOUR),
            Floor("bytes", "planner", "OmniReduce-256", 3.5, _FOUR),
        ),
    ),
    Case(
        "gradients",
        "dfs",
        "DFS, whole and with each part left out, and its peers: bytes at equal energy, and accuracy.",
        "hours",
        {
            "models": "mlp",
            "densities": "0.02,0.05",
            "workers": "2",
            "steps": "6",
            "trained_densities": "0.03",
            "trained_workers": "2",
            "trained_steps": "3",
        },
        seeds=3,
    ),
    Case(
        "gradients",
        "dfs-brief",
        "The same in a few minutes: mlp, 4 workers, fewer densities and steps.",
        "minutes",
        {"densities": "0.03", "workers": "2", "steps": "6", "trained_densities": "", "trained_steps": "3"},
        seeds=1,
        module="dfs",
        values={
            "models": "mlp",
            "densities": "0.003,0.01,0.03,0.1",
            "workers": "4",
            "steps": "36",
            "trained_densities": "0.03",
            "trained_steps": "120",
        },
    ),
    Case(
        "gradients",
        "selection",
        "The choice of what is sent, as a share of the backward pass; one thread, the same run.",
        "minutes",
        {"model": "mlp", "methods": "topk", "batch": "4", "steps": "2"},
    ),
    Case(
        "gradients",
        "density",
        "The density of the sums, the balance among workers and the time to choose: ExDyna's figures.",
        "minutes",
        {"model": "mlp", "methods": "exdyna,topk", "target": "0.01", "workers": "2", "steps": "3"},
    ),
    Case(
        "gradients",
        "exchange",
        "The exchange of Weir's hook alone, of GPT-2's gradients on a GPU, over a switch and in memory.",
        "minutes, with a GPU",
        {"device": "cpu", "model": "tiny", "workers": "2", "sparsifiers": "dense,dfs"},
        repeats=5,
    ),
    Case(
        "gradients",
        "choice",
        "Choosing and packing the largest blocks of a gradient: Weir's kernels, its C code, torch.topk.",
        "a minute",
        {"elements": "20000", "sizes": "32"},
        repeats=7,
    ),
    Case(
        "gradients",
        "changes",
        "Finding what changed between two versions of a vector, and plain torch doing it.",
        "a minute",
        {"elements": "20000", "changed": "0.01"},
        repeats=7,
    ),
    Case(
        "gradients",
        "weights",
        "Bytes of published weights: of an update, and of a trainer for this many engines, in virtual time.",
        "minutes",
        {"elements": "20000", "changed": "0.01", "engines": "1,4", "loss": "0,0.05"},
        repeats=1,
    ),
    Case(
        "gradients",
        "updates",
        "A compressed step's own time, as a share of the backward pass of GPT-2, and torch's optimizers.",
        "a minute, 5 GB",
        {"model": "tiny", "batch": "1", "length": "16"},
        repeats=5,
    ),
    Case(
        "gradients",
        "candidates",
        "Schemes that might replace compress or a part of it, workers in one process: loss or accuracy.",
        "an hour",
        {"models": "gnn", "schemes": "dense,alone,compress,energy-16", "rates": "1", "steps": "3"},
        seeds=1,
    ),
)
