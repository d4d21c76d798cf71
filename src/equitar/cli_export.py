"""The command that hands out what sidecars say: `export`, to a file that other tools read."""

from __future__ import annotations

import click

from equitar.cli_batches import PlanOptions, repeat_options
from equitar.cli_words import Output, parse_sources, source_options


@click.command("export", short_help="Write a Parquet file with a row for each sample.")
@click.option("-o", "--output", metavar="FILE.parquet", type=Output(), required=True, help="The file to write.")
@repeat_options
@click.option("--binary-keys", is_flag=True, help="Keys as bytes, where some are no UTF-8.")
@click.option("--quiet", is_flag=True, help="No progress bar.")
@source_options
def export_command(
    asked: PlanOptions,
    words: tuple[str, ...],
    root: str | None,
    sidecars: str | None,
    output: str,
    binary_keys: bool,
    quiet: bool,
) -> None:
    """Write a Parquet file with a row for each sample: key, labels, counts, sizes, and repeat factor.

    DuckDB, pandas and polars read it. Only sidecars are read.

    \b
      equitar export lvis=/data/lvis-{000..099}.tar -o presence.parquet --repeat 1e-3
      duckdb -c "SELECT label, count(*) FROM (SELECT unnest(labels) AS label FROM 'presence.parquet') GROUP BY ALL"
    """
    from equitar.parquet_export import export

    num_samples = export(
        parse_sources(words, root=root, sidecars=sidecars),
        output,
        repeat=asked.factor(),
        binary_keys=binary_keys,
        progress=not quiet,
    )
    click.echo(f"{output}: {num_samples:,} samples")
