"""Processes that run handlers declared with `isolation="process"`.

    pool    the worker's processes: how many may run, which are idle
    child   one process, as the worker and as the process itself sees it

Only a worker with such a task loads `child`, and multiprocessing with it.
"""
