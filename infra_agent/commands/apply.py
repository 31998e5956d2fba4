"""`infra-agent apply RUN`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def apply(
        run: Annotated[
            str, typer.Argument(help="A run's id, the beginning of one, its folder, or: latest.")
        ] = "latest",
        repo: Annotated[Path, typer.Option(help="A folder in the repository.")] = Path(),
        branch: Annotated[
            str | None, typer.Option(help="The new branch's name.", show_default="infra-agent/RUN")
        ] = None,
        prefix: Annotated[
            str | None, typer.Option(help="The target's folder in the repository, where it cannot be told.")
        ] = None,
    ) -> None:
        """Put a run's kept moves on a new branch of your repository, one commit each, ready to review."""
        from infra_agent.apply import apply_run
        from infra_agent.paths import find_run

        made = apply_run(find_run(run), repo, branch, prefix)
        moves = "1 kept move" if len(made.commits) == 1 else f"{len(made.commits)} kept moves"
        typer.echo(f"branch {made.branch} has {moves}; nothing is checked out")
        for need in made.needs:
            typer.echo(f"needs a person: {need}")
        typer.echo(f"review it:  git log --patch {made.head[:12]}..{made.branch}")
