"""What holds for all tests: one thread per process, no rank from outside, Hypothesis by profile."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from playwright.sync_api import Browser

# Before torch or matplotlib is imported. Two pytest workers, each with DataLoader workers, on a few cores: threads would only
# wait for each other. No test opens a window.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MPLBACKEND", "Agg")

# No deadline: a slow machine is no bug. HYPOTHESIS_PROFILE=thorough looks ten times as far as a usual run.
settings.register_profile("dev", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("dev"), derandomize=True, print_blob=True)
settings.register_profile("thorough", settings.get_profile("dev"), max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev"))


# Not for the session: while playwright runs, its event loop runs in this thread, and `asyncio.run` of another module fails.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A Chromium of the system. In CI it must be there; on a desk the tests are skipped without."""
    from helpers.browser import chromium, chromium_path  # most tests need no playwright

    path = chromium_path()
    if path is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(
            "no Chromium: install it, say by `apt-get install chromium`"
        )
    with chromium(path) as opened:
        yield opened


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--examples N``: properties draw N times as many cases."""
    parser.addoption("--examples", type=int, metavar="N", help="draw N times as many cases for each property")


def pytest_configure(config: pytest.Config) -> None:
    """Apply ``--examples`` before the tests are imported."""
    if times := config.getoption("--examples"):
        settings.register_profile("examples", settings.default, max_examples=100 * times)
        settings.load_profile("examples")


# A shell that starts the tests in the background lets them ignore Ctrl-C, and so would the processes that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# What a launcher or a cluster sets is hidden from the tests: one that wants a rank says so itself.
for _name in (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "WORKER",
    "NUM_WORKERS",
):
    os.environ.pop(_name, None)


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist looks at the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give all `distributed` tests to the same pytest worker, so that their process groups never compete for the cores."""
    for item in items:
        if item.get_closest_marker("distributed"):
            item.add_marker(pytest.mark.xdist_group("distributed"))
