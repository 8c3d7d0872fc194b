"""Mixed integer programs, through HiGHS on one thread.

HiGHS is loaded when it is first needed: that takes a while. It must not meet OR-Tools in one process.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any, Final, NamedTuple

from leasekit.core.errors import LeasekitError

MILP_NODES_MAX: Final = 100_000
"""Nodes of HiGHS's tree: where its run ends without a clock."""
NO_COLUMNS: Final[Mapping[int, tuple[float, float]]] = {}


class MilpRow(NamedTuple):
    """``low <= sum of coefficient x column <= high``."""

    low: float
    high: float
    terms: Mapping[int, float]


class Solved(NamedTuple):
    """What HiGHS said: ``done`` if it proved its answer, values by column (empty: none), the bound that it proved."""

    done: bool
    values: Sequence[float]
    bound: float


def run(
    cost: Sequence[float],
    rows: Sequence[MilpRow],
    *,
    columns: Mapping[int, tuple[float, float]] = NO_COLUMNS,
    relaxed: bool = False,
    nodes: int = MILP_NODES_MAX,
    remaining: Callable[[], float] | None = None,
    cutoff: float = inf,
    gap: float = 0.0,
) -> Solved:
    """The least sum of ``cost``, of columns that are 0 or 1; those in ``columns`` are anything from low to high.

    With ``relaxed`` the others are anything from 0 to 1. It has the same answer each time, unless the time that is
    ``remaining`` (seconds) runs out. A solution within ``gap``, relatively, counts as the least.
    """
    left = inf if remaining is None else remaining()
    if left <= 0:
        return Solved(False, (), -inf)
    module = load_highs()
    highs = module.Highs.__base__()  # itself, from 1.16 on, prints its name before it can be told to be silent
    options: dict[str, Any] = {
        "output_flag": False,
        "threads": 1,
        "random_seed": 0,
        "mip_rel_gap": gap,
        "mip_abs_gap": 1e-9,
        "mip_feasibility_tolerance": 1e-9,
        "primal_feasibility_tolerance": 1e-9,
        "mip_max_nodes": nodes,
    }
    if left < inf:
        options["time_limit"] = left
    if cutoff < inf:
        options["objective_bound"] = cutoff
    for name, value in options.items():
        highs.setOptionValue(name, value)
    whole = [not relaxed and column not in columns for column in range(len(cost))]
    highs.passModel(_model(module, cost, rows, columns, whole))
    highs.run()
    status, kinds, info = highs.getModelStatus(), module.HighsModelStatus, highs.getInfo()
    if status in (kinds.kInfeasible, kinds.kUnboundedOrInfeasible, kinds.kObjectiveBound):
        return Solved(True, (), inf)
    values = list(highs.getSolution().col_value) if info.primal_solution_status == 2 else []
    done = status in (kinds.kOptimal, kinds.kModelEmpty)
    if any(whole):
        return Solved(done, values, info.mip_dual_bound)
    return Solved(done, values, info.objective_function_value if done else -inf)


def load_highs() -> Any:
    """The module ``highspy``. Raises ``LeasekitError`` where it is not installed."""
    try:
        return importlib.import_module("highspy")
    except ImportError as error:
        raise LeasekitError(
            f"the solver HiGHS needs the Python package highspy, which can't be loaded: {error}"
        ) from error


def _model(
    module: Any,
    cost: Sequence[float],
    rows: Sequence[MilpRow],
    columns: Mapping[int, tuple[float, float]],
    whole: Sequence[bool],
) -> Any:
    numpy = importlib.import_module("numpy")
    kinds = module.HighsVarType
    limits = [columns.get(column, (0.0, 1.0)) for column in range(len(cost))]
    model = module.HighsLp()
    model.num_col_, model.num_row_ = len(cost), len(rows)
    model.col_cost_ = numpy.array(cost, dtype=float)
    model.col_lower_ = numpy.array([low for low, _ in limits], dtype=float)
    model.col_upper_ = numpy.array([high for _, high in limits], dtype=float)
    if any(whole):
        model.integrality_ = [kinds.kInteger if one else kinds.kContinuous for one in whole]
    model.row_lower_ = numpy.array([row.low for row in rows], dtype=float)
    model.row_upper_ = numpy.array([row.high for row in rows], dtype=float)
    starts, indexes, values = [0], [], []
    for row in rows:
        indexes += list(row.terms)
        values += list(row.terms.values())
        starts.append(len(indexes))
    model.a_matrix_.format_ = module.MatrixFormat.kRowwise
    model.a_matrix_.start_ = numpy.array(starts, dtype=numpy.int32)
    model.a_matrix_.index_ = numpy.array(indexes, dtype=numpy.int32)
    model.a_matrix_.value_ = numpy.array(values, dtype=float)
    return model
