"""The command that prints a completion script for the shell."""

import click
from click.shell_completion import get_completion_class

SHELLS = ["bash", "zsh", "fish"]


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script that completes commands and options in your shell.

    \b
      echo 'eval "$(holdfast completion bash)"' >> ~/.bashrc
      echo 'eval "$(holdfast completion zsh)"' >> ~/.zshrc
      holdfast completion fish > ~/.config/fish/completions/holdfast.fish
    """
    made = get_completion_class(shell)
    if made is None:
        raise click.UsageError(f"There is no completion for {shell}.")
    # Not source(), which runs bash to check its version: the script itself complains about an old one.
    script = made(ctx.find_root().command, {}, "holdfast", "_HOLDFAST_COMPLETE")
    click.echo(script.source_template % script.source_vars())
