"""The engine room: everything between a claim and its report."""
