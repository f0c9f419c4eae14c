"""A Dask cluster of separate processes: the same answer as without, also where workers and the scheduler are lost."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import keyless
from keyless.assignment import in_parts
from keyless.cli import main
from keyless.cluster import OnDisk, current_workers, dask_workers
from keyless.cluster import workers as workers_room
from keyless.cluster.workers import LOCAL, connected
from keyless.datasets import make_shuffled_tables
from keyless.errors import InputError
from keyless.model import shards
from keyless.pairs import nearest_rows
from keyless.progress import Deadline, cut_short
from keyless.tables import memory, read_table

distributed = pytest.importorskip("distributed", reason="Dask is not installed: pip install keyless[dask]")

pytestmark = [
    # Clusters are closed while they work, on purpose; what Dask then says is not ours.
    pytest.mark.filterwarnings("ignore::Warning:distributed"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Two folders of three Parquet files each, and the right rows."""
    tables, truth = make_shuffled_tables(5_000, (20, 15), rank=6, noise=0.05, random_state=3)
    where = tmp_path_factory.mktemp("folders")
    for name, values in zip("ab", tables.values(), strict=True):
        (where / name).mkdir()
        frame = pd.DataFrame(values).add_prefix(name)
        for number, rows in enumerate(np.array_split(np.arange(len(frame)), 3)):
            part = pa.Table.from_pandas(frame.iloc[rows], preserve_index=False)
            pq.write_table(part, where / name / f"part.{number}.parquet")
    return where, truth["table1"]


@pytest.fixture
def small(monkeypatch):
    """Every table is on disk, in four shards and eight cells, and its candidates are matched in five parts."""
    monkeypatch.setattr(memory, "LARGE_CELLS", 1)
    monkeypatch.setattr(shards, "SHARD", 1_500)
    monkeypatch.setattr(nearest_rows, "CELL", 1_000)
    monkeypatch.setattr(in_parts, "PAIRS", 1_000)


@pytest.fixture
def cluster():
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, memory_limit="2GB", dashboard_address=":0", silence_logs=50
    ) as made:
        yield made


def linked(folders, **options):
    return keyless.link(folders / "a", folders / "b", random_state=0, callback=lambda *_: None, **options)


def test_without_a_client_this_process_works(monkeypatch):
    monkeypatch.setattr(workers_room, "_CONNECT", 0.2)
    assert current_workers() is LOCAL
    with connected(None) as workers:
        assert workers is LOCAL
    with pytest.raises(InputError, match="must be the address of a Dask scheduler that runs"), connected("nonsense:1"):
        pass


@pytest.mark.parametrize("kills", [pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.soak)])
@pytest.mark.usefixtures("small")
def test_a_cluster_gives_the_answer_of_one_process_though_workers_are_killed(folders, cluster, kills):
    """One worker is killed as soon as there is a map, and one more as soon as that was compared with chance."""
    where, truth = folders
    alone = linked(where)
    killed = []

    def kill(stage, *_):
        if stage in ("map", "chance") and len(killed) < kills:
            pids = [info["pid"] for info in client.run(lambda: {"pid": os.getpid()}).values()]
            killed.append(pids[0])
            os.kill(pids[0], signal.SIGKILL)

    with distributed.Client(cluster) as client:
        assert current_workers() is not LOCAL
        found = keyless.link(where / "a", where / "b", random_state=0, callback=kill)
    assert len(killed) == kills
    assert found.choices["work"]["scheduler"] == cluster.scheduler_address
    assert "status" in found.choices["work"]["dashboard"]
    np.testing.assert_array_equal(found.permutations["b"], alone.permutations["b"])
    np.testing.assert_array_equal(found.permutations["b"], truth)
    np.testing.assert_allclose(found.found["b"].probability, alone.found["b"].probability, atol=1e-9)
    np.testing.assert_allclose(found.evidence.null_scores, alone.evidence.null_scores, atol=1e-9)


