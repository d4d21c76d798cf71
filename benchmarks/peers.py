"""How do peers read the same samples? Each in the format it is best at, with the settings its documentation recommends.

A peer converts shards (or indexes them), iterates over its samples in one process in the order in which they lie, and loads
shuffled batches through two workers. Samples are dicts of bytes, and nothing is decoded. What a peer cannot do is None.
"""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import webdataset as wds
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

import equitar
from equitar.reading.reader import Reader, open_shards
from equitar.sidecars.catalog import catalog_of
from measure import FIELDS, Corpus, as_it_is, dict_of_lists

NUM_WORKERS = 2
BUFFER = 1000
CHUNK = 64 << 20  # bytes of a chunk or shard of those who write their own, as all of them recommend
Sample = dict[str, Any]


class Here(NamedTuple):
    """What a peer is given: the shards, and a folder of its own."""

    corpus: Corpus
    folder: Path


class Peer(NamedTuple):
    """A library.

    Attributes:
        converts: Writes what it needs into a folder; None needs nothing.
        samples: Gives all samples in one process.
        batches: Gives shuffled batches through workers; going through it again is another epoch.
    """

    converts: Callable[[Here], None] | None
    samples: Callable[[Here], Callable[[], Iterable[Sample]]]
    batches: Callable[[Here], Iterable[Any]] | None


def read_by_wds(urls: list[str]) -> Iterator[Sample]:
    """Read samples with webdataset, for those who convert them."""
    for sample in wds.DataPipeline(wds.SimpleShardList(urls), wds.tarfile_to_samples()):
        yield {name: sample[name] for name in ("__key__", *FIELDS)}


def _workers(dataset: Any, **more: Any) -> DataLoader[Any]:
    return DataLoader(dataset, num_workers=NUM_WORKERS, persistent_workers=True, **more)


def _wds_pipeline(corpus: Corpus, read: Any) -> Any:
    return wds.DataPipeline(
        wds.SimpleShardList(corpus.urls),
        wds.split_by_worker,
        read,
        wds.shuffle(BUFFER),
        wds.batched(corpus.batch_size, collation_fn=dict_of_lists),
    )


def _wds_samples(here: Here) -> Callable[[], Iterable[Sample]]:
    return lambda: wds.DataPipeline(wds.SimpleShardList(here.corpus.urls), wds.tarfile_to_samples())


def _wds_batches(here: Here) -> Iterable[Any]:
    return _workers(_wds_pipeline(here.corpus, wds.tarfile_to_samples()), batch_size=None, collate_fn=as_it_is)


def _equitar_samples(here: Here, *, copy: bool = True) -> Callable[[], Iterable[Sample]]:
    catalog = catalog_of(here.corpus.sources)

    def read() -> Iterator[Sample]:
        """Read by the member tables, in the order of the tars: what batches are made of."""
        for sidecars, summary in zip(catalog.sidecars, catalog.summaries, strict=True):
            reader = Reader(sidecars, open_shards(), fields=None, copy=copy)
            for shard, num_rows in enumerate(summary.num_samples.tolist()):
                for row in range(num_rows):
                    yield reader.read(shard, row)
                reader.evict()
            reader.close()

    return read


def _equitar_batches(here: Here) -> Iterable[Any]:
    batches = equitar.debiased(here.corpus.sources, batch_size=here.corpus.batch_size, rank=0, world_size=1)
    return equitar.Loader(batches, num_workers=NUM_WORKERS, persistent_workers=True)


def _equitar_index(here: Here) -> None:
    sources = [equitar.Source(source.name, source.urls, sidecars=str(here.folder)) for source in here.corpus.sources]
    equitar.index(sources, labels="cls", jobs=1, progress=False)


def _litdata_write(here: Here) -> None:
    import litdata

    with contextlib.redirect_stdout(io.StringIO()):
        litdata.optimize(
            fn=_of_one,
            inputs=here.corpus.urls,
            output_dir=str(here.folder),
            num_workers=1,
            chunk_bytes=CHUNK,
            start_method="fork",  # it sets what it starts by for the whole process
            verbose=False,
        )


def _of_one(url: str) -> Iterator[Sample]:
    yield from read_by_wds([url])  # it asks whether this is a generator function


def _litdata_samples(here: Here) -> Callable[[], Iterable[Sample]]:
    import litdata

    dataset: Iterable[Sample] = litdata.StreamingDataset(str(here.folder), shuffle=False)
    return lambda: map(_bytes_of_views, dataset)


