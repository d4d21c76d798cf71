"""Samplers for an ordinary DataLoader: the plans of tars for datasets with indices.

    DataLoader(dataset, batch_size=16, sampler=RepeatFactorSampler(dataset, 1e-3))
    DataLoader(ConcatDataset([cc3m, sbu]), batch_sampler=DebiasedBatchSampler({"cc3m": cc3m, "sbu": sbu}, batch_size=256))

Nothing is decided here. A dataset is a source whose rows are samples by index (`dataset_plan`); quotas, schedule, copies and
shuffling are those of `planning`, so a CSV and shards of the same sizes give the same sources at the same steps. Each rank
draws its own share, and all do the same number of steps: trainers that would share these out again are refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from torch.utils.data import Sampler

from equitar.planning.plan import SameSourceAcross, SmallSources, SourceAccount
from equitar.planning.recipes import Debiased, Mixed
from equitar.planning.weights import Changes, Weights
from equitar.ranks import RankChoice
from equitar.samplers.dataset_plan import Datasets, IndexPlan, IndexRepeat, Labels, SamplerState


class RepeatFactorSampler(Sampler[int]):
    """Gives each sample of a dataset as often as its repeat factor says (LVIS, arXiv 1908.03195), each rank its share.

    An epoch is one pass: every copy comes once over all ranks, but for a remainder of less than a global batch, which is another
    one in every epoch (see `account`), and of a copy of each dataset whose factors have no whole number as their sum. It advances
    by itself; a pass that is broken off starts again.

    >>> from equitar.samplers.label_rows import LabelRows
    >>> labels = LabelRows.of_sets([[0]] * 99 + [[0, 1]])
    >>> sampler = RepeatFactorSampler(labels, 0.04, rank=0, world_size=1)
    >>> indices = list(sampler)
    >>> len(sampler), len(indices), indices.count(99)
    (101, 101, 2)
    """

    def __init__(
        self,
        datasets: Datasets,
        repeat: IndexRepeat,
        *,
        labels: Labels | None = None,
        labels_shared: bool = False,
        names: Sequence[str] | None = None,
        batch_size: int | None = None,
        weights: Weights | None = None,
        steps: int | None = None,
        seed: int = 0,
        shuffle: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        mesh: Any = None,
        group: Any = None,
    ) -> None:
        """Make the sampler; the rank is detected at the first use, unless it is given.

        Args:
            datasets: A dataset (or anything with a length) that has `label_presence`, a `ConcatDataset`, or a mapping of names to
                datasets or lengths, which are indexed one after another.
            repeat: The threshold of LVIS's repeat factor, a `RepeatFactor`, or a function of a dataset's name that gives a factor
                >= 0 for each of its samples; None repeats nothing.
            labels: Labels of datasets that have no `label_presence`, by name; those of a single dataset as they are.
            labels_shared: Whether ids without class names mean the same classes in all datasets; by default each has its own.
            names: Names of the parts of a `ConcatDataset` (default: "0", "1", ...); of a single dataset, one name.
            batch_size: Batch size of the DataLoader: if given, no two copies of a sample meet in a global batch, and only whole
                batches are given.
            weights: Share of the samples of each dataset; None is by size.
            steps: Steps of an epoch (samples per rank, without `batch_size`); None is one pass.
            seed: Seed of every order, >= 0, the same on all ranks.
            shuffle: Samples that each rank shuffles together; None is all of them. With a number, neighbours in the dataset stay
                near each other, which suits datasets that are read quickest in order.
            rank: This process among those that share the data; None detects it. All compare their plans once.
            world_size: Number of these processes.
            mesh: A `DeviceMesh` of data-parallel dimensions (``mesh["dp"]``) in place of `rank` and `world_size`.
            group: A `ProcessGroup` of the processes that share the data in place of these.

        Raises:
            PlanError: If arguments do not fit; at the first use, if the promises cannot be kept: it says what to change.
        """
        self._planned = IndexPlan(
            datasets,
            Mixed(weights=weights, steps=steps, max_passes=None, restart_each_epoch=False, composition="stratified"),
            batch_size=1 if batch_size is None else batch_size,
            repeat=repeat,
            labels=labels,
            labels_shared=labels_shared,
            names=names,
            seed=seed,
            shuffle=shuffle,
            ranks=RankChoice.of(rank, world_size, mesh, group),
            gives_batches=False,
        )

    def __len__(self) -> int:
        """Return the samples that an epoch gives to each rank: the same on all, and in every epoch."""
        return self._planned.length()

    def __iter__(self) -> Iterator[int]:
        """Return an iterator over this rank's indices of the epoch."""
        plan, given, per_step = self._planned.begun(type(self).__name__)
        step, within = divmod(given, per_step)
        indices = (index for batch in self._planned.batches(plan, step) for index in batch)
        return self._planned.progress.counted(islice(indices, within, None), plan.num_steps * per_step - given)

    def set_epoch(self, epoch: int) -> None:
        """Begin the next iterator at the start of an epoch, >= 0."""
        self._planned.progress.set_epoch(epoch)

    def account(self) -> tuple[SourceAccount, ...]:
        """Return what an epoch takes of each dataset: copies, passes, and the remainder that is left for other epochs."""
        return self._planned.plan().account

    def state_dict(self, taken: int | None = None) -> SamplerState:
        """Return where the latest pass stands, after `taken` samples of it (default: all that were taken).

        Workers of a DataLoader take samples ahead: a training loop counts its own, ``batches_done * batch_size``.
        """
        return self._planned.state(taken)

    def load_state_dict(self, state: SamplerState) -> None:
        """Begin the next iterator where a state says; with `batch_size`, also on other ranks of the same global batch."""
        self._planned.load(state)


