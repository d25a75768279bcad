"""GPU instances of cards, as `nvidia-smi mig -lgip` and `-lgipp` print them on real ones.

Only the fixture has these tables. Programs ask NVML, because amounts of memory differ between drivers, and ids between
cards: 5 is 4g on an A100 and 2g on an A30. https://docs.nvidia.com/datacenter/tesla/mig-user-guide has places and
engines. The mocks of go-nvml have other places, which no card has.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class MigProfile:
    """A kind of GPU instance."""

    number: int
    """NVML_GPU_INSTANCE_PROFILE_…, by which NVML is asked for it."""
    id: int
    """The number by which instances are made."""
    name: str
    slices: int
    """Compute slices."""
    instances: int
    """How many a card can have."""
    memory_mib: int
    multiprocessors: int
    copy_engines: int
    starts: Sequence[int]
    size: int
    """Memory slices."""
    decoders: int = 0
    jpegs: int = 0
    ofas: int = 0

    def line(self) -> str:
        """Return the profile's line of the state file."""
        engines = f"{self.copy_engines} {self.decoders} 0 {self.jpegs} {self.ofas}"
        counts = f"{self.slices} {self.instances} {self.multiprocessors} {engines} 0 {self.memory_mib}"
        return f"{self.number} {self.id} {self.name} {counts} {self.size} {','.join(map(str, self.starts))}"


_ONE, _TWO, _THREE, _FOUR, _SEVEN, _ONE_MEDIA, _TWO_MEDIA, _ONE_DOUBLE = 0, 1, 2, 3, 4, 7, 8, 9
"""1_SLICE, 2_SLICE, 3_SLICE, 4_SLICE, 7_SLICE, 1_SLICE_REV1, 2_SLICE_REV1, 1_SLICE_REV2."""


def _eight_slices(
    memory: Sequence[tuple[int, int]], *, multiprocessors: Sequence[int], decoders: Sequence[int], copy: int, jpeg: bool
) -> tuple[MigProfile, ...]:
    """Return the profiles of a card with eight memory slices.

    Args:
        memory: GB of the name and MiB of one, two, four and eight memory slices.
        multiprocessors: of 1g, 1g with double memory, 2g, 3g, 4g and 7g.
        decoders: of 1g, 1g with media engines, 1g with double memory, 2g, 3g, 4g and 7g.
        copy: copy engines of the card.
        jpeg: whether an instance has as many JPEG engines as decoders; otherwise `+me` and the card have the only one.
    """
    one, double, two, three, four, seven = multiprocessors
    (gb1, mib1), (gb2, mib2), (gb4, mib4), (gb8, mib8) = memory
    rows = (
        (_ONE, 19, f"1g.{gb1}gb", 1, 7, mib1, one, 1, range(7), 1),
        (_ONE_MEDIA, 20, f"1g.{gb1}gb+me", 1, 1, mib1, one, 1, range(7), 1),
        (_ONE_DOUBLE, 15, f"1g.{gb2}gb", 1, 4, mib2, double, 1, (0, 2, 4, 6), 2),
        (_TWO, 14, f"2g.{gb2}gb", 2, 3, mib2, two, 2, (0, 2, 4), 2),
        (_THREE, 9, f"3g.{gb4}gb", 3, 2, mib4, three, 3, (0, 4), 4),
        (_FOUR, 5, f"4g.{gb4}gb", 4, 1, mib4, four, 4, (0,), 4),
        (_SEVEN, 0, f"7g.{gb8}gb", 7, 1, mib8, seven, copy, (0,), 8),
    )
    return tuple(
        MigProfile(
            number=number,
            id=profile,
            name=name,
            slices=slices,
            instances=instances,
            memory_mib=mib,
            multiprocessors=sms,
            copy_engines=copies,
            starts=tuple(starts),
            size=size,
            decoders=decoder,
            jpegs=decoder if jpeg else int(profile in {20, 0}),
            ofas=int(profile in {20, 0}),
        )
        for (number, profile, name, slices, instances, mib, sms, copies, starts, size), decoder in zip(
            rows, decoders, strict=True
        )
    )


A100_40: Final = _eight_slices(
    [(5, 4864), (10, 9856), (20, 19968), (40, 40192)],
    multiprocessors=(14, 14, 28, 42, 56, 98),
    decoders=(0, 1, 1, 1, 2, 2, 5),
    copy=7,
    jpeg=False,
)
A100_80: Final = _eight_slices(
    [(10, 9728), (20, 19968), (40, 40192), (80, 80896)],
    multiprocessors=(14, 14, 28, 42, 56, 98),
    decoders=(0, 1, 1, 1, 2, 2, 5),
    copy=7,
    jpeg=False,
)
H100_80: Final = _eight_slices(
    [(10, 9984), (20, 20096), (40, 40448), (80, 81152)],
    multiprocessors=(16, 26, 32, 60, 64, 132),
    decoders=(1, 1, 1, 2, 3, 4, 7),
    copy=8,
    jpeg=True,
)
A30: Final = tuple(
    MigProfile(
        number=number,
        id=profile,
        name=name,
        slices=slices,
        instances=instances,
        memory_mib=mib,
        multiprocessors=14 * slices,
        copy_engines=slices,
        starts=starts,
        size=slices,
        decoders=slices,
        jpegs=media,
        ofas=media,
    )
    for number, profile, name, slices, instances, mib, starts, media in (
        (_ONE, 14, "1g.6gb", 1, 4, 5952, (0, 1, 2, 3), 0),
        (_ONE_MEDIA, 21, "1g.6gb+me", 1, 1, 5952, (0, 1, 2, 3), 1),
        (_TWO, 5, "2g.12gb", 2, 2, 11968, (0, 2), 0),
        (_TWO_MEDIA, 6, "2g.12gb+me", 2, 1, 11968, (0, 2), 1),
        (_FOUR, 0, "4g.24gb", 4, 1, 24000, (0,), 1),
    )
)
