"""`infra-agent init`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def init(
        file: Annotated[Path, typer.Argument(help="The goal file to write.")] = Path("goal.toml"),
        name: Annotated[str | None, typer.Option(help="The goal's name.")] = None,
        adapter: Annotated[str | None, typer.Option(help="The module that speaks for the engine.")] = None,
        start: Annotated[str | None, typer.Option(help="A shipped start, or a folder.")] = None,
        metric: Annotated[str | None, typer.Option(help="What is to get better (vLLM's names).")] = None,
        workload: Annotated[str | None, typer.Option(help="A workload of the engine, or a .jsonl file.")] = None,
        held_out: Annotated[str | None, typer.Option(help="A second workload, to confirm on; '' for none.")] = None,
        model: Annotated[str | None, typer.Option(help="Your own weights; '' for the engine's default.")] = None,
        nll_increase: Annotated[str | None, typer.Option(help="Largest relative rise of the NLL; '' for none.")] = None,
        peak_memory: Annotated[str | None, typer.Option(help="Bound such as 1.2x or '2 GiB'; '' for none.")] = None,
        wall_seconds: Annotated[float | None, typer.Option(help="Time for the search, in seconds.")] = None,
        yes: Annotated[bool, typer.Option("--yes", help="Ask nothing: defaults where no option is given.")] = False,
        force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
    ) -> None:
        """Write a goal file by asking; every question can be answered by an option instead."""
        from feedback.errors import UserError
        from infra_agent.init import Answers, goal_text
        from infra_agent.paths import output_file

        path = output_file(file)
        if path.exists() and not force:
            raise UserError(f"{path} exists already; name another file, or overwrite it with --force")

        def ask(given: str | float | None, question: str, default: str | float) -> str:
            if given is not None or yes:
                return str(default if given is None else given)
            return str(typer.prompt(question, default=default)).strip()

        def number(text: str, question: str) -> float:
            try:
                return float(text)
            except ValueError:
                raise UserError(f"{question}: {text!r} is not a number") from None

        chosen = Answers(
            name=ask(name, "Name of the goal", path.stem if path.stem != "goal" else "mine"),
            adapter=ask(adapter, "Adapter module of the engine", "target_engine.adapter"),
            start=ask(start, "Starting state", "production"),
            metric=ask(metric, "What is to get better", "output_throughput"),
            workload=ask(workload, "Workload (a name, or a .jsonl file)", "main"),
            held_out=ask(held_out, "Held-out workload to confirm on (empty: none)", "heldout"),
            model=ask(model, "Weights (empty: the engine's default)", ""),
            nll_increase=number(rise, "--nll-increase")
            if (
                rise := ask(nll_increase, "Largest relative rise of the negative log-likelihood (empty: none)", "0.005")
            )
            else None,
            peak_memory=ask(peak_memory, "Bound on memory, such as 1.2x or 2 GiB (empty: none)", ""),
            wall_seconds=number(ask(wall_seconds, "Seconds for the search", "600"), "--wall-seconds"),
        )
        path.write_text(goal_text(chosen, path), encoding="utf-8")
        typer.echo(f"wrote {path}; start with: infra-agent run {path}")
