# SPDX-License-Identifier: Apache-2.0
"""``softp4 ctl``: what concerns the program that runs, beside what P4Runtime covers."""

from typing import Annotated

import typer

from softp4.control.target import show

crc_app = typer.Typer(no_args_is_help=True, help="Parameters of the program's custom CRCs.")


def _number(text: str | int) -> int:
    """Parse a number, decimal or hexadecimal with 0x; typer asks for defaults, too. Raises ValueError."""
    return int(str(text), 0)


@crc_app.command("list")
def list_crcs(context: typer.Context) -> None:
    """List the custom CRCs, by the names of their calculations in the BMv2 JSON."""
    found = context.obj.call("crcs")
    rows = (
        (
            crc["calculation"],
            crc["bits"],
            *(hex(crc[name]) for name in ("polynomial", "initial", "final_xor")),
            ", ".join(what for what in ("data", "remainder") if crc[f"reflect_{what}"]),
        )
        for crc in found
    )
    show(context, found, ("calculation", "bits", "polynomial", "initial", "final xor", "reflected"), rows)


@crc_app.command("set")
def set_crc(
    context: typer.Context,
    calculation: Annotated[str, typer.Argument(metavar="NAME", help="As `crc list` has it.")],
    polynomial: Annotated[
        int, typer.Option(parser=_number, metavar="N", help="Highest power first, e.g. 0x1021.")
    ],
    initial: Annotated[
        int, typer.Option(parser=_number, metavar="N", help="The remainder before the first byte.")
    ] = 0,
    final_xor: Annotated[
        int, typer.Option(parser=_number, metavar="N", help="Value that is XORed with the result.")
    ] = 0,
    reflect_data: Annotated[
        bool, typer.Option("--reflect-data/--no-reflect-data", help="Every byte lowest bit first.")
    ] = False,
    reflect_remainder: Annotated[
        bool, typer.Option("--reflect-remainder/--no-reflect-remainder", help="The result turned round.")
    ] = False,
) -> None:
    """Say what a custom CRC computes from the next packet on. What is not given is zero, or not reflected.

    Numbers are decimal, or hexadecimal after 0x.
    """
    context.obj.call(
        "crc_set",
        calculation=calculation,
        polynomial=polynomial,
        initial=initial,
        final_xor=final_xor,
        reflect_data=reflect_data,
        reflect_remainder=reflect_remainder,
    )


def assertions(context: typer.Context) -> None:
    """Print how often each assert and assume of the program has failed; the packets were dropped."""
    found = context.obj.call("assertions")
    show(context, found, ("place", "failures"), ((a["place"], f"{a['failures']:,}") for a in found))
