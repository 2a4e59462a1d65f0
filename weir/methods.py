# SPDX-License-Identifier: Apache-2.0
"""The ways there are to make training communicate less, and ``weir methods``, which lists them.

Most are sparsifiers, known by their registry alone; beside them there are methods that replace the gradient
all-reduce altogether. torch is imported when somebody asks, not before.
"""

import importlib.util
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Final, Literal

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from weir.report.tables import Json, print_json

Kind = Literal["sparsifier", "parameter averaging", "low rank", "compressed updates", "outer steps", "peer"]


@dataclass(frozen=True)
class Method:
    """A method, as it is listed.

    kind: how it is run, see ``weir.train.backends``; a peer runs without Weir. promises_density: whether what
    it sends is a share that was asked for. uses: the settings of ``weir train`` that it reads. encoding: how
    what is sent is written down unless the setting says so; None where that cannot be chosen.
    """

    name: str
    summary: str
    reference: str
    kind: Kind
    promises_density: bool
    uses: tuple[str, ...]
    encoding: str | None


_OTHERS: Final = (
    Method(
        name="compress",
        summary="The optimizer's updates instead of gradients, in one bit a value.",
        reference="",
        kind="compressed updates",
        promises_density=False,
        uses=("update_bits", "update_share", "update_most_pending", "update_sample_share"),
        encoding=None,
    ),
    Method(
        name="ds-sync",
        summary="Parameters averaged in small groups that change from step to step: divide and shuffle.",
        reference="Wang et al., arXiv 2007.03298",
        kind="parameter averaging",
        promises_density=False,
        uses=("group_size", "swa_epochs"),
        encoding=None,
    ),
    Method(
        name="outer",
        summary="Local steps of each worker, summed every few steps: DiLoCo, SparseLoCo, and fewer bits.",
        reference="Douillard et al., arXiv 2311.08105; Sarfi et al., arXiv 2508.15706",
        kind="outer steps",
        promises_density=False,
        uses=(
            "outer_steps",
            "outer_method",
            "outer_density",
            "outer_bits",
            "outer_rate",
            "outer_momentum",
            "outer_decay",
            "outer_ahead",
            "outer_overlap",
        ),
        encoding=None,
    ),
    Method(
        name="powersgd",
        summary="Each matrix as a product of two thin ones; torch's own hook, its sums made by the switch.",
        reference="Vogels, Karimireddy and Jaggi, NeurIPS 2019",
        kind="low rank",
        promises_density=False,
        uses=("powersgd_rank", "lane_bits", "lane_error"),
        encoding=None,
    ),
)


def _peer(name: str, summary: str, reference: str = "", uses: tuple[str, ...] = ()) -> Method:
    return Method(name, summary, reference, "peer", promises_density=False, uses=uses, encoding=None)


_PEERS: Final = (
    _peer("alone", "One worker alone, nothing sent: the baseline that a method must beat."),
    _peer("gloo", "Dense all-reduce of Gloo over TCP."),
    _peer("gloo-fp16", "torch's hook that sends float16 over Gloo."),
    _peer("gloo-bf16", "torch's hook that sends bfloat16 over Gloo."),
    _peer(
        "gloo-powersgd",
        "torch's PowerSGD hook over Gloo.",
        "Vogels, Karimireddy and Jaggi, NeurIPS 2019",
        ("powersgd_rank",),
    ),
    _peer(
        "gloo-local",
        "Local steps of each worker; Gloo averages all parameters every few steps.",
        "Stich, ICLR 2019",
        ("local_steps",),
    ),
)


def peers() -> dict[str, Method]:
    """Return what Weir's methods are compared with, by name: it needs no Weir."""
    return {method.name: method for method in _PEERS}


def methods() -> dict[str, Method]:
    """Return all that Weir has, by name, in alphabetical order."""
    from weir.host_agent.compression.sparsifiers import create_sparsifier, sparsifier_class, sparsifier_names

    found = list(_OTHERS)
    for name in sparsifier_names():
        cls = sparsifier_class(name)
        found.append(
            Method(
                name=name,
                summary=cls.summary,
                reference=cls.reference,
                kind="sparsifier",
                promises_density=cls.promises_density,
                uses=cls.uses,
                encoding=create_sparsifier(name).encoding,
            )
        )
    return {method.name: method for method in sorted(found, key=lambda method: method.name)}


def find_method(name: str) -> Method:
    """Return the method or peer of a name; ValueError lists the names when there is none of that name."""
    known = methods() | peers()
    if name not in known:
        raise ValueError(f"no such method: {name!r}; the methods are {', '.join(known)}")
    return known[name]


def load_plugin(path: Path) -> None:
    """Run a Python file that registers methods of one's own; once in a process.

    Raises:
        ValueError: a file that is not there, that fails, that registers nothing, or a class that lacks
            something; the message names it.
    """
    from weir.host_agent.compression.sparsifiers import IncompleteError, sparsifier_names

    path = path.resolve()
    if path in _loaded:
        return
    if not path.is_file():
        raise ValueError(f"no such file: {path}")
    before = sparsifier_names()
    name = f"weir_plugin_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"{path} is not a Python file: its name must end with .py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except IncompleteError as error:
        raise ValueError(f"{path}: {error} (see docs/guides/add-a-method.md)") from None
    except SystemExit:
        raise ValueError(
            f'{path} ends the program: put its actions under if __name__ == "__main__":'
        ) from None
    except Exception as error:
        raise ValueError(f"{path}: {type(error).__name__}: {error}") from error
    if sparsifier_names() == before:
        raise ValueError(f"{path} registers no method: see docs/guides/add-a-method.md")
    _loaded.add(path)


_loaded: Final[set[Path]] = set()


def plugins(paths: list[Path] | None) -> list[Path] | None:
    """Load the plugins that an option names: its callback. BadParameter when one cannot be loaded."""
    for path in paths or ():
        try:
            load_plugin(path)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
    return paths


PLUGIN_HELP: Final = "Python file with your own methods, see docs/guides/add-a-method.md. Repeatable."
Plugin = Annotated[list[Path] | None, typer.Option(metavar="FILE", callback=plugins, help=PLUGIN_HELP)]


def list_methods(
    *,
    plugin: Plugin = None,
    as_json: Json = False,
) -> None:
    """List the methods that weir train and weir compare know, and the peers that weir compare knows.

    Density: "as asked" where --density sets the share of values to send; elsewhere it follows from the
    gradient or from other settings. Encoding: form of the gradients on the wire, unless --set encoding=...
    sets it. docs/reference/methods.md describes each method, and weir settings lists what --set takes.
    """
    found = [*methods().values(), *peers().values()]
    if as_json:
        print_json([asdict(method) for method in found])
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("method", no_wrap=True, style="bold green")
    table.add_column("what is sent", ratio=1)
    table.add_column("density", no_wrap=True)
    table.add_column("encoding", no_wrap=True)
    for method in found:
        density = "as asked" if method.promises_density else "–"
        text = Text(method.summary)
        if method.reference:
            text.append(f"\n{method.reference}", style="dim")
        table.add_row(method.name, text, density, method.encoding or "–")
    Console().print(table)
