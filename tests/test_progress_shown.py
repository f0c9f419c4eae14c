"""The live views: what they make of the reports of a run."""

import io
import math
import sys
import types

import pytest
from rich.console import Console

from keyless.errors import InputError
from keyless.progress import Stages, in_words, notebook_view, terminal_view
from keyless.progress import shown as live


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def reported(*reports):
    clock = Clock()
    stages = Stages(clock=clock)
    for seconds, *report in reports:
        clock.now = seconds
        stages(*report)
    return stages


def test_time_belongs_to_the_stage_whose_step_it_ended():
    stages = reported((2.0, "search", 1, 4, 1.0), (4.0, "search", 2, 4, 2.0), (9.0, "polishing", 1, 0, 3.0))
    assert [(stage.name, stage.seconds) for stage in stages.listed] == [("search", 4.0), ("polishing", 5.0)]
    assert stages.listed[0].left == 4.0
    assert stages.listed[1].left is None
    assert stages.seconds == 9.0


def test_a_stage_that_comes_again_is_the_one_at_work():
    stages = reported((1.0, "search", 1, 2, 1.0), (2.0, "joins", 1, 2, 1.0), (3.0, "search", 2, 2, 4.0))
    assert [stage.name for stage in stages.listed] == ["joins", "search"]
    assert stages.listed[-1].objective == 4.0


def test_a_stage_that_counts_again_has_its_time_once_and_its_own_pace():
    stages = reported(
        (1.0, "search", 1, 2, 1.0), (2.0, "joins", 1, 2, 1.0), (8.0, "search", 2, 2, 1.0), (9.0, "search", 1, 4, 1.0)
    )
    assert stages.timings == {"joins": 1.0, "search": 8.0}
    assert stages.listed[-1].left == 3.0


def test_lines_are_told_where_there_is_no_terminal():
    lines = []
    with terminal_view(Console(file=io.StringIO()), lines=lines.append) as callback:
        callback("search", 1, 4, 2.5)
        callback("search", 2, 4, 2.75)
        callback("polishing", 1, 0, math.nan)
        callback.spent("last steps")
        callback("chance", 1, 2, 0.5)
    assert lines == [
        "trying ways to fit the tables, step 1 of 4, best so far 2.50 nats a row",
        "polishing, step 1, objective –",
        "measuring what chance reaches, step 1 of 2",
    ]


def test_a_long_run_is_one_stage():
    stages = reported(*((k / 10, "search", k, 0, math.nan if k % 3 else float(k)) for k in range(5000)))
    assert [(stage.name, stage.step) for stage in stages.listed] == [("search", 4999)]


def test_a_terminal_shows_stages_and_leaves_nothing_behind():
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=100, color_system=None, _environ={})
    with terminal_view(console) as callback:
        callback("search", 1, 4, 2.5)
        callback("search", 4, 4, 3.25)
        callback("polish[ing]", 1, 0, math.nan)
    shown = file.getvalue()
    for text in ("✓", "Trying ways to fit the tables", "4/4", "3.25", "polish[ing]", "in all"):
        assert text in shown
    # The last thing written takes the view away: the line is erased and the cursor is shown again.
    assert shown.rstrip("\n").endswith("\x1b[2K")


def test_the_table_says_what_is_left():
    stages = reported((10.0, "search", 2, 4, 2.5))
    console = Console(file=io.StringIO(), width=100, color_system=None)
    with console.capture() as taken:
        console.print(live._terminal_table(stages))
    assert "about 10 s left" in taken.get()


def test_a_line_of_the_table_fits_a_terminal_of_80_characters():
    names = ("reading", "map", "candidates", "calibration", "chance", "search")
    stages = reported(*((2.0 * k, name, 5, 120, 12.345) for k, name in enumerate(names, start=1)))
    console = Console(file=io.StringIO(), width=80, color_system=None)
    with console.capture() as taken:
        console.print(live._terminal_table(stages))
    for name in names:
        assert in_words(name) in taken.get()
    assert "5/120" in taken.get()
    assert "about 46 s left" in taken.get()


def test_no_terminal_no_view():
    file = io.StringIO()
    with terminal_view(Console(file=file)) as callback:
        callback("search", 1, 4, 2.5)
    assert file.getvalue() == ""


def test_errors_pass_through():
    console = Console(file=io.StringIO(), force_terminal=True)
    with pytest.raises(ZeroDivisionError), terminal_view(console) as callback:
        callback("search", 1, 0, 1 / 0)


def test_a_notebook_shows_the_same(monkeypatch):
    shown = []

    class Handle:
        def update(self, content):
            shown.append(content)

    def display(content, *, display_id):
        assert display_id
        shown.append(content)
        return Handle()

    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", types.SimpleNamespace(HTML=str, display=display))
    with notebook_view() as callback:
        for step in range(1, 2000):
            callback("<starts>", step, 2000, step / 7)
        callback("polishing", 1, 0, math.inf)
    assert 2 <= len(shown) < 50
    assert "Running for" in shown[0]
    assert "Done in" in shown[-1]
    assert "&lt;starts&gt;" in shown[-1]
    assert "<starts>" not in "".join(shown)
    assert 'max="2000" value="1999"' in shown[-1]
    assert "<td>–</td>" in shown[-1]


def test_a_notebook_is_needed_for_its_view(monkeypatch):
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", None)
    with pytest.raises(InputError, match=r"^notebook_view: must run in a notebook; IPython is not installed\."):
        notebook_view().__enter__()


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.0, "0 s"), (99.4, "99 s"), (100.0, "1:40"), (3599.0, "59:59"), (3700.0, "1:01 h")]
)
def test_times_are_short(seconds, said):
    assert live._clock(seconds) == said
