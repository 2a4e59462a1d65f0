# SPDX-License-Identifier: Apache-2.0
"""The claims of these pages, and the published figures that they stand beside."""

from collections.abc import Mapping
from typing import Final

from weir.bench.claims import Claim, Figure, Kind, Published

_SEEDS: Final = (1, 2, 3)
_CLEAN: Final = "--set topology=single --set links=100mbit --set loss=0 --set background=none"


def _of_seeds(name: str, command: str) -> dict[str, str]:
    """Return the commands of a claim's records, one for each seed."""
    return {f"{name}-{seed}": f"{command} --seeds 1{f' --seed {seed}' * (seed > 1)}" for seed in _SEEDS}


_LINKS: Final = _of_seeds(
    "links-cnn",
    f"sudo weir bench run training/links --set model=cnn {_CLEAN} --set methods=dfs --set budget=0 "
    "--set peers=gloo,gloo-fp16,gloo-powersgd:powersgd_rank=1,gloo-powersgd,gloo-powersgd:powersgd_rank=4 "
    "--set epochs=3 --set evaluate_every=11 --set target=0.96",
)
_SERVERS: Final = {
    model: _of_seeds(
        f"servers-{model}",
        f"sudo weir bench run training/servers --set models={model} --set methods=dfs --set filter= "
        "--set consistencies=",
    )
    for model in ("mlp", "lm", "resnet18")
}
_FLOWS: Final = _of_seeds(
    "flows-links", "sudo weir bench run training/flows --set epochs=1 --set max_steps=40"
)
_BURSTS: Final = _of_seeds("incast-links", "sudo weir bench run training/incast --set epochs=5")
_GPT: Final = (
    "sudo weir bench run training/links --set model=gpt --set topology=single --set loss=0 "
    "--set background=none --set budget=0 --set epochs=1 --set max_steps=300 --set evaluate_every=20 "
    "--set target=2.04"
)
_GPT_LINKS: Final = {
    rate: _of_seeds(
        f"links-gpt{end}",
        f"{_GPT} --set links={rate} "
        "--set methods=compress:lr=0.006,compress:update_share=0.32:lr=0.006:max_steps=360 "
        "--set peers=gloo,gloo-fp16,gloo-powersgd:powersgd_rank=4,"
        "gloo-powersgd:powersgd_rank=4:epochs=2:max_steps=250",
    )
    for rate, end in (("100mbit", ""), ("1gbit", "-1gbit"))
}
_GPT_RANK_8: Final = _of_seeds(
    "links-gpt-rank8",
    f"{_GPT} --set links=100mbit --set methods=compress:update_share=0.32:lr=0.006:epochs=2:max_steps=250 "
    "--set peers=gloo-powersgd:powersgd_rank=8:epochs=2:max_steps=250",
)
_RATES: Final = ("100mbit", "200mbit", "400mbit", "1gbit")
_COMPRESSED: Final = ("compress", "compress:update_share=0.32", "gloo-powersgd:powersgd_rank=4")


def _to_target(against: str) -> Figure:
    return Figure(tuple(_LINKS), "to ", "Weir, dfs", against)


def _x_ring(model: str) -> Figure:
    return Figure(tuple(_SERVERS[model]), "x ring", "Weir's PS, dfs", kind="value", form="{:.2f}")


def _of_all_servers(column: str, against: str, kind: Kind) -> Figure:
    return Figure(
        tuple(name for each in _SERVERS.values() for name in each), column, "Weir's PS, dfs", against, kind
    )