def _litdata_views(here: Here) -> Callable[[], Iterable[Sample]]:
    import litdata

    dataset: Iterable[Sample] = litdata.StreamingDataset(str(here.folder.with_name("litdata")), shuffle=False)
    return lambda: dataset


def _bytes_of_views(sample: Sample) -> Sample:
    """Return a sample of litdata, which has views of its chunk, as one of bytes: views cannot be sent, nor kept."""
    return {"__key__": sample["__key__"], **{name: bytes(sample[name]) for name in FIELDS}}


def _litdata_batches(here: Here) -> Iterable[Any]:
    import litdata

    loader: Iterable[Any] = litdata.StreamingDataLoader(
        litdata.StreamingDataset(str(here.folder), shuffle=True),
        batch_size=here.corpus.batch_size,
        num_workers=NUM_WORKERS,
        persistent_workers=True,
        collate_fn=_dict_of_views,
    )
    return loader


def _dict_of_views(samples: list[Sample]) -> dict[str, list[Any]]:
    return dict_of_lists([_bytes_of_views(sample) for sample in samples])


def _streaming() -> Any:
    """Return mosaicml-streaming. It imports torchvision for datasets of its own, which are not used here: so any will do.

    The wheels of torchvision are built for a torch with CUDA, and do not load beside one without.
    """
    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        import transformers.feature_extraction_utils  # noqa: F401  (which looks for torchvision, and must not find this)

        vision, transforms = ModuleType("torchvision.datasets"), ModuleType("torchvision.transforms.functional")
        vision.__dict__.update(VisionDataset=object, CIFAR10=object)
        transforms.__dict__["to_tensor"] = as_it_is
        sys.modules.update({module.__name__: module for module in (ModuleType("torchvision"), vision, transforms)})
    import streaming

    return streaming


def _mds_write(here: Here) -> None:
    columns = {"__key__": "str", **dict.fromkeys(FIELDS, "bytes")}
    with _streaming().MDSWriter(out=str(here.folder), columns=columns, size_limit=CHUNK) as writer:
        for sample in read_by_wds(here.corpus.urls):
            writer.write(sample)


def _mds(here: Here, *, shuffle: bool) -> Any:
    # It refuses to open one here.folder twice: the shuffled one goes by another name.
    local = here.folder.with_name(f"{here.folder.name}-{shuffle}")
    if not local.exists():
        local.symlink_to(here.folder)
    return _streaming().StreamingDataset(local=str(local), shuffle=shuffle, batch_size=here.corpus.batch_size)


def _mds_samples(here: Here) -> Callable[[], Iterable[Sample]]:
    dataset = _mds(here, shuffle=False)
    return lambda: dataset


def _mds_batches(here: Here) -> Iterable[Any]:
    return _workers(_mds(here, shuffle=True), batch_size=here.corpus.batch_size, collate_fn=dict_of_lists)


