"""`berth-operator`: start fast.

Python's cycle collector runs again and again while modules are loaded, finds nothing, and takes a fifth of the time. It
begins once the program is there (`process`).
"""

import gc


def main() -> None:
    """Start the operator."""
    gc.disable()
    from berth_operator import process  # noqa: PLC0415 - only now

    process.main()


if __name__ == "__main__":
    main()
