"""`graphrag-ray init`: write settings and prompts to edit."""

from __future__ import annotations

from pathlib import Path

import click

from graphrag_ray.base.errors import UsageError
from graphrag_ray.cli.command_line import Command


@click.command(cls=Command)
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path), default=".")
@click.option("--force", is_flag=True, help="Overwrite existing files.")
@click.option(
    "--machine", is_flag=True, help="Instead, write your user settings, which apply to all indexes."
)
def init(directory: Path, force: bool, machine: bool) -> None:
    """Write settings.yaml and editable copies of all prompts into DIRECTORY.

    With --machine, write your user settings instead, unless they exist. They say how this machine reaches
    models and storage, for all commands, since an index does not contain addresses.

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
            raise UsageError(f"{path} already exists. Edit it, or move it away.") from None
        click.echo(f"Wrote {path}")
        return
    files = {directory / "settings.yaml": templates / "settings.yaml"}
    for name in PLACEHOLDERS:
        files[directory / "prompts" / f"{name}.txt"] = bundled_prompts() / f"{name}.txt"
    existing = next((path for path in files if path.exists()), None)
    if existing and not force:
        raise UsageError(
            f"{existing} already exists. Choose another folder, or pass --force to overwrite the settings "
            "and all prompts there."
        )
    for path, template in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(template.read_text("utf-8"), "utf-8")
    prompts = f"{len(PLACEHOLDERS)} prompts in {directory / 'prompts'}"
    click.echo(f"Wrote {directory / 'settings.yaml'} and {prompts}")
    click.echo("To use edited prompts, enable prompts_dir at the end of the settings file.")
