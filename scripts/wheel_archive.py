"""The normal form of a wheel: sorted members with one timestamp and plain permissions."""

import os
import stat
import sys
import time
import zipfile
from collections.abc import Iterable
from pathlib import Path

FIRST_OF_ZIP = 315_532_800  # 1980-01-01, UTC


def moment() -> tuple[int, int, int, int, int, int]:
    """The timestamp of every member."""
    given = os.environ.get("SOURCE_DATE_EPOCH") or str(FIRST_OF_ZIP)
    if not given.isdigit():
        sys.exit(f"expected SOURCE_DATE_EPOCH to be seconds since 1970, but got {given}")
    year, month, day, hour, minute, second, *_ = time.gmtime(max(int(given), FIRST_OF_ZIP))
    return year, month, day, hour, minute, second - second % 2  # zip files store seconds in steps of two


def ordered(names: Iterable[str]) -> list[str]:
    """The metadata last, as the wheel specification recommends, and RECORD after everything that it lists."""
    return sorted(names, key=lambda name: (".dist-info/" in name, name.endswith(".dist-info/RECORD"), name))


def permissions(member: zipfile.ZipInfo) -> int:
    return 0o755 if member.external_attr >> 16 & stat.S_IXUSR else 0o644


def normalise(wheel: Path, target: Path) -> Path:
    """Writes the files of `wheel` in the normal form to `target`, another file, and returns `target`."""
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as to:
        members = {member.filename: member for member in source.infolist() if not member.is_dir()}
        for name in ordered(members):
            data = source.read(name)
            if name.endswith(".dist-info/RECORD"):
                data = "".join(sorted(data.decode().splitlines(keepends=True))).encode()
            normal = zipfile.ZipInfo(name, moment())
            normal.external_attr = (stat.S_IFREG | permissions(members[name])) << 16
            normal.compress_type = zipfile.ZIP_DEFLATED
            to.writestr(normal, data)
    return target
