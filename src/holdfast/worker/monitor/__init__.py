"""The worker's HTTP port: health checks and metrics.

    http     a small HTTP server in its own thread
    pages    the response for each path
    health   whether the worker is alive and ready

It runs only if the worker has an address to listen on.
"""
