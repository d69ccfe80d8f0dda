"""Least squares with coefficients that are not negative, for a handful of columns."""

from collections.abc import Sequence
from itertools import combinations
from math import inf

_TINY = 1e-12  # of the largest pivot: below, columns are dependent


def solve_non_negative(rows: Sequence[Sequence[float]], wanted: Sequence[float]) -> tuple[list[float], float]:
    """The coefficients and the sum of squared residuals.

    Solves the normal equations of each subset of the columns: 2^columns small solutions.
    """
    width = len(rows[0])
    scales = [max(abs(row[column]) for row in rows) or 1.0 for column in range(width)]
    scaled = [[value / scale for value, scale in zip(row, scales, strict=True)] for row in rows]
    products = [[sum(row[i] * row[j] for row in scaled) for j in range(width)] for i in range(width)]
    targets = [sum(row[i] * value for row, value in zip(scaled, wanted, strict=True)) for i in range(width)]
    total = sum(value * value for value in wanted)
    best, least = [0.0] * width, total
    for size in range(1, width + 1):
        for chosen in combinations(range(width), size):
            values = _solve([[products[i][j] for j in chosen] for i in chosen], [targets[i] for i in chosen])
            if values is None or min(values) < 0:
                continue
            left = total - sum(value * targets[i] for value, i in zip(values, chosen, strict=True))
            if left < least - _TINY * total:
                best, least = [0.0] * width, left
                for value, i in zip(values, chosen, strict=True):
                    best[i] = value
    return [value / scale for value, scale in zip(best, scales, strict=True)], max(0.0, least)


def _solve(matrix: list[list[float]], right: list[float]) -> list[float] | None:
    """Gaussian elimination with row exchange; None if the matrix is singular."""
    size = len(matrix)
    rows = [[*line, value] for line, value in zip(matrix, right, strict=True)]
    largest = max((abs(value) for line in matrix for value in line), default=inf)
    for column in range(size):
        pivot = max(range(column, size), key=lambda at: abs(rows[at][column]))
        if abs(rows[pivot][column]) <= _TINY * largest:
            return None
        rows[column], rows[pivot] = rows[pivot], rows[column]
        for at in range(column + 1, size):
            factor = rows[at][column] / rows[column][column]
            if factor:
                rows[at] = [x - factor * y for x, y in zip(rows[at], rows[column], strict=True)]
    solution = [0.0] * size
    for at in reversed(range(size)):
        later = sum(rows[at][j] * solution[j] for j in range(at + 1, size))
        solution[at] = (rows[at][size] - later) / rows[at][at]
    return solution
