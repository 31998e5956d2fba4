"""The command line. Commands are the modules of `infra_agent.commands`, each with `register(app)`; nothing lists them.

Nothing heavy may be imported on the way to `--help`: commands import what they need when they run.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from feedback.errors import UserError
from infra_agent import __version__, commands

USAGE = 2
INTERRUPTED = 130


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"infra-agent {__version__}")
        raise typer.Exit


def app() -> typer.Typer:
    """The application with every command found."""
    application = typer.Typer(
        no_args_is_help=True,
        add_completion=False,
        # Plain help: rich costs more start-up time than everything else together.
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )

    @application.callback()
    def root(
        version: Annotated[
            bool, typer.Option("--version", callback=_version, is_eager=True, help="Say which version this is.")
        ] = False,
    ) -> None:
        """Give it an inference engine and a goal: it states hypotheses, edits the engine, and keeps what survives."""

    for module in sorted(pkgutil.iter_modules(commands.__path__), key=lambda found: found.name):
        importlib.import_module(f"{commands.__name__}.{module.name}").register(application)
    return application


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code. What a person can mend is one line on standard error and exit code 2."""
    try:
        app()(args=list(arguments) if arguments is not None else None, prog_name="infra-agent")
    except UserError as error:
        return _say(str(error), USAGE)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else USAGE if stop.code else 0
    except Exception as error:
        # Only a command that runs goals has imported the session, and only then can this be one of its interruptions.
        session = sys.modules.get("infra_agent.session")
        if session is not None and isinstance(error, session.Interrupted):
            return _say(str(error), INTERRUPTED)
        raise
    return 0


def _say(line: str, code: int) -> int:
    sys.stdout.flush()
    print(f"infra-agent: {' '.join(line.split())}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
