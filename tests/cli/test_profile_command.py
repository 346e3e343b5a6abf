import json
import os
import platform
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import builders
import processes
import pytest

from commbench import load
from commbench.cli import profile_command, run_command
from commbench.errors import UnwritableError
from commbench.model import USER_CODE, ClusterSpec
from commbench.model.units import format_seconds

pytestmark = pytest.mark.usefixtures("no_figures", "no_rules")
MAIN = """
    import sys
    from distributed import Client, LocalCluster

    def main():
        client = Client(n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0")
        print(client.submit(sum, [len(sys.argv), int(sys.argv[-1])]).result(), __name__)
        {end}

    if __name__ == "__main__":
        main()
"""
ASYNCHRONOUS = """
    import asyncio
    from distributed import Client, LocalCluster

    async def main():
        quiet = {"dashboard_address": "127.0.0.1:0", "asynchronous": True}
        async with LocalCluster(n_workers=1, **quiet) as cluster:
            async with Client(cluster, asynchronous=True) as client:
                print(await client.submit(sum, [1, 2]))

    if __name__ == "__main__":
        asyncio.run(main())
"""


CHANGING = """
    import os, sys, warnings
    import numpy as np

    os.mkdir("results")
    with open("dask.yaml", "w") as file:
        file.write("commbench-test: {file: 1, variable: 1}")
    os.environ["DASK_COMMBENCH_TEST__VARIABLE"] = "2"
    os.environ["DASK_CONFIG"] = "dask.yaml"

    import dask
    from distributed import Client

    class Logger:
        def write(self, text):
            pass

        def flush(self):
            pass

    if __name__ == "__main__":
        assert dask.config.get("commbench-test") == {"file": 1, "variable": 2}
        np.seterr(all="raise")
        warnings.simplefilter("error")
        sys.stdout = Logger()
        options = {"processes": False, "n_workers": 1, "dashboard_address": "127.0.0.1:0"}
        with Client(**options) as client:
            client.submit(sum, [1]).result()
"""
SCRIPTS = sorted(Path(__file__).parent.joinpath("scripts").glob("*.py"))
"""Scripts as Dask's documentation and examples have them."""
QUICK = ("coordination",)


@pytest.fixture
def run_script(tmp_path):
    """Return a function that profiles a script, and returns the process and its run."""

    def run(source, *arguments, options=(), command="profile"):
        script = tmp_path / "my_job.py"
        script.write_text(textwrap.dedent(source))
        line = [sys.executable, "-m", "commbench.cli", command, *options, "my_job.py", *arguments]
        environ = {k: v for k, v in os.environ.items() if k != "COMMBENCH_TEST_RULES"}
        done = subprocess.run(
            line, cwd=tmp_path, capture_output=True, text=True, check=False,
            env=environ if command == "diagnose" else None,
        )  # fmt: skip
        last = (done.stdout.splitlines() or [""])[-1]
        return done, load(last) if last and Path(last).is_dir() else None

    return run


def test_what_a_script_leaves_of_its_process_costs_no_report(run_script):
    done, run = run_script(CHANGING)
    assert done.returncode == 0, done.stderr
    assert "my_job took " in done.stdout
    assert run.manifest.command.endswith("my_job.py")


@pytest.mark.parametrize(
    "how", ["TextIOWrapper(sys.stdout.buffer)", "TextIOWrapper(sys.stdout.detach())"]
)
def test_a_script_that_wraps_the_standard_output_has_a_report(how, tmp_path):
    code = f"""
        import io, sys
        from commbench.cli import profile_command
        with profile_command._undone():
            sys.stdout = io.{how}
            print("from the script")
        print("from the report")
    """
    text = subprocess.check_output([sys.executable, "-c", textwrap.dedent(code)], text=True)
    assert text.split("\n") == ["from the script", "from the report", ""]


