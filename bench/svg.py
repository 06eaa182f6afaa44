"""Plots as small hand-made SVG files, readable on light and dark pages."""

import math
from collections.abc import Mapping, Sequence
from html import escape

TEXT, OURS, THEIRS = "#6e7781", "#1f6feb", "#8c959f"
PALETTE = ("#1f6feb", "#d4a72c", "#2da44e", "#8250df", "#cf222e", "#1b7c83", "#bf8700", "#57606a")
FONT = "system-ui, -apple-system, 'Segoe UI', sans-serif"


def bars(title: str, unit: str, values: Mapping[str, float], *, ours: str, best_first: bool = True) -> str:
    """Horizontal bars, the best on top."""
    ordered = sorted(values.items(), key=lambda item: item[1], reverse=best_first)
    width, row, left, top = 720, 30, 150, 56
    height = top + row * len(ordered) + 16
    longest = max(values.values())
    parts = [_text(16, 30, title, size=17, weight=600)]
    for number, (name, value) in enumerate(ordered):
        y = top + row * number
        length = max(value / longest * (width - left - 150), 2)
        color = OURS if name == ours else THEIRS
        weight = 600 if name == ours else 400
        parts += [
            _text(left - 10, y + 15, name, anchor="end", weight=weight),
            f'<rect x="{left}" y="{y}" width="{length:.1f}" height="20" rx="3" fill="{color}"/>',
            _text(left + length + 8, y + 15, f"{_number(value)} {unit}", weight=weight),
        ]
    return _page(width, height, title, parts)


def lines(title: str, unit: str, series: Mapping[str, Sequence[float]], dashed: frozenset[str]) -> str:
    """One line per series over the rounds. What stands before the comma in its name gives it its colour."""
    width, height, left, right, top, bottom = 720, 400, 70, 200, 56, 44
    highest = _above(max(max(values) for values in series.values()))
    rounds = max(len(values) for values in series.values())
    colors = {
        name: PALETTE[i % len(PALETTE)] for i, name in enumerate(dict.fromkeys(_owner(n) for n in series))
    }

    def x(number: int) -> float:
        return left + (width - left - right) * (number / max(rounds - 1, 1))

    def y(value: float) -> float:
        return height - bottom - (height - top - bottom) * value / highest

    parts = [_text(16, 30, title, size=17, weight=600)]
    for step in range(5):
        value = highest * step / 4
        parts += [
            f'<path d="M{left} {y(value):.1f}H{width - right}" stroke="{THEIRS}" stroke-opacity="0.25"/>',
            _text(left - 8, y(value) + 4, _number(value), anchor="end", size=12),
        ]
    parts += [
        _text(x(number), height - 22, str(number + 1), anchor="middle", size=12) for number in range(rounds)
    ]
    words = f"{unit}, round by round"
    parts.append(_text((left + width - right) / 2, height - 6, words, anchor="middle", size=12))
    for (name, values), style in ((item, _style(item[0], dashed)) for item in series.items()):
        points = " ".join(f"{x(i):.1f},{y(value):.1f}" for i, value in enumerate(values))
        color = colors[_owner(name)]
        parts.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"{style}/>')
    ends = {name: y(values[-1]) for name, values in series.items()}
    parts += [
        _text(width - right + 10, place + 4, name, size=12, color=colors[_owner(name)])
        for name, place in _apart(ends, 15, height - bottom).items()
    ]
    return _page(width, height, title, parts)


def _apart(wanted: Mapping[str, float], least: float, bottom: float) -> dict[str, float]:
    """Places for labels, as near to the wanted ones as there is room for all."""
    names = sorted(wanted, key=lambda name: wanted[name])
    places = [wanted[name] for name in names]
    for i in range(1, len(places)):
        places[i] = max(places[i], places[i - 1] + least)
    limit = bottom
    for i in reversed(range(len(places))):
        places[i] = min(places[i], limit)
        limit = places[i] - least
    return dict(zip(names, places, strict=True))


def _owner(name: str) -> str:
    return name.partition(",")[0]


def _style(name: str, dashed: frozenset[str]) -> str:
    return ' stroke-dasharray="5 4"' if name in dashed else ""


def _text(
    x: float,
    y: float,
    text: str,
    *,
    anchor: str = "start",
    size: int = 13,
    weight: int = 400,
    color: str = TEXT,
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" font-weight="{weight}" '
        f'fill="{color}">{escape(text)}</text>'
    )


def _page(width: int, height: int, title: str, parts: Sequence[str]) -> str:
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'font-family="{FONT}" role="img" aria-label="{escape(title, quote=True)}">\n{body}\n</svg>\n'
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == 0 else f"{value:.1f}"


def _above(value: float) -> float:
    """The next number that divides well into four."""
    step: float = 10.0 ** math.floor(math.log10(value))
    return next(step * factor for factor in (1, 1.2, 1.6, 2, 3, 4, 6, 8, 10) if step * factor >= value)
