"""The group of commands `equitar`: each parses its words, calls one function of the package, and prints text.

SOURCE is ``name=urls``. A shell may expand braces first, so words with the same name are one source:
``cc3m=/data/cc3m-{000..331}.tar`` arrives as 332 words, or quoted as one; both mean the same.
"""

from __future__ import annotations

import sys

import click

from equitar.cli.indexing import check_command, index_command, summarize_command
from equitar.cli.inspection import bench_command, export_command, plan_command, report_command, stats_command
from equitar.cli.options import Commands, debug_option


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@debug_option
@click.version_option(package_name="equitar", message="equitar %(version)s")
def main() -> None:
    """Debiased batches and oversampling for WebDataset shards, planned before a tar is opened.

    Index your shards once; all other commands use what `index` wrote. SOURCE is name=urls, where urls is a path, a brace
    pattern, a glob, @FILE with one URL per line (or a list of wids, open_clip, open_lm, Energon), or the summary that `index`
    wrote. Words with the same name are one source.

    \b
      equitar index cc3m=/data/cc3m-{000000..000331}.tar --labels cls
      equitar check cc3m=/data/cc3m-{000000..000331}.tar
      equitar stats lvis=/data/lvis-{000..099}.tar --repeat 1e-3 --plot stats.png
      equitar plan cc3m=/data/cc3m.summary.json --batch-size 256 --world-size 8 --num-workers 4
      equitar report cc3m=/data/cc3m-{000000..000331}.tar --batch-size 256 --world-size 8 -o report.html
      equitar bench cc3m=/data/cc3m-{000000..000331}.tar --num-workers 4

    Shell completion: eval "$(_EQUITAR_COMPLETE=bash_source equitar)"; or zsh_source, fish_source.
    """
    if "" not in sys.path:  # `package.module:function` may be a file in this folder
        sys.path.insert(0, "")


for command in (
    index_command,
    summarize_command,
    check_command,
    export_command,
    stats_command,
    plan_command,
    report_command,
    bench_command,
):
    main.add_command(command)
