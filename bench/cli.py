# SPDX-License-Identifier: Apache-2.0
"""``weir bench``: Weir beside its peers, in one run, on the same links."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from weir.bench.arguments import Density, Workers, begin, numbers, shares
from weir.bench.cli_gradients import cost, density, dfs, placement, ps_filter, selection
from weir.bench.cli_virtual import incast, jobs, scale, spraying, tail
from weir.cluster import ClusterError
from weir.methods import Plugin
from weir.netns import NamespaceError
from weir.process.child import ChildError
from weir.train import options

if TYPE_CHECKING:
    pass


class _Benches(TyperGroup):
    """The benchmarks; one whose process dies ends with a sentence."""

    def invoke(self, context: Any) -> Any:
        try:
            return super().invoke(context)
        except (ChildError, ClusterError, NamespaceError) as error:
            typer.echo(f"weir bench: {error}", err=True)
            raise typer.Exit(1) from None


app = typer.Typer(
    cls=_Benches,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",  # a paragraph's lines are one
    help="Measure Weir beside its peers: same run, same links, ratios.",
)


def _whole_blocks(lanes: int | list[int] | None) -> int | list[int] | None:
    if any(count % 32 for count in ([lanes] if isinstance(lanes, int) else lanes or [])):
        raise typer.BadParameter("is to be a multiple of 32")
    return lanes


def _rates(given: list[str] | None) -> list[str] | None:
    """Return rates as they are; refuse what is none."""
    from softp4.runtime.queueing import parse_rate

    for text in given or []:
        try:
            parse_rate(text)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
    return given


def _lane_bits(given: list[int] | None) -> list[int] | None:
    """Return bits as they are, each once; refuse what there is not."""
    for bits in given or []:
        if bits not in (32, 16, 8):
            raise typer.BadParameter(f"{bits}: values have 32, 16 or 8 bits")
    return sorted(set(given or []), reverse=True)


Rates = Annotated[
    list[str] | None,
    typer.Option(
        callback=_rates,
        help="Rate of the shaped links, such as 100mbit; may be given more than once. Default: 200mbit.",
    ),
]

EvaluateEvery = Annotated[
    int | None, typer.Option(min=1, help="Steps between evaluations; default: an epoch.")
]
Target = Annotated[
    float | None,
    typer.Option(min=0, max=1, help="Accuracy to reach; default: the highest that all complete runs reach."),
]
Seed = Annotated[int, typer.Option(min=0, help="Seed of the parameters and of the order of the data.")]
RealTraining = Annotated[bool, typer.Option(help="Run the training itself, in real time.")]


@app.callback()
def _bench(context: typer.Context) -> None:
    """End in order on SIGTERM, as on Ctrl-C."""
    from weir.train.running import interruptible

    context.with_resource(interruptible())


@app.command("list")
def list_benchmarks(context: typer.Context) -> None:
    """List the benchmarks: what each measures, and about how long it takes."""
    from rich.console import Console

    from weir.bench import listing

    group: Any = context.parent.command if context.parent is not None else None
    names = [name for name in group.list_commands(context) if name != listing.LIST]
    listing.show(((name, group.commands[name].get_short_help_str(200)) for name in names), Console())


@app.command()
def switch(
    workers: Workers = 4,
    slots: Annotated[int, typer.Option(min=1, max=1024, help="Slots kept busy.")] = 64,
    lanes: Annotated[
        int, typer.Option(min=32, max=256, callback=_whole_blocks, help="Lanes a packet, a multiple of 32.")
    ] = 256,
    seconds: Annotated[float, typer.Option(min=0.1, help="Length of one repetition over AF_PACKET.")] = 3.0,
    repeats: Annotated[int, typer.Option(min=1, help="Repetitions, after one that warms up.")] = 5,
    threads: Annotated[
        list[int] | None,
        typer.Option(
            min=1,
            max=64,
            help="Compare the soft switch on so many threads with one; repeatable.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Measure packets per second: the soft switch, BMv2 and a hand-written C aggregator.

    They run in memory and, as root, over AF_PACKET on veth pairs in network namespaces. BMv2 takes part when
    simple_switch_grpc is on PATH. With --threads 2, the soft switch alone, against itself on one thread.
    """
    begin("switch", "building what is measured")
    from weir.bench import switch, switch_threads

    if threads:
        switch_threads.run(threads, workers, slots, lanes, seconds, repeats)
    else:
        switch.run(workers, slots, lanes, seconds, repeats)


