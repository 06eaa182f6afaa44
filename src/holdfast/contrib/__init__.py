"""Bridges to other libraries; each is imported by whoever has that library, and by nobody else."""
