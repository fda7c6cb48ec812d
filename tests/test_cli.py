"""The command line: what it prints, its exit codes, and what it imports."""

import inspect
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
import typer.main
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image
from rich.console import Console
from safetensors.torch import load_file, save_file
from torch import nn
from typer.testing import CliRunner, Result

import operant
from operant import Classifier, Samples, load_digits, read_samples, results, spawn
from operant.__main__ import main
from operant.assess import Assessment
from operant.campaign.init import NAME
from operant.cli import app
from operant.cli.repair import MAX_DROP
from operant.conditions import Recipe, uniform
from operant.generate import RecipeDraws
from operant.networks import fit, load_weights, save_weights
from operant.report.failures import LIMIT
from operant.retrain import Schedule, repair

MODULE = """
from torch import nn

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(
            nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 64, 3)
        )

class Builders:
    net = Net

def softmaxed():
    return nn.Sequential(Net(), nn.Softmax(1))

def broken():
    raise KeyError("no such layer")

def needs(width):
    return nn.Linear(width, 3)

def number():
    return 3

settings = {"width": 3}
"""


def built() -> nn.Module:
    """The network that the file above builds, with fixed weights."""
    module = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(256, 3))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / parameter[0].numel() ** 0.5)
    return module.eval()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A user's folder: code, weights, and data that the model gets right."""
    (tmp_path / "users_code.py").write_text(MODULE)
    (tmp_path / "importing_nothing.py").write_text("import a_package_nobody_has\n")
    (tmp_path / "raising.py").write_text("1 / 0\n")
    save_weights(built(), tmp_path / "net.safetensors")
    x = torch.rand(90, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        y = built()((x - 0.1) / 0.9).argmax(1)
    np.savez(tmp_path / "data.npz", x=x.numpy(), y=y.numpy())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    sys.modules.pop("users_code", None)


@pytest.fixture
def run(folder: Path) -> Callable[..., Result]:
    def invoke(*arguments: str) -> Result:
        result = CliRunner().invoke(app, ["doctor", *arguments])
        assert result.exception is None or isinstance(result.exception, SystemExit)
        return result

    return invoke


HEALTHY = ["users_code:Net", "--weights", "net.safetensors", "--data", "data.npz", "--mean", "0.1", "--std", "0.9"]


def test_a_healthy_model_gets_no_findings_and_its_notes_are_printed(run: Callable[..., Result]) -> None:
    result = run(*HEALTHY)
    assert result.exit_code == 0, result.output
    assert "batch norm folded, channels last: in use" in result.stdout
    assert "1 of 1 batch norms folded" in result.stdout
    assert "nothing found" in result.stdout


def test_a_model_may_be_named_by_a_path_of_attributes(run: Callable[..., Result]) -> None:
    assert run("users_code:Builders.net", *HEALTHY[1:]).exit_code == 0


def test_findings_are_printed_with_advice_and_errors_give_exit_code_1(run: Callable[..., Result]) -> None:
    result = run("users_code:softmaxed", "--data", "data.npz")
    assert result.exit_code == 1
    assert "error outputs are probabilities" in result.stdout
    assert "Return the scores before the softmax" in result.stdout
    assert "Traceback" not in result.output


def test_warnings_alone_give_exit_code_0(run: Callable[..., Result], folder: Path) -> None:
    module = built()
    with torch.no_grad():
        module[4].weight.mul_(1e4), module[4].bias.mul_(1e4)
    save_weights(module, folder / "saturated.safetensors")
    result = run(*HEALTHY[:2], "saturated.safetensors", *HEALTHY[3:])
    assert result.exit_code == 0
    assert "warning vanishing gradients" in result.stdout


def test_bounds_are_two_numbers(run: Callable[..., Result]) -> None:
    result = run(*HEALTHY, "--bounds", "0", "255")
    assert result.exit_code == 1
    assert "range looks like 0..1" in result.stdout


def test_test_sets_and_bytes_are_read_from_npz_files(run: Callable[..., Result], folder: Path) -> None:
    with np.load(folder / "data.npz") as data:
        pixels = (255 * data["x"][:, 0]).round().astype(np.uint8)
        np.savez(folder / "set.npz", x_train=pixels[:2], y_train=data["y"][:2], x_test=pixels, y_test=data["y"])
    result = run(*HEALTHY[:3], "--data", "set.npz", "--mean", "0.1", "--std", "0.9")
    assert result.exit_code == 0, result.output
    assert "Samples(90 x (1, 8, 8)" in result.stdout


def test_folders_of_pictures_are_read(run: Callable[..., Result], folder: Path) -> None:
    for label in ("cat", "dog", "eel"):
        (folder / "pictures" / label).mkdir(parents=True)
        for i in range(3):
            picture = Image.fromarray(np.full((10, 10), 20 * i, dtype=np.uint8))
            picture.save(folder / "pictures" / label / f"{i}.png")
    result = run(*HEALTHY[:3], "--data", "pictures", "--size", "8", "8")
    assert "Samples(9 x (1, 8, 8), 3 classes)" in result.stdout
    assert "classes: 0 is 'cat', 1 is 'dog', 2 is 'eel'" in result.stdout
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            "users_code --data data.npz",
            "package.module:callable or file.py:callable, got 'users_code'",
        ),
        (
            "users_code: --data data.npz",
            "package.module:callable or file.py:callable, got 'users_code:'",
        ),
        ("nowhere.at_all:Net --data data.npz", "there is no module nowhere.at_all; run this from the folder"),
        ("users_code.deeper:Net --data data.npz", "there is no module users_code.deeper"),
        ("importing_nothing:Net --data data.npz", "importing importing_nothing failed: ModuleNotFoundError"),
        ("raising:Net --data data.npz", "importing raising failed: ZeroDivisionError: division by zero"),
        ("users_code:Nets --data data.npz", "users_code has no Nets; it has Net, Builders, softmaxed"),
        ("users_code:Builders.other --data data.npz", "users_code has no Builders.other; it has net"),
        ("users_code:settings --data data.npz", "users_code:settings must be a callable"),
        ("users_code:broken --data data.npz", "KeyError: 'no such layer'"),
        ("users_code:needs --data data.npz", "must build the model without arguments, but raised TypeError"),
        ("users_code:needs --data data.npz", "a function from inputs to logits must be wrapped in a module"),
        ("users_code:number --data data.npz", "users_code:number() must return a torch.nn.Module, got int"),
        ("users_code:Net --data absent.npz", "there is no absent.npz"),
        ("users_code:Net --data users_code.py", "users_code.py must be an npz file, or a folder of pictures"),
        ("users_code:Net --data torn.npz", "torn.npz is not a readable npz file"),
        ("users_code:Net --data .", "must hold one folder per class"),
        ("users_code:Net --data data.npz --weights absent.safetensors", "there is no absent.safetensors"),
        ("users_code:Net --data data.npz --weights data.npz", "data.npz is not a readable safetensors file"),
        ("users_code:softmaxed --data data.npz --weights net.safetensors", "does not hold the weights"),
        ("users_code:Net --data data.npz --bounds 1 0", "low < high, got (1.0, 0.0)"),
        ("users_code:Net --data data.npz --std 0", "std must be positive and finite, got 0.0"),
        (
            "users_code:Net --data data.npz --std 1e308",
            "std must be positive and finite in float32 too, from",
        ),
        ("users_code:Net --data data.npz --mean 1;2", "--mean must be a number, or numbers separated by commas"),
    ],
)
def test_what_cannot_run_is_explained_in_one_sentence(
    run: Callable[..., Result], folder: Path, arguments: str, sentence: str
) -> None:
    (folder / "torn.npz").write_bytes((folder / "data.npz").read_bytes()[:-200])
    result = run(*arguments.split())
    assert result.exit_code == 2
    assert sentence in result.stderr
    assert result.stderr.startswith("cannot run: ")
    assert len(result.stderr.splitlines()) == 1
    assert result.stdout == ""


