import errno
import os
import resource
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from patience import PATIENCE_S
from transformers import BertConfig, BertModel, NystromformerConfig, NystromformerModel

from paratune.base.system_errors import forward_error, system_error
from paratune.errors import EXIT_CONFIG, EXIT_FAILED, EXIT_OUT_OF_MEMORY, ConfigError


def _caused(outer: Exception, cause: Exception) -> Exception:
    outer.__cause__ = cause
    return outer


@pytest.mark.parametrize(
    ("error", "code", "value"),
    [
        (OSError(errno.ENAMETOOLONG, "", "a/b.csv"), EXIT_CONFIG, "a/b.csv"),
        (OSError(errno.ELOOP, "", b"circle"), EXIT_CONFIG, "circle"),
        (OSError(errno.EMFILE, ""), EXIT_FAILED, "ulimit -n"),
        (OSError(errno.EAGAIN, ""), EXIT_FAILED, "ulimit -u"),
        (OSError(errno.EROFS, "", "out.csv"), EXIT_FAILED, "out.csv"),
        (OSError(errno.EFBIG, "", "out.csv"), EXIT_FAILED, "ulimit -f"),
        (MemoryError(), EXIT_OUT_OF_MEMORY, "MemoryError"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), EXIT_OUT_OF_MEMORY, "DefaultCPUAllocator"),
        (ImportError("libtorch_cpu.so: failed to map segment from shared object"), EXIT_OUT_OF_MEMORY, "libtorch_cpu"),
        (_caused(ModuleNotFoundError("import of X"), MemoryError("std::bad_alloc")), EXIT_OUT_OF_MEMORY, "bad_alloc"),
        (RuntimeError("Symlink loop from 'circle'"), EXIT_CONFIG, "circle"),
        (RuntimeError("can't start new thread"), EXIT_FAILED, "ulimit -u"),
        (RuntimeError("Too many open files. Communication with the workers ..."), EXIT_FAILED, "ulimit -n"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_errors_of_the_system_have_codes(error: Exception, code: int, value: str):
    explained = system_error(error)
    assert explained is not None
    assert (explained.exit_code, value in str(explained)) == (code, True)


@pytest.mark.parametrize("error", [KeyError("a"), OSError("no number"), OSError(errno.ENOENT, "", "a"), RuntimeError()])
def test_a_bug_stays_a_bug(error: Exception):
    assert system_error(error) is None


def test_an_error_in_a_handler_is_a_bug():
    faulty = AttributeError("x")
    faulty.__context__ = PermissionError(errno.EACCES, "", "a")
    assert system_error(faulty) is None


def test_a_long_path_is_shown_by_its_start():
    explained = system_error(OSError(errno.ENAMETOOLONG, "", "x" * 5000))
    assert len(str(explained)) < 500
    assert "4800" in str(explained)


def _run(*command: str, memory_bytes: int = resource.RLIM_INFINITY) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes)),
    )


@pytest.mark.parametrize("name", ["a" * 5000, "abc/" * 1300], ids=["one_part", "many_parts"])
def test_a_path_that_is_too_long_is_refused(name: str):
    done = _run("-m", "paratune", "jobs", name)
    assert (done.returncode, "Traceback" in done.stderr) == (EXIT_CONFIG, False), done.stderr[-2000:]


def test_too_little_memory_to_import_is_an_error():
    program = "from paratune import cli\n@cli.app.command\ndef load():\n    import torch\ncli.main()"
    done = _run("-c", program, "load", memory_bytes=200 << 20)  # PyTorch's library alone has 400 MB
    assert (done.returncode, "Traceback" in done.stderr) == (EXIT_OUT_OF_MEMORY, False), done.stderr[-2000:]


def _raised(act: Callable[[], object]) -> Exception:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - of torch, of any kind
        act()
    return caught.value


def test_an_error_of_the_code_of_a_model_has_a_code():
    size = {"vocab_size": 9, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    config = NystromformerConfig(**size, num_landmarks=4, segment_means_seq_len=8, max_position_embeddings=8)
    model, ids = NystromformerModel(config), torch.ones(1, 5, dtype=torch.long)
    explained = forward_error(_raised(lambda: model(ids)))
    assert isinstance(explained, ConfigError)
    assert (explained.code, explained.facts["file"]) == ("model.unsupported", "modeling_nystromformer.py")
    explained = forward_error(_raised(lambda: model(ids[:, :1].repeat(1, 8) + 99)))  # raised in torch/nn/functional.py
    assert explained is not None
    assert explained.facts["file"] == "modeling_nystromformer.py"
    # Lengths of 8 and, with as many landmarks as tokens, the attention of BERT are possible.
    model(torch.ones(1, 8, dtype=torch.long))


def test_other_errors_are_no_errors_of_a_model(monkeypatch: pytest.MonkeyPatch):
    config = BertConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    model, ids = BertModel(config), torch.ones(1, 5, dtype=torch.long)
    assert forward_error(_raised(lambda: [][1])) is None
    assert forward_error(_raised(lambda: BertModel(None))) is None  # not in a forward pass
    for error in (torch.OutOfMemoryError("x"), RuntimeError("CUDA error: x"), MemoryError()):

        def fail(*_: object, error: Exception = error) -> None:
            raise error

        # As a collective that starts in a forward pass, it is raised by a frame of another file.
        monkeypatch.setattr(model.embeddings.word_embeddings, "forward", fail)
        assert forward_error(_raised(lambda: model(ids))) is None
