"""`infra-agent skeletons [NAME]`."""

from __future__ import annotations

from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def skeletons(
        name: Annotated[str, typer.Argument(help="One skeleton, in full; without it, all of them.")] = "",
        as_json: Annotated[bool, typer.Option("--json", help="JSON instead of text.")] = False,
    ) -> None:
        """List the library of optimization skeletons with the evidence for and against each, or tell one in full."""
        import json

        from infra_agent import paths
        from infra_agent.skeletontext import told, whole
        from skeletons.library import Library

        library = Library.load(user=paths.library_dir())
        if as_json:
            found = [library.get(name)] if name else list(library)
            listed = [one.model_dump(mode="json") | {"evidence": _lines(one)} for one in found]
            typer.echo(json.dumps(listed[0] if name else listed, indent=2))
        else:
            typer.echo(whole(library, name) if name else told(library))


def _lines(skeleton: object) -> list[object]:
    return [item.model_dump(mode="json") for item in getattr(skeleton, "evidence", ())]
