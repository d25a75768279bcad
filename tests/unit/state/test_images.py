"""Images of nodes and pods."""

from typing import Any

import pytest

from berth_operator.core.values.request import PodImages
from berth_operator.state.objects import images, nodes, pods
from tests.objects.builders import container, node, pod

Raw = dict[str, Any]


def test_a_node_s_images_are_read_by_all_their_names() -> None:
    raw = [{"names": ["x@sha256:1", "x:1"], "sizeBytes": 7}, {"names": None}, {"names": ["y:1"]}]
    assert nodes.info(node(images=raw)).images == (("x@sha256:1", 7), ("x:1", 7), ("y:1", 0))


@pytest.mark.parametrize("status", [{}, {"images": None}, {"images": []}])
def test_a_node_without_images(status: Raw) -> None:
    assert images.of_node(status) == ()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        pytest.param("x", "x:latest", id="no tag"),
        pytest.param("x:1", "x:1", id="a tag"),
        pytest.param("host:5000/x", "host:5000/x:latest", id="a port is no tag"),
        pytest.param("host:5000/x:1", "host:5000/x:1", id="a port and a tag"),
        pytest.param("x@sha256:1", "x@sha256:1", id="a digest"),
    ],
)
def test_an_image_is_named_as_nodes_name_it(name: str, expected: str) -> None:
    assert images.of_pod({"containers": [container(image=name)]}).names == (expected,)


def test_a_pod_s_images_are_those_of_its_containers_and_volumes() -> None:
    raw = pod(
        containers=[container(image="b"), container()],
        initContainers=[container(image="a:1")],
        volumes=[{"image": {"reference": "c"}}, {"emptyDir": {}}],
    )
    assert pods.pending(raw).request.images == PodImages(names=("a:1", "b:latest", "c:latest"), containers=3, volumes=1)