def test_a_disk_that_a_script_has_filled_costs_no_report(tmp_path, monkeypatch):
    def full(*_):
        raise UnwritableError("can't write report.md: No space left on device")

    case = builders.case(workload="sum", cluster=ClusterSpec(launcher=USER_CODE))
    records = builders.ended([builders.sample(case, 0.26, tool="your code")])
    path = builders.written(tmp_path, [case], records).path
    monkeypatch.setattr(run_command, "write_report", full)
    monkeypatch.setattr(profile_command, "record", lambda *_: (path, 7))
    done = processes.invoke("profile", "my_job.py")
    assert done.exit_code == 7
    assert "sum took 260 ms" in done.stdout
    assert "can't write" in done.stderr


@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("import os; os.chdir('/'); open(__file__).close(); sys.exit(7)", 7),
        pytest.param("sys.exit('ValueError: mine')", 1, marks=pytest.mark.slow),
        ("raise ValueError('mine')", 1),
    ],
)
def test_a_script_ends_as_by_itself_and_is_reported(run_script, end, status):
    done, run = run_script(MAIN.replace("{end}", end), "--rows", "5")
    assert done.stdout.splitlines()[0] == "8 __main__"
    assert done.returncode == status, done.stderr
    assert ("ValueError: mine" in done.stderr) == (status == 1)
    assert "runpy" not in done.stderr
    assert ("in main" in done.stderr) == end.startswith("raise")
    assert set(run.tasks["name"]) == {"sum"}
    (region,) = run.regions.itertuples()
    assert region.name == "my_job"
    assert run.ends["ok"].tolist() == [True]
    assert [*run.path.parent.iterdir()] == [run.path]
    assert (run.path / "report.html").exists()
    # Arguments may be secret.
    assert "--rows" not in (run.path / "run.json").read_text()
    assert (region.error != "") == (end == "raise ValueError('mine')")


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(path, id=path.stem, marks=[pytest.mark.slow] * (path.stem not in QUICK))
        for path in SCRIPTS
    ],
)
def test_a_script_of_dask_s_documentation_has_the_same_results(tmp_path, script):
    ended = {}
    for how in ("plain", "profiled"):
        (folder := tmp_path / how).mkdir()
        options = ["-m", "commbench.cli", "profile", "--output", tmp_path / "results"]
        done = subprocess.run(
            [sys.executable, *options * (how == "profiled"), script],
            cwd=folder, capture_output=True, text=True, check=False,
        )  # fmt: skip
        files = {str(path.relative_to(folder)): path for path in folder.rglob("*")}
        # Dask's report has the times of tasks.
        same = {
            name: path.read_bytes() if path.is_file() and name != "dask-report.html" else b""
            for name, path in files.items()
        }
        ended[how] = done.returncode, same, done.stdout
    (*alone, printed), (*profiled, printed_too) = ended["plain"], ended["profiled"]
    assert profiled == alone
    assert printed
    assert printed_too.startswith(printed)
    run = load(printed_too.splitlines()[-1])
    assert run.failures.empty
    assert len(run.tasks)


def test_a_cluster_that_closes_in_its_own_way_is_observed(run_script):
    """As those of dask-kubernetes and Coiled do."""
    script = """
        from distributed import Client, LocalCluster

        class Own(LocalCluster):
            def close(self, timeout=None):
                return self.sync(self._close)

        if __name__ == "__main__":
            cluster = Own(n_workers=1, processes=False, dashboard_address="127.0.0.1:0")
            Client(cluster).submit(sum, [1, 2]).result()
            cluster.close()
    """
    done, run = run_script(script)
    assert done.returncode == 0, done.stderr
    assert run.ends["ok"].tolist() == [True]
    assert set(run.tasks["name"]) == {"sum"}


def test_an_exception_that_takes_no_attributes_leaves_by_the_context_of_the_client(run_script):
    done, run = run_script("""
        from dataclasses import dataclass
        from distributed import Client

        @dataclass(frozen=True)
        class Frozen(Exception):
            text: str = "mine"

        if __name__ == "__main__":
            quiet = {"dashboard_address": "127.0.0.1:0", "processes": False}
            with Client(n_workers=1, **quiet) as client:
                client.submit(sum, [1]).result()
                raise Frozen
    """)
    assert done.returncode == 1
    assert "Frozen" in done.stderr
    assert "FrozenInstanceError" not in done.stderr
    assert run.regions["error"].str.startswith("Frozen").all()


