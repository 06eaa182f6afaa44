"""Holdfast and its peers side by side, alternating, on one server: `python -m bench --help`, or README.md."""
