"""The worker's HTTP port: health checks and metrics.

http     a small HTTP server in a thread of its own
pages    what it serves at which path
health   whether the worker is alive and ready
"""
