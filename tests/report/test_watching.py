"""Progress of `sd.tune` and `sd.compile`: where it is shown, and that it breaks nothing."""

from __future__ import annotations

import io
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

import stormdrop as sd
from stormdrop.base.errors import UserError
from stormdrop.report.live import StatusLine
from stormdrop.report.watching import Watching, is_watched, watched
from stormdrop.tuning.events import Warned
from tests.report.test_model_progress import STARTED
from tests.support.remarks import every_remark, remarks
from tests.support.tiny_onnx import dense


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return not super().isatty()  # raises once it is closed


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORMDROP_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("STORMDROP_THREADS", "1")


def matmul() -> sd.Task:
    a, b = sd.tensor("A", (8, 8)), sd.tensor("B", (8, 8), constant=True)
    i, j, k = sd.axis(8), sd.axis(8), sd.reduce_axis(8)
    return sd.Task([sd.compute("C", (i, j), sd.sum(a[i, k] * b[k, j], k))])


def test_progress_is_shown_in_a_terminal_and_not_in_a_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert not is_watched()
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert is_watched()
    sys.stderr.close()
    assert not is_watched()
    monkeypatch.setattr(sys, "stderr", None)
    assert not is_watched()


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("progress", [True, False, None])
def test_progress_can_be_forced_on_and_off(tmp_path: Path, capsys: pytest.CaptureFixture[str], progress: Any) -> None:
    sd.tune(dense(tmp_path), trials=2, search="random", progress=progress)
    out, err = capsys.readouterr()
    assert out == ""
    assert ("tuning" in err) is (progress is True)
    sd.tune(matmul(), trials=2, search="random", progress=progress)
    assert ("tuning task" in capsys.readouterr().err) is (progress is True)
    sd.compile(dense(tmp_path), progress=progress)


def test_progress_that_is_no_flag_is_refused() -> None:
    with pytest.raises(UserError, match="progress='yes': it takes True, False or None, not str"):
        sd.tune(matmul(), progress="yes")  # pyright: ignore


def test_the_functions_keep_their_names_and_options() -> None:
    assert sd.tune is sd.tune
    assert (sd.tune.__name__, sd.compile.__name__) == ("tune", "compile")
    assert "Searches for the fastest schedule" in (sd.tune.__doc__ or "")


def test_a_view_that_fails_is_dropped_and_the_work_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with Watching(True) as watching:
        watching.hear(STARTED)
        terminal.close()
        watching.hear(Warned("to a stream that is closed"))
        assert not watching.is_shown
        watching.hear(STARTED)
    assert sys.stderr is terminal


@pytest.mark.usefixtures("cache")
def test_tuning_with_a_closed_stderr_ends_as_always(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    stream.close()
    monkeypatch.setattr(sys, "stderr", stream)
    assert sd.tune(dense(tmp_path), trials=2, search="random", progress=True).trials == 2


def test_warnings_are_shown_by_the_view_or_given_to_a_listener_or_are_python_warnings(
    capsys: pytest.CaptureFixture[str],
) -> None:
    heard: list[object] = []

    def tune(*, progress: Any = None, listen: Callable[[Any], None] | None = None) -> None:
        from stormdrop.tuning.api import heard_by
        from stormdrop.tuning.events import ignore

        heard_by(progress, listen or ignore)(Warned("slow disk"))

    shown: Callable[..., None] = watched(tune)
    with every_remark() as recorded:
        shown(progress=True)
        assert "slow disk" in capsys.readouterr().err
        shown(progress=False, listen=heard.append)
        assert heard == [Warned("slow disk")]
        assert remarks(recorded) == []
        shown(progress=False)
    assert remarks(recorded) == ["slow disk"]
    assert capsys.readouterr().err == ""


def test_a_line_that_is_done_leaves_the_terminal_as_it_was() -> None:
    stream = Terminal()

    def broken_off() -> None:
        with StatusLine(Console(file=stream, force_terminal=True)) as line:
            line.tell("compiling")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        broken_off()
    assert "compiling" in stream.getvalue()
    assert stream.getvalue().rindex("\x1b[?25h") > stream.getvalue().rindex("\x1b[?25l")  # the cursor
    assert stream.getvalue().endswith("\x1b[2K")  # the line is erased


INTERRUPTED = """
import stormdrop as sd, sys
A, B = sd.tensor("A", (64, 64)), sd.tensor("B", (64, 64), constant=True)
i, j, k = sd.axis(64), sd.axis(64), sd.reduce_axis(64)
sd.tune(sd.Task([sd.compute("C", (i, j), sd.sum(A[i, k] * B[k, j], k))]), seconds=60, search="random")
print("ended")
"""


@pytest.mark.usefixtures("cache")
def test_ctrl_c_leaves_a_clean_terminal() -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", INTERRUPTED]
    environment = {**os.environ, "TERM": "xterm"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, text=True, env=environment) as process:
        os.close(theirs)
        shown = b""
        while b"improvement" not in shown:  # something was timed
            shown += os.read(ours, 4096)
        process.send_signal(signal.SIGINT)
        while True:
            try:
                shown += os.read(ours, 4096)
            except OSError:  # the other end is closed
                break
        out, _ = process.communicate(timeout=60)
    os.close(ours)
    assert out == "ended\n"
    assert shown.rindex(b"\x1b[?25h") > shown.rindex(b"\x1b[?25l")
    assert b"Traceback" not in shown


class Display:
    """IPython's display in a notebook."""

    def __init__(self) -> None:
        self.bundles: list[dict[str, str]] = []

    def display(self, bundle: dict[str, str], raw: bool, display_id: bool) -> Display:
        assert raw
        assert display_id
        self.bundles.append(bundle)
        return self

    def update(self, bundle: dict[str, str], raw: bool) -> None:
        self.bundles.append(bundle)


def test_a_notebook_has_a_board_that_is_drawn_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    ipython, display = ModuleType("IPython"), Display()
    ipython.get_ipython = lambda: SimpleNamespace(kernel=1)  # pyright: ignore
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)  # pyright: ignore
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert is_watched()
    with Watching(is_watched()) as watching:
        watching.hear(STARTED)
        assert "Conv3x3+Relu" in display.bundles[0]["text/plain"]
        assert display.bundles[0]["text/html"].startswith("<pre>")
        watching.tell("timing both <in turns>")
        assert display.bundles[-1]["text/html"] == "<pre>timing both &lt;in turns&gt;</pre>"
    assert display.bundles[-1] == {"text/plain": ""}


def test_nothing_is_drawn_once_the_call_has_ended(capsys: pytest.CaptureFixture[str]) -> None:
    with Watching(True) as watching:
        pass
    watching.hear(Warned("late"))
    watching.tell("late")
    assert capsys.readouterr().err == ""


def test_importing_and_compiling_load_no_rich_in_a_script(tmp_path: Path) -> None:
    script = f"import sys, stormdrop as sd; sd.compile({str(dense(tmp_path))!r}); print('rich' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("False\n", "")