def test_clients_after_the_first_one_are_counted(run_script):
    done, run = run_script("""
        from distributed import Client

        if __name__ == "__main__":
            quiet = {"dashboard_address": "127.0.0.1:0", "processes": False}
            try:
                import no_such_package
            except ImportError:
                for n in range(3):
                    with Client(n_workers=1, **quiet) as client:
                        print(client.submit(sum, [n]).result())
    """)
    assert done.stdout.splitlines()[:3] == ["0", "1", "2"]
    # What the script handles all the time has not left the client's block.
    assert run.regions["error"].tolist() == [""]
    assert len(run.tasks) == 1
    assert run.manifest.n_other_clients == 2
    assert "first client was connected; 2 later ones were not" in " ".join(run.warnings)
    assert (
        f"of the script's {format_seconds(run.manifest.script_s)} are recorded" in run.warnings[0]
    )


def test_a_client_of_another_cluster_is_counted_and_one_of_the_same_is_recorded(run_script):
    done, run = run_script("""
        from distributed import Client, LocalCluster

        if __name__ == "__main__":
            quiet = {"dashboard_address": "127.0.0.1:0", "n_workers": 1}
            with LocalCluster(**quiet) as one, LocalCluster(**quiet) as two:
                with Client(one) as first, Client(one) as second, Client(two) as other:
                    first.submit(sum, [1]).result()
                    second.submit(max, [2]).result()
                    other.submit(min, [3]).result()
                    raise SystemExit
    """)
    assert done.returncode == 0, done.stderr
    assert set(run.tasks["name"]) == {"sum", "max"}
    assert run.regions["error"].tolist() == [""]
    assert "first client was connected; 1 later one was not" in " ".join(run.warnings)


def test_a_cluster_that_another_client_shuts_down_is_recorded(run_script):
    done, run = run_script("""
        import dask
        from distributed import Client, LocalCluster

        if __name__ == "__main__":
            quiet = {"dashboard_address": "127.0.0.1:0", "n_workers": 1}
            cluster = LocalCluster(**quiet)
            first, second = Client(cluster), Client(cluster.scheduler_address)
            first.submit(sum, [1]).result()
            second.shutdown()
            # Dask closes the cluster at exit, and would ask a scheduler that has ended for long.
            dask.config.set({"distributed.comm.timeouts.connect": "1s"})
            first.close()
    """)
    assert done.returncode == 0, done.stderr
    assert set(run.tasks["name"]) == {"sum"}
    assert run.ends["ok"].tolist() == [True]
    assert run.failures.empty


