"""Processes that run handlers declared with `isolation="process"`.

    pool       the worker's processes: how many may run, which are idle
    process    one process, as its worker sees it
    messages   the messages between the two
    child      runs the handlers, inside the process

Only a worker with such a task loads `process`, and multiprocessing with it.
"""