def _few_bytes(name: str, model: str, title: str, conditions: str, trained: str) -> Claim:
    """Return the claim of compressed updates beside PowerSGD: shares of dense training's gain, bytes."""
    record = f"methods-{model}"

    def figure(column: str, way: str) -> Figure:
        form = "{:.0%}" if column == "kept" else "{:.1%}"
        return Figure((record,), column, way, kind="value", form=form)

    names = zip(("", "_third", "_powersgd"), _COMPRESSED, strict=True)
    figures = {
        f"{what}{end}": figure(column, way)
        for end, way in names
        for what, column in (("kept", "kept"), ("up", "up, of dense"))
    }
    command = (
        f"weir bench run training/methods {trained} --set models={model} "
        f"--set ways=gloo,alone,{','.join(_COMPRESSED)}"
    )
    return Claim(
        name,
        title,
        "keeps {kept} of dense training's gain over one worker with {up} of the bytes of Gloo's ring, and "
        "{kept_third} with {up_third}; torch's PowerSGD hook of rank 4 keeps {kept_powersgd} with "
        "{up_powersgd}",
        "`weir.torch.compress`, with all rows at every step, and with a third of them in rotation: "
        f"{conditions}",
        figures,
        {record: command},
    )


def _to_dense_loss(records: Mapping[str, str], peer: str) -> Figure:
    """Return the times to dense training's loss of compressed updates and of a peer over links."""
    return Figure(tuple(records), "to ", "Weir, compress, rate 0.006, share 0.32", peer)


def _flows(column: str, how: str, kind: Kind = "times") -> Figure:
    return Figure(tuple(_FLOWS), column, f"Weir's PS, dense, {how}", "PS", kind)


def _bursts(column: str) -> Figure:
    """Return a budgeted job's value over its lossless twin's."""
    return Figure(tuple(_BURSTS), column, "Weir, dense, budget", "Weir, dense", "share")


def _incast(contender: str, against: str, *depths: int) -> Figure:
    where = {"depth": tuple(f"{depth} packets" for depth in depths)}
    return Figure(("incast-32",), "p99, ms", contender, against, "share", where)


def _worth(contender: str, against: str, workers: str, rate: str) -> Figure:
    where = {"workers": (workers,), "rate": (rate,)}
    return Figure(("worth",), "seconds", contender, against, where=where, form="{:.2f}")