def test_one_value_per_channel_is_split_at_commas(run: Callable[..., Result]) -> None:
    result = run("users_code:Net", "--data", "data.npz", "--mean", "0.1,0.2,0.3")
    assert result.exit_code == 1
    assert "one value per channel (1), got [0.1, 0.2, 0.3]" in result.stdout


def test_the_installed_command_finds_code_in_the_current_folder(folder: Path) -> None:
    command = [sys.executable, "-P", "-m", "operant", "doctor", *HEALTHY]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    assert "nothing found" in result.stdout


class Stopped(ModuleType):
    """Raises KeyboardInterrupt when read from."""

    def __getattr__(self, name: str) -> object:
        raise KeyboardInterrupt


def test_ctrl_c_during_imports_prints_one_word(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "operant.cli", Stopped("operant.cli"))
    with pytest.raises(SystemExit) as ended:
        main()
    assert (ended.value.code, capsys.readouterr().err) == (130, "stopped\n")


IMPORTS = """
import os, signal
try:
    os.kill(os.getpid(), signal.{signal})
    sum(range(1000))
except KeyboardInterrupt:
    raise ImportError("as extension modules do")
print("torch is imported")
"""


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 129)])
@pytest.mark.parametrize("command", ["demo", "run", "report", "study robot", "triage x"])
def test_a_signal_while_torch_is_imported_gives_one_line(tmp_path: Path, command: str, name: str, code: int) -> None:
    (tmp_path / "torch.py").write_text(IMPORTS.replace("{signal}", name))
    path = os.pathsep.join([str(tmp_path), str(Path(operant.__file__).parents[1])])
    ended = subprocess.run(
        [sys.executable, "-m", "operant", *command.split()],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == code
    lines = (ended.stdout + ended.stderr).splitlines()  # a study shows progress on standard error
    assert sorted(lines)[:2] == ["operant: loading", next(line for line in lines if line.startswith("stopped: "))]
    assert len(lines) == 3
    assert "torch is imported" in ended.stdout
    if command == "run":
        assert ended.stderr.startswith("stopped: before any work began. To resume: operant run")


COMMANDS = {
    "demo": ("demo", "operant.demo.run_demo"),
    "init": ("init", "operant.campaign.init.write_example"),
    "run": ("run", "operant.campaign.config.load_config"),
    "report": ("report", "operant.report.writing.write_report"),
    "triage": ("triage x", "operant.triage.open_desk"),
    "doctor": (f"doctor {' '.join(HEALTHY)}", "operant.campaign.build.read_samples"),
    "field": ("field a:b --field x --train x", "operant.model.importing.build_module"),
    "assess": ("assess a:b --field x --requirement 0.1", "operant.model.importing.build_module"),
    "export": ("export a:b --field x --train x", "operant.model.importing.build_module"),
    "repair": ("repair a:b --field x --train x", "operant.model.importing.build_module"),
    "robot": (
        "robot a:b --train x --test x --radius 0.1 --requirement 0.5",
        "operant.model.importing.build_module",
    ),
    "study": ("study tiny", "operant.cli.study._accepted_options"),
}


@pytest.mark.parametrize("command", typer.main.get_command(app).commands)
@pytest.mark.usefixtures("own_studies")
def test_every_command_ends_with_code_2_after_an_unexpected_error(
    command: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise KeyError("nobody expected this")

    line, function = COMMANDS[command]
    monkeypatch.setattr(function, fails)
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    done = CliRunner().invoke(app, line.split())
    assert done.exit_code == 2, done.output
    assert "cannot run: KeyError: 'nobody expected this'" in done.output
    assert [file for file in folder.glob("operant-traceback-*.txt") if str(file) in "".join(done.output.split())]


def test_an_error_outside_of_commands_ends_with_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("operant.cli.study.installed_studies", lambda: 1 / 0)
    monkeypatch.setattr(sys, "argv", ["operant", "study"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("cannot run: ZeroDivisionError: division by zero. This is a fault")


# Start-up

HEAVY = ("torch", "numpy", "scipy", "sklearn", "pydantic", "matplotlib")
SEE_IMPORTS = f"""
import runpy, sys
sys.argv = ["operant", *sys.argv[1:]]
try:
    runpy.run_module("operant", run_name="__main__")
except SystemExit as end:
    own = [name for name in sys.modules if name.startswith("operant.") and not name.startswith("operant.cli")]
    heavy = [name for name in {HEAVY} if name in sys.modules]
    print("exit code", end.code, "imported", own + heavy)
"""


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        ("--help", 0, "doctor"),
        ("--version", 0, f"operant {operant.__version__}"),
        ("asess", 2, "Did you mean 'assess'?"),
        *((f"{command} --help", 0, "Usage:") for command in typer.main.get_command(app).commands),
    ],
)
def test_help_version_and_mistyped_commands_import_nothing_heavy(arguments: str, code: int, text: str) -> None:
    command = [sys.executable, "-c", SEE_IMPORTS, *arguments.split()]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert text in " ".join((ended.stdout + ended.stderr).split())
    assert f"exit code {code} imported []" in ended.stdout


def test_help_groups_the_commands() -> None:
    shown = CliRunner().invoke(app, ["--help"]).stdout
    words = ["Start", "demo", "init", "doctor", "Campaign", "run", "report", "triage", "robot", "Measure", "assess"]
    found = [re.search(rf"(?m)^(╭─|│) {word} ", shown) for word in [*words, "Research", "study"]]
    assert all(found)
    assert (starts := [match.start() for match in found if match]) == sorted(starts)


def test_defaults_are_those_of_the_library() -> None:
    """The command line repeats them, since importing them takes long."""
    defaults = {
        f"{name} {parameter.name}": parameter.default
        for name, command in typer.main.get_command(app).commands.items()
        for parameter in command.params
    }
    assert defaults["report limit"] == LIMIT
    assert defaults["run config"] == Path(NAME)
    schedule = Schedule()
    assert defaults["repair steps"] == schedule.steps
    assert defaults["repair optimiser"] is None  # that of [retrain], or else the schedule's
    assert inspect.signature(repair).parameters["max_drop"].default == MAX_DROP


# operant assess

ASSESS = "assess digit_net:net --weights net.safetensors --labels 60 --out out"


def test_the_exit_code_of_assess_says_whether_the_requirement_is_met(digits: Path) -> None:
    met = CliRunner().invoke(app, f"{ASSESS} --field field.npz --requirement 0.5".split())
    assert met.exit_code == 0, met.output
    assert "The model misclassifies an estimated" in met.output
    assessment = results.load(digits / "out" / "assessment.json", Assessment)
    assert assessment.labels == 60
    missed = CliRunner().invoke(app, f"{ASSESS} --field field.npz --requirement 0.0001".split())
    assert missed.exit_code == 1, missed.output
    between = f"{(assessment.pmi + assessment.claim) / 2:.4f}"
    unclear = CliRunner().invoke(app, f"{ASSESS} --field field.npz --requirement {between}".split())
    assert unclear.exit_code == 2, unclear.output
    assert "undecided" in unclear.output
    assert "labels are too few" in unclear.output or "collect more field inputs" in unclear.output


def test_assess_takes_a_model_that_is_certain_of_everything(digits: Path) -> None:
    weights = load_file(digits / "net.safetensors")
    save_file(weights | {name: 1e6 * weights[name] for name in ("3.weight", "3.bias")}, digits / "net.safetensors")
    result = CliRunner().invoke(app, f"{ASSESS} --field field.npz --requirement 0.5".split())
    assert result.exit_code == 0, result.output
    assert "inputs were drawn by mass alone" in " ".join(result.output.split())


def test_assessments_in_one_folder_share_the_allowed_error(digits: Path) -> None:
    assessments = []
    for labels in (40, 80, 120, 80):
        command = (
            f"assess digit_net:net --weights net.safetensors --field field.npz --requirement 0.5 --labels {labels}"
        )
        done = CliRunner().invoke(app, [*command.split(), "--out", "out"])
        assert done.exit_code == 0, done.output
        assessments.append(results.load(digits / "out" / "assessment.json", Assessment))
    assert [1 - a.confidence for a in assessments] == pytest.approx([0.0375, 0.009375, 0.00234375, 0.009375])
    assert assessments[3] == assessments[1]


def test_assess_requests_labels_and_resumes(digits: Path) -> None:
    data = load_digits().train[400:]
    np.savez("blind.npz", x=data.x)
    command = f"{ASSESS} --field blind.npz --requirement 0.5".split()
    waiting = CliRunner().invoke(app, command)
    assert waiting.exit_code == 2, waiting.output
    assert "60 of 60 inputs have no label yet" in waiting.output
    labels = {f"blind.npz[{i}].png": y for i, y in enumerate(data.labels.tolist())}
    table = Path("out/to_label/labels.csv")
    names = [line.split(",")[0] for line in table.read_text().splitlines()[1:]]
    table.write_text("name,label\n" + "".join(f"{name},{labels[name]}\n" for name in names))
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    known = CliRunner().invoke(app, f"{ASSESS} --field field.npz --requirement 0.5".split())
    assert known.output == done.output, "labels from people and from a file give the same result"


def write_pictures(folder: Path, data: Samples, names: Sequence[str]) -> None:
    """One folder per class, with these names."""
    for i, (x, y) in enumerate(zip(data.x, data.labels.tolist(), strict=True)):
        (folder / names[y]).mkdir(parents=True, exist_ok=True)
        Image.fromarray((x[0] * 255).round().to(torch.uint8).numpy()).save(folder / names[y] / f"{i:03}.png")


def test_assess_names_classes_by_the_folders_of_the_training_data(digits: Path) -> None:
    names = ["a zero", "b one", "c two", "d three", "e four", "f five", "g six", "h seven", "i eight", "j nine"]
    train = load_digits().train
    write_pictures(Path("train"), train[:200], names)
    some = train[400:900][train[400:900].labels != 3]  # no folder for three: the others keep their labels
    write_pictures(Path("field"), some, names)
    command = f"{ASSESS} --field field --requirement 0.5".split()
    alone = CliRunner().invoke(app, command)
    assert alone.exit_code == 2
    assert "field must have one folder for each of the model's 10 classes, got 9" in " ".join(alone.output.split())
    named = CliRunner().invoke(app, [*command, "--trained-on", "train"])
    assert named.exit_code == 0, named.output
    assessment = results.load(digits / "out" / "assessment.json", Assessment)
    assert [part.name for part in assessment.by_class] == names
    assert assessment.by_class[3].labels == 0
    assert assessment.pmi < 0.2


def test_assess_keeps_groups_together(digits: Path) -> None:
    data = load_digits().train[400:]
    rows = [f"blind.npz[{i}],{'first' if i < 300 else i}" for i in range(len(data))]
    np.savez("blind.npz", x=data.x)
    Path("groups.csv").write_text("\n".join(["file,group", *rows]))
    command = f"{ASSESS} --field blind.npz --requirement 0.5 --groups groups.csv"
    assert CliRunner().invoke(app, command.split()).exit_code == 2
    asked = [line.split(",")[0] for line in Path("out/to_label/labels.csv").read_text().splitlines()[1:]]
    assert len(asked) == 60
    parts = read_samples("blind.npz", groups="groups.csv").split(profile=0.25, assessment=0.75)
    assert len({"first"} & {*parts["profile"].groups}) + len({"first"} & {*parts["assessment"].groups}) == 1
    assert {name.removesuffix(".png") for name in asked} <= {*parts["assessment"].names}
    Path("groups.csv").write_text("\n".join(["file,group", *rows[1:]]))
    missing = CliRunner().invoke(app, command.split())
    assert f"but 1 of {len(data)} are missing" in " ".join(missing.output.split()), missing.output


def test_assess_reads_a_folder_of_pictures_without_labels(digits: Path) -> None:
    Path("pictures").mkdir()
    for i, x in enumerate(load_digits().train.x[400:700]):
        Image.fromarray((x[0] * 255).round().to(torch.uint8).numpy()).save(f"pictures/{i:03}.png")
    result = CliRunner().invoke(app, f"{ASSESS} --field pictures --requirement 0.5".split())
    assert result.exit_code == 2
    assert "60 of 60 inputs have no label yet" in result.output


def write_table(folder: Path, data: Samples, *, first: str = "name,label") -> None:
    """Pictures in two folders that are no classes, and their labels in labels.csv."""
    rows = [first]
    for i, (x, y) in enumerate(zip(data.x, data.labels.tolist(), strict=True)):
        day = folder / ("mon" if i % 2 else "tue")
        day.mkdir(parents=True, exist_ok=True)
        Image.fromarray((x[0] * 255).round().to(torch.uint8).numpy()).save(day / f"{i:03}.png")
        rows.append(f"{folder.name}/{day.name}/{i:03}.png,{y}" if i % 3 else f"{i:03}.png,{y}")
    Path("labels.csv").write_text("\n".join([*rows, "gone.png,1"]))


def test_assess_and_doctor_read_labels_from_a_table(digits: Path) -> None:
    data = load_digits().train[400:900]
    write_table(Path("field"), data)
    command = f"{ASSESS} --field field --requirement 0.5 --labels-file labels.csv"
    done = CliRunner().invoke(app, command.split())
    assert done.exit_code == 0, done.output
    assert "labels.csv: 1 of 501 rows are ignored" in " ".join(done.output.split())
    by_table = results.load(digits / "out" / "assessment.json", Assessment)
    assert by_table.labels == 60
    assert by_table.pmi < 0.2, "the labels belong to their inputs"
    doctor = "doctor digit_net:net --weights net.safetensors --data field --labels-file labels.csv"
    checked = CliRunner().invoke(app, doctor.split())
    assert checked.exit_code == 0, checked.output
    assert "on Samples(500 x (1, 8, 8)" in checked.output
    Path("labels.csv").write_text("\n".join(Path("labels.csv").read_text().splitlines()[:101]))
    some = CliRunner().invoke(app, doctor.split())
    assert "labels.csv has labels of 100 of 500 inputs" in some.output
    assert "on Samples(100 x" in some.output
    few = CliRunner().invoke(app, command.split())
    assert few.exit_code == 2
    assert re.search(r"labels needed: \d+ of 60 inputs have no label in labels.csv", few.output)


def test_a_table_of_labels_needs_data_and_rows_that_match(digits: Path) -> None:
    write_table(Path("field"), load_digits().train[400:500])
    alone = CliRunner().invoke(app, ["doctor", "digit_net:net", "--labels-file", "labels.csv"])
    assert "--labels-file labels the inputs of --data: give --data too" in " ".join(alone.output.split())
    Path("labels.csv").write_text("name,label\na.png,1\nb.png,2\n")
    for command in (f"{ASSESS} --requirement 0.5 --field", "doctor digit_net:net --data"):
        done = CliRunner().invoke(app, f"{command} field --labels-file labels.csv".split())
        assert done.exit_code == 2
        assert "none of its 2 rows names one (a.png, b.png)" in " ".join(done.output.split())


def test_a_table_of_labels_without_class_names_is_said_to_be_read_as_numbers(digits: Path) -> None:
    write_table(Path("field"), load_digits().train[400:500])
    doctor = "doctor digit_net:net --weights net.safetensors --data field --labels-file labels.csv"
    done = " ".join(CliRunner().invoke(app, doctor.split()).output.split())
    assert "labels.csv: labels are read as numbers from 0 to 9, since the names of the classes are unknown" in done


def test_assess_reports_faulty_rows_before_the_profile_and_notes_unknown_ones(
    digits: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez("blind.npz", x=load_digits().train.x[400:])
    command = f"{ASSESS} --field blind.npz --requirement 0.5".split()
    assert CliRunner().invoke(app, command).exit_code == 2
    table = Path("out/to_label/labels.csv")
    text = table.read_text()
    lines = text.splitlines()
    table.write_text("\n".join([lines[0], *(f"{line}cow" for line in lines[1:5]), *lines[5:]]))
    monkeypatch.setattr("operant.profile.fit_profile", lambda *_, **__: pytest.fail("the profile was fitted"))
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 2
    assert "4 labels in out/to_label/labels.csv are faulty: line 2 of" in " ".join(done.output.split())
    assert "; and 1 more" in " ".join(done.output.split())
    monkeypatch.undo()
    monkeypatch.chdir(digits)
    table.write_text(f"{text}ghost.png,3\n")
    noted = CliRunner().invoke(app, command)
    assert "1 of 61 rows are ignored, since they name no input that was asked for (ghost)" in " ".join(
        noted.output.split()
    )


def test_assess_reads_the_field_part_of_a_file_with_all_parts(digits: Path) -> None:
    data = load_digits().train[400:]
    np.savez("all.npz", x_field=data.x, y_field=data.y, x_test=data.x[:30], y_test=9 - data.labels[:30])
    done = CliRunner().invoke(app, f"{ASSESS} --field all.npz --requirement 0.5".split())
    assert done.exit_code == 0, done.output
    whole = CliRunner().invoke(app, f"{ASSESS} --field field.npz --requirement 0.5".split())
    assert done.output == whole.output


def test_assess_labels_where_the_risk_map_of_cases_says(digits: Path) -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    model = Classifier(load_weights(net, "net.safetensors"))
    draws = RecipeDraws(recipe=Recipe(severities={"gaussian_noise": uniform(0, 0.5)}))
    draws(model, load_digits().train[:400], generator=spawn(100)).save("suite")
    by_map = CliRunner().invoke(app, f"{ASSESS} --field field.npz --requirement 0.5 --risk suite".split())
    assert by_map.exit_code == 0, by_map.output
    assert "Risk map from 400 cases: " in by_map.output
    assert results.load(digits / "out" / "assessment.json", Assessment).labels == 60
    by_margin = CliRunner().invoke(app, f"{ASSESS} --field field.npz --requirement 0.5".split())
    assert "This is assessment 2 in out" in by_margin.output  # other inputs were drawn


def test_assess_needs_cases_for_a_risk_map(digits: Path) -> None:
    (digits / "campaign").mkdir()
    (digits / "campaign" / "run.json").write_text("{}")
    result = CliRunner().invoke(app, f"{ASSESS} --field field.npz --requirement 0.5 --risk campaign".split())
    assert result.exit_code == 2, result.output
    assert "campaign has no cases for a risk map: a campaign draws them when" in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--field field.npz --requirement 2", "--requirement must be a share"),
        ("--field nothing.npz --requirement 0.1", "there is no nothing.npz"),
        ("--field field.npz --requirement 0.1 --confidence 1", "confidence must"),
        ("--field field.npz --requirement 0.1 --trained-on field.npz", "were learned from"),
        ("--field field.npz --requirement 0.1 --labels 5000", "remain: --labels must be at most"),
        ("--field field.npz --requirement 0.1 --out net.safetensors", "File exists"),
        ("--field wide.npz --requirement 0.1 --labels 20", "cannot run"),
    ],
)
def test_assess_that_cannot_run_says_why(digits: Path, options: str, message: str) -> None:
    result = CliRunner().invoke(app, f"assess digit_net:net --weights net.safetensors {options}".split())
    assert result.exit_code == 2, result.output
    assert message in " ".join(result.output.split())


# operant robot

DIGIT_NET = """
from torch import nn

def net():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
"""


@pytest.fixture
def digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A user's folder with a small trained network for 8x8 digits."""
    data = load_digits()
    (tmp_path / "digit_net.py").write_text(DIGIT_NET)
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    fitted = fit(module, data.train, epochs=5, learning_rate=5e-3, generator=spawn(0), progress=False)
    save_weights(fitted.module, tmp_path / "net.safetensors")
    train, test = data.train[:400], data.test[:100]
    np.savez(tmp_path / "all.npz", x_train=train.x, y_train=train.y, x_test=test.x, y_test=test.y)
    np.savez(tmp_path / "unlabelled.npz", x=test.x)
    np.savez(tmp_path / "wide.npz", x=np.random.default_rng(0).random((300, 1, 8, 9), dtype=np.float32))
    np.savez(tmp_path / "field.npz", x=data.train.x[400:], y=data.train.y[400:])
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("digit_net", None)


QUICK = "--radius 0.05 --rounds 1 --seeds-per-round 60 --cases-per-round 50 --epochs 1 --out run"
DIGITS = f"robot digit_net:net --weights net.safetensors --train all.npz --test all.npz {QUICK}"


def test_the_exit_code_of_robot_says_whether_the_requirement_is_met_and_robot_resumes(digits: Path) -> None:
    missed = CliRunner().invoke(app, [*DIGITS.split(), "--requirement", "1"])
    assert missed.exit_code == 1, missed.output
    assert "The budget is spent after round 1" in missed.output
    assert (digits / "run" / "model.safetensors").exists()
    rounds = {file: file.read_bytes() for file in (digits / "run").glob("round-*/round.json")}
    assert len(rounds) == 2
    met = CliRunner().invoke(app, [*DIGITS.split(), "--requirement", "0.01"])
    assert met.exit_code == 0, met.output
    assert "The requirement was met after round 0" in met.output
    assert {file: file.read_bytes() for file in rounds} == rounds, "finished rounds are read, not computed again"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("--requirement 1.5", "requirement must be a share from 0 to 1"),
        ("--requirement 0.5 --train nowhere.npz", "there is no nowhere.npz"),
        ("--requirement 0.5 --test unlabelled.npz", "unlabelled.npz holds no labels"),
        ("--requirement 0.5 --radius -1", "radius must be positive"),
        ("--requirement 0.5 --mode both", "mode must be"),
    ],
)
def test_robot_that_cannot_run_says_why(digits: Path, change: str, words: str) -> None:
    done = CliRunner().invoke(app, [*DIGITS.split(), *change.split()])
    assert done.exit_code == 2, done.output
    assert words in " ".join(done.output.split())
    assert "Traceback" not in done.output


