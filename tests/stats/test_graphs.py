import builders
import pytest
from builders import graph, task

CASE = builders.case(workload="job")


def test_times_of_a_statement_are_those_of_its_graphs_with_tasks_left():
    records = [
        graph(CASE, 0, 0.0, "a.py:1 x.compute()", nbytes=5),
        task(CASE, 1.0, 3.0, graph=0, name="read"),
        task(CASE, 3.0, 4.0, graph=0, name="sum"),
        # A fetch is no task, but part of the time.
        task(CASE, 4.0, 5.0, graph=0, name="sum", action="transfer"),
        graph(CASE, 1, 2.0, "a.py:1 x.compute()", nbytes=6),
        task(CASE, 6.0, 7.0, graph=1, name="sum"),
        # What is computed already has no tasks.
        graph(CASE, 2, 8.0, "a.py:2 y.compute()"),
        graph(CASE, 3, 8.0),
        task(CASE, 8.0, 9.0, graph=3, name="load"),
        task(CASE, 9.0, 9.5, name="unknown"),
    ]
    table = builders.in_memory([CASE], records).statements
    columns = ["code", "n_graphs", "nbytes", "n_tasks", "task_seconds", "name"]
    assert table[columns].values.tolist() == [
        ["a.py:1 x.compute()", 2, 11, 3, 4.0, "read"],
        ["", 1, 0, 1, 1.0, "load"],
        ["a.py:2 y.compute()", 1, 0, 0, 0.0, ""],
    ]
    assert table["seconds"].tolist() == pytest.approx([7.0, 1.0, 0.0])
    assert {*table["workload"]} == {"job"}


def test_tasks_of_a_graph_may_run_in_a_later_region():
    later = builders.case(workload="later")
    records = [graph(CASE, 0, 0.0, "a.py:1 x.persist()"), task(later, 5.0, 6.0, graph=0)]
    table = builders.in_memory([CASE, later], records).statements
    assert table[["case_id", "n_tasks"]].values.tolist() == [[CASE.id, 1]]
    assert table["seconds"].tolist() == pytest.approx([6.0])


def test_runs_without_graphs_have_no_statements():
    assert builders.in_memory([CASE], [task(CASE, 0.0, 1.0)]).statements.empty
