"""The command line: parse, call, print."""

import os
import shutil
import sys
import warnings

_BAD_INPUT, _INTERRUPTED, _NOBODY_READS = 2, 130, 141  # the latter as a shell has them: 128 + SIGINT, 128 + SIGPIPE


def main() -> None:
    """Run the `isoconv` command. An expected failure is one line on stderr and exit code 2, never a traceback.

    Ctrl-C is exit code 130, a reader that went away (`isoconv … | head`) 141. A traceback means a mistake in isoconv.
    """
    code: object
    try:
        try:
            if getattr(sys.stdout, "errors", None) == "strict":
                sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]  # what it cannot write is no failure
            from isoconv.cli.app import run

            warnings.filterwarnings("ignore", module="PIL")  # a picture that can be read is read, however large
            code = run(sys.argv[1:])
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()  # now, while a closed pipe can still be dealt with
    except SystemExit as error:
        code = error.code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python fails again when it exits
        code = _NOBODY_READS
    except KeyboardInterrupt:
        print_line("isoconv: Interrupted.")
        code = _INTERRUPTED
    except Exception as error:
        if (line := _explain(error)) is None:
            raise
        if line:
            print_line(f"isoconv: {line}")
        code = _BAD_INPUT
    _exit(code)


def print_line(line: str) -> None:
    """Print a line on stderr, now; on a terminal, in place of progress that was not finished.

    It stays one line whatever names are in it: what cannot be printed becomes a question mark.
    """
    line = "".join(character if character.isprintable() else "?" for character in line)
    erase = f"\r{'':{shutil.get_terminal_size().columns - 1}}\r" if sys.stderr.isatty() else ""
    print(f"{erase}{line}\n", end="", file=sys.stderr, flush=True)  # whole: other processes may print, too


def _exit(code: object) -> None:
    """End the process; one of several at once, without the interpreter's own end.

    Threads of gloo may still be giving tensors back. Python stops them then, torch takes that for an error and aborts, and
    torchrun ends the other processes, whatever they are doing.
    """
    code = code if isinstance(code, int) else int(code is not None)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
        os._exit(code)
    sys.exit(code)


def _explain(error: Exception) -> str | None:
    """Return the line of an expected failure, none if it has been printed; None for any other, which Python reports."""
    from isoconv.errors import IsoconvError

    if isinstance(error, IsoconvError):
        return str(error)
    if hasattr(error, "format_message"):  # click's exceptions, by what they can do: typer brings a click of its own
        if type(error).__name__ == "NoArgsIsHelpError":  # isoconv, and nothing else
            error.show()  # type: ignore[attr-defined]
            return ""
        context = getattr(error, "ctx", None)
        message = _say_number(error) or " ".join(error.format_message().split())
        stop = "" if message.endswith((".", "?")) else "."
        return f"{message}{stop} Help: {context.command_path if context else 'isoconv'} --help"
    if isinstance(error, OSError):  # the disk is full, a folder is write-protected, a file vanished
        path = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, (str, bytes)) else ""
        return f"Cannot continue: {path}{error.strerror or error}."
    # torch raises a class of its own on a GPU, on the CPU a RuntimeError that says so.
    cpu_full = isinstance(error, RuntimeError) and "DefaultCPUAllocator: can't allocate memory" in str(error)
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError" or cpu_full:
        return "Not enough memory. Use smaller images, batches or networks."
    return None


def _say_number(error: Exception) -> str:
    """Return what to say of a number that typer has had pydantic parse, in vain; of other errors nothing."""
    wanted = {"int_parsing": "a whole number", "float_parsing": "a number"}
    for problem in getattr(error.__cause__, "errors", list)():
        if problem["type"] in wanted:
            return f"Expected {wanted[problem['type']]} for {error.param.opts[0]}. Got {problem['input']!r}."  # type: ignore[attr-defined]
    return ""
