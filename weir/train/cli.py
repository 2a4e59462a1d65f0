# SPDX-License-Identifier: Apache-2.0
"""``weir train``: options of the command line to a TrainConfig, checked before anything is started."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from weir.extras import MissingExtraError, require
from weir.methods import find_method
from weir.netns import gain_root
from weir.train import options
from weir.train.config import DEFAULT_METHOD, ConfigError, TrainConfig, make_config


@options.takes_training_options
def train(
    *,
    context: typer.Context,
    method: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Method that chooses the gradients to send; weir methods lists all. dense: everything. "
            f"Default: {DEFAULT_METHOD}.",
            rich_help_panel="Method",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the parameters and of the order of the data.")] = 1,
    reference: Annotated[
        bool, typer.Option(help="Train a second time over plain Gloo with the same seed, for comparison.")
    ] = True,
    hosts: Annotated[
        str,
        typer.Option(
            metavar="KIND",
            help="processes: the workers share memory with the switch, and Gloo runs over loopback. "
            "namespaces: each worker runs in its own network namespace (needs root, or an unprivileged "
            "user namespace), and Gloo runs over the same links on the kernel's bridge. auto: namespaces "
            "where possible.",
            rich_help_panel="Network",
        ),
    ] = "processes",
    pcap: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Capture all ports of the switch. With several switches, each gets a file with its name "
            "before the suffix. See weir pcap and weir audit.",
        ),
    ] = None,
    placement: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|dynamic",
            help="With --mode ps: placement of the parameters. FILE: a plan of weir partition; trains "
            "--model logistic, fm or deepfm on its data, a worker and a server on each of its machines. "
            "dynamic: blocks of --model begin in equal shares, and move between servers by their traffic.",
        ),
    ] = None,
    save_every: Annotated[
        int | None,
        typer.Option(
            metavar="STEPS",
            help="Write a checkpoint for --resume into the run's folder every STEPS steps; default: none.",
        ),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Continue from the checkpoint in a run's folder, with that run's settings, in a new folder. "
            "Without a loss budget the parameters equal those of an uninterrupted run, bit for bit.",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Train with the settings in a run's config.json; options on the command line replace them. "
            "Without a loss budget and on the same versions the parameters equal that run's, bit for bit.",
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the run's folder, after the time; default: model and method.")
    ] = None,
    **settings: Any,
) -> None:
    """Train a real model with its gradients summed by the P4 program.

    Starts switches, a controller and the workers on this machine, trains with DistributedDataParallel over
    the switches, then once more over plain Gloo for reference. Writes config.json, steps.jsonl, summary.json
    and report.png. Ctrl-C ends every process and still writes the summary.

    The options under Network build racks and spines, slow and disturb their links, and allow a bounded loss
    of gradients. The reference uses these links with --hosts namespaces; otherwise it runs over loopback.
    """
    if placement is not None and placement != "dynamic":
        if unused := sorted(
            options.given(context).keys() & {"config", "resume", "save_every", "pcap", "name"}
        ):
            typer.echo(f"weir train: --placement FILE does not go with {options.in_line(unused)}", err=True)
            raise typer.Exit(2)
        _by_plan(Path(placement), hosts, seed, settings)
        return
    try:
        if resume is not None:
            from weir.train.resuming import resumed

            chosen, remark = resumed(resume, options.given(context))
            choose_hosts(chosen.hosts)
        elif config is not None:
            from weir.train.resuming import configured

            saved = configured(config, options.given(context))
            kind, remark = choose_hosts(saved["hosts"])
            chosen = make_config(**{**saved, "hosts": kind})
        else:
            kind, remark = choose_hosts(hosts)
            chosen = make_config(
                method=method,
                seed=seed,
                reference=reference,
                hosts=kind,
                pcap=pcap,
                placement=placement,
                save_every=save_every,
                name=name,
                **settings,
            )
        if find_method(chosen.method).kind == "peer":
            raise ConfigError(f"--method {chosen.method}: a peer; weir compare and weir bench run those")
    except ConfigError as error:
        typer.echo(f"weir train: {error}", err=True)
        raise typer.Exit(2) from None
    _require_data(chosen)
    from weir.train.launcher import train as run
    from weir.train.words import caution

    for line in filter(None, (remark, caution(chosen))):
        typer.echo(line)

    raise typer.Exit(run(chosen, Console()))


def _require_data(config: TrainConfig) -> None:
    """End with what to install, if the data that a model trains on comes with a package that is missing."""
    try:
        if config.data in ("digits", "restored-digits"):
            require(f"weir train --model {config.model}", "train")
    except MissingExtraError as error:
        typer.echo(f"weir: {error} (other models, such as gpt and lm, need no extra)", err=True)
        raise typer.Exit(1) from None


def _by_plan(file: Path, hosts: str, seed: int, settings: dict[str, Any]) -> None:
    """Train a sparse model by a plan, and print what its links carried."""
    from weir.host_agent.placement.traffic import PlacementError
    from weir.netns import NamespaceError
    from weir.train.placed import show, train_placed
    from weir.train.running import WorkerError
    from weir.train.sparse_models import NAMES

    model = "logistic" if settings["model"] == "resnet18" else settings["model"]
    try:
        if settings["mode"] != "ps":
            raise ConfigError("--placement needs --mode ps")
        if model not in NAMES:
            raise ConfigError(f"--placement {file}: --model {', '.join(NAMES)}, not {model}")
        kind, remark = choose_hosts(hosts)
        if remark:
            typer.echo(remark)
        trained = train_placed(
            file,
            model,
            epochs=settings["epochs"],
            batch_size=settings["batch_size"],
            lr=settings["lr"],
            seed=seed,
            namespaces=kind == "namespaces",
            links=settings["links"],
        )
    except (ConfigError, PlacementError, NamespaceError, WorkerError, ValueError, OSError) as error:
        typer.echo(f"weir train: {error}", err=True)
        raise typer.Exit(1 if isinstance(error, WorkerError) else 2) from None
    show(file, trained, Console())


def choose_hosts(wanted: str) -> tuple[str, str]:
    """Return the kind of hosts to train on, and a remark for the user, mostly empty.

    Call it before anything is started: where namespaces need a user namespace, this program starts again in
    one, and the call does not return.

    Args:
        wanted: "processes", "namespaces", or "auto": namespaces where they are to be had.

    Raises:
        ConfigError: there are no namespaces to be had, and nothing else would do.
    """
    if wanted not in ("auto", "namespaces"):
        return wanted, ""
    if "RANK" in os.environ:
        raise ConfigError(f"--hosts {wanted}: this worker (RANK is set) already has a host")
    reason = gain_root()
    if reason is None:
        return "namespaces", ""
    if wanted == "namespaces":
        raise ConfigError(f"--hosts namespaces: {reason}")
    return "processes", (
        f"No network namespaces here: {reason}.\n"
        "So the workers share memory with the switch, whose ports keep to the links' rate, and Gloo runs "
        "over loopback at any rate: compare accuracy and bytes, not times."
    )