CLAIMS: Final[tuple[Claim, ...]] = (
    Claim(
        "links",
        "Training over slow links",
        "reaches the same accuracy {powersgd} times as fast as torch's PowerSGD hook, {fp16} times as fast "
        "as its fp16 hook, and {gloo} times as fast as dense Gloo",
        "A small CNN with method `dfs`, 4 workers, links of 100 Mbit/s; 96 % of the held-out digits; peers "
        "over the same links on the kernel's bridge. PowerSGD has rank 4, the fastest of ranks 1, 2 and 4 "
        "for each seed. Range over seeds, on idle cores; on busy ones a step was 3.4 instead of 9.0 times as "
        "fast as Gloo's ([plain links](training.md#training-over-plain-links)). All have the model's own "
        "rate; at half and at twice this rate, PowerSGD was not faster.",
        {
            "powersgd": _to_target("Gloo, PowerSGD hook, rank 4"),
            "fp16": _to_target("Gloo, fp16 hook"),
            "gloo": _to_target("Gloo"),
        },
        _LINKS,
    ),
    _few_bytes(
        "compress",
        "gpt",
        "A transformer with AdamW, in few bytes",
        "a GPT of 0.37 million parameters, 4 workers, 300 steps, medians of three seeds, each way at the "
        "best rate of the first seed. Bytes are those of all steps; the first 40 send more.",
        "--seeds 3 --set rates=1,2",
    ),
    Claim(
        "compress-links",
        "A transformer with AdamW over slow links",
        "reaches the loss of dense training {fp16} times as fast as torch's fp16 hook, {powersgd} times as "
        "fast as its PowerSGD hook, and {gloo} times as fast as dense Gloo",
        "The same GPT, 4 workers, links of 100 Mbit/s; the loss is that of dense training plus 0.5 %. Range "
        "over seeds, on idle cores. `compress` sends a third of the rows at every step. Beside PowerSGD of "
        "rank 8, which is faster here than rank 4, both have schedules of 500 steps; beside the others, "
        "`compress` has 360, and they have 300.",
        {
            "fp16": _to_dense_loss(_GPT_LINKS["100mbit"], "Gloo, fp16 hook"),
            "powersgd": _to_dense_loss(_GPT_RANK_8, "Gloo, PowerSGD hook, rank 8"),
            "gloo": _to_dense_loss(_GPT_LINKS["100mbit"], "Gloo"),
        },
        {**_GPT_LINKS["100mbit"], **_GPT_RANK_8},
    ),
    Claim(
        "compress-fast-links",
        "A transformer with AdamW over faster links",
        "{fp16} times as fast to the loss of dense training as the fp16 hook, and {gloo} times as fast as "
        "dense Gloo",
        "The same over links of 1 Gbit/s. PowerSGD of rank 4 is slower than both; rank 8 was not tried.",
        {
            "fp16": _to_dense_loss(_GPT_LINKS["1gbit"], "Gloo, fp16 hook"),
            "gloo": _to_dense_loss(_GPT_LINKS["1gbit"], "Gloo"),
        },
        _GPT_LINKS["1gbit"],
    ),
    _few_bytes(
        "compress-lstm",
        "lstm",
        "An LSTM with Adam, in few bytes",
        "an LSTM of 0.41 million parameters, 4 workers, 300 steps, medians of three seeds, each way at "
        "the best rate of the first.",
        "--seeds 3 --set rates=2,4",
    ),
    _few_bytes(
        "compress-gnn",
        "gnn",
        "A graph network with Adam, in few bytes",
        "a network of 0.05 million parameters, whose packets are small, so that headers count; 4 workers, "
        "300 steps, medians of three seeds, each way at the best rate of the first.",
        "--seeds 3 --set rates=1,2,4 --set further=1",
    ),
    _few_bytes(
        "compress-dlrm",
        "dlrm",
        "A recommendation model with Adam, in few bytes",
        "a DLRM of 0.07 million parameters, most of them in tables, whose packets are small, so that headers "
        "count; 4 workers, 300 steps, medians of three seeds, each way at the best rate of the first.",
        "--seeds 3 --set rates=1,2 --set further=2",
    ),
    _few_bytes(
        "compress-unet",
        "unet",
        "A U-Net with Adam, in few bytes",
        "a network of 0.12 million parameters, 4 workers, 300 steps, medians of three seeds, each way at the "
        "best rate of the first.",
        "--seeds 3 --set rates=2,4 --set further=2",
    ),
    _few_bytes(
        "compress-vit",
        "vit",
        "A vision transformer with AdamW, in few bytes",
        "a ViT of 0.20 million parameters on images of digits, 4 workers, 300 steps, medians of three seeds, "
        "each way at the best rate of the first.",
        "--seeds 3 --set rates=1,2 --set further=2",
    ),
    _few_bytes(
        "compress-autoencoder",
        "autoencoder",
        "An autoencoder with Adam, in few bytes",
        "an autoencoder of 0.33 million parameters on images of digits, 4 workers, 300 steps, medians of three "
        "seeds, each way at the best rate of the first.",
        "--seeds 3 --set rates=1,2 --set further=2",
    ),
    Claim(
        "servers",
        "Parameter servers whose pushes switches sum",
        "reaches the same accuracy {tcp} times as fast as a dense parameter server over TCP, and with "
        "{saved} less data than Gloo's ring {mlp} (MLP), {lm} (language model) and {resnet} (ResNet-18) "
        "times as fast",
        "Method `dfs`, 4 workers; the MLP over links of 200 Mbit/s, the others over 1 Gbit/s. Range over "
        "seeds. The server over TCP answers pieces of 128 KiB. Four workers and a server share two "
        "processors, which limit the MLP.",
        {
            "tcp": _of_all_servers("to target", "PS", "times"),
            "saved": _of_all_servers("bytes", "Gloo", "saved"),
            "mlp": _x_ring("mlp"),
            "lm": _x_ring("lm"),
            "resnet": _x_ring("resnet18"),
        },
        {name: command for each in _SERVERS.values() for name, command in each.items()},
    ),
    Claim(
        "placement",
        "Placement of sparse models",
        "saves {all} of the bytes that placement by hash sends if a step takes all samples, {large} with 64 "
        "samples per worker, and {small} with 16",
        "Samples and parameters placed together by partitioner `refined`, against parameters placed by a "
        "hash; 4 machines, text of two pairs of packages. Bytes are counted, not timed.",
        {
            name: Figure(("placement",), column, "refined, none", "hash, none", "saved", table=" / ")
            for name, column in (("all", "total"), ("large", "64 a step"), ("small", "16 a step"))
        },
        {
            "placement": "weir bench run simulated/placement --set machines=4 --set samples=2000 "
            "--set buckets=8"
        },
        again=True,
    ),
    Claim(
        "allreduce",
        "Dense all-reduce over links",
        "dense all-reduce {times} times as fast as Gloo",
        "46 MB, 4 workers, links of 100 Mbit/s to 1 Gbit/s; Gloo over the kernel's bridge with its offloads "
        "on, alternating with Weir in the same processes. A ring of four sends each value one and a half "
        "times, so 1.46 "
        "is "
        "the most that the line allows.",
        {"times": Figure(("allreduce",), "ms", "Weir", "Gloo", where={"links": _RATES})},
        {
            "allreduce": "sudo weir bench run collectives/allreduce --set densities=1 --set "
            f"rates={','.join(_RATES)}"
        },
    ),
    Claim(
        "hub",
        "A hub on an IP network",
        "{ip} times as fast as Gloo with ports over IP, {cable} times with cables to the same switch",
        "Dense all-reduce of 20 MB, 4 workers with a link each. A hub with a single network card has to "
        "carry "
        "all workers' traffic: [hub.md](../guides/hub.md).",
        {
            "ip": Figure(
                ("hub",), "ms", "Weir", "Gloo", where={"links": tuple(f"{each}, over IP" for each in _RATES)}
            ),
            "cable": Figure(("hub",), "ms", "Weir", "Gloo", where={"links": _RATES}),
        },
        {
            "hub": "sudo weir bench run collectives/allreduce --set ip=true --set densities=1 "
            "--set megabytes=20 --set rates=100mbit,400mbit,1gbit"
        },
    ),
    Claim(
        "bmv2",
        "The soft switch beside BMv2",
        "{times} times BMv2's packet rate",
        "The same program on the same interfaces, AF_PACKET on veth, packets of 256 lanes, without GSO/GRO "
        "batches (`SOFTP4_BATCHES=off` before the command). How BMv2 was compiled is part of the ratio.",
        {
            "times": Figure(
                ("switch-rate",),
                "packets/s",
                "soft switch",
                "BMv2",
                table="packets in and out",
                form="{:.0f}",
            )
        },
        {"switch-rate": "sudo SOFTP4_BATCHES=off weir bench run switch/rate --repeats 7 --set seconds=1"},
    ),
    Claim(
        "packed",
        "Packed lanes",
        "a sum of 32 bits a value takes {wide} of the ring's time, of 16 bits {half}, and of 8 bits "
        "{quarter}",
        "All-reduce in virtual time, 4 workers, one switch, links of 100 Mbit/s without losses, against the "
        "faster of two rings over simulated TCP. The gradient is ResNet-18's.",
        {
            name: Figure(("step",), "time", way, "ring over TCP, BBR", "share")
            for name, way in (
                ("wide", "Weir, lossless"),
                ("half", "Weir, 16 bits"),
                ("quarter", "Weir, 8 bits"),
            )
        },
        {"step": "weir bench run simulated/step --set topology=single --set loss=0 --set background=none"},
    ),
    Claim(
        "bad-links",
        "All-reduce over bad links",
        "over links that lose 1 % of their packets, a dense sum takes {lossless} of the time of a ring over "
        "TCP with BBR, and {lossy} with a loss budget of 10 %",
        "Virtual time, ResNet-18's gradient, 4 workers, two racks and two spines, links of 100 Mbit/s with "
        "incast. TCP waits for answers as the fabric suggests (1.7 ms at least), Weir as users have it, "
        "longer.",
        {
            "lossless": Figure(("step-bad-links",), "time", "Weir, lossless", "ring over TCP, BBR", "share"),
            "lossy": Figure(("step-bad-links",), "time", "Weir, loss budget", "ring over TCP, BBR", "share"),
        },
        {"step-bad-links": "weir bench run simulated/step"},
    ),
    Claim(
        "spraying",
        "Packets sprayed over equal paths",
        "of the p99 of hashed flows, sprayed ones have {random} (random), {robin} (round robin) and {least} "
        "(least loaded)",
        "16 hosts, each of which sends 1 MiB to another rack at the same time, over 4 spines; virtual time, "
        "5 seeds.",
        {
            name: Figure(("spraying",), "p99, ms", contender, "b hash", "share")
            for name, contender in (("random", "c "), ("robin", "d "), ("least", "e "))
        },
        {"spraying": "weir bench run simulated/spraying"},
        again=True,
    ),
    Claim(
        "spines-links",
        "Sums sprayed over spines",
        "sums whose slots are sprayed have {p99} of the p99 of jobs that are hashed to a spine, and {p50} of "
        "their median",
        "Two jobs of two workers in each of two racks sum 256 KiB at the same time, over two spines: real "
        "links of 20 Mbit/s, six draws of the jobs' names. Four of the six draws hash both jobs to one "
        "spine.",
        {
            name: Figure(("spines-links",), f"{name}, ms", "sprayed by slot", "hashed by job", "share")
            for name in ("p50", "p99")
        },
        {
            "spines-links": "sudo weir bench run collectives/spines --set kilobytes=256 --set steps=4",
        },
    ),
    Claim(
        "flows-links",
        "Asynchronous servers beside bursts",
        "beside bursts, asynchronous servers reach the same accuracy {lossless} times as fast as a dense "
        "server over TCP, and with a loss budget of 10 % {budget} times; the p99 of a step is {p99} and "
        "{p99_budget} of TCP's",
        "The mlp, 4 workers, two racks and two spines of soft switches, real links of 50 Mbit/s, bursts of "
        "50 %, 40 steps. Weir has two servers and workers that do not wait for each other, TCP (BBR) one "
        "synchronous server: most of the gain is theirs, and the budget's own part is smaller than the "
        "spread.",
        {
            "lossless": _flows("to ", "async"),
            "budget": _flows("to ", "budget"),
            "p99": _flows("p99", "async", "share"),
            "p99_budget": _flows("p99", "budget", "share"),
        },
        _FLOWS,
    ),
    Claim(
        "incast-links",
        "A job beside bursts in its own class",
        "beside bursts in the job's own class, a step of a dense sum takes {gloo} times as long as Gloo's "
        "ring; with a loss budget of 10 % it takes {step} of the lossless step's time, and {p99} of its p99. "
        "Accuracy: {given} with the budget, {accuracy} without",
        "The mlp, 4 workers, two racks and two spines of soft switches, real links of 50 Mbit/s, bursts of "
        "60 %, 220 steps. Gloo's packets are in the same class and queues. Why Gloo is faster: "
        "[loss-and-congestion.md](../internals/loss-and-congestion.md#window).",
        {
            "gloo": Figure(tuple(_BURSTS), "step", "Weir, dense", "Gloo", "share", form="{:.1f}"),
            "step": _bursts("step"),
            "p99": _bursts("p99"),
            "accuracy": Figure(tuple(_BURSTS), "accuracy", "Weir, dense", kind="value", form="{:.1%}"),
            "given": Figure(tuple(_BURSTS), "accuracy", "Weir, dense, budget", kind="value", form="{:.1%}"),
        },
        _BURSTS,
    ),
    Claim(
        "incast",
        "Incast of 32 workers",
        "with 32 workers, lossless flows have {short} of DCTCP's p99 in queues of 16 and 32 packets, and "
        "{long} in queues of 128; with a loss budget of 10 % their p99 is {budget} of the lossless one",
        "Pushes to the servers of 4 racks, shards of 64 and 256 KiB a worker; virtual time, 5 seeds of each. "
        "All wait equally long for answers. The grid: [simulated.md](simulated.md#a-jobs-own-incast).",
        {
            "short": _incast("f ", "d ", 16, 32),
            "long": _incast("f ", "d ", 128),
            "budget": _incast("g ", "f ", 16, 32, 128),
        },
        {
            "incast-32": "weir bench run simulated/incast --set workers=32 --set kilobytes=64,256 "
            "--journal incast-32.jsonl"
        },
    ),
    Claim(
        "servers-link",
        "A server's link",
        "a step by switches takes {all} ms with 2 to 8 workers, and a server's link carries {models} models "
        "in, where a dense server over TCP takes {tcp} ms",
        "A million parameters, one server, links of 200 Mbit/s, virtual time; TCP is DCTCP, which is faster "
        "here than CUBIC and BBR, answers pieces of 128 KiB, and waits no longer for answers than Weir.",
        {
            "all": Figure(("servers-virtual",), "ms", "Weir's PS", kind="value", form="{:.0f}"),
            "models": Figure(("servers-virtual",), "models in", "Weir's PS", kind="value", form="{:.2f}"),
            "tcp": Figure(("servers-virtual",), "ms", "PS over TCP", kind="value", form="{:.0f}"),
        },
        {"servers-virtual": "weir bench run simulated/servers --set workers=2,4,8"},
    ),
    Claim(
        "scale",
        "A thousand workers",
        "a sum of 1,024 workers takes {more} of the time of 32",
        "256 KiB, links of 1 Gbit/s without losses, in one, two and three tiers; virtual time, in which "
        "hosts "
        "compute in no time.",
        {"more": Figure(("scale",), "over the first", "1,024 workers", kind="value", form="{:.1%}")},
        {"scale": "weir bench run simulated/scale"},
        again=True,
    ),
    Claim(
        "scale-fast",
        "A thousand workers on fast links",
        "a sum of 1,024 workers takes {ten} times as long as one of 16 at 10 Gbit/s, and {hundred} times at "
        "100 Gbit/s",
        "The same at higher rates with more slots: the time that a packet is on the links of three tiers "
        "is a "
        "larger part of the sum.",
        {
            name: Figure((record,), "over the first", "1,024 workers", kind="value", form="{:.2f}")
            for name, record in (("ten", "scale-10"), ("hundred", "scale-100"))
        },
        {
            f"scale-{rate}": "weir bench run simulated/scale --set workers=16,32,256,1024 --set slots=256 "
            f"--set gigabits={rate}"
            for rate in (10, 100)
        },
    ),
    Claim(
        "worth-fast",
        "Is it worth a box: faster links",
        "a dense sum by one core of a hub makes a step {slow} times as fast as a ring's at 1 Gbit/s with 4 "
        "workers, {fast} times at 10 Gbit/s, and {many} times there with 64 workers",
        "An ideal model of GPT-2 and of a Llama of 7 billion parameters: lines, processor seconds for each "
        "GB "
        "(measured over links), backward pass and exchange overlapped. Below 1: no box.",
        {
            "slow": _worth("Weir, 32 bits", "ring", "4 workers", "1 Gbit/s"),
            "fast": _worth("Weir, 32 bits", "ring", "4 workers", "10 Gbit/s"),
            "many": _worth("Weir, 32 bits", "ring", "64 workers", "10 Gbit/s"),
        },
        {"worth": "weir bench run simulated/worth"},
        again=True,
    ),
    Claim(
        "worth-compressed",
        "Is it worth a box: compressed",
        "compressed updates make a step {slow} times as fast as torch's PowerSGD hook of rank 4 at 100 "
        "Mbit/s "
        "with 4 workers, {fast} times at 10 Gbit/s, and {many} times at 1 Gbit/s with 64 workers",
        "The same ideal model, with the bytes that both were measured to send. Both are assumed to train as "
        "well; for a small GPT the first trained better "
        "([compress](#a-transformer-with-adamw-in-few-bytes)).",
        {
            "slow": _worth("Weir, compress", "ring, PowerSGD hook", "4 workers", "0.1 Gbit/s"),
            "fast": _worth("Weir, compress", "ring, PowerSGD hook", "4 workers", "10 Gbit/s"),
            "many": _worth("Weir, compress", "ring, PowerSGD hook", "64 workers", "1 Gbit/s"),
        },
        {"worth": "weir bench run simulated/worth"},
        again=True,
    ),
    Claim(
        "filters",
        "Parameter Flow's filters",
        "a filter with threshold 0.003 and schedule lr holds back {push} of the data that workers push and "
        "{pull} of what the server sends, and moves the accuracy by {points} points",
        "Digits, 4 asynchronous workers, 10 epochs, means of 3 seeds. One held-out digit is 0.28 points. All "
        "thresholds and schedules: [servers.md](servers.md#filters).",
        {
            "push": Figure(("filters",), "pushed MB", "0.003:lr", "none", "saved"),
            "pull": Figure(("filters",), "sent MB", "0.003:lr", "none", "saved"),
            "points": Figure(("filters",), "points", "0.003:lr", kind="value", form="{:+.1f}"),
        },
        {"filters": "weir bench run training/filters"},
    ),
    Claim(
        "cost",
        "Bytes of sparse gradients",
        "DFS saves {strong} of the bytes of OmniReduce with the same bits a value and its best block and "
        "message size, and {best} of those of the best packed rival, lists and bitmaps included",
        "The same recorded gradients of the mlp and the cnn, 4 workers, the same density, every header; the "
        "rivals' settings are chosen in hindsight. Below 0: DFS sends more, where a step is a few packets.",
        {
            "strong": Figure(("cost",), "DFS of packed OmniReduce", "", kind="value", form="{:.0%}"),
            "best": Figure(("cost",), "DFS of packed rival", "", kind="value", form="{:.0%}"),
        },
        {"cost": "weir bench run gradients/cost --set models=mlp,cnn --set workers=4"},
    ),
)

