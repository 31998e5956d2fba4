"""`infra-agent doctor`."""

from __future__ import annotations

from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def doctor(
        as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")] = False,
        gpu: Annotated[
            bool,
            typer.Option("--gpu", help="Let torch and Triton compute on the GPU; check and record what comes out."),
        ] = False,
    ) -> None:
        """Say what this machine has for a run, and what each lack costs. Exit code 2 when a need is missing."""
        import json

        from infra_agent.doctor import device, examine, golden_kernels

        checks = [*examine(), *([device(), golden_kernels()] if gpu else [])]
        missing = [check.name for check in checks if check.state == "missing"]
        if as_json:
            typer.echo(json.dumps({"ok": not missing, "checks": [check.as_json() for check in checks]}, indent=2))
        else:
            mark = {"ok": "✓", "absent": "-", "missing": "✗"}
            for check in checks:
                typer.echo(f"{mark[check.state]} {check.name:<11} {check.found}")
                if check.cost:
                    typer.echo(f"  {'':<11} {check.cost}")
        if missing:
            typer.echo(f"infra-agent: missing: {', '.join(missing)}", err=True)
            raise typer.Exit(2)
