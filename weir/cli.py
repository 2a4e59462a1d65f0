# SPDX-License-Identifier: Apache-2.0
"""The ``weir`` command. A subcommand's module is imported when it is the one that runs, and no sooner."""

import importlib.metadata
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup
from typer.main import get_command

from weir.extras import MissingExtraError, require
from weir.process.imports import import_for_good


@dataclass(frozen=True)
class _Command:
    """A subcommand: its module, its line in ``weir --help``, and the extras it needs.

    ``target`` is a function or a Typer app.
    """

    module: str
    target: str
    help: str
    extras: tuple[str, ...] = ()


_COMMANDS: Final = {
    "train": _Command(
        "weir.train.cli",
        "train",
        "Train a model whose gradients the switch sums.",
    ),
    "compare": _Command(
        "weir.compare.cli",
        "compare",
        "Compare methods on one model, or finished runs.",
        ("train",),
    ),
    "methods": _Command(
        "weir.methods", "list_methods", "List the methods that choose which gradients to send."
    ),
    "settings": _Command(
        "weir.train.options", "list_settings", "List the settings of training, for --set and --config."
    ),
    "partition": _Command(
        "weir.partition.cli",
        "partition",
        "Place samples and parameters so that little data travels.",
        ("train",),
    ),
    "hub": _Command("weir.hub", "hub", "Sum for workers anywhere on an IP network."),
    "join": _Command("weir.hub", "join", "Check the path to a hub, and print what its workers need."),
    "switch": _Command("softp4.cli", "app", "Run a P4 switch in software."),
    "shell": _Command("weir.shell", "shell", "Open p4runtime-shell on a switch."),
    "server": _Command(
        "weir.server.cli", "server", "Run a parameter server, which keeps a shard of a model."
    ),
    "controller": _Command(
        "weir.controller.cli", "app", "Program the switches and admit workers to jobs; set up other switches."
    ),
    "status": _Command("weir.controller.cli", "status", "Show switches, ports, jobs and counters."),
    "pcap": _Command(
        "weir.pcap.cli", "app", "Print captures, and check them against the protocol's rules.", ("train",)
    ),
    "calibrate": _Command(
        "weir.calibrate.cli",
        "calibrate",
        "Find how much of its gradients a model can lose.",
        ("train",),
    ),
    "clean": _Command(
        "weir.process.clean", "clean", "Remove leftovers of killed Weir processes from this machine."
    ),
    "bench": _Command(
        "weir.bench.cli",
        "app",
        "Compare speed with Gloo, BMv2 and hand-written C.",
        ("train",),
    ),
}


COMMIT_FILE: Final = "commit.txt"
"""File beside this one in which `make wheels` keeps the commit."""


class _LazyGroup(TyperGroup):
    """Lists subcommands by what is said of them above; imports the one that is called."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return all names, in the order above."""
        return list(_COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a stand-in with a name and a help text: enough for an overview and for completion."""
        entry = _COMMANDS.get(cmd_name)
        return None if entry is None else _command(cmd_name, lambda: None, entry.help)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the real command, for the one that is called."""
        name, command, rest = super().resolve_command(ctx, args)
        entry = _COMMANDS.get(name or "")
        if not name or not entry:
            return name, command, rest
        try:
            require(f"weir {name}", *entry.extras)
        except MissingExtraError as error:
            if ctx.resilient_parsing:  # a shell completes words
                return name, command, rest
            typer.echo(f"weir: {error}", err=True)
            raise typer.Exit(1) from None
        return name, _load(name, entry), rest


def _command(name: str, function: Any, text: str | None = None) -> Any:
    app = typer.Typer(add_completion=False, rich_markup_mode="markdown")
    app.command(name=name, help=text)(function)
    return get_command(app)


def _load(name: str, entry: _Command) -> Any:
    target = getattr(import_for_good(entry.module), entry.target)
    if not isinstance(target, typer.Typer):
        return _command(name, target)
    group = get_command(target)
    group.name = name
    return group


def _print_version(wanted: bool) -> None:
    if wanted:
        commit = _commit()
        typer.echo(f"weir {importlib.metadata.version('weir-ina')}{f' (commit {commit})' if commit else ''}")
        typer.echo(f"softp4 {importlib.metadata.version('softp4')} (software switch)")
        raise typer.Exit


def _commit() -> str:
    """Return the Git commit that is installed, or checked out around this file; empty if there is none."""
    text = importlib.metadata.distribution("weir-ina").read_text("direct_url.json")  # PEP 610
    source = json.loads(text or "{}").get("vcs_info")
    if source:
        return str(source["commit_id"])[:12]
    here = Path(__file__).resolve()
    if (kept := here.with_name(COMMIT_FILE)).exists():
        return kept.read_text().strip()
    return commit_of(here.parents[1])


def commit_of(checkout: Path) -> str:
    """Return the commit of a Git checkout in 12 digits; empty if it is none, or there is no Git."""
    if not (checkout / ".git").exists():
        return ""
    git = ["git", "-C", str(checkout), "rev-parse", "--short=12", "HEAD"]
    try:
        return subprocess.run(git, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


app = typer.Typer(cls=_LazyGroup, no_args_is_help=True)


@app.callback()
def _weir(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    """Sum gradients inside the network: a P4 switch adds up the workers' gradients."""


def main() -> None:
    """Run the ``weir`` command."""
    try:
        import softp4  # noqa: F401
    except ImportError as error:  # for instance on another system than Linux
        sys.exit(f"weir: {error}")
    app()
