# SPDX-License-Identifier: Apache-2.0
"""``weir train``: options of the command line to a TrainConfig, checked before anything is started."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from weir.train import options
from weir.train.config import DEFAULT_METHOD, ConfigError, make_config
from weir.train.hosts import choose_hosts


@options.takes_training_options
def train(
    *,
    method: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="What is sent of a gradient, and when: weir methods lists them. dense: all of it, always.",
            rich_help_panel="Method",
        ),
    ] = DEFAULT_METHOD,
    seed: Annotated[int, typer.Option(help="Seed of the parameters and of the order of the data.")] = 1,
    reference: Annotated[
        bool, typer.Option(help="Train a second time over plain Gloo with the same seed, for comparison.")
    ] = True,
    hosts: Annotated[
        str,
        typer.Option(
            metavar="KIND",
            help="processes: the workers share memory with the switch, and Gloo runs over loopback. "
            "namespaces: each worker is a host of its own in a network namespace (root, or an unprivileged "
            "user namespace), and Gloo runs over the same links on the kernel's bridge. auto: namespaces "
            "where possible.",
            rich_help_panel="Network",
        ),
    ] = "processes",
    pcap: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Capture all ports of the switch, of several each in a file with its name before the "
            "suffix; see weir pcap and weir audit.",
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

    With the options under Network it builds racks and spines, slows and disturbs their links, and lets a
    bounded share of the gradients go missing. The reference sees these links with --hosts namespaces;
    otherwise it runs over loopback.
    """
    try:
        kind, remark = choose_hosts(hosts)
        config = make_config(
            method=method,
            seed=seed,
            reference=reference,
            hosts=kind,
            pcap=pcap,
            name=name,
            **settings,
        )
    except ConfigError as error:
        typer.echo(f"weir train: {error}", err=True)
        raise typer.Exit(2) from None
    if remark:
        typer.echo(remark)
    from weir.train.launcher import train as run

    raise typer.Exit(run(config, Console()))
