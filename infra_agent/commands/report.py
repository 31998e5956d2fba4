"""`infra-agent report RUN`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def report(
        run: Annotated[
            str, typer.Argument(help="A run's id, the beginning of one, its folder, or: latest.")
        ] = "latest",
        out: Annotated[
            Path | None, typer.Option(help="Where to write the page.", show_default="in the run's folder")
        ] = None,
    ) -> None:
        """Write a self-contained HTML page about a run."""
        from infra_agent.paths import find_run
        from infra_agent.report import write

        typer.echo(f"report    {write(find_run(run), out)}")
