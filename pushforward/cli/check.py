"""`pushforward check`: the gradient check of a live server."""

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from pushforward._check import Finding, Inconclusive
from pushforward._check import check as findings
from pushforward.cli._bars import bars
from pushforward.cli._command import LOCAL, Command, Fault, Key, Model, Url, connect


def check(
    context: typer.Context,
    name: Model,
    batch: Annotated[int, typer.Option(min=1, help="Sequences of the random point.")] = 2,
    steps: Annotated[int, typer.Option(min=1, help="Steps of each.")] = 5,
    seed: Annotated[int, typer.Option(min=0, help="Of the random point and directions.")] = 0,
    url: Url = LOCAL,
    key: Key = None,
) -> None:
    """Check a model's derivatives: adjoint identity, forward against reverse mode, finite differences.

    Each number is what was left over, relative to the largest number compared. Weights and hidden states can't be moved
    by a request, so there are no differences for them. Exits with 1 if one is over its tolerance.
    """
    found: list[Finding] = []
    try:
        with connect(context, url, key) as client, bars(desc="check", unit="name") as bar:
            for finding in findings(client, name, batch=batch, steps=steps, seed=seed):
                found.append(finding)
                bar.update(1)
    except Inconclusive as error:
        raise Fault(str(error), 1) from None
    Console(soft_wrap=True).print(_table(found))
    failed = [finding.name for finding in found if not finding.passed]
    if failed:
        raise Fault(f"{name}: wrong with respect to {', '.join(failed)}", 1)


def _table(found: list[Finding]) -> Table:
    table = Table()
    table.add_column("with respect to", overflow="fold")
    for title in ("adjoint identity", "forward - reverse", "differences", ""):
        table.add_column(title)
    for finding in found:
        differences = "-" if finding.differences is None else f"{finding.differences:.1e}"
        verdict = "ok" if finding.passed else "WRONG"
        table.add_row(finding.name, f"{finding.adjoint:.1e}", f"{finding.strategies:.1e}", differences, verdict)
    limit = found[0].tolerance
    table.add_section()
    table.add_row("tolerance", f"{limit.adjoint:.0e}", f"{limit.strategies:.0e}", f"{limit.differences:.0e}", "")
    return table


COMMAND = Command("check", check)
