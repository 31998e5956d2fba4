"""`infra-agent probe NAME ...`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def probe(
        names: Annotated[
            list[str],
            typer.Argument(help="Feedback layers to ask, in this order: static, smoke, ...; or: kernel FILE::kernel"),
        ],
        target: Annotated[
            Path | None, typer.Option(help="The candidate's root folder; by default the installed target.")
        ] = None,
        base: Annotated[
            Path | None, typer.Option(help="The root folder to compare with; by default the installed target.")
        ] = None,
        config: Annotated[
            str | None,
            typer.Option(
                "--config",
                "--profile",
                help="Launch configuration: a TOML file or a profile of the target; by default its run's own.",
            ),
        ] = None,
        base_config: Annotated[
            str | None, typer.Option(help="The base's launch configuration; by default --config without --set.")
        ] = None,
        settings: Annotated[
            list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a launch parameter.")
        ] = None,
        tp: Annotated[
            int | None,
            typer.Option(min=1, help="Tensor-parallel ranks; refused at once where the model cannot be cut so."),
        ] = None,
        cp: Annotated[int | None, typer.Option(min=1, help="Context-parallel groups of tp ranks, likewise.")] = None,
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
        case: Annotated[
            Path | None, typer.Option(help="For `probe kernel`: the TOML or JSON file with its cases.")
        ] = None,
        as_json: Annotated[bool, typer.Option("--json", help="One verdict as JSON a line.")] = False,
    ) -> None:
        """Ask feedback layers by hand. Exit code 0 confirmed, 1 refuted, 3 inconclusive or invalid, 2 unsupported.

        `probe kernel FILE::kernel --case CASES` tries a Triton kernel, or a function that launches some, against a
        float64 reference with the rounding of GPUs, and compiles it for them. Evidence lies under
        $INFRA_AGENT_HOME/probes.
        """
        if names[0] == "kernel" or case is not None:
            raise typer.Exit(_kernel(names, case, seed, as_json))
        from infra_agent.probing import Asked, ask

        asked = Asked(
            adapter=adapter,
            target=target,
            base=base,
            config=config,
            base_config=base_config,
            settings=(*(settings or ()), *ranks(tp, cp)),
            planned=tp is not None or cp is not None,
            workload=workload,
            operators=tuple(operators or ()),
            limits=tuple(limits or ()),
            scope=tuple(scope or ()),
            changes_numerics=changes_numerics,
            seed=seed,
        )
        raise typer.Exit(ask(names, asked, as_json=as_json, write=typer.echo))


def ranks(tp: int | None, cp: int | None) -> list[str]:
    """The settings of `--tp` and `--cp`."""
    return [f"{name}={count}" for name, count in (("tp", tp), ("cp", cp)) if count is not None]


def _kernel(names: list[str], case: Path | None, seed: int, as_json: bool) -> int:
    """`probe kernel FILE::kernel --case CASES`; the exit code."""
    from feedback.errors import UserError
    from feedback.evidence import EvidenceStore
    from feedback.kernels import byhand
    from infra_agent.paths import home
    from infra_agent.probing import exit_code

    if len(names) != 2 or names[0] != "kernel" or case is None:
        raise UserError("write it as: infra-agent probe kernel FILE::kernel --case CASES")
    verdict = byhand.ask(names[1], case, EvidenceStore(home() / "probes"), seed)
    typer.echo(verdict.to_json() if as_json else verdict.line())
    return exit_code([verdict.status])
