"""The worker: everything between a claim and its report."""