@app.command()
def instructions(
    lanes: Annotated[
        list[int] | None,
        typer.Option(
            min=32,
            max=256,
            callback=_whole_blocks,
            help="Lanes a packet, a multiple of 32; may be given more than once. Default: 64 and 256.",
        ),
    ] = None,
) -> None:
    """Count the instructions that a packet costs in the soft switch, by what they are for.

    The same for the hand-written C aggregator. callgrind counts, so that no other load disturbs the figures;
    it is part of valgrind.
    """
    begin("instructions", "counting a packet's instructions")
    from weir.bench.instructions import run

    run(lanes or (64, 256))


@app.command()
def start(
    sizes: Annotated[
        str,
        typer.Option(
            help="Sizes of the program, as multiples of the actions of Weir's own, comma-separated."
        ),
    ] = "1,2,4,8",
    repeats: Annotated[int, typer.Option(min=1, help="Starts of each kind.")] = 3,
) -> None:
    """Time a switch from start to first packet: with an empty cache, again, and with larger programs."""
    begin("start", "starting switches")
    from weir.bench.start import run

    run(repeats, tuple(numbers(int, sizes, "--sizes", 0, 64)))


@app.command()
def tables(
    routes: Annotated[int, typer.Option(min=1, help="Entries of the router's table.")] = 10_000,
    rules: Annotated[int, typer.Option(min=1, help="Entries of the access list.")] = 1_000,
    sizes: Annotated[
        str, typer.Option(help="Sizes of tables whose lookup is timed, comma-separated.")
    ] = "10,100,1000,10000,100000",
    frames: Annotated[int, typer.Option(min=1000, help="Frames through BMv2 in a repetition.")] = 20_000,
    repeats: Annotated[int, typer.Option(min=1, help="Repetitions, after one that warms up.")] = 3,
    plot: Annotated[Path, typer.Option(help="Where the plot (PNG) goes.")] = Path("runs/bench-tables.png"),
) -> None:
    """Measure lookups in large tables: a router and an access list beside BMv2's, and the time by size.

    Also shows how much memory `weir switch` takes. BMv2 takes part when simple_switch is on PATH.
    """
    begin("tables", "filling tables")
    from weir.bench.tables import run

    run(routes, rules, numbers(int, sizes, "--sizes", 1, 1_000_000), frames, repeats, plot)


@app.command()
def p4runtime(
    entries: Annotated[int, typer.Option(min=1, help="Entries of the table.")] = 10_000,
    batch: Annotated[int, typer.Option(min=1, help="Updates in a Write.")] = 200,
    repeats: Annotated[int, typer.Option(min=1, help="Repetitions, after one that warms up.")] = 5,
) -> None:
    """Measure entries written and read per second over P4Runtime: the soft switch and BMv2.

    BMv2 takes part when simple_switch_grpc is on PATH.
    """
    begin("p4runtime", "starting switches")
    from weir.bench.p4runtime import run

    run(entries, batch, repeats)