@pytest.mark.soak
@pytest.mark.parametrize("gaps", [0.0, 0.1])
@pytest.mark.usefixtures("small")
def test_a_cluster_links_three_tables_as_one_process_does(tmp_path, cluster, gaps):
    """A third of the rows of the third table are left out, so that some entities of the joined tables have gaps."""
    tables, truth = make_shuffled_tables(5_000, (16, 14, 12), rank=5, noise=0.03, observed=1 - gaps, random_state=5)
    kept = np.flatnonzero(np.arange(5_000) % 3)
    tables["table2"] = tables["table2"][kept]
    right = {"table1": truth["table1"], "table2": np.append(np.cumsum(np.arange(5_000) % 3 > 0) - 1, -1)}
    right["table2"] = np.where(truth["table2"] % 3, right["table2"][truth["table2"]], -1)
    for name, values in tables.items():
        (tmp_path / name).mkdir()
        frame = pd.DataFrame(values).add_prefix(name)
        for number, rows in enumerate(np.array_split(np.arange(len(frame)), 2)):
            frame.iloc[rows].to_parquet(tmp_path / name / f"part.{number}.parquet", index=False)
    folders = [tmp_path / name for name in tables]
    alone = keyless.link(*folders, random_state=0)
    with distributed.Client(cluster):
        found = keyless.link(*folders, random_state=0)
    assert "scheduler" in found.choices["work"]
    for name, expected in right.items():
        assert alone.evidence_for(name).verdict == "linked"
        assert (alone.permutations[name] == expected).mean() > 0.995
        np.testing.assert_array_equal(found.permutations[name], alone.permutations[name])
        np.testing.assert_allclose(found.found[name].probability, alone.found[name].probability, atol=1e-9)


@pytest.mark.usefixtures("small")
def test_a_folder_is_not_read_by_a_cluster_without_workers(folders, monkeypatch):
    monkeypatch.setattr(dask_workers, "_WAIT", 0.2)
    options = {"n_workers": 0, "dashboard_address": ":0", "silence_logs": 50}
    # With a deadline: waiting for nobody would never end.
    with (
        distributed.LocalCluster(**options) as cluster,
        distributed.Client(cluster),
        pytest.raises(InputError, match="must have workers; none joined"),
        cut_short(Deadline(5)),
    ):
        read_table(folders[0] / "a", name="a")


@pytest.mark.slow
def test_work_on_a_cluster_is_left_and_cancelled_when_time_is_up(cluster):
    with distributed.Client(cluster):
        workers = current_workers()
        held = workers.start(time.sleep, 300)
        began, found = time.monotonic(), None
        with cut_short(Deadline(0.5)):
            found = workers.fetch([held])
        assert found is None
        assert 0.5 <= time.monotonic() - began < 5
        assert held.cancelled()


@pytest.fixture
def processes(tmp_path):
    """A scheduler and a worker that are started as users start them: its process, and its address."""
    file = tmp_path / "scheduler.json"
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": tmp_path}
    begin = [sys.executable, "-m", "distributed.cli.dask_scheduler"]
    scheduler = subprocess.Popen([*begin, "--scheduler-file", file, "--port", "0", "--no-dashboard"], **quiet)
    join = [sys.executable, "-m", "distributed.cli.dask_worker", "--scheduler-file", file, "--no-dashboard"]
    worker = subprocess.Popen([*join, "--nthreads", "1", "--memory-limit", "2GB", "--death-timeout", "60"], **quiet)
    try:
        deadline = time.monotonic() + 60
        while not file.exists():
            assert time.monotonic() < deadline
            time.sleep(0.1)
        yield scheduler, pd.read_json(file, typ="series")["address"]
    finally:
        for process in (worker, scheduler):
            process.kill()
            process.wait()


