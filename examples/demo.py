"""The story of digits_fit.py from start to end: train, wonder, add a line, get its values for every epoch.

    make demo

Works in a copy of the example in a temporary folder, so that neither it nor its store stays behind.
"""

import difflib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SCRIPT = Path(__file__).with_name("digits_fit.py")
NAMES = ("weight_norm", "class_accuracy")

CALLBACKS = """\
callbacks = [
    flor.FlorKeras(name="digits"),
]
"""
CALLBACKS_WITH_LOG_LINES = """\

class Look(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        squares = [np.sum(np.square(weights)) for weights in self.model.trainable_variables]
        flor.log("weight_norm", np.sqrt(np.sum(squares)))
        guess = self.model.predict(x_val, verbose=0).argmax(axis=-1)
        hits = [np.mean(guess[y_val == digit] == digit) for digit in range(10)]
        flor.log("class_accuracy", np.round(hits, 2).tolist())


callbacks = [
    Look(),
    flor.FlorKeras(name="digits"),
]
"""


def main() -> None:
    """Tell the story in a folder of its own."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="flor_keras-demo-") as folder:
        demo = Demo(Path(folder))
        demo.tell()
    say(f"The whole demo took {time.monotonic() - began:.0f} s.")


class Demo:
    """One telling of the story."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.script = Path(shutil.copy(SCRIPT, folder))

    def tell(self) -> None:
        """Train, look at what was logged, add log lines, replay, compare the times."""
        say("1. Train. All that digits_fit.py has for it is flor.FlorKeras() among the callbacks of fit.")
        training_secs = self.run("python", self.script.name)

        say("2. What was logged. Training gets better steadily; validation jumps up and down. Why?")
        self.run("flor-keras", "logs", "accuracy", "val_accuracy")

        say("3. Nothing that was logged tells. Two guesses: the weights grow wild, or some digits are worse.")
        self.add_log_lines()

        say("4. Compute both for the run that is over, at every epoch, without training again.")
        replay_secs = self.run("flor-keras", "replay", self.script.name, *NAMES)

        say("5. They stand beside what was recorded, in the same run.")
        self.run("flor-keras", "logs", "val_accuracy", "class_accuracy")
        num_epochs, worst = self.read_values()

        say(
            f"All {num_epochs} epochs have both values. The weights grow slowly and evenly: not that. "
            f"The digits recognised worst on average are {', '.join(map(str, worst))}. "
            "RandomRotation(0.5) turns images by up to half a turn, and a 9 upside down is a 6."
        )
        say(
            f"Training took {training_secs:.1f} s, the replay {replay_secs:.1f} s, "
            "each as a whole process with the start of TensorFlow."
        )

    def run(self, command: str, *words: str) -> float:
        """Run a command as a person types it; return the seconds it took."""
        print(f"$ {command} {' '.join(words)}", flush=True)
        began = time.monotonic()
        done = subprocess.run(
            [*executable(command), *words], stderr=subprocess.PIPE, text=True, **self.place()
        )
        seconds = time.monotonic() - began
        is_ours = done.returncode or command == "flor-keras"
        lines = done.stderr.splitlines()
        shown = lines if is_ours else [line for line in lines if line.startswith("flor_keras:")]
        print("".join(f"{line}\n" for line in shown), end="", file=sys.stderr, flush=True)
        if done.returncode:
            sys.exit(f"{command} {' '.join(words)} ended with exit status {done.returncode}.")
        return seconds

    def place(self) -> dict:
        """Return where commands run: in the folder, with its store, and with a quiet TensorFlow."""
        store = str(self.folder / ".flor")
        return {"cwd": self.folder, "env": {**os.environ, "FLOR_STORE": store, "TF_CPP_MIN_LOG_LEVEL": "3"}}

    def add_log_lines(self) -> None:
        """Add what was forgotten to the script, and show the change."""
        before = self.script.read_text(encoding="utf-8")
        after = before.replace(CALLBACKS, CALLBACKS_WITH_LOG_LINES)
        self.script.write_text(after, encoding="utf-8")
        name = self.script.name
        change = difflib.unified_diff(before.splitlines(), after.splitlines(), name, name, n=1, lineterm="")
        print("\n".join(change), flush=True)

    def read_values(self) -> tuple[int, list[int]]:
        """Check that every epoch has its values; return how many epochs there are, and the worst digits."""
        output = subprocess.check_output(
            [*executable("flor-keras"), "logs", *NAMES, "--json"], **self.place()
        )
        rows = json.loads(output)
        missing = [row["epoch"] for row in rows if any(row[name] is None for name in NAMES)]
        if missing or not rows:
            sys.exit(f"Without values: epochs {missing} of {len(rows)}.")
        by_digit = zip(*(row["class_accuracy"] for row in rows), strict=True)
        mean = [sum(accuracies) / len(rows) for accuracies in by_digit]
        return len(rows), sorted(range(10), key=mean.__getitem__)[:3]


def executable(command: str) -> list[str]:
    """Return the program behind a command: those of the environment this runs in."""
    return [sys.executable] if command == "python" else [str(Path(sys.executable).with_name(command))]


def say(text: str) -> None:
    """Print a paragraph."""
    print(f"\n{text}\n", flush=True)


if __name__ == "__main__":
    main()