def test_robot_does_not_start_if_the_doctor_finds_errors(digits: Path) -> None:
    without_weights = DIGITS.replace("--weights net.safetensors", "--bounds -1 0.5")
    done = CliRunner().invoke(app, [*without_weights.split(), "--requirement", "0.5"])
    assert done.exit_code == 2, done.output
    assert not (digits / "run" / "round-000").exists()


def test_ctrl_c_says_how_to_resume(digits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("operant.robot.RobOT.__call__", interrupted)
    done = CliRunner().invoke(app, [*DIGITS.split(), "--requirement", "0.5"])
    assert done.exit_code == 130
    assert "nothing was finished yet. To start again: run the same command again (folder run)" in done.output
    (digits / "run" / "round-000").mkdir(parents=True)
    (digits / "run" / "round-000" / ".robustness.json.seal").touch()
    done = CliRunner().invoke(app, [*DIGITS.split(), "--requirement", "0.5"])
    assert "finished work is kept. To resume: run the same command again (folder run)" in done.output


# operant study


def tiny_study(out: Path, *, data: Path | None, scale: str, workers: int, console: Console) -> Path:
    """A study of another package."""
    if scale == "stopped":
        raise KeyboardInterrupt
    return out / f"{scale}-{workers}.md"


def weighed_study(out: Path, *, weights: Path | None = None, **_: object) -> Path:
    return out / str(weights)


@pytest.fixture
def own_studies(monkeypatch: pytest.MonkeyPatch) -> list[EntryPoint]:
    """Studies that are installed in place of ours."""
    studies = [
        EntryPoint("tiny", f"{__name__}:tiny_study", "operant.studies"),
        EntryPoint("weighed", f"{__name__}:weighed_study", "operant.studies"),
        EntryPoint("broken", "a_package_nobody_has:run_study", "operant.studies"),
    ]
    monkeypatch.setitem(sys.modules, __name__, sys.modules.get(__name__) or _this_module())
    monkeypatch.setattr("importlib.metadata.entry_points", lambda *, group: studies)
    return studies


def _this_module() -> ModuleType:
    module = ModuleType(__name__)
    vars(module).update(globals())
    return module


def study(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["study", *arguments])
    assert "Traceback" not in done.output
    return done.exit_code, " ".join(done.output.split())


def test_studies_of_other_packages_run(own_studies: list[EntryPoint]) -> None:
    assert study() == (0, "broken tiny weighed")
    assert study("tiny", "--scale", "smoke", "--out", "there") == (0, "there/smoke-2.md")
    assert study("weighed", "--weights", "w") == (0, "operant-study-weighed-small/w")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("tinny", "there is no study named tinny; choose one of broken, tiny, weighed"),
        ("broken", "the study broken cannot be imported from a_package_nobody_has:run_study: No module named"),
        ("tiny --weights w", "--weights is an option of weighed alone, not of tiny; leave it out"),
    ],
)
def test_a_study_that_cannot_run_says_why(own_studies: list[EntryPoint], arguments: str, message: str) -> None:
    code, output = study(*arguments.split())
    assert code == 2
    assert f"cannot run: {message}" in output