@pytest.mark.filterwarnings("ignore:The inplace keyword")  # Dask's own call, which the newest pandas warns of
@pytest.mark.usefixtures("small")
def test_a_frame_of_dask_is_read_partition_by_partition(folders):
    dataframe = pytest.importorskip("dask.dataframe")
    where, _ = folders
    expected = read_table(where / "a", name="a")
    read = read_table(dataframe.read_parquet(where / "a"), name="a")
    assert OnDisk.behind(read.block.values) is not None
    np.testing.assert_array_equal(read.block.values, expected.block.values)
    assert read.columns == expected.columns
    assert read.column("a3") == expected.column("a3")
    small = pd.DataFrame({"x": np.arange(40.0), "word": ["u", "v"] * 20})
    read = read_table(dataframe.from_pandas(small, npartitions=3), name="small")
    np.testing.assert_array_equal(read.block.values, read_table(small, name="small").block.values)


@pytest.mark.filterwarnings("ignore:The inplace keyword")
@pytest.mark.usefixtures("small")
def test_a_saved_result_of_frames_of_dask_holds_their_entries(folders, tmp_path):
    """Their entries are in temporary folders, which go away with the result that is saved."""
    dataframe = pytest.importorskip("dask.dataframe")
    given = [pd.read_parquet(folders[0] / name).head(200).assign(**{f"{name}_whole": range(200)}) for name in "ab"]
    links = keyless.link(*(dataframe.from_pandas(frame, npartitions=3) for frame in given), random_state=0, max_time=1)
    gone = [Path(table.large_file.path) for table in links.tables]
    expected, permutation = links.joined(), links.permutations["table1"]
    links.save(tmp_path / "run.keyless")
    del links
    gc.collect()
    assert not any(folder.exists() for folder in gone)
    loaded = keyless.load(tmp_path / "run.keyless")
    pd.testing.assert_frame_equal(loaded.joined(), expected)
    np.testing.assert_array_equal(loaded.permutations["table1"], permutation)
    assert loaded.tables[0].column("a_whole") == list(range(200))
    loaded.save(tmp_path / "again.keyless")
    assert (tmp_path / "again.keyless").read_bytes() == (tmp_path / "run.keyless").read_bytes()


@pytest.mark.soak
@pytest.mark.usefixtures("small")
def test_a_lost_scheduler_is_said_and_the_run_is_resumed_without(folders, processes, tmp_path, capsys):
    """The scheduler is killed as soon as the comparison with chance is kept."""
    where, truth = folders
    scheduler, address = processes
    out, kept = tmp_path / "run", tmp_path / "run.unfinished" / "checkpoint"
    command = ["link", str(where / "a"), str(where / "b"), "--out", str(out)]

    def kill():
        while not list(kept.glob("columns-chance1-*.stage")):
            time.sleep(0.05)
        scheduler.kill()

    threading.Thread(target=kill, daemon=True).start()
    with pytest.raises(SystemExit) as ended:
        main([*command, "--scheduler", address])
    said = capsys.readouterr().err
    assert ended.value.code == 1
    assert f"working on the cluster of {address}; its dashboard is http" in said
    assert "must stay reachable; the connection to the scheduler was lost" in said
    stages = {path.name.rpartition("-")[0] for path in kept.iterdir()}
    assert {"columns-models", "columns-map1", "columns-chance1"} <= stages
    assert "columns" not in stages
    with pytest.raises(SystemExit) as ended:
        main([*command, "--resume"])
    assert ended.value.code == 0
    assert "continuing the unfinished run" in capsys.readouterr().err
    matches = pd.concat([pq.read_table(out / "matches" / f"part.{k}.parquet").to_pandas() for k in range(3)])
    np.testing.assert_array_equal(matches["row_id"], truth)
    assert not kept.exists()


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_a_worker_with_too_little_memory_is_named_with_what_it_needs(folders):
    where, _ = folders
    with (
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=1, memory_limit="350MB", dashboard_address=":0", silence_logs=50
        ) as cluster,
        distributed.Client(cluster),
        pytest.raises(InputError, match=r"worker tcp://.*: must have at least 0\.4 GB of memory for 1 thread"),
    ):
        linked(where)
