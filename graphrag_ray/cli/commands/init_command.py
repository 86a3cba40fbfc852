"""`graphrag-ray init`: write editable settings and prompts."""

from __future__ import annotations

from pathlib import Path

import click

from graphrag_ray.base.errors import UsageError
from graphrag_ray.cli.command_line import Command


@click.command(cls=Command)
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path), default=".")
@click.option("--force", is_flag=True, help="Overwrite existing settings and prompts in DIRECTORY.")
@click.option(
    "--machine", is_flag=True, help="Write the user settings of this machine instead; never overwrites them."
)
def init(directory: Path, force: bool, machine: bool) -> None:
    """Write settings.yaml and editable copies of all prompts into DIRECTORY.

    With --machine, write your user settings file instead. It contains the model endpoints and storage that
    all commands on this machine use, because an index never stores addresses. DIRECTORY and --force are
    ignored.

    \b
    Examples:
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
            raise UsageError(f"{path} already exists. Edit it, or move it out of the way.") from None
        click.echo(f"Wrote {path}")
        return
    files = {directory / "settings.yaml": templates / "settings.yaml"}
    for name in PLACEHOLDERS:
        files[directory / "prompts" / f"{name}.txt"] = bundled_prompts() / f"{name}.txt"
    existing = next((path for path in files if path.exists()), None)
    if existing and not force:
        raise UsageError(
            f"{existing} already exists. Choose another directory, or pass --force to overwrite the "
            "settings and all prompts in it."
        )
    for path, template in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(template.read_text("utf-8"), "utf-8")
    prompts = f"{len(PLACEHOLDERS)} prompts in {directory / 'prompts'}"
    click.echo(f"Wrote {directory / 'settings.yaml'} and {prompts}")
    click.echo("To use edited prompts, enable prompts_dir at the end of the settings file.")
