"""Line charts as SVG, in the few forms that the report needs. They read on a light and on a dark page."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, LEGEND = 860, 420, 64, 48, 40, 250
COLOURS = (
    "#0b6e99",
    "#c4441c",
    "#2e8b57",
    "#8a4fbf",
    "#b8860b",
    "#d0417e",
    "#4f6f8f",
    "#7a5c3e",
    "#5b9bd5",
    "#888888",
)


@dataclass(frozen=True)
class Line:
    name: str
    points: Sequence[tuple[float, float]]
    dashed: bool = False


@dataclass(frozen=True)
class Axis:
    title: str
    logarithmic: bool = False
    percent: bool = False

    def ticks(self, low: float, high: float) -> list[float]:
        if self.logarithmic:
            decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
            steps = (1, 2, 5) if len(decades) < 4 else (1,)
            return [
                step * 10.0**decade
                for decade in decades
                for step in steps
                if low <= step * 10.0**decade <= high
            ]
        step = 10 ** math.floor(math.log10(max(high - low, 1e-9)))
        while (high - low) / step < 4:
            step /= 2
        return [low + step * count for count in range(int((high - low) / step + 1e-9) + 1)]

    def scale(self, low: float, high: float, start: float, end: float) -> Callable[[float], float]:
        def place(value: float) -> float:
            if self.logarithmic:
                part = math.log(max(value, low) / low) / math.log(high / low)
            else:
                part = (value - low) / (high - low)
            return start + part * (end - start)

        return place

    def text(self, value: float) -> str:
        if self.percent:
            return f"{value * 100:g} %"
        return f"{value:,.0f}" if value >= 10 else f"{value:g}"


def limits(values: Sequence[float], axis: Axis) -> tuple[float, float]:
    if axis.logarithmic:
        low, high = min(value for value in values if value > 0), max(values)
        return (low, high) if high > low else (low / 2, high * 2)
    return 0.0, max(values) or 1.0


def chart(title: str, x: Axis, y: Axis, lines: Sequence[Line]) -> str:
    """The whole SVG text."""
    low_x, high_x = limits([point[0] for line in lines for point in line.points], x)
    low_y, high_y = limits([point[1] for line in lines for point in line.points], y)
    right, bottom = WIDTH - LEGEND, HEIGHT - BOTTOM
    place_x = x.scale(low_x, high_x, LEFT, right)
    place_y = y.scale(low_y, high_y, bottom, TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="22" font-size="15" fill="#222222">{escape(title)}</text>',
    ]
    for value in x.ticks(low_x, high_x):
        at = place_x(value)
        parts.append(f'<path d="M{at:.1f} {TOP}V{bottom}" stroke="#e4e4e4"/>')
        parts.append(
            f'<text x="{at:.1f}" y="{bottom + 16}" text-anchor="middle" fill="#444444">{x.text(value)}</text>'
        )
    for value in y.ticks(low_y, high_y):
        at = place_y(value)
        parts.append(f'<path d="M{LEFT} {at:.1f}H{right}" stroke="#e4e4e4"/>')
        parts.append(
            f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end" fill="#444444">{y.text(value)}</text>'
        )
    parts.append(
        f'<text x="{(LEFT + right) / 2}" y="{HEIGHT - 10}" text-anchor="middle" fill="#222222">{escape(x.title)}</text>'
    )
    middle = (TOP + bottom) / 2
    parts.append(
        f'<text x="14" y="{middle}" text-anchor="middle" fill="#222222" transform="rotate(-90 14 {middle})">{escape(y.title)}</text>'
    )
    for number, line in enumerate(lines):
        parts += drawn(line, number, place_x, place_y, right)
    return "\n".join([*parts, "</svg>", ""])


def drawn(
    line: Line, number: int, place_x: Callable[[float], float], place_y: Callable[[float], float], right: int
) -> list[str]:
    """A line, its points and its entry in the legend."""
    colour, dash = COLOURS[number % len(COLOURS)], ' stroke-dasharray="5 4"' if line.dashed else ""
    places = [(place_x(x), place_y(y)) for x, y in line.points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    row = TOP + 10 + number * 19
    return [
        f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>',
        *(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>' for x, y in places),
        f'<path d="M{right + 14} {row}h20" stroke="{colour}" stroke-width="2"{dash}/>',
        f'<text x="{right + 40}" y="{row + 4}" fill="#222222">{escape(line.name)}</text>',
    ]
