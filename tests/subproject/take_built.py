"""A compiler launcher: `take_built.py COMMANDS LAUNCHER... COMPILER ARGUMENTS...` copies the object that the same
command made in the build with that compile_commands.json, or compiles if there is none."""

import json
import os
import shlex
import shutil
import sys
from pathlib import Path

OF_THE_OUTPUT = ("-o", "-MT", "-MF")


def essence(command):
    """The command without the options that name its outputs."""
    words = iter(command)
    return [word for word in words if word != "-MD" and not (word in OF_THE_OUTPUT and next(words))]


def built_by(command, commands):
    """The object that the same command made, ignoring a launcher in front of it."""
    wanted = essence(command)
    for entry in json.loads(Path(commands).read_text()):
        found, built = essence(shlex.split(entry["command"])), Path(entry["directory"]) / entry["output"]
        if wanted[-len(found) :] == found and built.exists():
            return built
    return None


def main(commands, command):
    if "-c" in command and (built := built_by(command, commands)):
        given = dict(zip(command, command[1:], strict=False))
        shutil.copyfile(built, given["-o"])
        Path(given["-MF"]).write_text(f"{given['-MT']}: {given['-c']}\n")
    else:
        os.execvp(command[0], command)


main(sys.argv[1], sys.argv[2:])
