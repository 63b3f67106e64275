"""What a machine gives: the cores of a container."""

import os

import pytest

from siamdiff_min import machine


@pytest.mark.parametrize(
    "files, cores",
    [
        ({}, 8),  # no container
        ({"cpu.max": "max 100000"}, 8),
        ({"cpu.max": "250000 100000"}, 2),
        ({"cpu.max": "50000 100000"}, 1),  # half a core
        ({"cpu.max": "6400000 100000"}, 8),  # more than there are
        ({"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 3),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 8),
        ({"cpu/cpu.cfs_quota_us": "300000\n"}, 8),  # unreadable
    ],
)
def test_the_quota_of_a_container_counts_in_both_versions_of_cgroup(files, cores, tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "CGROUP", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8), raising=False)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert machine.cores() == cores
