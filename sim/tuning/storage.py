"""Where a study is kept: a journal file, or any storage that Optuna knows by URL."""

import logging
import os
import socket
import time
from hashlib import sha256
from pathlib import Path
from typing import Any

import optuna
import pandas as pd
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.storages.journal._file import get_lock_file

from formats import InputError
from sim.sweeping.task import code_digest
from sim.tuning.evaluator import Evaluator
from sim.tuning.space import Space, word

__all__ = ["mend", "open_study", "study_name", "worker", "works"]

GRACE_S = 10  # a lock that is older was left behind by a kill [s]
TRIES = 3  # to open a storage that other processes may be making
LONGEST_S = 3600.0  # a trial of another machine that began earlier is given up [s]


def study_name(space: Space, work: Evaluator, seed: int) -> str:
    """Return the name of a study: a digest of all that its trials depend on.

    Scenario, workloads with their requests, space, objectives, constraints, seed and code; not the
    budget, so that a larger one goes on where a smaller one ended.
    """
    digest = sha256()
    content = {
        "scenario": work.scenario.model_dump(mode="json"),
        "slo": [load.scenario.slo.model_dump(mode="json") for load in work.loads],
        "space": space.model_dump(mode="json"),
        "goals": [str(g) for g in (*work.objectives, *work.constraints)],
        "seed": seed,
        "worst": work.worst,
        "code": code_digest(),
    }
    digest.update(word(content).encode())
    for load in work.loads:
        table = load.seen(load.of(work.scenario))
        rows = pd.util.hash_pandas_object(table.astype(str), index=False)
        digest.update(rows.to_numpy().tobytes())
    goals = ", ".join(o.metric for o in work.objectives)
    return f"{work.scenario.name}: {goals} ({digest.hexdigest()[:16]})"


def open_study(name: str, objectives: int, storage: str | Path | None) -> optuna.Study:
    """Return a new or stored study, all of whose objectives are minimised.

    Parameters
    ----------
    name : str
        Name inside the storage.
    objectives : int
        How many values a trial has.
    storage : str or Path, optional
        A file for Optuna's journal, or any Optuna storage URL; None keeps it in memory.

    Raises
    ------
    InputError
        The storage cannot be opened, or is no journal.
    """
    optuna.logging.set_verbosity(logging.ERROR)
    place: Any = str(storage) if storage is not None else None
    try:
        if place is not None and "://" not in place:
            place = JournalStorage(_journal(Path(place)))
        return _created(name, objectives, place)
    except Exception as error:
        what = f"the study cannot be opened: {type(error).__name__}: {error}"
        repair = "name another file or URL with --storage"
        raise InputError(what, str(storage), repair=repair) from None


def _created(name: str, objectives: int, place: Any) -> optuna.Study:  # noqa: ANN401
    """Return a study; tries again where another process makes the tables at the same time."""
    for attempt in range(TRIES):
        try:
            return optuna.create_study(
                study_name=name,
                storage=place,
                directions=["minimize"] * objectives,
                load_if_exists=True,
            )
        except Exception:
            if attempt == TRIES - 1 or "://" not in str(place):
                raise
            time.sleep(1.0 + attempt)
    raise AssertionError("unreachable")


def _journal(path: Path) -> JournalFileBackend:
    path.parent.mkdir(parents=True, exist_ok=True)
    # not the lock by symbolic link: left behind by a kill it may point nowhere and never time out
    lock = JournalFileOpenLock(str(path), grace_period=GRACE_S)
    if path.exists():
        with get_lock_file(lock):
            mend(path)
    return JournalFileBackend(str(path), lock)


def mend(path: Path) -> None:
    """Cut off a last line that an interrupt tore, after which nothing could be appended."""
    with path.open("r+b") as file:
        content = file.read()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            file.truncate(whole)


def worker() -> dict[str, Any]:
    """Return who runs a trial."""
    return {"host": socket.gethostname(), "pid": os.getpid()}


def works(trial: optuna.trial.FrozenTrial) -> bool:
    """Return whether a running trial is still worked on.

    One of this machine is, while its process lives; one of another machine is for an hour.
    """
    who = trial.user_attrs.get("worker")
    if who is None or trial.datetime_start is None:
        return False
    if who["host"] != socket.gethostname():
        age = pd.Timestamp.now() - pd.Timestamp(trial.datetime_start)
        return bool(age.total_seconds() < LONGEST_S)
    return who["pid"] != os.getpid() and _lives(who["pid"])


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # another user's
    return True
