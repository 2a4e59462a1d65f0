# SPDX-License-Identifier: Apache-2.0
"""Networks in virtual time: the real switch program and host code, simulated links; and placement."""

from typing import Final

from weir.bench.case import Case, Floor

_SMALL: Final = {
    "racks": "2",
    "others": "2",
    "workers": "4",
    "kilobytes": "8",
    "tensors": "2",
    "contenders": "adf",
}

_INCAST: Final = {
    "others": "0",
    "depth": "16",
    "workers": "8",
    "kilobytes": "64",
    "tensors": "2",
    "contenders": "dfg",
}
_PERMUTATION: Final = {"racks": "3", "hosts": "3", "kilobytes": "128", "rounds": "1"}
_CLEAN: Final = {"model": "mlp", "topology": "single", "loss": "0", "background": "none"}
_REPLAYED: Final = {"gigabits": "1"}
_STEP: Final = {"workers": "4", "parameters": "50000"}
_COMMUNITIES: Final = {"machines": "8", "buckets": "8", "samples": "400", "text": "no"}

CASES: Final[tuple[Case, ...]] = (
    Case(
        "simulated",
        "tail",
        "Completion times of tensors, mean and p99, of workers that send all at once; each beside its twin.",
        "minutes",
        _SMALL,
        seeds=1,
        floors=(
            Floor("p99, ms", "f Weir, lossless", "d DCTCP", 0.95, _INCAST),
            Floor("p99, ms", "g f + trimming", "f Weir, lossless", 1.02, _INCAST),
        ),
    ),
    Case(
        "simulated",
        "tail-grid",
        "The same over numbers of workers, depths, sizes and loads, pushed to servers and all-reduced.",
        "hours",
        {**_SMALL, "setting": "server", "load": "0", "depth": "32"},
        seeds=1,
        module="tail",
        values={
            "setting": "collectives,server",
            "workers": "8,16,32",
            "depth": "16,32,128",
            "kilobytes": "64,256,1024,4096",
            "load": "0,0.7",
        },
    ),
    Case(
        "simulated",
        "incast",
        "Pushes to servers through short queues: DCTCP's streams, Weir's flows, lossless and with a loss "
        "budget.",
        "half an hour",
        {**_SMALL, "others": "0", "depth": "16", "contenders": "dfg"},
        seeds=5,
        module="tail",
        values={
            "workers": "8,16,32",
            "depth": "16,32,128",
            "kilobytes": "64,256,1024,4096",
            "others": "0",
            "contenders": "dfg",
            "megabytes": "32",
            "calm": "yes",
        },
    ),
    *(
        Case(
            "simulated",
            name,
            f"Completion times of tensors in a published set-up, as far as it is known: {what}.",
            "minutes",
            {**_SMALL, **values, "tensors": "1", "racks": "1", "workers": "3", "contenders": "af"},
            seeds=1,
            module="tail",
            values={
                **values,
                "others": "0",
                "gigabits": "100",
                "depth": "128",
                "kilobytes": "64",
            },
        )
        for name, what, values in (
            ("dlcp", "DLCP's 144 hosts", {"racks": "9", "workers": "135", "spines": "4"}),
            (
                "dlcp-testbed",
                "DLCP's ten machines at one switch",
                {"racks": "1", "workers": "9", "spines": "1"},
            ),
            ("mlt", "MLT's eight machines", {"racks": "2", "workers": "6", "spines": "2"}),
        )
    ),
    Case(
        "simulated",
        "jobs",
        "Training jobs that share a fabric: rings over DCTCP, Weir, and Weir that drops gradients.",
        "half an hour",
        {"racks": "2", "jobs": "3", "spines": "1", "depth": "24", "model": "mlp", "steps": "2"},
        seeds=5,
    ),
    Case(
        "simulated",
        "layers",
        "Steps of training jobs that share one spine, by the order and the classes of their buckets.",
        "ten minutes",
        {"workers": "1", "kilobytes": "256", "buckets": "4", "compute": "1", "steps": "2", "piece": "16"},
        seeds=3,
    ),
    Case(
        "simulated",
        "spines",
        "Sums of several jobs across racks: slots sprayed over the spines, jobs hashed to one, one for each.",
        "a minute",
        {"kilobytes": "64", "steps": "1"},
        seeds=20,
    ),
    Case(
        "simulated",
        "spraying",
        "Tensors that all hosts send one another, with each way to choose among paths.",
        "minutes",
        {"racks": "2", "hosts": "2", "spines": "2", "kilobytes": "64", "rounds": "1"},
        seeds=5,
        floors=(
            Floor("p99, ms", "c random", "b hash", 2, _PERMUTATION),
            Floor("p99, ms", "d round robin", "b hash", 2.3, _PERMUTATION),
            Floor("p99, ms", "e least loaded", "b hash", 2.3, _PERMUTATION),
        ),
    ),
    Case(
        "simulated",
        "scale",
        "One sum over ever more workers: racks of 32, then two tiers, then three.",
        "minutes",
        {"workers": "2,33", "kilobytes": "4", "slots": "8"},
    ),
    Case(
        "simulated",
        "paths",
        "Sums over long, thin, lossy paths to a hub, and Gloo's rings over CUBIC.",
        "an hour",
        {
            "workers": "2",
            "megabytes": "0.2",
            "milliseconds": "20",
            "megabits": "5",
            "loss": "0.01",
            "contenders": "abc",
            "sums": "1",
        },
    ),
    Case(
        "simulated",
        "sharing",
        "A path to a hub that a sum and CUBIC streams use at the same time.",
        "minutes",
        {"megabits": "2", "buffers": "1", "seconds": "2"},
    ),
    Case(
        "simulated",
        "share",
        "A job beside bursts in its own class, lossless and with a loss budget, and rings over TCP; "
        "then beside TCP streams.",
        "minutes",
        {"blocks": "64", "steps": "1", "seconds": "0.2"},
        seeds=3,
    ),
    Case(
        "simulated",
        "worth",
        "A training step by link rate, model and workers, by an ideal model: rings, Weir, the hub's "
        "processor.",
        "a second",
        {"models": "gpt2", "workers": "4"},
    ),
    Case(
        "simulated",
        "trace",
        "A training step of a scaled Llama, replayed by packets beside the ideal model: rings over TCP, "
        "Weir's sums.",
        "minutes",
        {"scale": "10000", "workers": "2", "gigabits": "1"},
        floors=(
            Floor("ms", "Weir, 32 bits", "ring over", 1.4, _REPLAYED),
            Floor("ms", "Weir, 8 bits", "ring over", 4.5, _REPLAYED),
        ),
    ),
    Case(
        "simulated",
        "step",
        "The all-reduce that a training step waits for, on bad links: Weir, and rings over simulated TCP.",
        "minutes",
        {"model": "mlp", "workers": "2"},
        floors=(
            Floor("time", "Weir, lossless", "ring over TCP, BBR", 1.4, _CLEAN),
            Floor("time", "Weir, 8 bits", "ring over TCP, BBR", 5, _CLEAN),
        ),
    ),
    Case(
        "simulated",
        "outer",
        "An outer step of many peers on slow links, up slower than down: its time, and a peer's bytes.",
        "minutes",
        {"peers": "2", "parameters": "16384"},
    ),
    Case(
        "simulated",
        "servers",
        "A step with a parameter server: Weir's, a dense one over TCP, Gloo's ring; what the server's "
        "link carries.",
        "minutes",
        {"workers": "2", "parameters": "10000"},
        floors=(
            Floor("ms", "Weir's PS", "PS over TCP", 2.5, _STEP),
            Floor("ms", "Weir's PS, 5% of the blocks", "Gloo's ring", 2.2, _STEP),
        ),
    ),
    Case(
        "simulated",
        "placement",
        "Partitions and hashes of a sparse model's features: bytes that they save, and accuracy.",
        "minutes",
        {"machines": "4", "buckets": "8", "samples": "200", "text": "no"},
        floors=(
            Floor("total", "refined, none", "hash, none", 3, _COMMUNITIES),
            Floor("16 a step", "refined, none", "hash, none", 2.5, _COMMUNITIES),
            Floor("total", "refined, clustered", "refined, plain", 5, _COMMUNITIES),
        ),
    ),
)
