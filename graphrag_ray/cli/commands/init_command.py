"""`graphrag-ray init`: settings and prompts to edit; settings of this machine."""

from __future__ import annotations

from pathlib import Path

import click

from graphrag_ray.base.errors import UsageError
from graphrag_ray.cli.command_line import Command


@click.command(cls=Command)
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path), default=".")
@click.option("--force", is_flag=True, help="Overwrite files that are there.")
@click.option(
    "--machine",
    is_flag=True,
    help="Instead, write your settings for all indexes: where this machine finds models and storage.",
)
def init(directory: Path, force: bool, machine: bool) -> None:
    """Write settings.yaml and editable copies of all prompts into DIRECTORY.

    With --machine write the settings of your user instead, for all commands, and never over those that are
    there: no index says where its models are.

    \b
    Example:
      graphrag-ray init my-project
      graphrag-ray index ./documents --root ./my-index --config my-project/settings.yaml
      graphrag-ray init --machine
    """
    from graphrag_ray.base.prompts import PLACEHOLDERS, bundled_prompts
    from graphrag_ray.base.user_settings import user_file

    templates = Path(__file__).parents[2] / "base"
    if machine:
        path = user_file()
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write((templates / "machine.yaml").read_text("utf-8"))
        except FileExistsError:
            raise UsageError(f"{path} exists already: edit it, or move it away") from None
        click.echo(f"wrote {path}")
        return
    files = {directory / "settings.yaml": templates / "settings.yaml"}
    for name in PLACEHOLDERS:
        files[directory / "prompts" / f"{name}.txt"] = bundled_prompts() / f"{name}.txt"
    there = [str(path) for path in files if path.exists()]
    if there and not force:
        raise UsageError(f"{there[0]} exists already; use --force to overwrite, or another folder")
    for path, template in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(template.read_text("utf-8"), "utf-8")
    click.echo(
        f"wrote {directory / 'settings.yaml'} and {len(PLACEHOLDERS)} prompts in {directory / 'prompts'}"
    )