def test_a_script_that_is_terminated_leaves_its_record(tmp_path):
    script = tmp_path / "my_job.py"
    script.write_text(
        textwrap.dedent("""
        import os, signal, time
        from distributed import Client

        if __name__ == "__main__":
            with Client(n_workers=1, dashboard_address="127.0.0.1:0") as client:
                client.submit(sum, [1]).result()
                if not os.fork():
                    # Its child ends as by itself.
                    os.kill(os.getpid(), signal.SIGTERM)
                    os._exit(0)
                print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
                time.sleep(60)
    """)
    )
    command = [sys.executable, "-m", "commbench.cli", "profile", "my_job.py"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as profiled:
        assert int(profiled.stdout.readline()) == -signal.SIGTERM
        for _ in range(3):
            profiled.send_signal(signal.SIGTERM)
            time.sleep(0.05)
        path = profiled.stdout.read().splitlines()[-1]
    assert profiled.returncode == 130
    assert len(load(tmp_path / path).regions) == 1


def test_workers_that_come_in_the_region_are_said_to_have_no_times(run_script, monkeypatch):
    monkeypatch.delenv("COMMBENCH_TEST_RULES")
    done, run = run_script("""
        from distributed import Client, LocalCluster

        if __name__ == "__main__":
            quiet = {"threads_per_worker": 1, "dashboard_address": "127.0.0.1:0"}
            with LocalCluster(n_workers=0, **quiet) as cluster, Client(cluster) as client:
                cluster.scale(1)
                client.submit(sum, [1]).result()
    """)
    assert run.profile_shares.query("process == 'workers'").empty
    assert "most rules were not applied, because" in " ".join(done.stdout.split())


def test_a_profile_cant_be_resumed(tmp_path):
    case = builders.case(cluster=ClusterSpec(launcher=USER_CODE))
    result = processes.invoke("run", "--resume", builders.written(tmp_path, [case]).path)
    assert "profile it again" in processes.usage_error(result)


@pytest.mark.parametrize(
    ("closed", "known_by"),
    [
        ("", "cluster"), pytest.param("client cluster", "cluster", marks=pytest.mark.slow),
        pytest.param("cluster client", "cluster", marks=pytest.mark.slow),
        ("cluster client", "cluster.scheduler_address"),
    ],
)  # fmt: skip
def test_an_asynchronous_script_is_observed(run_script, closed, known_by):
    source = ASYNCHRONOUS
    if closed:
        calls = "; ".join(f"await {each}.close()" for each in closed.split())
        for context, call in (
            ("async with LocalCluster(n_workers=1, **quiet) as cluster:",
             "cluster = await LocalCluster(n_workers=1, **quiet)\n        if cluster:"),
            ("async with Client(cluster, asynchronous=True) as client:",
             f"client = await Client({known_by}, asynchronous=True)\n            if client:"),
            ("[1, 2]))", f"[1, 2]))\n                {calls}"),
        ):  # fmt: skip
            assert context in source
            source = source.replace(context, call)
    done, run = run_script(source)
    assert done.returncode == 0, done.stderr
    # A client that knows the address only tries to reach the scheduler that is gone.
    assert ("Traceback" in done.stderr) == (known_by != "cluster")
    assert set(run.tasks["name"]) == {"sum"}
    assert run.ends["ok"].tolist() == [True]
    assert [*run.path.parent.iterdir()] == [run.path]


@pytest.mark.parametrize("status", [0, 3])
def test_a_script_that_exits_without_a_client_has_its_status(run_script, status):
    """As the processes of dask-mpi that run the scheduler and the workers."""
    done, run = run_script(f"raise SystemExit({status})")
    assert done.returncode == status
    assert ("connected no distributed.Client" in done.stderr) == (not status)
    assert run is None


@pytest.mark.parametrize(("parameters", "is_workload"), [("client, n=5", True), ("argv=()", False)])
def test_a_script_with_main_of_a_client_is_one_to_run(run_script, parameters, is_workload):
    done, _ = run_script(f"def main({parameters}): pass")
    assert done.returncode == 2
    hint = "it has main(client): commbench run my_job.py"
    assert (hint in " ".join(done.stderr.split())) is is_workload


@pytest.mark.parametrize("status", [0, 3])
def test_nothing_to_diagnose_is_no_success(run_script, status):
    options = ("--fail-on", "any", "--format", "json")
    done, run = run_script(f"raise SystemExit({status})", command="diagnose", options=options)
    assert done.returncode == (status or 2)
    assert ("connected no distributed.Client" in done.stderr) == (not status)
    assert run is None


@pytest.mark.parametrize("safe", ["", "1"])
def test_a_script_imports_what_it_imports_by_itself(tmp_path, monkeypatch, safe):
    """Modules of the folder to which a link leads; with PYTHONSAFEPATH none."""
    monkeypatch.setenv("PYTHONSAFEPATH", safe)
    project = tmp_path / "project"
    project.mkdir()
    (project / "helper.py").write_text("print('helped')")
    (project / "job.py").write_text("import helper")
    (tmp_path / "job.py").symlink_to(project / "job.py")
    for words in ((), ("-m", "commbench.cli", "profile")):
        done = subprocess.run(
            [sys.executable, *words, "job.py"],
            cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.stdout.splitlines() == ["helped"] * (not safe), done.stderr


@pytest.mark.parametrize("first", ["", "import dask", "from distributed import Client"])
def test_a_script_without_a_client_configures_dask_as_by_itself(run_script, tmp_path, first):
    """By variables that it sets before it imports Dask; later ones are too late."""
    script = f"""
        {first}
        import os
        os.environ["DASK_CONFIGURED__HERE"] = "3"
        import dask.config
        os.environ["DASK_LATE"] = "4"
        print(dask.config.get("configured", None), dask.config.get("late", None))
    """
    profiled, run = run_script(script)
    assert profiled.returncode == 2, profiled.stderr
    assert "connected no distributed.Client" in profiled.stderr
    assert run is None
    alone = subprocess.run(
        [sys.executable, tmp_path / "my_job.py"], capture_output=True, text=True, check=True
    )
    assert profiled.stdout == alone.stdout
    assert ("None None" in alone.stdout) is bool(first)


def test_a_script_that_is_missing_is_a_usage_error(tmp_path):
    result = processes.invoke("profile", tmp_path / "none.py")
    assert "there is no file" in processes.usage_error(result)


def test_an_output_that_cannot_be_written_is_an_error_before_the_script_runs(tmp_path):
    (script := tmp_path / "job.py").write_text("raise AssertionError")
    (output := tmp_path / "file").write_text("")
    result = processes.invoke("profile", "--output", output, script)
    assert result.exit_code == 1
    assert "Error: can't make " in result.stderr
    assert "choose another --output" in result.stderr


def test_options_of_run_are_none_of_profile():
    result = processes.invoke("profile", "--backends", "tcp", "job.py")
    assert "profile has no option --backends" in processes.usage_error(result)


@pytest.mark.slow
def test_an_anonymous_profile_leaves_no_name_in_its_directory(run_script, tmp_path):
    source = MAIN.replace("{end}", "raise ValueError('mine')").replace("sum", "planted")
    source = source.replace("def main", "def planted(numbers):\n        return 5\n\n    def main")
    done, run = run_script(source, "5", options=["--anonymize"])
    assert "ValueError: mine" in done.stderr
    assert set(run.tasks["name"]) == {"task-1"}
    # Whether the workers are on this host decides how many cores they have.
    assert {run.manifest.environment["host"]["name"]} == set(run.places["host"]) == {"host-1"}
    for path in run.path.rglob("*.*"):
        text = path.read_bytes().decode(errors="replace")
        names = ("planted", "my_job", "mine", tmp_path.name, f'{platform.node()}"')
        assert [name for name in names if name in text] == []
    assert "planted" not in done.stdout
    # On screen, commands have a path that works.
    named = re.findall(r"commbench \w+ (?:-v )?(\S+-script)$", done.stdout, re.MULTILINE)
    assert {*named} == {str(run.path)}


def test_an_asynchronous_client_that_is_not_closed_is_said_to_be(run_script):
    code = """
        import asyncio
        from distributed import Client

        async def main():
            quiet = {"n_workers": 1, "dashboard_address": "127.0.0.1:0", "asynchronous": True}
            client = await Client(**quiet)
            assert await client.submit(sum, [1, 2]) == 3

        if __name__ == "__main__":
            asyncio.run(main())
    """
    done, run = run_script(code)
    assert done.returncode == 0, done.stderr
    assert {*run.failures["message"]} == {
        "the asynchronous client was not closed before its event loop ended; write "
        "async with Client(…, asynchronous=True) as client: …"
    }


def test_a_script_is_diagnosed_at_once(run_script):
    """Four threads that hold the GIL use one core, and what that costs is said."""
    code = """
        import sys, time
        from distributed import Client

        def hold(k):
            until = time.thread_time() + 0.2
            while time.thread_time() < until:
                pass

        if __name__ == "__main__":
            quiet = {"n_workers": 1, "threads_per_worker": 4, "dashboard_address": "127.0.0.1:0"}
            with Client(**quiet) as client:
                print(client.gather(client.map(hold, range(12))))
                client.submit(print, "in a worker").result()
            sys.__stdout__.write("buffered")
            raise SystemExit(int(sys.argv[2]))
    """
    options = ("--format", "json", "--fail-on", "any")
    done, _ = run_script(code, "--", "--status", "5", command="diagnose", options=options)
    # The status of the script precedes that of findings.
    assert done.returncode == 5, done.stderr
    found = {finding["rule"]: finding for finding in json.loads(done.stdout)}
    assert "the 4 threads of a worker" in found["gil"]["statement"]
    assert "gil" in done.stderr
