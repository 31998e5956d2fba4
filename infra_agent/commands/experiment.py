"""`infra-agent experiment list | run NAME`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
    app.add_typer(group, name="experiment", help="Questions asked of the whole system: list them, run one.")

    @group.command("list")
    def list_() -> None:
        """List the experiments with the question that each asks."""
        from infra_agent.experiments import discover

        for found in discover():
            typer.echo(f"{found.name:<20} {found.question}")

    @group.command()
    def run(
        name: Annotated[str, typer.Argument(help="The experiment's folder name.")],
        as_json: Annotated[bool, typer.Option("--json", help="The result as JSON instead of a table.")] = False,
        out: Annotated[Path | None, typer.Option(help="A folder for its table, picture and data.")] = None,
        seed: Annotated[int, typer.Option(help="Seed of what it draws.")] = 0,
        option: Annotated[
            list[str] | None, typer.Option(metavar="NAME=VALUE", help="What it may be told; its docstring says what.")
        ] = None,
    ) -> None:
        """Run one experiment: it prints its table and draws its picture."""
        from infra_agent.experiments import options_of, run_experiment

        raise typer.Exit(run_experiment(name, as_json, out, seed, options_of(option or [])))
