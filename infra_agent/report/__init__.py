"""A run as one HTML page that needs nothing else: no script, no network, no file beside it.

`data.py` gathers what the page says from the ledger, the workspace and the evidence; `charts.py` draws (plain SVG);
`page.html.j2` is the page, with every value escaped. Nothing here measures or decides.
"""

from __future__ import annotations

from pathlib import Path

from infra_agent.paths import RunPaths


def render(run: RunPaths) -> str:
    """The page of a run as it stands, finished or not. `UserError` when its ledger cannot be read."""
    import jinja2

    from infra_agent.report.data import gather

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html.j2").render(gather(run))


def write(run: RunPaths, destination: Path | None = None) -> Path:
    """Write the page; returns where. `UserError` when the place cannot be written."""
    from feedback.errors import UserError
    from infra_agent.paths import output_file

    path = output_file(destination or run.report)
    try:
        path.write_text(render(run), encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from error
    return path
