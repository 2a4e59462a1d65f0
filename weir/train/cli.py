# SPDX-License-Identifier: Apache-2.0
"""``weir train``: options of the command line to a TrainConfig, checked before anything is started."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import typer
from rich.console import Console

from weir.extras import MissingExtraError, require
from weir.methods import find_method
from weir.netns import gain_root
from weir.report.tables import print_json
from weir.train import options
from weir.train.config import ConfigError, TrainConfig, make_config

_TAKEN: Final = {**options.SHARED, **options.OF_A_RUN}
_BY_PLAN: Final = frozenset(
    {"placement", "mode", "model", "epochs", "batch_size", "lr", "links", "seed", "hosts"}
)


@options.takes(_TAKEN)
def train(context: typer.Context, **settings: Any) -> None:
    """Train a model whose gradients the switch sums, then train it with Gloo for comparison.

    Starts switches, a controller and the workers on this machine, trains with DistributedDataParallel over
    the switches, then once more over plain Gloo for reference. Writes config.json, steps.jsonl, summary.json
    and report.png. Ctrl-C ends every process and still writes the summary.

    --set and --config take all other settings: weir settings lists them. With --hosts namespaces, Gloo uses
    the same links as Weir; otherwise it runs over loopback, where --links does not slow it.

    With --json, progress goes to standard error, and the content of summary.json to standard output.
    """
    as_json = settings["as_json"]
    try:
        given = options.given(context, _TAKEN.keys() - {"resume"})
        if given.get("placement", "dynamic") != "dynamic":
            _by_plan(given, settings["config"], as_json=as_json)
            return
        if "resume" in given:
            from weir.train.resuming import resumed

            if settings["config"] is not None:
                raise ConfigError("--resume: the run has its own settings: leave out --config")
            chosen, remark = resumed(given["resume"], given)
            choose_hosts(chosen.hosts)
        else:
            if settings["config"] is not None:
                from weir.train.resuming import configured

                given = configured(settings["config"], given)
            kind, remark = choose_hosts(given.get("hosts", "processes"))
            chosen = make_config(**{**given, "hosts": kind})
        if find_method(chosen.method).kind == "peer":
            raise ConfigError(
                f"--method {chosen.method}: a peer without Weir; weir compare and weir bench run peers"
            )
    except ConfigError as error:
        typer.echo(f"weir train: {error}", err=True)
        raise typer.Exit(2) from None
    _require_data(chosen)
    from weir.train.launcher import train as run
    from weir.train.words import caution

    for line in filter(None, (remark, caution(chosen))):
        typer.echo(line, err=as_json)

    raise typer.Exit(run(chosen, Console(stderr=as_json), as_json=as_json))


def _require_data(config: TrainConfig) -> None:
    """End with what to install, if the data that a model trains on comes with a package that is missing."""
    try:
        if config.data in ("digits", "restored-digits"):
            require(f"weir train --model {config.model}", "train")
    except MissingExtraError as error:
        typer.echo(f"weir: {error} (other models, such as gpt and lm, need no extra)", err=True)
        raise typer.Exit(1) from None


def _by_plan(given: Mapping[str, Any], config: Path | None, *, as_json: bool) -> None:
    """Train a sparse model by a plan, and print what its links carried.

    Args:
        given: Settings on the command line.
        config: File of --config.
        as_json: Print JSON, not a table.

    Raises:
        ConfigError: A setting does not go with a plan.
    """
    from weir.host_agent.placement.traffic import PlacementError
    from weir.netns import NamespaceError
    from weir.train.placed import show, train_placed
    from weir.train.running import WorkerError
    from weir.train.sparse_models import NAMES

    file = Path(given["placement"])
    unused = sorted(given.keys() - _BY_PLAN) + (["config"] if config else [])
    if unused:
        raise ConfigError(f"--placement FILE cannot be combined with {options.in_line(unused)}")
    defaults = TrainConfig.model_fields
    model = given.get("model", NAMES[0])
    try:
        if given.get("mode") != "ps":
            raise ConfigError("--placement needs --mode ps")
        if model not in NAMES:
            raise ConfigError(f"--placement {file}: --model {', '.join(NAMES)}, not {model}")
        kind, remark = choose_hosts(given.get("hosts", "processes"))
        if remark:
            typer.echo(remark, err=as_json)
        trained = train_placed(
            file,
            model,
            epochs=given.get("epochs", defaults["epochs"].default),
            batch_size=given.get("batch_size"),
            lr=given.get("lr"),
            seed=given.get("seed", defaults["seed"].default),
            namespaces=kind == "namespaces",
            links=given.get("links"),
        )
    except (ConfigError, PlacementError, NamespaceError, WorkerError, ValueError, OSError) as error:
        typer.echo(f"weir train: {error}", err=True)
        raise typer.Exit(1 if isinstance(error, WorkerError) else 2) from None
    if as_json:
        print_json({"plan": file, **trained.as_json()})
    else:
        show(file, trained, Console())


def choose_hosts(wanted: str) -> tuple[str, str]:
    """Return the kind of hosts to train on, and a remark for the user, mostly empty.

    Call it before anything is started: where namespaces need a user namespace, this program starts again in
    one, and the call does not return.

    Args:
        wanted: "processes", "namespaces", or "auto": namespaces where they are available.

    Raises:
        ConfigError: there are no namespaces available, and nothing else would do.
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
        "The workers share memory with the switch, and its ports keep to the links' rate. Gloo runs over "
        "loopback without a rate: compare accuracy and bytes, not times."
    )
