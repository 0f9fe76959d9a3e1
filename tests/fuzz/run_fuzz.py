"""Runs fuzz targets: `python -m tests.fuzz.run_fuzz [TARGET...] [--seconds S] [--seed N] [--input FILE] [--atheris]`.

If no TARGET is named, all targets run, for S seconds together. On a failure, the input is minimized and saved under
build/fuzz, and the exit code is 1. `--input` runs one file. `--atheris` fuzzes one target with coverage (package
atheris, which nothing else needs: `pip install -c constraints.txt --group fuzz`). Atheris uses our mutator as its
custom mutator, so its inputs get past checksums too.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from pathlib import Path


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("targets", nargs="*", metavar="TARGET")
    parser.add_argument("--seconds", type=float, default=60.0, help="in all (default 60)")
    parser.add_argument("--seed", type=int, default=int(os.environ.get("HEADRACE_TEST_SEED") or 0))
    parser.add_argument("--input", type=Path, help="run this one file")
    parser.add_argument("--atheris", action="store_true", help="with coverage, one target")
    given = parser.parse_args(arguments)
    if given.atheris:
        import atheris  # before the modules that atheris instruments

        with atheris.instrument_imports(
            include=["headrace", "headrace_core", "headrace_broker", "headrace_controller"]
        ):
            from tests.fuzz.fuzz_targets import TARGETS
    else:
        from tests.fuzz.fuzz_targets import TARGETS
    from tests.fuzz.fuzz_engine import Failure, burst, check, report

    unknown = set(given.targets) - set(TARGETS)
    if unknown or ((given.atheris or given.input) and len(given.targets) != 1):
        print(f"fuzz: {'no target ' + ', '.join(sorted(unknown)) if unknown else 'name one target'}; there are:")
        print("  " + " ".join(TARGETS))
        return 2
    chosen = [TARGETS[name] for name in given.targets or TARGETS]
    if given.atheris:
        return _with_coverage(chosen[0], given.seconds, given.seed)
    if given.input:
        data = given.input.read_bytes()
        error = check(chosen[0], data)
        if error is not None:
            print(report(chosen[0], data, error, str(given.input)))
        return 0 if error is None else 1
    seed = given.seed or random.SystemRandom().randrange(2**31)
    print(f"fuzz: seed {seed}, {len(chosen)} targets, {given.seconds:.0f} s", flush=True)
    failed = 0
    for target in chosen:
        started = time.monotonic()
        try:
            done = burst(target, seed, seconds=given.seconds / len(chosen))
        except Failure as failure:
            failed += 1
            print(f"fuzz: FAILED {failure}", flush=True)
        else:
            seconds = time.monotonic() - started
            print(f"fuzz: {target.name}: {done} inputs in {seconds:.1f} s ({done / seconds:.0f}/s)", flush=True)
    return 1 if failed else 0


def _with_coverage(target, seconds: float, seed: int) -> int:  # type: ignore[no-untyped-def]
    """libFuzzer keeps inputs that reach new code in build/fuzz/<target>.corpus."""
    import atheris

    from tests.fuzz.fuzz_engine import FOUND, Mutator, check, pool, report

    kept = FOUND / f"{target.name}.corpus"
    kept.mkdir(parents=True, exist_ok=True)
    inputs = pool(target)
    for number, data in enumerate(inputs):
        (kept / f"seed-{number}").write_bytes(data)

    def one(data: bytes) -> None:
        error = check(target, bytes(data))
        if error is not None:
            raise report(target, bytes(data), error, "atheris")

    def mutate(data: bytes, max_size: int, mutation_seed: int) -> bytes:
        rng = random.Random(mutation_seed)
        if rng.random() < 0.5:
            data = bytes(atheris.Mutate(data, max_size))
        return Mutator(rng, inputs, target.fix).mutate(data)[:max_size]

    options = [sys.argv[0], f"-max_total_time={seconds:.0f}", f"-seed={seed or 1}", "-max_len=65536", str(kept)]
    atheris.Setup(options, one, custom_mutator=mutate)
    atheris.Fuzz()  # ends the process
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
