"""`infra-agent probe NAME ...`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def probe(
        names: Annotated[list[str], typer.Argument(help="Feedback layers to ask, in this order: static, smoke, ...")],
        target: Annotated[
            Path | None, typer.Option(help="The candidate's root folder; by default the installed target.")
        ] = None,
        base: Annotated[
            Path | None, typer.Option(help="The root folder to compare with; by default the installed target.")
        ] = None,
        config: Annotated[
            str | None,
            typer.Option(
                help="Launch configuration: a TOML file or a profile of the target; by default its run's own."
            ),
        ] = None,
        base_config: Annotated[
            str | None, typer.Option(help="The base's launch configuration; by default --config without --set.")
        ] = None,
        settings: Annotated[
            list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a launch parameter.")
        ] = None,
        workload: Annotated[
            str | None, typer.Option(help="A workload file, or the name of one of the target's.")
        ] = None,
        operators: Annotated[
            list[str] | None, typer.Option("--operator", help="Check this operator (and whatever changed).")
        ] = None,
        limits: Annotated[
            list[str] | None, typer.Option("--limit", metavar="NAME=NUMBER", help="A constraint, as in a goal.")
        ] = None,
        scope: Annotated[list[str] | None, typer.Option(help="Glob of files that may be edited.")] = None,
        changes_numerics: Annotated[
            bool, typer.Option(help="Results may differ in rounding: bound NLL and KL instead of tokens.")
        ] = False,
        seed: Annotated[int, typer.Option(min=0, help="Seed of inputs and prompts.")] = 0,
        adapter: Annotated[str, typer.Option(help="Adapter module of the target.")] = "target_engine.adapter",
        as_json: Annotated[bool, typer.Option("--json", help="One verdict as JSON a line.")] = False,
    ) -> None:
        """Ask feedback layers by hand. Exit code 0 confirmed, 1 refuted, 3 inconclusive or invalid, 2 unsupported.

        Evidence lies under $INFRA_AGENT_HOME/probes.
        """
        from infra_agent.probing import Asked, ask

        asked = Asked(
            adapter=adapter,
            target=target,
            base=base,
            config=config,
            base_config=base_config,
            settings=tuple(settings or ()),
            workload=workload,
            operators=tuple(operators or ()),
            limits=tuple(limits or ()),
            scope=tuple(scope or ()),
            changes_numerics=changes_numerics,
            seed=seed,
        )
        raise typer.Exit(ask(names, asked, as_json=as_json, write=typer.echo))
