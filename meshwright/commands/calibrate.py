"""The command that measures this machine: `calibrate`. jax loads only when it runs."""

from __future__ import annotations

from mesh.errors import InputError
from meshwright.commandline import command, flag, option, whole
from meshwright.options import PROGRESS, format_of
from meshwright.output import check_output, finish, progress_line


@command(
    option("--devices", "cpu|gpu|tpu", "Which of this machine's.", default="cpu"),
    option("--count", "N", "How many; default: all, of a CPU 8.", read=whole),
    flag("--quick", "Rough, and several times quicker."),
    PROGRESS,
    option("-o --output", "CHIP.TOML", "The chip file."),
    *format_of(),
)
def calibrate(*, devices: str, count: int | None, quick: bool, progress: str, output: str | None, style: str) -> None:
    """Measure the devices of this machine, and write them as a chip file, which --chip-file takes.

    \b
    meshwright calibrate --devices cpu --quick -o chip.toml
    """
    from executor.calibrate.calibrate import calibrate as run
    from executor.calibrate.calibrate import chip_file
    from executor.devices import Unavailable
    from meshwright.reports.calibrate import blocks

    check_output(output)
    try:
        with progress_line(progress) as say:
            calibration = run(devices, count=count, quick=quick, progress=say)
    except Unavailable as reason:
        raise InputError(f"--devices {devices}: {reason}") from None
    finish(calibration, lambda: blocks(calibration, output), style, output, chip_file(calibration))
