"""The command line's front: which commands there are, and how a failure is told. A command's module is imported
only when that command runs, so `headrace --help` never waits for an engine; COMMANDS is the one place that names
them.
"""

import importlib
from collections.abc import Sequence

import click

from headrace import __version__
from headrace.core.errors import ConfigError, HeadraceError, ModelError, RequestError, did_you_mean

# name: (module, attribute, one line of help)
COMMANDS: dict[str, tuple[str, str, str]] = {
    "serve": ("headrace.commands.serve", "serve", "Serve a model over the OpenAI API."),
    "generate": ("headrace.commands.generate", "generate", "Generate text after a prompt."),
    "chat": ("headrace.commands.chat", "chat", "Talk to a model, here or at a URL."),
    "pull": ("headrace.commands.store", "pull", "Fetch a model into the cache."),
    "list": ("headrace.commands.store", "list_models", "List the models in the cache."),
    "inspect": ("headrace.commands.inspect", "inspect_model", "Show what a model is, and what would be refused."),
    "rm": ("headrace.commands.store", "remove_models", "Remove a model from the cache."),
    "bench": ("headrace.commands.bench", "bench", "Measure throughput, latency or start-up."),
    "eval": ("headrace.commands.evaluate", "evaluate", "Measure a model's quality."),
    "plan": ("headrace.commands.plan", "plan", "Say how many GPUs a load needs, and what they cost."),
    "simulate": ("headrace.commands.simulate", "simulate", "Serve a load by a fleet in virtual time."),
    "validate": ("headrace.commands.validate", "validate", "Hold predicted latencies against measured runs."),
    "trace": ("headrace.commands.trace", "trace", "Show a recorded workload, or make one out of access logs."),
    "explain": ("headrace.commands.explain", "explain", "Say why a request waited, or missed the cache."),
    "doctor": ("headrace.commands.doctor", "doctor", "Show what this machine can run, and how."),
}

# Errors that whoever typed the command can mend; the others are the machine's or ours.
OPERATOR_ERRORS = (ConfigError, ModelError, RequestError)


class LazyGroup(click.Group):
    """Commands by name, imported when they run; an unknown name is refused with the nearest."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[cmd_name]
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            hint = did_you_mean(name, COMMANDS, f"there are {', '.join(COMMANDS)}")
            raise click.UsageError(f"no command {name!r}; {hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, _, text) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="headrace %(version)s")
def headrace() -> None:
    """Run and serve language models on this machine."""


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status: 0, 1 (the machine's fault or ours), 2 (the operator's)."""
    try:
        result = headrace.main(args=arguments, prog_name="headrace", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return 2
    except click.ClickException as error:
        _say(error.format_message())
        return 2
    except click.Abort:
        return 130
    except HeadraceError as error:
        _say(str(error))
        return 2 if isinstance(error, OPERATOR_ERRORS) else 1
    return result if isinstance(result, int) else 0


def _say(message: str) -> None:
    click.echo(f"error: {message}", err=True)
