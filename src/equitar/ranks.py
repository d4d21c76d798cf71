"""Which rank is this? The only module that reads environment variables.

Asked in this order: torch.distributed if it is initialised; RANK with WORLD_SIZE (torchrun); NODE_RANK, LOCAL_RANK and
WORLD_SIZE (Lightning's launcher); the SLURM step, SLURM_PROCID of SLURM_STEP_NUM_TASKS (a job allocation alone is one
process); the MPI variables of Open MPI and of MPICH. What contradicts itself is an error, not rank 0.

Who consumes? One rank of a world, and within it the workers of a DataLoader.

Do all ranks have the same? Asked once, before the first step: ranks that differ overlap, or wait for each other for ever.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from equitar.errors import PlanError

_MOMENT = 0.02  # seconds


def compare_over_ranks(digest: str, world_size: int, *, what: str, mend: str) -> None:
    """Raise PlanError if ranks have different digests, where they can be asked.

    Args:
        digest: What must be equal.
        world_size: Ranks that share the data; if these are not all of the process group, nothing is asked.
        what: What it is the digest of.
        mend: What to do.
    """
    distributed = _process_groups()
    if distributed is None or distributed.get_world_size() != world_size:
        return
    found: list[Any] = [None] * world_size
    distributed.all_gather_object(found, digest)
    different = [rank for rank, one in enumerate(found) if one != found[0]]
    if different:
        raise PlanError(f"all ranks must have the same {what}; rank {different[0]} has another than rank 0: {mend}")


def let_collectives_end() -> None:
    """Wait a moment before workers are forked, where ranks talk to each other.

    Workers forked right after a collective of gloo were seen to hang within the fork, in CPython 3.11. As far as could be seen,
    its thread still held a lock of the interpreter, which the child takes before it makes it anew.
    """
    if _process_groups() is not None:
        time.sleep(_MOMENT)


def _process_groups() -> Any:
    """Return `torch.distributed` where a process group exists, otherwise None. Never imports torch: commands do without it."""
    distributed = sys.modules.get("torch.distributed")
    return (
        distributed if distributed is not None and distributed.is_available() and distributed.is_initialized() else None
    )


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


logger = logging.getLogger("equitar")
_RESHARDING = frozenset(("IterableDatasetShard", "DataLoaderDispatcher"))
_PAIRS = (
    ("torchrun", "RANK", "WORLD_SIZE"),
    ("SLURM step", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    ("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("MPI", "PMI_RANK", "PMI_SIZE"),
)


def detect_ranks(environment: Mapping[str, str] | None = None) -> tuple[int, int]:
    """Return (rank, world_size) of this process.

    Args:
        environment: Variables to read in place of this process's; torch is then not asked.

    Raises:
        ValueError: If the variables contradict each other, with their names and values.

    >>> detect_ranks({"RANK": "3", "WORLD_SIZE": "8"}), detect_ranks({"SLURM_NTASKS": "8"})
    ((3, 8), (0, 1))
    """
    distributed = sys.modules.get("torch.distributed") if environment is None else None
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return _said(distributed.get_rank(), distributed.get_world_size(), "torch.distributed")
    variables = os.environ if environment is None else environment
    if "RANK" not in variables and "LOCAL_RANK" in variables and "WORLD_SIZE" in variables:
        return _from_lightning(variables)
    for how, rank_name, size_name in _PAIRS:
        if rank_name in variables and size_name in variables:
            rank, size = _number(variables, rank_name), _number(variables, size_name)
            if not 0 <= rank < size:
                raise ValueError(f"{rank_name} must be in [0, {size_name}); got {rank_name}={rank}, {size_name}={size}")
            return _said(rank, size, how)
    if "RANK" in variables and _number(variables, "RANK") > 0:
        raise ValueError(f"RANK={variables['RANK']} needs a WORLD_SIZE; set it, or neither of both")
    if "LOCAL_RANK" in variables and _number(variables, "LOCAL_RANK") > 0:
        raise ValueError(f"LOCAL_RANK={variables['LOCAL_RANK']} needs a WORLD_SIZE; set it, or neither of both")
    if "WORLD_SIZE" in variables and _number(variables, "WORLD_SIZE") > 1:
        raise ValueError(f"WORLD_SIZE={variables['WORLD_SIZE']} needs a RANK; set it, or neither of both")
    return _said(0, 1, "a single process")


def detect_workers() -> tuple[int, int]:
    """Return (worker, num_workers) of this process: a DataLoader worker, or (0, 0) in the main process."""
    data = sys.modules.get("torch.utils.data")
    found = data.get_worker_info() if data is not None else None
    return (0, 0) if found is None else (found.id, found.num_workers)


def detect_array_part(environment: Mapping[str, str] | None = None) -> tuple[int, int]:
    """Return (i, n) of this task of a SLURM array job: it is the i-th of n tasks, from 0, whatever their numbers are.

    Args:
        environment: Variables to read in place of this process's.

    Raises:
        ValueError: If this is no task of an array, or its tasks are not numbered in equal steps.

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


def refuse_resharding() -> None:
    """Raise PlanError if a caller is about to share out again what each rank has a share of.

    accelerate and the Trainer of transformers wrap an iterable data set so that each process keeps every n-th batch, or that
    one process reads for all. A data set can only see that by who calls it; workers that were forked see their parent's callers.
    """
    frame = sys._getframe(1)  # noqa: SLF001  (the documented way to one's callers)
    while (frame := frame.f_back) is not None:  # type: ignore[assignment]  # None ends the loop
        caller = type(frame.f_locals.get("self")).__name__
        if caller in _RESHARDING:
            raise PlanError(
                f"{caller} would share this stream out again, but each rank already gets its own part; hand the loader to the "
                "training loop as it is, without `accelerator.prepare`, or set `dispatch_batches=False` and one process"
            )


def _from_lightning(variables: Mapping[str, str]) -> tuple[int, int]:
    """Lightning's launcher sets no RANK: it numbers nodes, and processes within each."""
    node, local, size = (_number(variables, name) for name in ("NODE_RANK", "LOCAL_RANK", "WORLD_SIZE"))
    num_nodes = _number(variables, "NUM_NODES") or 1 if "NUM_NODES" in variables else max(1, node + 1)
    if node and "NUM_NODES" not in variables:
        raise ValueError(f"NODE_RANK={node} without RANK needs NUM_NODES; set it, or RANK and WORLD_SIZE")
    rank = node * (size // num_nodes) + local
    if not 0 <= rank < size:
        raise ValueError(f"LOCAL_RANK must fit WORLD_SIZE; got NODE_RANK={node}, LOCAL_RANK={local}, WORLD_SIZE={size}")
    return _said(rank, size, "Lightning")


def _number(variables: Mapping[str, str], name: str) -> int:
    text = variables.get(name, "0")
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{name} must be an integer; got {text!r}") from None


def _said(rank: int, world_size: int, how: str) -> tuple[int, int]:
    logger.info("rank %d of %d (%s)", rank, world_size, how)
    return rank, world_size
