"""Least squares with coefficients that are not negative, for a handful of columns."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import combinations
from math import inf, sqrt
from operator import mul

_TINY = 1e-12  # of the largest pivot: below, columns are dependent


@dataclass(frozen=True, slots=True)
class NormalEquations:
    """The sums of products of columns with each other and with the wanted values."""

    columns: tuple[Sequence[float], ...]
    wanted: Sequence[float]
    products: tuple[tuple[float, ...], ...]
    targets: tuple[float, ...]
    total: float  # of the squares of the wanted values

    @classmethod
    def build(cls, columns: Sequence[Sequence[float]], wanted: Sequence[float]) -> "NormalEquations":
        empty = cls((), wanted, (), (), _multiply(wanted, wanted))
        return reduce(cls.append, columns, empty)

    def append(self, column: Sequence[float]) -> "NormalEquations":
        """The same with another column."""
        new = tuple(_multiply(column, other) for other in (*self.columns, column))
        products = (*((*row, value) for row, value in zip(self.products, new, strict=False)), new)
        targets = (*self.targets, _multiply(column, self.wanted))
        return NormalEquations((*self.columns, column), self.wanted, products, targets, self.total)

    def solve_non_negative(self) -> tuple[list[float], float]:
        """The coefficients and the sum of squared residuals: the best of all subsets of the columns."""
        width = len(self.columns)
        scales = [sqrt(self.products[at][at]) or 1.0 for at in range(width)]
        matrix = [[self.products[i][j] / (scales[i] * scales[j]) for j in range(width)] for i in range(width)]
        right = [target / scale for target, scale in zip(self.targets, scales, strict=True)]
        best, least = [0.0] * width, self.total
        for size in range(1, width + 1):
            for chosen in combinations(range(width), size):
                values = _solve([[matrix[i][j] for j in chosen] for i in chosen], [right[i] for i in chosen])
                if values is None or min(values) < 0:
                    continue
                left = self.total - sum(value * right[i] for value, i in zip(values, chosen, strict=True))
                if left < least - _TINY * self.total:
                    best, least = [0.0] * width, left
                    for value, i in zip(values, chosen, strict=True):
                        best[i] = value
        return [value / scale for value, scale in zip(best, scales, strict=True)], max(0.0, least)


def solve_non_negative(rows: Sequence[Sequence[float]], wanted: Sequence[float]) -> tuple[list[float], float]:
    """The coefficients and the sum of squared residuals."""
    return NormalEquations.build(list(zip(*rows, strict=True)), wanted).solve_non_negative()


def _multiply(left: Sequence[float], right: Sequence[float]) -> float:
    return sum(map(mul, left, right), 0.0)


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