def test_options_that_no_study_accepts_are_rejected(own_studies: list[EntryPoint]) -> None:
    own_studies[:] = own_studies[:1]
    assert "--rivals is not an option of tiny; leave it out" in study("tiny", "--rivals")[1]


def test_a_stopped_study_says_how_to_resume(
    own_studies: list[EntryPoint], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = "run the same command again (folder operant-study-tiny-stopped)"
    assert study("tiny", "--scale", "stopped") == (
        130,
        f"stopped: nothing was finished yet. To start again: {command}",
    )
    Path("operant-study-tiny-stopped").mkdir()
    Path("operant-study-tiny-stopped/results.json").touch()
    assert study("tiny", "--scale", "stopped") == (130, f"stopped: finished work is kept. To resume: {command}")


@pytest.mark.parametrize("arguments", [[], ["robot"]])
def test_without_studies_the_command_says_how_to_install_them(
    own_studies: list[EntryPoint], arguments: list[str]
) -> None:
    own_studies.clear()
    code, output = study(*arguments)
    assert code == 2
    assert "no studies are installed; run `pip install -e studies` in a clone" in output


# Models by file name, and what operant.toml already says


TOML = """
[model]
module = "users_code.py:Net"
weights = "net.safetensors"
mean = 0.1
std = 0.9
[data]
train = "data.npz"
clean = "data.npz"
field = "field.npz"
[labels]
file = "labelled.npz"
[requirement]
pmi = 0.2
confidence = 0.9
[run]
folder = "my-run"
"""


@pytest.fixture
def configured(folder: Path) -> Path:
    """The user's folder with an operant.toml and 300 field inputs that the model gets right."""
    (folder / "operant.toml").write_text(TOML)
    x = torch.rand(300, 1, 8, 8, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        y = built()((x - 0.1) / 0.9).argmax(1)
    np.savez(folder / "field.npz", x=x.numpy())
    np.savez(folder / "labelled.npz", x=x.numpy(), y=y.numpy())
    return folder


def test_a_model_is_named_by_module_or_by_file(run: Callable[..., Result], folder: Path) -> None:
    by_module = run(*HEALTHY)
    for name in ("users_code.py:Net", "./users_code.py:Net", str(folder / "users_code.py:Net")):
        by_file = run(name, *HEALTHY[1:])
        assert (by_file.exit_code, by_file.output) == (0, by_module.output)
    missing = run("user_code.py:Net", *HEALTHY[1:])
    assert missing.exit_code == 2
    assert "user_code.py; did you mean users_code.py?" in missing.stderr


def test_the_doctor_reads_operant_toml(run: Callable[..., Result], configured: Path) -> None:
    explicit = run(*HEALTHY)
    assert run().output == explicit.output
    assert run("--data", "data.npz").output == explicit.output
    assert "normalisation" in run("--mean", "0.9", "--std", "0.1").output  # options replace what the file says


def test_advice_on_mean_and_std_fits_how_the_model_was_named(run: Callable[..., Result], configured: Path) -> None:
    wrong = ["--mean", "0.9", "--std", "0.1"]
    assert re.search(r"Give mean = [\d.]+ and std = [\d.]+", run(*wrong).output)
    by_options = run(*HEALTHY[:-4], *wrong).output
    (options,) = re.findall(r"Give `(--mean [\d.]+ --std [\d.]+)`", by_options)
    assert run(*HEALTHY[:-4], *options.split()).exit_code == 0


@pytest.mark.parametrize("command", ["doctor", "run", "assess"])
@pytest.mark.parametrize("key", ["file = 'labels.csv'", "folder = '.'"])
def test_an_ambiguous_table_of_labels_is_noticed_before_data_are_read(
    configured: Path, monkeypatch: pytest.MonkeyPatch, command: str, key: str
) -> None:
    """By the doctor too, which reads its own data."""
    named = TOML.replace("[data]", '[data]\nclasses = ["1", "2", "3"]').replace('file = "labelled.npz"', key)
    Path("operant.toml").write_text(named)
    Path("labels.csv").write_text("name,label\nfield.npz[0],2\nfield.npz[1],1\n")
    if command != "doctor":
        monkeypatch.setattr("operant.campaign.build.read_samples", lambda *_, **__: pytest.fail("data were read"))
    done = CliRunner().invoke(app, [command])
    assert done.exit_code == (1 if command == "doctor" else 2)
    assert f"[labels] {key.split()[0]}: 2 labels in" in " ".join(done.output.split())
    assert "'2' may be the number of a class or its name" in " ".join(done.output.split())
    Path("labels.csv").write_text("name,class\nfield.npz[0],2\nfield.npz[1],1\n")
    if command == "doctor":
        assert CliRunner().invoke(app, [command]).exit_code == 0


def test_commands_read_files_with_the_limit_of_operant_toml(
    run: Callable[..., Result], configured: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("operant.files._configured", None)  # restored afterwards
    monkeypatch.setattr("operant.files.MAX_RATIO", 0)
    (configured / "operant.toml").write_text(TOML.replace("[data]", "[data]\nmax_bytes = 1000"))
    assert "more than the limit of 1e-06 GB" in run().stderr
    assert "more than the limit of 1e-06 GB" in CliRunner().invoke(app, ["assess"]).stderr


def test_without_operant_toml_what_is_missing_is_named(run: Callable[..., Result]) -> None:
    assert "there is no model: name one, or run this in a folder with operant.toml" in run().stderr
    assert "there are no data: give --data" in run("users_code:Net").stderr
    for command, what in {"assess": "there is no requirement", "triage": "name a folder to open"}.items():
        result = CliRunner().invoke(app, [command])
        assert result.exit_code == 2
        assert what in result.stderr


def test_assess_reads_operant_toml(configured: Path) -> None:
    result = CliRunner().invoke(app, ["assess", "--labels", "60"])
    assert result.exit_code == 0, result.output
    assert "at most 20 % is required" in result.output
    assert "hold with 90 % confidence" in result.output
    flags = ["--field", "labelled.npz", "--requirement", "0.2", "--confidence", "0.9", "--trained-on", "data.npz"]
    model = [part for part in HEALTHY if part not in ("--data", "data.npz")]
    explicit = CliRunner().invoke(app, ["assess", *model, *flags, "--labels", "60", "--out", "other"])
    numbers = [results.load(configured / out / "assessment.json", Assessment) for out in ("operant-assess", "other")]
    assert explicit.exit_code == 0
    assert numbers[0] == numbers[1]
    Path("operant.toml").write_text(TOML.replace("labelled.npz", "nothing.npz"))
    assert CliRunner().invoke(app, ["assess", "--labels", "60", "--out", "third"]).exit_code == 2
    given = ["--labels", "60", "--out", "third", "--labels-file", "labelled.npz"]
    assert CliRunner().invoke(app, ["assess", *given]).exit_code == 0
    assert results.load(configured / "third" / "assessment.json", Assessment) == numbers[0]


def test_a_named_model_takes_nothing_from_the_configured_one(run: Callable[..., Result], configured: Path) -> None:
    named = ["users_code:Net", "--weights", "net.safetensors"]  # without mean and std
    here = run(*named, "--data", "data.npz").output
    field = ["--field", "labelled.npz", "--requirement", "0.2", "--labels", "60"]
    CliRunner().invoke(app, ["assess", *named, *field, "--out", "here"])
    (configured / "operant.toml").unlink()
    assert run(*named, "--data", "data.npz").output == here
    CliRunner().invoke(app, ["assess", *named, *field, "--confidence", "0.9", "--out", "there"])
    found = [results.load(configured / out / "assessment.json", Assessment) for out in ("here", "there")]
    assert found[0] == found[1]
    assert found[0].pmi > 0


# Folders of pictures in operant.toml

COLOUR_NET = """
import torch
from torch import nn

def red_green_blue():
    module = nn.Sequential(nn.Flatten(), nn.Linear(192, 3))
    with torch.no_grad():
        module[1].weight.copy_(torch.eye(3).repeat_interleave(64, 1) / 64)
        module[1].bias.zero_()
    return module

def alphabetical():
    module = red_green_blue()
    with torch.no_grad():
        module[1].weight.copy_(module[1].weight.flip(0))
    return module
"""
COLOUR_LABELS = """
def red_green_blue(asked):
    return asked.x.mean((2, 3)).argmax(1)

def alphabetical(asked):
    return 2 - red_green_blue(asked)
"""
COLOURS = """
[model]
module = "colour_net.py:red_green_blue"
[data]
train = "train"
clean = "clean"
field = "field"
classes = ["red", "green", "blue"]
size = [8, 8]
[labels]
callable = "colour_labels.py:red_green_blue"
[requirement]
pmi = 0.3
confidence = 0.9
"""


@pytest.fixture
def colours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A perfect model for pictures whose largest channel is their class; in clean and field there is no blue."""
    names, kinds = ("red", "green", "blue"), {"train": (160, 3), "clean": (40, 2), "field": (240, 2)}
    for part, (n, classes) in kinds.items():
        x = torch.rand(n, 3, 16, 16, generator=spawn(0, part)) / 2
        for i, picture in enumerate(x):
            picture[i % classes] += 0.5
            (tmp_path / part / names[i % classes]).mkdir(parents=True, exist_ok=True)
            pixels = (picture * 255).to(torch.uint8).permute(1, 2, 0).numpy()
            Image.fromarray(pixels).save(tmp_path / part / names[i % classes] / f"{i:03}.png")
    (tmp_path / "colour_net.py").write_text(COLOUR_NET)
    (tmp_path / "colour_labels.py").write_text(COLOUR_LABELS)
    (tmp_path / "operant.toml").write_text(COLOURS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    for name in ("colour_net", "colour_labels"):
        sys.modules.pop(name, None)


NO_CLASSES = {'classes = ["red", "green", "blue"]\n': "", "red_green_blue": "alphabetical"}
OTHER_NAMES = {'["red", "green", "blue"]': '["B", "G", "R"]', "red_green_blue": "alphabetical"}


def change_toml(changes: dict[str, str]) -> None:
    for old, new in changes.items():
        assert old in Path("operant.toml").read_text()
        Path("operant.toml").write_text(Path("operant.toml").read_text().replace(old, new))


@pytest.mark.usefixtures("colours")
@pytest.mark.parametrize("options", ["", "--data clean", "--data train", "colour_net.py:red_green_blue --data clean"])
@pytest.mark.parametrize("changes", [{}, {'clean = "clean"\n': ""}, NO_CLASSES, OTHER_NAMES])
def test_the_doctor_numbers_folders_as_the_campaign_does(options: str, changes: dict[str, str]) -> None:
    change_toml(changes)
    if "alphabetical" in changes.values():
        options = options.replace("red_green_blue", "alphabetical")
    result = CliRunner().invoke(app, ["doctor", *options.split()])
    assert result.exit_code == 0, result.output
    assert "accuracy 100 %" in result.output


@pytest.mark.usefixtures("colours")
@pytest.mark.parametrize("model", ["", "colour_net.py:MODEL"])
@pytest.mark.parametrize(
    ("changes", "names"),
    [({}, ["red", "green", "blue"]), (NO_CLASSES, ["blue", "green", "red"]), (OTHER_NAMES, ["B", "G", "R"])],
)
def test_assess_numbers_folders_as_the_campaign_does(model: str, changes: dict[str, str], names: list[str]) -> None:
    change_toml(changes)
    model = model.replace("MODEL", changes.get("red_green_blue", "red_green_blue"))
    for field in ([], ["--field", "field"]):
        out = "_".join(["out", *field])
        options = [*model.split(), *field, "--requirement", "0.3", "--labels", "60", "--out", out]
        result = CliRunner().invoke(app, ["assess", *options])
        assert result.exit_code == 0, result.output
        assert "hold with 90 % confidence" in result.output
        assessment = results.load(Path(out) / "assessment.json", Assessment)
        assert (assessment.pmi, [part.name for part in assessment.by_class]) == (0, names)
        assert [part.labels > 0 for part in assessment.by_class] == [name not in ("blue", "B") for name in names]


@pytest.mark.usefixtures("colours")
@pytest.mark.parametrize("changes", [{}, {'clean = "clean"\n': ""}])  # without clean, some of train is held out
def test_assess_rejects_the_training_data_of_the_configuration(changes: dict[str, str]) -> None:
    change_toml({**changes, 'field = "field"': 'field = ["field", "train"]'})
    for options in (["--field", "train", "--labels", "30"], ["--labels", "60"]):
        result = CliRunner().invoke(app, ["assess", *options])
        assert result.exit_code == 2, result.output
        train = read_samples("train", size=(8, 8))
        pool = train.split(profile=0.25, assessment=0.75)["assessment"]
        assert f"{len(pool)} of the pool's" in " ".join(result.output.split())


@pytest.mark.usefixtures("colours")
@pytest.mark.parametrize("field", [[], ["--field", "field"]])
def test_size_and_groups_come_from_the_options_or_from_the_configuration(field: list[str]) -> None:
    files = sorted(f"{file.parent.name}/{file.name}" for file in Path("field").glob("*/*.png"))
    Path("few.csv").write_text("\n".join(["file,group", *(f"{file},a" for file in files[2:])]))
    assess = ["assess", *field, "--labels", "60"]
    given = CliRunner().invoke(app, [*assess, "--groups", "few.csv"])
    change_toml({'"field"': '"field"\ngroups = "few.csv"'})
    configured = CliRunner().invoke(app, assess)
    for result in (given, configured):
        assert "few.csv must give the group of every input, but 2 of 240" in " ".join(result.output.split())
    change_toml({'groups = "few.csv"\n': "", "size = [8, 8]\n": ""})
    assert CliRunner().invoke(app, assess).exit_code == 2
    sized = CliRunner().invoke(app, [*assess, "--size", "8", "8"])
    assert sized.exit_code == 0, sized.output


@pytest.mark.usefixtures("colours")
def test_the_groups_of_the_configuration_are_for_its_field() -> None:
    change_toml({'"field"': '"field"\ngroups = "groups.csv"'})
    Path("field").rename("other")
    result = CliRunner().invoke(app, ["assess", "--field", "other", "--labels", "60"])
    assert result.exit_code == 0, result.output


def test_robot_numbers_test_folders_by_the_training_folders(colours: Path) -> None:
    from operant.cli.robot import _read_parts

    model = Classifier(nn.Sequential(nn.Flatten(), nn.Linear(192, 3)))
    parts = _read_parts(model, Path("train"), Path("clean"), (8, 8), None)
    for part in parts.values():
        assert part.classes == ("blue", "green", "red")
        assert [part.classes[y] for y in part.labels] == [name.split("/")[0] for name in part.names or ()]
    assert set(parts["test"].labels.tolist()) == {1, 2}


def test_robot_reads_operant_toml(colours: Path) -> None:
    text = "--radius 0.01 --requirement 0.5 --seed 3 --rounds 1 --epochs 1 --seeds-per-round 20"
    options = text.split()
    done = CliRunner().invoke(app, ["robot", *options, "--out", "from-toml"])
    assert done.exit_code == 0, done.output
    given = ["colour_net.py:red_green_blue", "--train", "train", "--test", "clean"]
    explicit = CliRunner().invoke(app, ["robot", *given, *options, "--out", "given"])
    assert explicit.output == done.output.replace("from-toml", "given"), "size and classes come from [data]"
    change_toml({'clean = "clean"\n': ""})
    missing = CliRunner().invoke(app, ["robot", *options, "--out", "third"])
    assert missing.exit_code == 2
    assert "there are no test data: give --test, or [data] clean in the operant.toml" in missing.output


@given(
    labels=st.integers(1, 400),
    pool=st.integers(400, 3000),
    pmi=st.floats(0, 0.3),
    above=st.floats(0.001, 0.5),
    confidence=st.floats(0.9, 0.999),
)
@example(labels=100, pool=2000, pmi=0.01, above=0.09, confidence=0.9625)
def test_advice_never_names_fewer_labels_than_were_too_few(
    labels: int, pool: int, pmi: float, above: float, confidence: float
) -> None:
    from operant.cli.assess import _advice

    undecided = Assessment(
        pmi=pmi, upper=None, field_upper=None, confidence=confidence, design="stratified", method="", bound="",
        pool=pool, labels=labels, failures=0, by_class=(), by_cell=(), ids=(),
    )  # fmt: skip
    advice = _advice(undecided, pmi + above)
    for needed in re.findall(r"about (\d+) suffice", advice):
        assert labels < int(needed) <= pool
    assert ("cannot be estimated" in advice) + ("suffice (" in advice) + ("collect more field inputs" in advice) == 1


def test_report_and_triage_find_the_campaigns_folder(configured: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for command in ("report", "triage"):
        result = CliRunner().invoke(app, [command])
        assert result.exit_code == 2
        assert "my-run" in result.stderr
    opened: list[Path] = []
    monkeypatch.setattr("operant.triage.open_desk", lambda folder, **_: opened.append(folder) or 1 / 0)
    (configured / "to_label").mkdir()
    (configured / "to_label" / "labels.csv").write_text("name,label\n")
    text = TOML.replace('file = "labelled.npz"', 'folder = "to_label"')
    (configured / "operant.toml").write_text(text)
    CliRunner().invoke(app, ["triage"])
    (configured / "my-run" / "cases").mkdir(parents=True)
    (configured / "my-run" / "cases" / "manifest.json").write_text("{}")
    CliRunner().invoke(app, ["triage"])
    assert [folder.name for folder in opened] == ["to_label", "my-run"]


@pytest.mark.parametrize("content", ["", "{", "7", '{"a": 1}', "[" * 100_000])
def test_a_damaged_history_of_assessments_is_named(tmp_path: Path, content: str) -> None:
    from operant.cli.assess import _read_history

    (tmp_path / "history.json").write_text(content)
    with pytest.raises(ValueError, match=r"history.json is damaged .*; choose a new folder"):
        _read_history(tmp_path, labels=10, seed=0)


def test_assess_checks_the_model_first(configured: Path) -> None:
    wrong = CliRunner().invoke(app, ["assess", "--labels", "60", "--mean", "0.9", "--std", "0.1"])
    assert wrong.exit_code == 2
    assert "normalisation may be wrong" in wrong.stderr
    assert "the doctor found errors that would make every result meaningless" in wrong.stderr
