"""Files that were changed at random: every reader gives a value or a sentence, with little memory and time."""

import subprocess
import sys
from pathlib import Path

import pytest

import file_fuzzing
from file_fuzzing import NAMED, READERS
from operant.data.samples import name_of

QUICK = 8  # changed files per reader
SLOW = 20_000  # changed files in all


def problems(folder: Path, names: list[str], count: int, first: int = 0) -> list[str]:
    """What is wrong with how changed files are read, in a process of its own, which a reader may crash."""
    command = [sys.executable, file_fuzzing.__file__, str(folder), ",".join(names), str(first), str(count)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    found = [] if all(line.endswith(": ok") for line in lines) else [done.stdout.replace(": ok\n", "\r")[-3000:]]
    if done.returncode or len(lines) != len(names) * (count + 1):  # and a pipe in place of each file
        last = lines[-1] if lines else "the valid file"
        found.append(f"the process ended with {done.returncode} at {last}\n{done.stderr[-2000:]}")
    return found


def test_every_reader_refuses_changed_files_with_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", ":".join(sys.path))
    assert problems(tmp_path, list(READERS), QUICK) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_twenty_thousand_changed_files(tmp_path, monkeypatch, name):
    monkeypatch.setenv("PYTHONPATH", ":".join(sys.path))
    assert problems(tmp_path, [name], SLOW // len(READERS) + 1, first=QUICK) == []


def test_a_problem_is_found_and_named(tmp_path):
    """The laws of the fuzzer itself: it must notice a foreign error, a nameless one, and too much memory."""
    file_fuzzing.put("a", b"valid")(tmp_path)

    def fails(error):
        def read(folder):
            raise error

        return file_fuzzing.problem(file_fuzzing.Reader(write=print, file="a", read=read), tmp_path)

    assert fails(ValueError(f"{tmp_path} must be a valid file")) == ""
    assert "KeyError" in fails(KeyError("x"))
    assert "names the file" in fails(ValueError("must be a valid file"))
    assert "more than" in fails(ValueError(f"{tmp_path} cannot be read: Unable to allocate 5 GiB"))


FIRST_NAMED = b'{"%s": {"name": "%%s", "file": "a.png"}}' % name_of(int(NAMED.ids[0])).encode()
CRAFTED = [
    ("label table", b'name,label\n"' + b"a" * 200_000),  # longer than the csv module reads
    ("label table", b"name,label\na," + b"9" * 5000),
    ("label classes", b'{"classes": 1e999, "names": []}'),
    ("label classes", b'{"classes": 1000000000000, "names": []}'),
    ("label inputs", FIRST_NAMED % b"../outside"),
    ("label inputs", FIRST_NAMED % b"a/../../outside"),
    ("label inputs", b'{"a": {"name": "one", "file": "a.png"}, "b": {"name": "one", "file": "b.png"}}'),
    ("assessments", b"[[25, 0], 7]"),
    ("assessments", b"[[25, 0], [true, 0]]"),
    ("run lock", b'{"pid": Infinity, "host": "a", "started": "b"}'),
    ("run lock", b'{"pid": -1, "host": "a", "started": "b"}'),
    ("run seal", b'{"run": "a", "files": [[1, 2], ["a", 3]]}'),
    ("run timing", b"[" * 100_000),
    ("run timing", b'{"a": 1' + b"0" * 400 + b"}"),
    ("weights", (lambda h: len(h).to_bytes(8, "little") + h)(b'{"a":{"dtype":"F32","shape":[],"data_offsets":[0,0]}}')),
]


@pytest.mark.parametrize(("name", "content"), CRAFTED)
def test_a_crafted_file_is_read_or_refused_with_a_sentence(tmp_path, name, content):
    folder = tmp_path / "folder"  # a reader must write nothing beside it
    folder.mkdir()
    READERS[name].write(folder)
    (folder / READERS[name].file).write_bytes(content)
    assert file_fuzzing.problem(READERS[name], folder) == ""