class DebiasedBatchSampler(Sampler[list[int]]):
    """Gives batches of one dataset each, the same one on all ranks at every step (ZeroVL, arXiv 2112.09331).

    Every dataset comes exactly as often as its quota says; with `repeat` its samples come as often as their repeat factors say.

    >>> sampler = DebiasedBatchSampler({"cc3m": 100, "sbu": 40}, batch_size=8, rank=0, world_size=2)
    >>> len(sampler), sampler.sources(epoch=0).count("sbu")
    (8, 2)
    >>> ["cc3m" if max(batch) < 100 else "sbu" for batch in sampler] == sampler.sources(epoch=0)
    True
    """

    def __init__(
        self,
        datasets: Datasets,
        *,
        batch_size: int,
        repeat: IndexRepeat = None,
        labels: Labels | None = None,
        labels_shared: bool = False,
        names: Sequence[str] | None = None,
        weights: Weights | Changes | None = None,
        steps: int | None = None,
        same_source_across: SameSourceAcross = "world",
        small_sources: SmallSources = "error",
        accumulation_steps: int = 1,
        seed: int = 0,
        shuffle: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        mesh: Any = None,
        group: Any = None,
    ) -> None:
        """Make the sampler; the rank is detected at the first use, unless it is given.

        Args:
            datasets: As for `RepeatFactorSampler`, and so are all arguments that are not named here.
            batch_size: Samples per rank and step, >= 1.
            repeat: See `RepeatFactorSampler`.
            labels: See `RepeatFactorSampler`.
            labels_shared: See `RepeatFactorSampler`.
            names: See `RepeatFactorSampler`.
            weights: Share of the steps of each dataset, `Temperature`, `Passes`, or a list of (from_step, weights); None is by size.
            steps: Steps of an epoch; None is as many as one pass through all datasets gives.
            same_source_across: ``"world"``: all ranks draw the same dataset at a step; ``"rank"``: each rank draws its own.
            small_sources: What to do with a dataset that has no full global batch: ``"error"`` or ``"leave_out"``.
            accumulation_steps: Steps in a row that draw the same dataset, >= 1, for gradient accumulation.
            seed: See `RepeatFactorSampler`.
            shuffle: See `RepeatFactorSampler`.
            rank: See `RepeatFactorSampler`.
            world_size: See `RepeatFactorSampler`.
            mesh: See `RepeatFactorSampler`.
            group: See `RepeatFactorSampler`.
        """
        self._planned = IndexPlan(
            datasets,
            Debiased(
                weights=weights,
                steps=steps,
                max_passes=None,
                restart_each_epoch=False,
                same_source_across=same_source_across,
                small_sources=small_sources,
                accumulation_steps=accumulation_steps,
            ),
            batch_size=batch_size,
            repeat=repeat,
            labels=labels,
            labels_shared=labels_shared,
            names=names,
            seed=seed,
            shuffle=shuffle,
            ranks=RankChoice.of(rank, world_size, mesh, group),
            gives_batches=True,
        )

    def __len__(self) -> int:
        """Return the number of steps of an epoch: the same on all ranks, and in every epoch."""
        return self._planned.length()

    def __iter__(self) -> Iterator[list[int]]:
        """Return an iterator over this rank's batches of indices of the epoch."""
        plan, step, _ = self._planned.begun(type(self).__name__)
        return self._planned.progress.counted(self._planned.batches(plan, step), plan.num_steps - step)

    def sources(self, epoch: int) -> list[str]:
        """Return the name of the dataset of every step of an epoch on this rank."""
        plan = self._planned.plan(epoch)
        numbers = plan.sources(self._planned.place()[0])
        assert numbers is not None, "debiased batches have one source each"
        return [plan.names[number] for number in numbers.tolist()]

    def set_epoch(self, epoch: int) -> None:
        """Begin the next iterator at the start of an epoch, >= 0."""
        self._planned.progress.set_epoch(epoch)

    def account(self) -> tuple[SourceAccount, ...]:
        """Return what an epoch takes of each dataset: copies, passes, and the remainder that is left for other epochs."""
        return self._planned.plan().account

    def state_dict(self, taken: int | None = None) -> SamplerState:
        """Return where the latest pass stands, after `taken` batches of it (default: all that were taken).

        Workers of a DataLoader take batches ahead: a training loop counts its own.
        """
        return self._planned.state(taken)

    def load_state_dict(self, state: SamplerState) -> None:
        """Begin the next iterator where a state says, on any number of ranks of the same global batch."""
        self._planned.load(state)
