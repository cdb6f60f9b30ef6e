"""Each test runs in a process of its own: descriptor 2 belongs to the whole process."""

import json
import os
import signal
import subprocess
import sys
import textwrap

PREFACE = """
import os, sys, time
from tokend_server.native_stderr import StderrGuard
seen = []
guard = StderrGuard(seen.append)
def wait_for(n):
    end = time.monotonic() + 10
    while sum(seen) < n and time.monotonic() < end: time.sleep(0.01)
"""


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PREFACE + textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **environment},
    )


def test_what_native_code_prints_is_counted_and_not_shown():
    done = run("""
        os.write(2, b"a secret\\nanother\\nno end")
        wait_for(2)
        print(sum(seen))
    """)
    assert (done.returncode, done.stdout, done.stderr) == (0, "2\n", "")


def test_python_still_reaches_stderr():
    done = run('print("from python", file=sys.stderr)')
    assert done.stderr == "from python\n"


def test_a_crash_of_our_own_keeps_its_traceback_and_exit_code():
    done = run("raise RuntimeError('at start')")
    assert done.returncode == 1
    assert "RuntimeError: at start" in done.stderr


def test_a_fatal_signal_shows_where_python_was():
    done = run("""
        def deep_in_the_server():
            os.abort()
        deep_in_the_server()
    """)
    assert done.returncode == -signal.SIGABRT
    assert "deep_in_the_server" in done.stderr


def test_a_panic_of_the_tokenizers_library_stays_out_of_the_log():
    # A normalizer that inserts before the first letter makes the library index past the end of its text.
    letters = {chr(code): code - 97 for code in range(97, 123)}
    spec = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [],
        "normalizer": {"type": "Replace", "pattern": {"Regex": r"^(?=\p{L})"}, "content": " "},
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True},
        "post_processor": None, "decoder": None,
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "vocab": letters, "merges": [],
        },
    }  # fmt: skip
    code = """
        from tokenizers import Tokenizer
        tokenizer = Tokenizer.from_str(os.environ["SPEC"])
        try:
            tokenizer.encode_batch(["hello"])
        except BaseException as panic:
            print(type(panic).__name__)
        wait_for(3)
        print(sum(seen) >= 3)
    """
    done = run(code, SPEC=json.dumps(spec), RUST_BACKTRACE="0")
    assert done.stdout == "PanicException\nTrue\n"
    assert done.stderr == ""


def test_more_than_the_pipe_holds_never_blocks_the_writer():
    # The writer holds the GIL all the while, so nothing is drained.
    done = run("""
        import ctypes
        write = ctypes.PyDLL(None).write
        block = b"x" * 65536
        for _ in range(64):
            write(2, block, len(block))
        print("done")
    """)
    assert done.stdout == "done\n"


def test_closing_gives_the_descriptor_back():
    done = run("""
        os.write(2, b"hidden\\n")
        guard.close()
        os.write(2, b"shown\\n")
        print("python", file=sys.stderr)
        print(sum(seen))
    """)
    assert done.stderr == "shown\npython\n"
    assert done.stdout == "1\n"


def test_without_a_thread_lines_are_counted_at_the_end_and_python_is_heard():
    done = run("""
        import threading
        from tokend_server.native_stderr import stderr_aside
        guard.close()
        aside = []
        with stderr_aside(aside.append):
            assert threading.active_count() == 1
            os.write(2, b"a secret\\n" * 100_000)
            print("from python", file=sys.stderr)
        os.write(2, b"after\\n")
        print("and after", file=sys.stderr)
        print(aside)
    """)
    assert (done.returncode, done.stdout) == (0, "[100000]\n")
    assert done.stderr == "from python\nafter\nand after\n"


def test_without_a_thread_all_is_as_before_after_an_error():
    done = run("""
        from tokend_server.native_stderr import stderr_aside
        guard.close()
        with stderr_aside(seen.append):
            raise RuntimeError("at start")
    """)
    assert done.returncode == 1
    assert "RuntimeError: at start" in done.stderr
