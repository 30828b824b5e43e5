"""The example notebook runs from top to bottom, renders bars and tables, and shows the values it shows."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytestmark = pytest.mark.slow
NOTEBOOK = Path(__file__).resolve().parents[2] / "examples" / "hindsight.ipynb"


def results(notebook, kind: str) -> list[str]:
    """Return what the cells show of one MIME type, and ``stdout`` what they print."""
    shown = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    if kind == "stdout":
        return [output.text for output in shown if output.output_type == "stream" and output.name == kind]
    return [output.data[kind] for output in shown if kind in output.get("data", {})]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_notebook_runs_and_gives_what_it_shows(tmp_path, monkeypatch):
    monkeypatch.setenv("FLOR_STORE", str(tmp_path / ".flor"))
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    shutil.copy(NOTEBOOK, tmp_path)
    notebook = nbformat.read(tmp_path / NOTEBOOK.name, as_version=4)
    assert all(cell.outputs for cell in notebook.cells[3::2] if cell.cell_type == "code"), (
        "execute it before committing"
    )
    where = {"metadata": {"path": str(tmp_path)}}
    client = nbclient.NotebookClient(notebook, timeout=120, coalesce_streams=True, resources=where)
    client.execute()  # raises what a cell raises
    tables = results(notebook, "text/html")
    assert len([table for table in tables if "<th>weight_norm</th>" in table]) == 1
    assert len([table for table in tables if "<th>accuracy of 9</th>" in table]) == 1
    verdict, accuracies = results(notebook, "stdout")
    assert verdict == "exact\n"
    assert results(notebook, "application/vnd.jupyter.widget-view+json"), "no progress bar"
    after_imports = notebook.cells[2:]
    assert not [o for cell in after_imports for o in cell.get("outputs", ()) if o.get("name") == "stderr"]
    assert results(notebook, "image/png")
    # Another machine may round otherwise than ours; what a run recorded and what is computed of it agree on each.
    assert [line.split()[-1] for line in accuracies.splitlines()] == [
        f"{value:.4f}" for value in recorded(tmp_path)
    ]


def recorded(folder: Path) -> list[float]:
    from flor_keras import reading

    return [entry.value for entry in reading.run("digits", folder / ".flor").entries("val_accuracy")]
