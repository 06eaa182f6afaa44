"""Plain values, and the checks of callers' arguments. Nothing here talks to the database."""
