"""Ranks: which rank and worker this process is, from arguments, a mesh, a group, or the launcher's environment variables.

This is the only module that reads environment variables. Where rank and world size are not given, they are looked for in this
order: torch.distributed if it is initialised; RANK with WORLD_SIZE (torchrun); NODE_RANK, LOCAL_RANK and WORLD_SIZE (Lightning's
launcher); the SLURM step, SLURM_PROCID of SLURM_STEP_NUM_TASKS (a job allocation alone is one process); the MPI variables of
Open MPI and of MPICH. Variables that contradict each other are an error, not rank 0.
"""

from __future__ import annotations

import logging
import math
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from equitar.checks import check_place
from equitar.errors import PlanError

logger = logging.getLogger("equitar")
Origin: TypeAlias = Literal["detected", "given", "mesh", "group"]
_MOMENT = 0.02  # seconds
_PATIENCE = 300.0  # seconds
PATIENCE_VARIABLE = "EQUITAR_RANKS_TIMEOUT"
_PAIRS = (
    ("torchrun", "RANK", "WORLD_SIZE"),
    ("SLURM step", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    ("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("MPI", "PMI_RANK", "PMI_SIZE"),
)
# Parts of the names of mesh dimensions whose ranks work on the same samples.
_SAME_SAMPLES = frozenset(("tp", "pp", "cp", "sp", "tensor", "pipeline", "context", "sequence", "model"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """The place of one consumer. Constructible in a test without any process.

    Attributes:
        rank: Which data-parallel process, in [0, world_size).
        world_size: Number of data-parallel processes, >= 1.
        worker: Which DataLoader worker of this rank, in [0, max(1, num_workers)).
        num_workers: DataLoader workers of each rank, >= 0; 0 reads in the main process.
    """

    rank: int = 0
    world_size: int = 1
    worker: int = 0
    num_workers: int = 0

    def __post_init__(self) -> None:
        if self.world_size < 1:
            raise ValueError(f"`world_size` must be >= 1; got {self.world_size}")
        if not 0 <= self.rank < self.world_size:
            raise ValueError(f"`rank` must be in [0, {self.world_size}); got {self.rank}")
        if self.num_workers < 0:
            raise ValueError(f"`num_workers` must be >= 0; got {self.num_workers}")
        if not 0 <= self.worker < max(1, self.num_workers):
            raise ValueError(f"`worker` must be in [0, {max(1, self.num_workers)}); got {self.worker}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankChoice:
    """Which rank a user wants: given, taken from a mesh or a group, or to be detected at the first use. Small, and it pickles."""

    rank: int | None = None
    world_size: int | None = None
    origin: Origin = "detected"
    members: tuple[int, ...] = ()  # with a mesh or a group: global ranks by their data-parallel rank
    peers: tuple[
        int, ...
    ] = ()  # with a mesh: all global ranks of its root, which must agree; otherwise those of the world

    @staticmethod
    def of(rank: int | None, world_size: int | None, mesh: Any = None, group: Any = None) -> RankChoice:
        """Return the choice that the arguments of a builder or sampler make.

        Args:
            rank: This process among those that share the data.
            world_size: Number of these processes.
            mesh: A `DeviceMesh` all of whose dimensions are data-parallel, such as ``mesh["dp"]``; several are flattened.
            group: A `ProcessGroup` of the processes that share the data.

        Raises:
            PlanError: If more than one of these is given, or it does not fit.
        """
        given = [
            name
            for name, value in (("rank", rank if rank is not None else world_size), ("mesh", mesh), ("group", group))
            if value is not None
        ]
        if len(given) > 1:
            raise PlanError(
                f"`mesh`, `group`, and `rank` with `world_size` exclude each other; got {' and '.join(given)}"
            )
        if mesh is not None:
            return _of_mesh(mesh)
        if group is not None:
            return _of_group(group)
        rank, world_size = check_place(rank, world_size)
        return RankChoice(rank=rank, world_size=world_size, origin="detected" if rank is None else "given")

    def resolve(self) -> tuple[int, int]:
        """Return (rank, world_size), detected if they are not given."""
        return detect_ranks() if self.rank is None or self.world_size is None else (self.rank, self.world_size)


def _of_mesh(mesh: Any) -> RankChoice:
    for attribute in ("get_coordinate", "mesh_dim_names", "mesh", "shape"):
        if not hasattr(mesh, attribute):
            raise PlanError(f"`mesh` must be a torch DeviceMesh such as mesh['dp']; got {type(mesh).__name__}")
    shape, names = tuple(mesh.shape), tuple(mesh.mesh_dim_names or ())
    if len(shape) > 1 and not names:
        raise PlanError(
            f"`mesh` has {len(shape)} dimensions without names; name them (`mesh_dim_names=`) and pass those that are "
            "data-parallel, such as mesh['dp']"
        )
    shared = [name for name in names if _SAME_SAMPLES & set(name.split("_"))]
    if shared:
        raise PlanError(
            f"`mesh` must have data-parallel dimensions only, as tensor, pipeline and context parallel ranks need the same samples; "
            f"got {names}, with {shared[0]!r}; pass a part of it, such as mesh['dp'] or mesh['dp_replicate', 'dp_shard']"
        )
    place = mesh.get_coordinate()
    if place is None:
        raise PlanError(f"`mesh` must hold this process, but its ranks are {mesh.mesh.flatten().tolist()}")
    rank = 0
    for coordinate, size in zip(place, shape, strict=True):
        rank = rank * size + coordinate
    root = mesh._get_root_mesh() if hasattr(mesh, "_get_root_mesh") else None  # noqa: SLF001  (torch has no other way to it)
    return RankChoice(
        rank=rank,
        world_size=math.prod(shape),
        origin="mesh",
        members=tuple(mesh.mesh.flatten().tolist()),
        peers=() if root is None else tuple(sorted(root.mesh.flatten().tolist())),
    )


def _of_group(group: Any) -> RankChoice:
    distributed = process_groups()
    if distributed is None or not isinstance(group, distributed.ProcessGroup):
        raise PlanError(
            f"`group` must be a ProcessGroup of torch.distributed that holds this process; got {type(group).__name__}"
        )
    return RankChoice(
        rank=distributed.get_rank(group),
        world_size=distributed.get_world_size(group),
        origin="group",
        members=tuple(distributed.get_process_group_ranks(group)),
    )


def process_groups() -> Any:
    """Return `torch.distributed` where a process group exists, otherwise None. Never imports torch: commands do without it."""
    distributed = sys.modules.get("torch.distributed")
    return (
        distributed if distributed is not None and distributed.is_available() and distributed.is_initialized() else None
    )


def rank_patience() -> float:
    """Return the seconds to wait for other ranks before a first batch; 0 compares nothing.

    Raises:
        ValueError: If the variable that overrides it is not such a number.
    """
    text = os.environ.get(PATIENCE_VARIABLE)
    if text is None:
        return _PATIENCE
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < math.inf:
        raise ValueError(f"{PATIENCE_VARIABLE} must be a number of seconds >= 0; got {text!r}")
    return seconds


def let_collectives_end() -> None:
    """Wait a moment before workers are forked, where ranks talk to each other.

    Workers forked right after a collective of gloo were seen to hang within the fork, in CPython 3.11. As far as could be seen,
    its thread still held a lock of the interpreter, which the child takes before it makes it again.
    """
    if process_groups() is not None:
        time.sleep(_MOMENT)


def detect_ranks(environment: Mapping[str, str] | None = None) -> tuple[int, int]:
    """Return (rank, world_size) of this process.

    Args:
        environment: Variables to read in place of this process's; torch is then not asked.

    Raises:
        ValueError: If the variables contradict each other, with their names and values.

    >>> detect_ranks({"RANK": "3", "WORLD_SIZE": "8"}), detect_ranks({"SLURM_NTASKS": "8"})
    ((3, 8), (0, 1))
    """
    distributed = process_groups() if environment is None else None
    if distributed is not None:
        return _logged(distributed.get_rank(), distributed.get_world_size(), "torch.distributed")
    variables = os.environ if environment is None else environment
    if "RANK" not in variables and "LOCAL_RANK" in variables and "WORLD_SIZE" in variables:
        return _from_lightning(variables)
    for launcher, rank_name, size_name in _PAIRS:
        if rank_name in variables and size_name in variables:
            rank, size = _number(variables, rank_name), _number(variables, size_name)
            if not 0 <= rank < size:
                raise ValueError(f"{rank_name} must be in [0, {size_name}); got {rank_name}={rank}, {size_name}={size}")
            return _logged(rank, size, launcher)
    if "RANK" in variables and _number(variables, "RANK") > 0:
        raise ValueError(f"RANK={variables['RANK']} needs a WORLD_SIZE; set both or neither")
    if "LOCAL_RANK" in variables and _number(variables, "LOCAL_RANK") > 0:
        raise ValueError(f"LOCAL_RANK={variables['LOCAL_RANK']} needs a WORLD_SIZE; set both or neither")
    if "WORLD_SIZE" in variables and _number(variables, "WORLD_SIZE") > 1:
        raise ValueError(f"WORLD_SIZE={variables['WORLD_SIZE']} needs a RANK; set both or neither")
    return _logged(0, 1, "a single process")


def detect_workers() -> tuple[int, int]:
    """Return (worker, num_workers) of this process: a DataLoader worker, or (0, 0) in the main process."""
    data = sys.modules.get("torch.utils.data")
    info = data.get_worker_info() if data is not None else None
    return (0, 0) if info is None else (info.id, info.num_workers)


def detect_array_part(environment: Mapping[str, str] | None = None) -> tuple[int, int]:
    """Return (i, n) of this task of a SLURM array job: it is the i-th of n tasks, from 0, whatever their numbers are.

    Args:
        environment: Variables to read in place of this process's.

    Raises:
        ValueError: If this is not a task of an array, or its tasks are not numbered in equal steps.

    >>> names = ("SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT", "SLURM_ARRAY_TASK_MIN", "SLURM_ARRAY_TASK_STEP")
    >>> detect_array_part(dict(zip(names, ["14", "5", "10", "2"])))
    (2, 5)
    """
    variables = os.environ if environment is None else environment
    names = ("SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT", "SLURM_ARRAY_TASK_MIN")
    absent = [name for name in names if name not in variables]
    if absent:
        raise ValueError(f"a task of a SLURM array is needed (`sbatch --array=0-99`), but {absent[0]} is not set")
    number, count, first = (_number(variables, name) for name in names)
    step = _number(variables, "SLURM_ARRAY_TASK_STEP") if "SLURM_ARRAY_TASK_STEP" in variables else 1
    part, odd = divmod(number - first, max(1, step))
    if odd or not 0 <= part < count:
        raise ValueError(
            f"tasks of the SLURM array must be numbered in equal steps, such as 0-99; got task {number} of {count} from {first} "
            f"by {step}"
        )
    return part, count


def consumer(rank: int, world_size: int) -> Topology:
    """Return the topology of this process, given its rank."""
    worker, num_workers = detect_workers()
    return Topology(rank=rank, world_size=world_size, worker=worker, num_workers=num_workers)


def _from_lightning(variables: Mapping[str, str]) -> tuple[int, int]:
    """Lightning's launcher sets no RANK: it numbers nodes, and processes within each."""
    node, local, size = (_number(variables, name) for name in ("NODE_RANK", "LOCAL_RANK", "WORLD_SIZE"))
    num_nodes = _number(variables, "NUM_NODES") or 1 if "NUM_NODES" in variables else max(1, node + 1)
    if node and "NUM_NODES" not in variables:
        raise ValueError(f"NODE_RANK={node} without RANK needs NUM_NODES; set it, or RANK and WORLD_SIZE")
    rank = node * (size // num_nodes) + local
    if not 0 <= rank < size:
        raise ValueError(f"LOCAL_RANK must fit WORLD_SIZE; got NODE_RANK={node}, LOCAL_RANK={local}, WORLD_SIZE={size}")
    return _logged(rank, size, "Lightning")


def _number(variables: Mapping[str, str], name: str) -> int:
    text = variables.get(name, "0")
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{name} must be an integer; got {text!r}") from None


def _logged(rank: int, world_size: int, launcher: str) -> tuple[int, int]:
    logger.info("rank %d of %d (%s)", rank, world_size, launcher)
    return rank, world_size
