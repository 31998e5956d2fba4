"""`infra-agent gate BASE HEAD`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def gate(
        base: Annotated[str, typer.Argument(help="The commit to compare with.")],
        head: Annotated[str, typer.Argument(help="The commit to judge.")],
        budgets: Annotated[Path, typer.Option(help="The budgets file (TOML).")],
        repo: Annotated[Path, typer.Option(help="A folder in the repository.")] = Path(),
        junit: Annotated[Path | None, typer.Option(help="Write JUnit XML here.")] = None,
        markdown: Annotated[Path | None, typer.Option(help="Write the Markdown summary here.")] = None,
        as_json: Annotated[bool, typer.Option("--json", help="The result as JSON instead of text.")] = False,
    ) -> None:
        """Judge a commit against another. Exit code 0 pass, 1 regression, 2 usage or infrastructure, 3 inconclusive."""
        from infra_agent.gate import run_gate

        raise typer.Exit(run_gate(base, head, budgets, repo=repo, junit=junit, markdown=markdown, as_json=as_json))
