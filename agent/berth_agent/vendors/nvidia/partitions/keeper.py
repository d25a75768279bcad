"""Makes and destroys partitions: does the steps of `plan` one by one, and looks at the card after each.

NVML is open only during a call, so that this process is no client that keeps an instance or a mode in use.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

import structlog

from berth_agent.vendor import PartitionProfile, Placement, RefusedError
from berth_agent.vendors.nvidia.nvml import library, mig
from berth_agent.vendors.nvidia.nvml.library import Handle, NvmlError
from berth_agent.vendors.nvidia.partitions import plan
from berth_agent.vendors.nvidia.partitions.plan import Instance, Intent, SeenCard, Step
from berth_agent.vendors.nvidia.partitions.record import MAX_PARTITIONS, PartitionRecord

MAX_STEPS: Final = 32
"""A partition needs less than ten."""
IN_USE_TRIES: Final = 20
IN_USE_PAUSE: Final = 0.25
"""Seconds between two tries to change what is in use."""

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class CardLostError(RefusedError):
    """A card does not answer, is not on this node, or has no MIG: `list` leaves it out."""


class PartitionKeeper:
    """The partitions of a node. One call at a time."""

    def __init__(
        self, record: PartitionRecord, *, boot: str, library_path: Path | None, sleep: Callable[[float], object]
    ) -> None:
        self._record = record
        self._boot = boot
        self._library = library_path
        self._sleep = sleep

    def list(self) -> dict[str, Any]:
        """Return the cards that can have MIG instances: modes, kinds of instances, and the instances that are there.

        A card that does not answer is not among `cards`; `problems` says why, and whether the record is not written.

        Raises:
            NvmlError: NVML does not answer.
        """
        cards, problems = [], []
        try:
            self._record.restore()
        except OSError as error:
            problems.append(f"the record of partitions is not on the disk: {error}")
        with self._session():
            for index in range(library.cards()):
                try:
                    if (handle := _with_mig(index)) is not None:
                        cards.append(self._described(handle))
                except NvmlError as error:
                    if error.lost_session:
                        raise
                    problems.append(f"card {index}: {error}")
        return {"cards": cards, "problems": problems}

    def make(self, key: str, *, card: str, placement: Placement) -> str:
        """Make a partition, or complete it, and return the UUID of its MIG device.

        Raises:
            RefusedError: it cannot be made there; the text says why.
            NvmlError: a call failed. What was made is complete after the next call, or gone after `destroy`.
            OSError: the record cannot be written.
        """
        known = self._record.get(key)
        if known and (known.card, known.placement) != (card, placement):
            raise RefusedError(f"partition {key} is recorded at another placement of {known.card}; destroy it first")
        if not known and len(self._record) >= MAX_PARTITIONS:
            raise RefusedError(f"{MAX_PARTITIONS} partitions are recorded, which is the maximum")
        with self._session():
            if known and known.wanted:
                return self._complete(key)
            if not any(_fits(profile, placement) for profile in mig.profiles(self._handle(card))):
                raise RefusedError(f"{card} has no GPU instances like {placement}")
            if known:
                self._finish(key)
            self._record.put(key, Intent(card=card, placement=placement, boot=self._boot))
            try:
                return self._complete(key)
            except RefusedError:
                with contextlib.suppress(RefusedError, NvmlError):
                    self._roll_back(key)
                raise

    def _complete(self, key: str) -> str:
        made = self._finish(key)
        if not isinstance(made, plan.Made):
            raise RefusedError(f"partition {key} was destroyed while it was made")
        instance = mig.gpu_instance(self._handle(self._record[key].card), made.instance)
        (device,) = (compute.device for compute in mig.compute_instances(instance) if compute.id == made.compute)
        return library.uuid(device)

    def destroy(self, key: str) -> None:
        """Destroy a partition that this process made. If there is none under the key, there is nothing to do.

        If its card does not answer, the record says that it is to be destroyed, and the caller goes on: its pod must be
        able to end, so that the node can be drained. If the card answers again, `list` shows the key.

        Raises:
            RefusedError: it is in use, or somebody has made a compute instance in it.
            NvmlError: a call failed; repeat it.
            OSError: the record cannot be written.
        """
        if key in self._record:
            with self._session():
                try:
                    self._roll_back(key)
                except CardLostError as error:
                    _log.warning("partition stays in the record until its card answers", key=key, reason=str(error))
                except RefusedError:
                    self._keep(key)
                    raise

    def _keep(self, key: str) -> None:
        """Record that a partition that is still whole is wanted: a pod that came later may have it, too.

        The next start would roll it back otherwise.
        """
        intent = self._record[key]
        own = plan.our_instance(intent, self._look(intent.card))
        if own is not None and intent.compute in own.computes:
            self._record.put(key, replace(intent, wanted=True))

    def clear(self, card: str) -> None:
        """Turn MIG mode off, so that a pod can have the whole card.

        Raises:
            RefusedError: there are instances, the card is in use, or it needs a reset for it.
            NvmlError: a call failed; repeat it.
        """
        with self._session():
            for _ in range(IN_USE_TRIES):
                seen = self._look(card)
                if not seen.mig:
                    return
                if seen.instances:
                    raise RefusedError(f"{card} has GPU instances: {[instance.id for instance in seen.instances]}")
                if not seen.at_once:
                    raise RefusedError(
                        f"MIG mode of {card} is on; to turn it off, the card needs a reset: nvidia-smi -mig 0"
                    )
                try:
                    mig.set_mode(self._handle(card), on=False)
                except NvmlError as error:
                    if error.code != mig.IN_USE:
                        raise error.about(card) from error
                else:
                    return
                self._sleep(IN_USE_PAUSE)
            raise RefusedError(self._in_use(card, None))

    def recover(self) -> dict[str, str]:
        """Roll back what a crash has left unfinished, and return the problems by key. Call it once, before others."""
        problems = {}
        for key in [key for key in self._record if plan.unfinished(self._record[key], boot=self._boot)]:
            try:
                if self._record[key].boot != self._boot:
                    # What was made before a boot is gone, whether the driver runs now or not.
                    self._record.remove(key)
                    continue
                with self._session():
                    self._roll_back(key)
            except (RefusedError, NvmlError, OSError) as error:
                problems[key] = str(error)
        return problems

    def _roll_back(self, key: str) -> None:
        if self._record[key].wanted:
            self._record.put(key, replace(self._record[key], wanted=False))
        self._finish(key)

    def _finish(self, key: str) -> Step:
        """Do steps until the partition is made or forgotten, and return the last."""
        tries = 0
        for _ in range(MAX_STEPS + 2 * IN_USE_TRIES):
            intent = self._record[key]
            step: Step | None = plan.after_boot(intent, boot=self._boot)
            step = step or plan.next_step(intent, self._look(intent.card))
            try:
                if self._do(key, step):
                    return step
            except NvmlError as error:
                if error.code != mig.IN_USE:
                    raise error.about(self._title(intent)) from error
                tries += 1
                if tries >= IN_USE_TRIES:
                    raise RefusedError(self._in_use(intent.card, getattr(step, "instance", None))) from error
                self._sleep(IN_USE_PAUSE)
        raise RefusedError(f"the partition {key} changes while it is worked on")

    def _do(self, key: str, step: Step) -> bool:
        """Do a step, and return whether it was the last."""
        if isinstance(step, plan.Record):
            self._record.put(key, step.intent)
            return False
        if isinstance(step, plan.Forget):
            self._record.remove(key)
            return True
        if isinstance(step, plan.Made):
            return True
        handle = self._handle(self._record[key].card)
        if isinstance(step, plan.TurnOn):
            mig.set_mode(handle, on=True)
        elif isinstance(step, plan.CreateInstance):
            self._create(key, handle)
        else:
            self._change(handle, step)
        return False

    def _create(self, key: str, handle: Handle) -> None:
        """Make the GPU instance. If that fails, an instance that is there now is not ours."""
        intent = self._record[key]
        place = intent.placement
        for other, earlier in self._record.items():
            if other != key and (earlier.card, earlier.placement) == (intent.card, place):
                # The place is free, so a reset has ended that instance. The driver gives its id to the next one there.
                self._record.put(other, replace(earlier, placing=False, instance=None, compute=None))
        try:
            mig.create_gpu_instance(handle, place.profile, start=place.start, size=place.size)
        except NvmlError as error:
            self._record.put(key, replace(intent, placing=False))
            if error.code == mig.NO_ROOM:
                raise RefusedError(f"no room for {self._title(intent)}: {error}") from error
            raise

    def _change(self, handle: Handle, step: plan.CreateCompute | plan.DestroyCompute | plan.DestroyInstance) -> None:
        instance = mig.gpu_instance(handle, step.instance)
        if isinstance(step, plan.CreateCompute):
            profile = mig.gpu_instance_info(instance).profileId
            (slices,) = (kind.slices for kind in mig.profiles(handle) if kind.id == profile)
            mig.create_whole_compute_instance(instance, slices=slices)
        elif isinstance(step, plan.DestroyCompute):
            mig.destroy_compute_instance(instance, step.compute)
        else:
            mig.destroy_gpu_instance(instance)

    def _title(self, intent: Intent) -> str:
        """Return what an instance is, in words: `3g.40gb at memory slice 4 of GPU-…`."""
        place = intent.placement
        with contextlib.suppress(NvmlError, CardLostError):
            for profile in mig.profiles(self._handle(intent.card)):
                if profile.id == place.profile:
                    return f"{profile.name} at memory slice {place.start} of {intent.card}"
        return f"the GPU instance of profile {place.profile} at memory slice {place.start} of {intent.card}"

    def _in_use(self, card: str, instance: int | None) -> str:
        pids = list(library.if_reported(lambda handle: mig.processes_in(handle, instance), self._handle(card)) or ())
        holders = f"by the processes {pids}" if pids else "by a program that NVML does not name, such as DCGM"
        return f"{card if instance is None else f'GPU instance {instance} of {card}'} is in use {holders}"

    # --- what NVML shows -----------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _session(self) -> Iterator[None]:
        if self._library:
            library.load(self._library)
        library.open_session()
        try:
            yield
        finally:
            library.close_session()

    def _handle(self, card: str) -> Handle:
        """Return the handle of a card. It is not kept: a change of the mode makes handles and minors invalid."""
        for index in range(library.cards()):
            handle = library.if_reported(_with_mig, index)
            if handle is not None and library.if_reported(library.uuid, handle) == card:
                return handle
        raise CardLostError(f"{card} is not on this node, does not answer, or has no MIG")

    def _look(self, card: str) -> SeenCard:
        handle = self._handle(card)
        try:
            return _seen(handle)
        except NvmlError as error:
            if error.lost_session:
                raise
            raise CardLostError(f"{card} does not answer: {error}") from error

    def _described(self, handle: Handle) -> dict[str, Any]:
        card = library.uuid(handle)
        seen = _seen(handle)
        owners = {
            own.id: key
            for key, intent in self._record.items()
            if intent.card == card and intent.boot == self._boot and (own := plan.our_instance(intent, seen))
        }
        return {
            "card": card,
            "mig": seen.mig,
            "changesModeAtOnce": seen.at_once,
            "profiles": [asdict(profile) for profile in mig.profiles(handle)],
            "instances": [
                {
                    "id": instance.id,
                    "profile": instance.placement.profile,
                    "start": instance.placement.start,
                    "size": instance.placement.size,
                    "key": owners.get(instance.id, ""),
                }
                for instance in seen.instances
            ],
        }


def _with_mig(index: int) -> Handle | None:
    """Return the handle of a card; None if it has no MIG."""
    handle = library.card(index)
    enabled = library.unless_unsupported(default=None, function=library.mig_enabled, of=(handle,))
    return None if enabled is None else handle


def _seen(handle: Handle) -> SeenCard:
    enabled = library.mig_enabled(handle)
    return SeenCard(
        mig=enabled,
        at_once=mig.changes_mode_at_once(handle),
        instances=tuple(_instances(handle)) if enabled else (),
    )


def _fits(profile: PartitionProfile, placement: Placement) -> bool:
    return (profile.id, profile.size) == (placement.profile, placement.size) and placement.start in profile.starts


def _instances(handle: Handle) -> Iterator[Instance]:
    for profile in mig.profiles(handle):
        for instance in mig.gpu_instances(handle, profile):
            info = mig.gpu_instance_info(instance)
            yield Instance(
                id=int(info.id),
                placement=Placement(
                    profile=int(info.profileId), start=int(info.placement.start), size=int(info.placement.size)
                ),
                computes=tuple(compute.id for compute in mig.compute_instances(instance)),
            )