PUBLISHED: Final[tuple[Published, ...]] = (
    Published(
        "H1",
        "DFS",
        "−87.17 % of OmniReduce's communication cost, at most",
        "The same recorded gradients. DFS's own models, densities and cost unit are not published.",
        ("cost",),
        "OmniReduce, lists and bitmaps with as many bits a value",
        "bytes with every header; tests compare them with the transport's",
    ),
    Published(
        "H2",
        "DFS",
        "−74.12 % of ResNet-18's training time",
        "Published over a dense parameter server on a cluster. Here: four workers, a server and a switch "
        "share two processors.",
        ("servers",),
        "Gloo's ring; a dense server over TCP",
        "bytes of a worker's link",
    ),
    Published(
        "H3",
        "Parameter Flow",
        "up to 4.3 times a parameter server's speed",
        "Published over MXNet's server. Here the dense server answers by pieces, as BytePS does; against "
        "whole tensors the ratio was larger and is not claimed.",
        ("servers",),
        "a dense server over TCP, in pieces of 128 KiB",
        "bytes of a worker's link",
    ),
    Published(
        "H4, H5",
        "Parameter Flow",
        "−75 % of the data at −0.6 points; −77 % pulled, −79 % pushed",
        "Digits instead of MNIST.",
        ("filters",),
        "the same server without a filter",
        "bytes of flows with headers, by direction",
    ),
    Published(
        "H6",
        "DLCP",
        "+84.3 % throughput of training",
        "Over a TCP that fills its queues; DCTCP gains the same "
        "([published set-ups](simulated.md#published-set-ups)). No V100 machines were available.",
        twin="DCTCP, and CUBIC, through the same queues",
        counter="trimmed packets",
        command="weir bench run simulated/dlcp-testbed --set kilobytes=1024 --set depth=32,128 "
        "--set tensors=5 --set contenders=jafgi --seeds 5",
    ),
    Published(
        "H7",
        "DLCP",
        "p99 −91.8 % of DCTCP's, −88.6 % of pFabric's",
        "Not confirmed: on 144 simulated hosts DCTCP is faster where both wait equally long "
        "([published set-ups](simulated.md#published-set-ups)). Theirs: buffers, tensors and time-outs "
        "are not known. pFabric is not built: tensors of one length are all equally short.",
        ("incast",),
        "DCTCP in the same class, with the same waits",
        "trimmed packets; DCTCP's time-outs",
    ),
    Published(
        "H8",
        "MLT",
        "up to 62.2 % end to end",
        "Not confirmed: no gain in eight simulated machines, whose queues hold every incast "
        "([published set-ups](simulated.md#published-set-ups)).",
        twin="DCTCP, in Weir's class",
        counter="trimmed packets: none",
        command="weir bench run simulated/mlt --set kilobytes=1024",
    ),
    Published(
        "H9, H10",
        "MLT, DLCP",
        "0.7 to 3.3 % loss at equal rounds, 10 % at equal quality; small 1.6 %, large 0.1 %; front 1.1 %, "
        "back 0.4 %",
        "Measured per model, with error feedback, which tolerates far more: "
        "[calibrate.md](../guides/calibrate.md#results). No record: other models.",
        twin="the same seeds without loss",
        counter="share of blocks lost",
        command="weir calibrate --model cnn --no-error-feedback --epochs 3",
    ),
    Published(
        "H11",
        "DS-Sync",
        "up to 94 % end to end",
        "Not confirmed: sums of dense gradients take less time than its groups "
        "([methods.md](methods.md#ds-sync)). The bottlenecked cluster is not "
        "described.",
        twin="Gloo's ring; dense sums by the switch",
        counter="bytes of a worker's link",
        command="sudo weir bench run training/links --set model=cnn --set methods=ds-sync,dfs,dense "
        "--set peers=gloo,ps --set links=10mbit --set loss=0 --set epochs=3 --set evaluate_every=11",
    ),
    Published(
        "H12",
        "ExDyna",
        "density at its target, no build-up, balanced",
        "`weir bench run gradients/density`; build-up 1.00 and imbalance 1.41 in "
        "[methods side by side](training.md#methods-side-by-side). 16 GPUs were not available.",
        twin="block top-k: build-up 3.83",
        counter="values of each worker",
        command="weir bench run gradients/density",
    ),
    Published(
        "H13",
        "OmniReduce",
        "8.2 times NCCL's throughput, 1.4 to 2.9 times at 100 Gbit/s",
        "Not measured: 16 machines with GPUs, connected by NCCL, were not available.",
    ),
    Published(
        "H14",
        "OmniReduce",
        "all-reduce time by density of blocks",
        "Over links of 100 Mbit/s to 1 Gbit/s, by density: "
        "[collectives.md](collectives.md#where-the-time-goes). Not at 10 and 100 Gbit/s: a worker's thread "
        "moves about 1 GB/s.",
        ("allreduce",),
        "Gloo in the same processes, in turns",
        "frames at a time on Gloo's link; processor seconds",
    ),
    Published(
        "H15",
        "SwitchML",
        "5.5 and 2.27 times; the same rate for any number of workers",
        "Only the second half was measured: no Tofino was available.",
        ("scale", "scale-fast"),
        "the same sum of 32, or of 16 workers",
        "bytes of each worker's link, the same for all sizes",
    ),
    Published(
        "H16",
        "ATP",
        "+38 to 66 % throughput in a shared cluster",
        "Four jobs in virtual time, one seed: a p99 of 0.35 of rings "
        "([jobs that share a fabric](simulated.md#jobs-that-share-a-fabric)). ATP's servers, which sum "
        "packets without a slot, are not built.",
        twin="rings over DCTCP, in Weir's class",
        counter="trimmed packets",
        command="weir bench run simulated/jobs --set depth=32 --set steps=4 --seeds 1",
    ),
    Published(
        "H17",
        "Libra",
        "1.5 to 4 times sparse aggregation",
        "Not measured: no Tofino was available. Weir's switches skip absent blocks instead of keeping hot "
        "keys.",
    ),
    Published(
        "H18",
        "Parsa",
        "−90 % of the traffic, 1.6 times as fast",
        "Published against random placement, for all samples at once. Here against a hash, which is better.",
        ("placement",),
        "the same samples and parameters, placed by a hash",
        "bytes between machines; equal accuracy",
    ),
    Published(
        "H19",
        "THC",
        "1.40 to 1.47 times to accuracy",
        "Here: bits a value of dense gradients; accuracies are in [precision.md](../guides/precision.md).",
        ("packed",),
        "the faster of rings over CUBIC and BBR; 32 bits a value",
        "share of the line",
    ),
    Published(
        "H20",
        "DBLP",
        "−24.4 % training time, 5.88 times for a round",
        "Not built: a loss budget that changes with the phase of training.",
    ),
)