def _wids(corpus: Corpus) -> Any:
    import wids

    counted = [{"url": url, "nsamples": corpus.num_samples // len(corpus.urls)} for url in corpus.urls]
    with contextlib.redirect_stderr(io.StringIO()):
        return wids.ShardListDataset(counted, localname=as_it_is, keep=True, transformations=[_bytes_of_streams])


def _bytes_of_streams(sample: Sample) -> Sample:
    """Return a sample of wids, which has streams by ``.jpg`` and so on, as one of bytes."""
    return {"__key__": sample["__key__"], **{name: sample[f".{name}"].read() for name in FIELDS}}


def _wids_samples(here: Here) -> Callable[[], Iterable[Sample]]:
    dataset = _wids(here.corpus)
    return lambda: (dataset[row] for row in range(len(dataset)))


def _wids_batches(here: Here) -> Iterable[Any]:
    import wids

    dataset = _wids(here.corpus)
    sampler = wids.ChunkedSampler(dataset, chunksize=BUFFER, shuffle=True)
    return _workers(dataset, sampler=sampler, batch_size=here.corpus.batch_size, collate_fn=dict_of_lists)


def _energon_prepare(here: Here) -> None:
    from megatron.energon.flavors import BaseWebdatasetFactory

    for url in here.corpus.urls:
        (here.folder / Path(url).name).hardlink_to(url)  # it wants its index beside the shards
    names = [Path(url).name for url in here.corpus.urls]
    BaseWebdatasetFactory.prepare_dataset(here.folder, names, split_parts_ratio=[("train", 1.0)], workers=1)
    kind = "__module__: megatron.energon\n__class__: CrudeWebdataset\n"
    (here.folder / ".nv-meta" / "dataset.yaml").write_text(kind, encoding="utf-8")


def _energon(folder: Path, *, num_workers: int, batch_size: int | None) -> Any:
    from megatron import energon

    class AsItIs(energon.DefaultTaskEncoder):  # type: ignore[misc]  # it has no types
        decoder = None
        cookers = (energon.Cooker(energon.stateless(as_it_is)),)

        def batch(self, samples: list[Sample]) -> dict[str, list[Any]]:
            return dict_of_lists(samples)

    dataset = energon.get_train_dataset(
        str(folder),
        worker_config=energon.WorkerConfig(rank=0, world_size=1, num_workers=num_workers),
        batch_size=batch_size,
        shuffle_buffer_size=BUFFER if num_workers else None,
        max_samples_per_sequence=100 if num_workers else None,
        task_encoder=AsItIs(),
        repeat=False,
    )
    return energon.get_loader(dataset)


def _energon_samples(here: Here) -> Callable[[], Iterable[Sample]]:
    loader = _energon(here.folder, num_workers=0, batch_size=None)
    return lambda: loader


def _energon_batches(here: Here) -> Iterable[Any]:
    loader: Iterable[Any] = _energon(here.folder, num_workers=NUM_WORKERS, batch_size=here.corpus.batch_size)
    return loader


def _spdl_of(urls: Iterable[Any]) -> Iterator[Sample]:
    """Read samples with spdl's iterator in C++, which gives members; those of one key are put together."""
    import spdl.io

    for shard in urls:
        with Path(shard["url"] if isinstance(shard, dict) else shard).open("rb") as file:
            sample: Sample = {}
            for path, content in spdl.io.iter_tarfile(file.read()):
                key, _, field = path.partition(".")
                if sample and sample["__key__"] != key:
                    yield sample
                    sample = {}
                sample["__key__"], sample[field] = key, bytes(content)
            yield sample


def _spdl_samples(here: Here) -> Callable[[], Iterable[Sample]]:
    return lambda: _spdl_of(here.corpus.urls)


def _spdl_batches(here: Here) -> Iterable[Any]:
    return _workers(_wds_pipeline(here.corpus, _spdl_of), batch_size=None, collate_fn=as_it_is)


class _Tars(IterableDataset[Sample]):
    """webdataset's reader for torchdata, whose nodes have none for tars of their own any more."""

    def __init__(self, urls: list[str]) -> None:
        self.urls = urls

    def __iter__(self) -> Iterator[Sample]:
        worker = get_worker_info()
        share = self.urls if worker is None else self.urls[worker.id :: worker.num_workers]
        return read_by_wds(share)


def _torchdata_samples(here: Here) -> Callable[[], Iterable[Sample]]:
    from torchdata import nodes

    loader: Iterable[Sample] = nodes.Loader(nodes.Prefetcher(nodes.IterableWrapper(_Tars(here.corpus.urls)), BUFFER))
    return lambda: loader


def _torchdata_batches(here: Here) -> Iterable[Any]:
    from torchdata.stateful_dataloader import StatefulDataLoader

    loader: Iterable[Any] = StatefulDataLoader(
        _Tars(here.corpus.urls),
        batch_size=here.corpus.batch_size,
        num_workers=NUM_WORKERS,
        persistent_workers=True,
        collate_fn=dict_of_lists,
    )
    return loader


PEERS = {
    "wds": Peer(None, _wds_samples, _wds_batches),
    "equitar": Peer(_equitar_index, _equitar_samples, _equitar_batches),
    "equitar views": Peer(None, partial(_equitar_samples, copy=False), None),
    "litdata": Peer(_litdata_write, _litdata_samples, _litdata_batches),
    "litdata views": Peer(None, _litdata_views, None),
    "streaming": Peer(_mds_write, _mds_samples, _mds_batches),
    "wids": Peer(None, _wids_samples, _wids_batches),
    "energon": Peer(_energon_prepare, _energon_samples, _energon_batches),
    "spdl": Peer(None, _spdl_samples, _spdl_batches),
    "torchdata": Peer(None, _torchdata_samples, _torchdata_batches),
}
