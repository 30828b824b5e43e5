"""Make the pictures of the docs: a terminal session, and TensorBoard with a run in it.

python docs/pictures.py [--chromium chromium]

Both show what the commands print and write, of a run recorded now. Chromium is Debian's package of that name.
"""

from __future__ import annotations

import argparse
import os
import pty
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from rich.console import Console
from rich.text import Text

DOCS = Path(__file__).resolve().parent
SCRIPT = "digits_fit.py"
ARGUMENTS = ["--arg", "epochs=8", "--arg", "filters=16"]
SESSION = [
    "flor-keras runs",
    f"flor-keras replay {SCRIPT} --probe weight_norm --probe learning_rate --workers 2 --yes",
    "flor-keras logs val_accuracy weight_norm",
]
COLUMNS = 104
PORT = 6111
_MOVE = re.compile(r"\x1b\[(\d*)([AK])|\x1b\[\?\d+[hl]|[\r\n]|[^\x1b\r\n]+|\x1b\[[\d;]*m|\x1b.")


def printed(command: str, folder: Path, environment: dict[str, str]) -> bytes:
    """Run a command on a terminal of its own; return what it wrote there."""
    master, slave = pty.openpty()
    words = [str(Path(sys.executable).with_name("flor-keras")), *command.split()[1:]]
    process = subprocess.Popen(
        words, cwd=folder, env=environment, stdin=slave, stdout=slave, stderr=slave, start_new_session=True
    )
    os.close(slave)
    written = b""
    try:
        while chunk := os.read(master, 1 << 16):
            written += chunk
    except OSError:  # the other end is closed
        pass
    os.close(master)
    if process.wait():
        raise SystemExit(f"{command} failed:\n{written.decode()}")
    return written


def on_screen(written: bytes) -> str:
    """Return what a terminal shows in the end: lines that were overwritten are gone, colours stay."""
    lines, row = [""], 0
    for match in _MOVE.finditer(written.decode()):
        part = match[0]
        if part == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif match[2] == "A":
            row = max(0, row - int(match[1] or 1))
        elif match[2] == "K":
            lines[row] = ""
        elif part != "\r" and not part.startswith("\x1b[?"):
            lines[row] += part
    return "\n".join(lines).rstrip()


def draw_session(folder: Path, environment: dict[str, str], picture: Path) -> None:
    """Run the session and draw it."""
    with open(os.devnull, "w") as nowhere:
        console = Console(record=True, width=COLUMNS, file=nowhere, force_terminal=True)
        for command in SESSION:
            console.print(Text(f"$ {command}", style="bold green"))
            console.print(Text.from_ansi(on_screen(printed(command, folder, environment))))
            console.print()
        picture.write_text(console.export_svg(title="flor-keras"), encoding="utf-8")


def draw_tensorboard(folder: Path, environment: dict[str, str], chromium: str, picture: Path) -> None:
    """Write event files, have TensorBoard show them, and take a picture of the page."""
    flor_keras = str(Path(sys.executable).with_name("flor-keras"))
    subprocess.run(
        [flor_keras, "tensorboard", "latest", "--logdir", "events"], cwd=folder, env=environment, check=True
    )
    board = subprocess.Popen(
        [sys.executable, "-m", "tensorboard.main", "--logdir", "events", "--port", str(PORT)],
        cwd=folder,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        address = f"http://localhost:{PORT}/"
        _wait_for(address)
        words = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-webgl", "--hide-scrollbars"]
        words += [
            f"--user-data-dir={folder / 'chromium'}",
            "--window-size=1280,1240",
            "--virtual-time-budget=30000",
        ]
        subprocess.run(
            [
                chromium,
                *words,
                f"--screenshot={picture}",
                f"{address}?darkMode=false&smoothing=0#timeseries",
            ],
            check=True,
            timeout=120,
            stderr=subprocess.DEVNULL,
        )
    finally:
        board.terminate()
        board.wait(10)


def _wait_for(address: str, secs: float = 60.0) -> None:
    until = time.monotonic() + secs
    while True:
        try:
            urllib.request.urlopen(f"{address}data/runs").read()
            return
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.5)


def main() -> None:
    """Record a run, and draw both pictures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--chromium", default=shutil.which("chromium") or "chromium")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="flor-pictures-") as scratch:
        folder = Path(scratch)
        shutil.copy(DOCS.parent / "examples" / SCRIPT, folder)
        environment = {
            **os.environ,
            "FLOR_STORE": str(folder / ".flor"),
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "COLUMNS": str(COLUMNS),
            "TERM": "xterm-256color",
        }
        command = [sys.executable, SCRIPT, *ARGUMENTS]
        subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)
        draw_session(folder, environment, DOCS / "terminal.svg")
        draw_tensorboard(folder, environment, asked.chromium, DOCS / "tensorboard.png")


if __name__ == "__main__":
    main()
