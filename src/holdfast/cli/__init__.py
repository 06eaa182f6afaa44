"""The command `holdfast`: look at the queue and run it from a terminal.

    root          the command itself: its options, its commands by name, its errors
    settings      which database, and in which form to answer
    values        what may be typed: durations, times, priorities, JSON
    output        what is printed: tables for people, plain lines for pipes, one JSON document for programs
    install · run · enqueue · jobs · queues · workers       the commands, by topic

A topic is imported when one of its commands is called, so that none waits for the others' imports.
"""

import sys


def main() -> None:
    """The console script."""
    from holdfast.cli.root import root  # noqa: PLC0415 - `import holdfast.cli` alone need not load click

    for stream in (sys.stdout, sys.stderr):
        # Whatever a payload says, it can be printed on a terminal of any encoding.
        getattr(stream, "reconfigure", dict)(errors="backslashreplace")
    root()
