"""The command `holdfast`: look at the queue and run it from a terminal.

    root          the command itself: its options, its commands by name, its errors
    settings      the database to use, and the form of the answer
    values        the types of arguments: durations, times, priorities, JSON
    output        tables for people, plain lines for pipes, one JSON document for programs
    install · run · enqueue · jobs · queues · workers       the commands, by topic

A topic is imported when one of its commands is called: no command waits for the imports of another topic.
"""

import sys


def main() -> None:
    """Run the command line; this is the console script."""
    from holdfast.cli.root import root  # noqa: PLC0415 - `import holdfast.cli` alone need not load click

    for stream in (sys.stdout, sys.stderr):
        # Any payload can then be printed, whatever the encoding of the terminal.
        getattr(stream, "reconfigure", dict)(errors="backslashreplace")
    root()