@app.command()
def allreduce(
    workers: Workers = 4,
    megabytes: Annotated[float, typer.Option(min=0.001, help="Size of the float32 tensor in MB.")] = 46.0,
    density: Annotated[
        list[float] | None,
        typer.Option(
            callback=shares,
            help="Share of blocks that are not zero; may be given more than once. Default: 1, 0.1, 0.01.",
        ),
    ] = None,
    rate: Rates = None,
    repeats: Annotated[int, typer.Option(min=1, help="Repetitions, after one that warms up.")] = 5,
    overlap: Annotated[bool, typer.Option(help="Give all ranks the same non-zero blocks.")] = False,
    lane_bits: Annotated[
        list[int] | None,
        typer.Option(
            callback=_lane_bits,
            help="Bits of a value in Weir's packets, 32, 16 or 8; may be given more than once. Default: 32.",
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Where the figures (JSON) go.")] = Path(
        "runs/bench-allreduce.json"
    ),
) -> None:
    """Time all-reduce over Weir and over Gloo: dense, with 10 % and with 1 % of the blocks.

    It runs over shared memory and, as root, over shaped links between network namespaces, where Gloo has the
    kernel's own bridge. Processor time stands beside the times.
    """
    begin("allreduce", "starting switch and workers")
    from weir.bench.allreduce import run

    densities = tuple(density or (1.0, 0.1, 0.01))
    run(workers, megabytes, densities, rate or ["200mbit"], repeats, overlap, lane_bits or [32], out)


@app.command()
def latency(
    workers: Annotated[
        list[int] | None,
        typer.Option(min=1, max=32, help="Number of workers; may be given more than once. Default: 2, 4."),
    ] = None,
    kilobytes: Annotated[
        list[float] | None,
        typer.Option(
            min=4 / 1024,
            help="Size of the tensor in KiB; may be given more than once. Default: 4, 16, 64, 256, 1024.",
        ),
    ] = None,
    rate: Rates = None,
    repeats: Annotated[int, typer.Option(min=1, help="Turns, after one that warms up.")] = 7,
    calls: Annotated[int, typer.Option(min=1, help="Collectives in a turn.")] = 20,
    collective: Annotated[
        list[str] | None,
        typer.Option(
            help="all_reduce, sparse_all_reduce, all_gather, reduce_scatter, reduce, broadcast, scatter, "
            "gather, barrier, broadcast_object_list, scatter_object_list or gather_object; may be given more "
            "than once. Default: all_reduce.",
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Where the figures (JSON) go.")] = Path("runs/bench-latency.json"),
) -> None:
    """Time small collectives over Weir and over Gloo, through torch.distributed.

    It runs over shared memory and, as root, over shaped links between network namespaces, where Gloo has the
    kernel's own bridge.
    """
    begin("latency", "starting switch and workers")
    from weir.bench.latency import run
    from weir.bench.latency_worker import COLLECTIVES, LatencySpec

    sizes = kilobytes or [4, 16, 64, 256, 1024]
    chosen = tuple(collective or ["all_reduce"])
    if unknown := set(chosen) - COLLECTIVES.keys():
        names = ", ".join(COLLECTIVES)
        raise typer.BadParameter(f"--collective: {names}, not {', '.join(sorted(unknown))}")
    spec = LatencySpec((), repeats, calls, collectives=chosen)
    run(workers or [2, 4], sizes, rate or ["200mbit"], spec, out)


@app.command()
def overlap(
    workers: Workers = 2,
    model: Annotated[
        list[str] | None,
        typer.Option(help="resnet18 or lm; may be given more than once. Default: both."),
    ] = None,
    rate: Rates = None,
    batch: Annotated[int, typer.Option(min=1, help="Samples of a worker and step.")] = 8,
    steps: Annotated[int, typer.Option(min=2, help="Steps in a turn.")] = 5,
    repeats: Annotated[int, typer.Option(min=1, help="Turns of either kind, after one that warms up.")] = 5,
    bucket: Annotated[float, typer.Option(min=0, help="Size of DDP's buckets in MB; 0: DDP's own.")] = 0,
    piece: Annotated[int, typer.Option(min=8, help="Size of LayersFirst's pieces in KiB.")] = 512,
    device: Annotated[
        list[float] | None,
        typer.Option(
            help="Let the passes of a step take so many ms, as on an accelerator, and leave the processors "
            "to switch and transport; one for each model. Default: they are computed here."
        ),
    ] = None,
) -> None:
    """Time training steps with LayersFirst and with DDP alone, over shaped links between network namespaces.

    Needs root. Most is to be gained where computing takes as long as summing: choose --batch and --rate so.
    """
    begin("overlap", "starting switch and workers")
    from weir.bench.overlap import run
    from weir.bench.overlap_worker import OverlapSpec

    models = model or ["resnet18", "lm"]
    if device and len(device) != len(models):
        raise typer.BadParameter(f"--device: one for each of {', '.join(models)}")
    specs = [
        OverlapSpec(name, batch, steps, repeats, bucket, 256 * piece, milliseconds / 1000)
        for name, milliseconds in zip(models, device or [0.0] * len(models), strict=True)
    ]
    run(specs, workers, rate or ["200mbit"])


@app.command()
def fsdp(
    workers: Workers = 4,
    width: Annotated[int, typer.Option(min=8, help="Width of the four linear layers.")] = 1024,
    rate: Rates = None,
    repeats: Annotated[int, typer.Option(min=1, help="Steps, after one that warms up.")] = 5,
    lane_bits: Annotated[
        list[int] | None,
        typer.Option(
            callback=_lane_bits,
            help="Bits of a summed value in Weir's packets; may be given more than once. Default: 32, 16.",
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Where the figures (JSON) go.")] = Path("runs/bench-fsdp.json"),
) -> None:
    """Time steps of a model whose parameters are sharded (fully_shard), over Weir and over Gloo.

    It needs root, or a user namespace: over shaped links between network namespaces, where Gloo has the
    kernel's own bridge.
    """
    begin("fsdp", "starting switch and workers")
    from weir.bench.fsdp import run

    run(workers, width, rate or ["200mbit"], repeats, lane_bits or [32, 16], out)


@app.command()
def gpu(
    case: Annotated[
        list[str] | None,
        typer.Option(help="copy, allreduce, exchange or train; may be given more than once. Default: all."),
    ] = None,
    device: Annotated[str, typer.Option(help="cuda; cpu tries the benchmark out without one.")] = "cuda",
    workers: Workers = 4,
    megabytes: Annotated[
        str, typer.Option(help="Sizes of the float32 tensors in MB, comma-separated.")
    ] = "0.064,1,4,16,46,256",
    repeats: Annotated[int, typer.Option(min=1, help="Repetitions, after one that warms up.")] = 7,
    seconds: Annotated[
        float,
        typer.Option(min=0, help="Fewer repetitions, 3 at least, where they would take more than this."),
    ] = 1.0,
    switch_threads: Annotated[
        str, typer.Option(help="Threads of the switch, comma-separated; large all-reduces use all of these.")
    ] = "1,2,4",
    reference: Annotated[bool, typer.Option(help="Measure tensors in host memory, too.")] = True,
    model: Annotated[str, typer.Option(help="Model of exchange and train: gpt2 or tiny.")] = "gpt2",
    batch: Annotated[int, typer.Option(min=1, help="Sequences of a rank and step.")] = 4,
    length: Annotated[int, typer.Option(min=1, max=1024, help="Tokens of a sequence.")] = 512,
    steps: Annotated[int, typer.Option(min=1, help="Steps of the training that count.")] = 10,
    warmup: Annotated[int, typer.Option(min=0, help="Steps before them.")] = 3,
    density: Density = 0.01,
    way: Annotated[
        list[str] | None,
        typer.Option(help="Way to sum gradients in the training; may be given more than once. Default: all."),
    ] = None,
    limit: Annotated[float, typer.Option(min=1, help="Seconds after which a measurement fails.")] = 40.0,
    out: Annotated[Path, typer.Option(help="Where the figures (JSON) go.")] = Path("runs/bench-gpu.json"),
) -> None:
    """Measure sums of gradients on a GPU that all ranks share: over Weir, over Gloo, and with torch's hooks.

    Times copies to and from the card, all-reduces, the exchange of Weir's hook alone, and the training of
    GPT-2 small.
    """
    begin("gpu", "starting switch and workers")
    import torch

    from weir.bench.gpu import CASES, Plan, run
    from weir.bench.gpu_model import SHAPES
    from weir.bench.gpu_train import WAYS

    for option, given, known in (
        ("--case", case or [], CASES),
        ("--device", [device], ("cuda", "cpu")),
        ("--model", [model], SHAPES),
        ("--way", way or [], WAYS),
    ):
        if unknown := set(given) - set(known):
            raise typer.BadParameter(f"{option}: {', '.join(known)}, not {', '.join(sorted(unknown))}")
    if device == "cuda" and not torch.cuda.is_available():
        raise typer.BadParameter("--device cuda: torch finds none here")
    plan = Plan(
        cases=tuple(name for name in CASES if name in (case or CASES)),
        device=device,
        workers=workers,
        elements=tuple(round(size * 250_000) for size in numbers(float, megabytes, "--megabytes", 0, 4096)),
        repeats=repeats,
        seconds=seconds,
        threads=tuple(numbers(int, switch_threads, "--switch-threads", 0, 64)),
        reference=reference,
        model=model,
        batch=batch,
        length=min(length, SHAPES[model].context),
        steps=steps,
        warmup=warmup,
        density=density,
        ways=tuple(name for name in WAYS if name in (way or WAYS)),
        limit_s=limit,
    )
    run(plan, out)


@app.command()
def accuracy(
    model: options.Model = "cnn",
    workers: Workers = 4,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the data.")] = 4,
    method: Annotated[str, typer.Option(help="A method: weir methods lists them.")] = "dense",
    plugin: Plugin = None,
    density: Density = 0.05,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds.")] = 3,
) -> None:
    """Compare the final accuracy of training over Weir and over Gloo: same seeds, both trained in full."""
    begin("accuracy", "training over Weir and over Gloo")
    from weir.bench.accuracy import run
    from weir.train.config import ConfigError

    try:
        run(model, workers, epochs, method, density, seeds, plugin or ())
    except ConfigError as error:
        typer.echo(f"weir bench accuracy: {error}", err=True)
        raise typer.Exit(2) from None


@app.command()
def training(
    model: options.Model = "resnet18",
    workers: Workers = 4,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the data.")] = 3,
    max_steps: Annotated[
        int | None, typer.Option(min=1, metavar="STEPS", help="Steps of each epoch at most.")
    ] = None,
    methods: Annotated[
        str, typer.Option(help="Weir's methods, comma-separated: weir methods lists them.")
    ] = "dense",
    plugin: Plugin = None,
    peers: Annotated[
        str, typer.Option(help="gloo: all-reduce; ps: a parameter server; both dense. Comma-separated.")
    ] = "gloo",
    density: Density = 0.05,
    topology: options.Topology = "leaf-spine-2x2",
    links: options.Links = "100mbit",
    loss: options.Loss = 0.01,
    background: options.Background = "incast",
    background_load: options.BackgroundLoad = 0.5,
    background_dscp: options.BackgroundDscp = 0,
    loss_budget: Annotated[
        float,
        typer.Option(
            help="Loss budget of one more run, of the first method that can have one; 0: no such run."
        ),
    ] = 0.1,
    peer_minutes: Annotated[
        float,
        typer.Option(help="Minutes of training after which a peer is cut short; the rest is calculated."),
    ] = 10.0,
    evaluate_every: EvaluateEvery = None,
    target: Target = None,
    seed: Seed = 1,
    virtual: Annotated[bool, typer.Option(help="Simulate a step's all-reduce, in virtual time.")] = True,
    train: RealTraining = True,
    plot: Annotated[Path, typer.Option(help="Where the plot (PNG) goes.")] = Path("runs/bench-training.png"),
) -> None:
    """Time training to equal accuracy over bad links: Weir's methods, a loss budget, and dense peers.

    First simulates what one step waits for; then, as root, trains in network namespaces; all on the same bad
    links. The training needs cores to spare: all switches and workers share this machine.
    """
    begin("training", "simulating steps" if virtual else "training")
    from weir.bench.training import run
    from weir.bench.training_ways import PEERS
    from weir.train.config import ConfigError, make_config

    try:
        config = make_config(
            model=model, workers=workers, epochs=epochs, max_steps=max_steps,
            density=density, topology=topology, links=links, loss=loss, background=background,
            background_load=background_load, background_dscp=background_dscp, seed=seed,
            evaluate_every=evaluate_every, plugin=plugin,
        )  # fmt: skip
        given = config.model_dump(exclude={"method"})
        configs = [make_config(**given, method=method) for method in methods.split(",")]
        chosen = [peer for peer in PEERS if peer in peers.split(",")]
        if unknown := set(peers.split(",")) - {*PEERS, ""}:
            raise ConfigError(f"--peers: {', '.join(PEERS)}, not {', '.join(sorted(unknown))}")
        run(configs, chosen, loss_budget, peer_minutes, target, plot, virtual=virtual, real=train)
    except ConfigError as error:
        typer.echo(f"weir bench training: {error}", err=True)
        raise typer.Exit(2) from None


@app.command()
def ps(
    workers: Annotated[
        str, typer.Option(help="Numbers of workers of a simulated step, comma-separated.")
    ] = "2,4,8,16",
    parameters: Annotated[int, typer.Option(min=256, help="Of the model, in a simulated step.")] = 1_000_000,
    density: Density = 0.05,
    models: Annotated[
        str, typer.Option(help="Models that are trained, comma-separated: mlp, cnn, lm, resnet18.")
    ] = "mlp",
    train_workers: Annotated[int, typer.Option(min=1, max=31, help="Workers of the training.")] = 4,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Passes over the data; default: as suits the model.")
    ] = None,
    max_steps: Annotated[
        int | None, typer.Option(min=1, metavar="STEPS", help="Steps of each epoch at most.")
    ] = None,
    methods: Annotated[
        str, typer.Option(help="Methods over Weir's server, comma-separated: weir methods lists them.")
    ] = "dense,dfs",
    rule: Annotated[
        str, typer.Option("--filter", metavar="RULE", help="Filter in both directions; empty: none.")
    ] = "0.003:lr",
    consistencies: Annotated[
        str, typer.Option(help="Also trained, with the filter, comma-separated: ssp:S, async.")
    ] = "async",
    links: Annotated[
        str | None, typer.Option(metavar="RATE", help="Of every link; default: as suits the model.")
    ] = None,
    evaluate_every: EvaluateEvery = None,
    target: Target = None,
    seeds: Annotated[int, typer.Option(min=1, help="Trainings of each way.")] = 3,
    virtual: Annotated[bool, typer.Option(help="Simulate a step, in virtual time.")] = True,
    train: RealTraining = True,
) -> None:
    """Time training with a parameter server: Weir's beside a dense one over TCP and Gloo's ring.

    First simulates a step with ever more workers, and counts what the server's link carries. Then, as root,
    trains to equal accuracy in network namespaces, the peers over the kernel's own bridge, all over links of
    the same rate; every server is on a host of its own. Shows medians of the seeds.
    """
    begin("ps", "simulating steps" if virtual else "training")
    from softp4.runtime.queueing import parse_rate
    from weir.bench import servers_real, servers_virtual
    from weir.train.config import ConfigError

    counts = numbers(int, workers, "--workers", 0, 31)
    chosen = [model for model in servers_real.EXTENTS if model in models.split(",")]
    if len(chosen) < len(models.split(",")):
        raise typer.BadParameter(f"--models {models}: there are {', '.join(servers_real.EXTENTS)}")
    plan = servers_real.Plan(
        train_workers,
        [method for method in methods.split(",") if method],
        rule,
        [consistency for consistency in consistencies.split(",") if consistency],
        {
            "epochs": epochs, "max_steps": max_steps, "density": density, "links": links,
            "evaluate_every": evaluate_every,
        },
    )  # fmt: skip
    try:
        for model in chosen:
            servers_real.configs(plan, model, 1)  # refused before anything takes time
        if virtual:
            servers_virtual.measure(counts, parameters, parse_rate(links or "200mbit"), density)
        if train:
            servers_real.measure(plan, chosen, range(1, seeds + 1), target)
    except ConfigError as error:
        typer.echo(f"weir bench ps: {error}", err=True)
        raise typer.Exit(2) from None


for _command in (cost, dfs, selection, density, placement, scale, spraying, incast, jobs, tail):
    app.command()(_command)
app.command("ps-filter")(ps_filter)
