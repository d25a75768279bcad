"""Cards with good links to each other, on simulated machines with NVIDIA's topologies."""

from tests.integration.operator import world as words
from tests.integration.operator.world import World

SPEC = "scheduling.koordinator.sh/gpu-partition-spec"
LINKED = {"berth.dev/gpu-topology": "nvlink"}


def gpus(count: int) -> dict[str, str]:
    return {"nvidia.com/gpu": str(count)}


def test_cards_with_nvlinks_among_all_of_them(shared: World) -> None:
    """A DGX-1: two quads of cards, each fully connected, and single links between the quads."""
    shared.nodes(profile="v100")

    shared.pod("one", gpus(1))
    [first] = words.minors(shared.bound("one"))
    shared.pod("quad", gpus(4), annotations=LINKED)
    quad = words.minors(shared.bound("quad"))
    shared.pod("late", gpus(3), annotations=LINKED)
    late = words.minors(shared.bound("late"))

    assert (first, quad, late) == (0, [4, 5, 6, 7], [1, 2, 3])
    shared.remove("late")
    shared.pod("unlucky", gpus(4), annotations=LINKED)
    assert shared.waits("unlucky") == (
        "0/1 nodes are available: "
        "1 node(s) have too few free GPUs (4 requested with gpu-core 100 and gpu-memory-ratio 100)."
    )
    shared.remove("quad")
    assert words.minors(shared.bound("unlucky", deadline=words.PROMPT)) == [4, 5, 6, 7]


def test_partitions_of_an_nvswitch(shared: World) -> None:
    """The link table of the board is built in, by the model that the driver reports."""
    shared.nodes(profile="h100")

    shared.pod("one", gpus(1))
    shared.bound("one")
    shared.pod("pair", gpus(2), annotations={SPEC: "{}"})
    shared.bound("pair")
    shared.pod("half", gpus(4), annotations={SPEC: '{"allocatePolicy": "Restricted"}'})
    shared.bound("half")

    minors = {name: words.minors(shared.arena.get("pods", name)) for name in ("one", "pair", "half")}
    assert minors == {"one": [0], "pair": [2, 3], "half": [4, 5, 6, 7]}
    shared.remove("pair")
    shared.pod("three", gpus(3), annotations={SPEC: "{}"})
    assert shared.waits("three") == "0/1 nodes are available: 1 node(s) have no partition of 3 GPUs."
