"""The operations on a Holdfast database: one noun, one file.

A file holds the signatures of the SQL functions of its noun, the checks of their arguments, and the namespace
that users see, such as `hf.dead`. An operation is written once, as a method that builds a `Call`; `base.py`
derives the sync method and its async twin.
"""
