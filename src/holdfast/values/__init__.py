"""Plain values and the checks of what callers pass in. Nothing here talks to the database."""
