"""A task whose handler runs in a process of its own, which imports this."""

from holdfast import Holdfast

hf = Holdfast()


@hf.task(name="double", isolation="process")
def double(number: int) -> int:
    if number < 0:
        raise ValueError(f"{number} is below 0")
    return 2 * number
